"""The top of a page, which differences are decided, and its table of runs, with results, time and cost."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from analysis.frames.frames import Frames, RunRow, records
from analysis.report.grid import difference_text
from analysis.report.table import Table, are_short
from analysis.scores import labels
from analysis.scores.arm import arms, describe, differing
from analysis.scores.comparable import by_setting
from analysis.scores.comparison import ABOVE, BELOW, DECIDED
from analysis.scores.measured import hours, last_logged
from analysis.scores.metric import AVERAGE, Metric
from analysis.scores.trajectory import TOKENS, devices
from rlvr.records import name_part

MOST_NAMED = 12  # in a headline, of the arms that are above or below


@dataclass(frozen=True)
class Headline:
    """What is decided for one metric: a sentence, and the arms that are above or below their reference.

    direction: "above" or "below" where all decided differences are; "" where there are both; "undecided" without any.
    """

    title: str
    text: str
    arms: tuple[str, ...]
    direction: str


def headlines(table: Table) -> list[Headline]:
    """A headline for each metric that is shown and measured by problem, block by block; where there is an average over
    benchmarks, for that alone.
    """
    cells = [c for c in table.records if c["metric"] in table.shown and c["paired_problems"] > 0]
    cells = [c for c in cells if c["reference"] and not math.isnan(c["difference"])]
    overall = [c for c in cells if c["column"].startswith(AVERAGE)] or cells
    keys = dict.fromkeys((c["block"], c["metric"], c["column"]) for c in overall)
    results: list[Headline] = []
    for block, metric, column in keys:
        metric_cells = [c for c in overall if (c["block"], c["metric"], c["column"]) == (block, metric, column)]
        form = table.format_of(metric, column)
        decided = sorted((c for c in metric_cells if c["verdict"] in DECIDED), key=lambda c: -c["difference"])
        named = [f"{c['row']}: {difference_text(c, form)}" for c in decided[:MOST_NAMED]]
        named += [f"and {len(decided) - MOST_NAMED} more"] if len(decided) > MOST_NAMED else []
        is_one_seed = max(c["paired_seeds"] for c in metric_cells) == 1
        one_seed = " These runs, not yet their arms: 1 seed." if is_one_seed else ""
        place = ", ".join(part for part in (block, column) if part)
        place = f" ({place})" if place else ""
        reference = labels.joined([c["reference"] for c in metric_cells])
        text = f"{len(decided)} of {len(metric_cells)} differences to {reference} are decided{place}.{one_seed}"
        marks = "".join({c["verdict"] for c in decided})
        direction = {"": "undecided", ABOVE: "above", BELOW: "below"}.get(marks, "")
        results.append(Headline(metric, text, tuple(named), direction))
    return results


def scores(table: Table) -> dict[str, float]:
    """The metrics of a sweep as a whole, for trackers: by benchmark and share that is shown, the best arm's and the
    number of decided differences."""
    found: dict[str, float] = {}
    for cell in table.records:
        metric, column = str(cell["metric"]), str(cell["column"])
        if metric not in table.shown or table.format_of(metric, column).unit != "%" or cell["base"]:
            continue
        parts = ("sweep", str(cell["block"]), column, metric.replace("@", "_at_"))
        place = "/".join(name_part(part) for part in parts if part)
        if math.isfinite(cell["mean"]):
            found[f"{place}/best"] = max(found.get(f"{place}/best", 0.0), cell["mean"])
            found[f"{place}/decided"] = found.get(f"{place}/decided", 0) + (cell["verdict"] in DECIDED)
    return found


# --- the table of runs

# Config keys that "differs in" leaves out: the table has columns for them, or they follow from others.
_IN_COLUMNS = ("choices.", "seed", "eta", "loss.eta", "divergence", "loss.divergence", "loss._", "beta", "loss.beta")
_OF_SAMPLING = ("policy.digest", "policy.group", "evaluation.k")  # follow from the policy, and from evaluation.samples


def run_table(frames: Frames) -> tuple[list[tuple[str, bool]], list[dict[str, Any]]]:
    """(header, as (name, whether the column is text); rows, as values by the names that page.html reads). Columns that
    are empty in all rows are left out."""
    metrics = {str(m): m for setting in by_setting(frames) for m in setting.shown}
    costs = [_cost(frames, run) for run in frames.rows]
    unit, scale = ("seconds", 3600) if are_short(cost[0] for cost in costs) else ("hours", 1)
    costs = [(scale * own, scale * in_all, tokens) for own, in_all, tokens in costs]
    rows = list(_rows(frames, list(metrics.values()), costs))
    names = (*metrics, unit, f"device-{unit}", "M tokens")
    of_devices = len(metrics) + 1
    filled = [i for i in range(len(names)) if any(row["results"][i][0] for row in rows)]
    if all(row["results"][of_devices] == row["results"][of_devices - 1] for row in rows):  # one device each
        filled = [i for i in filled if i != of_devices]
    own = [("method", True, "method"), ("η", False, "eta"), ("seed", False, "seed")]
    header = [("run", True), *((name, is_text) for name, is_text, key in own if any(row[key] for row in rows))]
    header += [(names[i], False) for i in filled]
    header += [("step", False), ("state", True)]
    header += [("differs in", True)] if any(row["differs"] for row in rows) else []
    header += [("id", True), ("links", True)]
    return header, [{**row, "results": [row["results"][i] for i in filled]} for row in rows]


def _rows(frames: Frames, metrics: Sequence[Metric], costs: Sequence[tuple[float, ...]]) -> Iterator[dict[str, Any]]:
    keys = differing(frames.rows, (*_IN_COLUMNS, *_OF_SAMPLING))
    method = {i: a.method for a in arms(frames) for i in a.run_ids}
    sources = {i: s.sources for s in by_setting(frames) for a in s.arms for i in a.run_ids}
    for run, row, cost in zip(frames.rows, records(frames.runs), costs, strict=True):
        state = run.state if row["cause"] in ("", "ok") else f"{run.state}: {row['cause']}"
        planned = f"/{row['steps']:.0f}" if math.isfinite(row["steps"]) else ""
        results = [100 * last_logged(frames, run.run_id, metric, sources.get(run.run_id, ())) for metric in metrics]
        yield {
            "name": run.name + (f" (study {run.study})" if run.borrowed else ""),
            "run_id": run.run_id,
            "method": method.get(run.run_id, run.loss),
            "eta": _short_number(run.eta),
            "seed": _short_number(row["seed"]),
            "results": [*(_number(v, "{:.1f}") for v in results), *(_number(v, "{:#.3g}") for v in cost)],
            "state": run.state,
            "state_text": state,
            "message": str(row["message"])[:300],
            "last_step": frames.digest.last(run.run_id),
            "step": f"{frames.digest.last(run.run_id)}{planned}",
            "differs": describe(run, keys),
            "log": f"../../{row['log']}" if row["log"] else "",
            "dashboard": row["dashboard"] if str(row["dashboard"]).startswith(("http://", "https://")) else "",
        }


def _cost(frames: Frames, run: RunRow) -> tuple[float, float, float]:
    """(hours of steps and evaluations, device-hours, millions of sampled tokens) of a run up to its last step."""
    last = frames.digest.last(run.run_id)
    run_hours = hours(frames, run.run_id, last)
    return run_hours, run_hours * devices(frames, run.run_id), frames.digest.sum(run.run_id, TOKENS, last) / 1e6


def _number(value: float, form: str) -> tuple[str, str]:
    """(the text that is printed, the value by which the page sorts)."""
    return (form.format(value).removesuffix("."), repr(value)) if math.isfinite(value) else ("", "")


def _short_number(value: float) -> str:
    return f"{value:g}" if math.isfinite(value) else ""
