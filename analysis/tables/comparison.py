"""The table that every sweep gets: a row per arm, named by what was typed for it, against a reference."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import pandas as pd

from analysis.frames.frames import IMPORTED, Frames, records
from analysis.report.cells import BASE as BASE_ROW
from analysis.report.cells import Block, MetricColumn, Row, cells_frame, columns, fill
from analysis.report.table import Table, format_of, with_notes
from analysis.scores import labels
from analysis.scores.arm import Arm, arms, settings
from analysis.scores.cell import NOT_MEASURED, cell, sharing_base
from analysis.scores.measured import horizons
from analysis.scores.metric import HOURS, Kind, Metric, benchmarks, default_metrics, parse, without_value
from analysis.scores.selection import BASE, as_arm, no_reference, ordered, reference_of, value_of

QUESTION = "How do the arms compare, and which differences are decided?"
NEEDS = "runs that measured something"
HOURS_NOTE = (
    "Time: of steps and evaluations, without start-up and repeated steps (`python -m sweeps status` has these)."
)
MOST_BENCHMARKS = 3  # shown side by side; of more, the average alone


@dataclass(frozen=True)
class ComparisonOptions:
    """The options of the comparison. metrics: names, "" for the usual ones; against: the arm that others are compared
    to, `base`, or "" for the default; across: the knob whose values become columns, "" for none."""

    metrics: str = ""
    against: str = ""
    across: str = ""


def table(frames: Frames, ask: ComparisonOptions = ComparisonOptions()) -> Table | None:
    """None without NEEDS. LookupError for an unknown metric, arm or knob."""
    all_arms = arms(frames)
    if not all_arms:
        return None
    by_setting = {name: [i for arm in of for i in arm.run_ids] for name, of in settings(all_arms).items()}
    usual = {} if ask.metrics else {name: default_metrics(frames, ids) for name, ids in by_setting.items()}
    metrics = parse(ask.metrics, frames, list(frames.seeds)) if ask.metrics else _in_order(frames, by_setting, usual)
    if not metrics:
        return None
    has_reference = False
    parts: list[pd.DataFrame] = []
    for setting, of_setting in settings(all_arms).items():
        setting_arms = ordered(of_setting, frames.swept)
        has_base = _has_base(frames, setting_arms)
        selector = ask.against if has_base else as_arm(ask.against)
        comparable = has_base or len(setting_arms) > 1
        against = _references(setting_arms, selector, frames.baseline) if comparable else {}
        has_reference = has_reference or bool(against)
        sources, _ = benchmarks(frames, by_setting[setting])
        title = ", ".join(filter(None, (setting, *(sources if len(sources) == 1 else ()))))
        block = Block(title, tuple(_rows(setting_arms, against, has_base=has_base)))
        measured = usual.get(setting, metrics)
        cells = fill(frames, [block], _columns(sources, [m for m in metrics if m in measured]))
        parts.append(_crossed(cells, setting_arms, ask.across) if _have(setting_arms, ask.across) else cells)
    if ask.across and not _have(all_arms, ask.across):
        known = ", ".join(dict.fromkeys(key for arm in all_arms for key in arm.knobs)) or "none"
        raise LookupError(f"--across {ask.across}: it was not swept. Swept here: {known}.")
    if ask.against and not has_reference:
        raise LookupError(f"--against {ask.against}: {no_reference(all_arms, as_arm(ask.against))}")
    cells = pd.concat(parts, ignore_index=True)
    if ask.metrics:
        _check_values(cells, metrics)
    return with_notes(
        Table(
            "comparison",
            "Comparison",
            QUESTION,
            cells,
            tuple(map(str, metrics)),
            (
                *_notes(all_arms, has_base=bool(cells["base"].any()), with_hours=HOURS in metrics),
                *(_reached(frames, all_arms, metric) for metric in metrics if metric.kind == Kind.REACH),
            ),
            formats={str(m): format_of(m, cells.loc[cells["metric"] == str(m), "mean"]) for m in metrics},
            differences=True,
        ),
        frames,
    )


def _in_order(
    frames: Frames, by_setting: Mapping[str, Sequence[str]], usual: Mapping[str, Sequence[Metric]]
) -> list[Metric]:
    """The usual metrics of each setting, whose avg@n and pass@k are the widest that it measured, in the usual order."""
    kinds = [metric.kind for metric in default_metrics(frames, chain.from_iterable(by_setting.values()))]
    metrics = dict.fromkeys(chain.from_iterable(usual.values()))
    return sorted(metrics, key=lambda metric: (kinds.index(metric.kind), metric.k))


def _check_values(cells: pd.DataFrame, metrics: Sequence[Metric]) -> None:
    """Raises LookupError for a metric that no arm has measured, nor will when its runs have ended."""
    of_arms = cells[~cells["base"].astype(bool)]
    for metric in metrics:
        states = of_arms.loc[of_arms["metric"] == str(metric), "state"]
        if (states == NOT_MEASURED).all():
            raise without_value(metric)


def _notes(all_arms: Sequence[Arm], *, has_base: bool, with_hours: bool) -> Iterable[str]:
    best = "the best of the arms, not counting the base policy; it is" if has_base else "the best, which is"
    if with_hours:
        yield HOURS_NOTE
    yield f"Runs count at their last evaluation; no checkpoint is selected. Bold: {best} no verdict."
    shared = labels.shared([arm.first for arm in all_arms])
    if shared and len(all_arms) > 1:
        yield f"All arms: {labels.text(shared)}."


def _reached(frames: Frames, all_arms: Sequence[Arm], metric: Metric) -> str:
    """The note on how many runs of each arm reached the level of a metric of REACH."""
    counts: list[str] = []
    for arm in all_arms:
        scored = cell(frames, arm, metric, benchmarks(frames, arm.run_ids)[0])
        values = [] if scored.scores is None else scored.scores.values[:, 0]
        horizon = horizons(frames, metric.unit)[arm.run_ids[0]]
        early = sum(value < horizon for value in values)
        counts.append(f"{early} of {len(values)} ({arm.label or 'the only arm'})")
    rest = f"the others count with the {metric.unit} of the shortest run (restricted mean)"
    return f"{metric}: reached by {', '.join(counts)} runs; {rest}."


def _references(setting_arms: Sequence[Arm], against: str, baseline: str) -> dict[str, str]:
    """By group of an arm, the label of the row that the arm is compared to. against: as in `ComparisonOptions`."""
    if against == BASE or (not against and len(setting_arms) == 1):
        return {arm.group_id: BASE_ROW for arm in setting_arms}
    return {group: arm.label for group, arm in reference_of(setting_arms, against, baseline).items()}


def _rows(setting_arms: Sequence[Arm], against: Mapping[str, str], *, has_base: bool) -> Iterable[Row]:
    if has_base:
        yield Row(BASE_ROW, tuple(setting_arms), base=True)
    for arm in sorted(setting_arms, key=lambda a: a.label not in set(against.values())):
        yield Row(arm.label, (arm,), against=against.get(arm.group_id, ""))


def _has_base(frames: Frames, setting_arms: Sequence[Arm]) -> bool:
    """Whether the arms have a base policy, as their step 0. Policies that were only evaluated have none: there the base
    policy is an arm like any other. Imported samples of another trainer have one if they contain step 0."""
    if setting_arms[0].first.study == IMPORTED:
        counts = frames.counts
        of_arms = counts[counts["run_id"].isin([i for arm in setting_arms for i in arm.run_ids])]
        return bool((of_arms["step"] == 0).any())
    return bool(sharing_base(setting_arms)) and not setting_arms[0].first.knob("policy.digest")


def _columns(sources: tuple[str, ...], metrics: Sequence[Metric]) -> list[MetricColumn]:
    """A column per metric and benchmark, and their average; of more than MOST_BENCHMARKS the average alone."""
    if len(sources) == 1:
        return [MetricColumn(metric, sources, "") for metric in metrics]
    all_columns = columns(metrics, sources)
    return [c for c in all_columns if c.name not in sources or len(sources) <= MOST_BENCHMARKS]


def _have(some_arms: Iterable[Arm], knob: str) -> bool:
    return any(knob in arm.knobs for arm in some_arms)


def _crossed(cells: pd.DataFrame, setting_arms: Sequence[Arm], knob: str) -> pd.DataFrame:
    """The cells with the values of one knob as columns. A row without the knob is repeated in every column."""
    own_values, others = _values_and_others(setting_arms, knob)
    values = list(dict.fromkeys(own_values.values()))
    crossed: list[dict[str, Any]] = []
    for record in records(cells):
        own_value = own_values.get(record["row"])
        row = record["row"] if own_value is None else others[record["row"]] or labels.text({"loss": "all"})
        for value in values if own_value is None else [own_value]:
            head = f"{record['column']} {labels.pair(knob, value)}".strip()
            crossed.append({**record, "row": row, "column": head})
    return cells_frame(crossed)


def _values_and_others(setting_arms: Sequence[Arm], knob: str) -> tuple[dict[str, str], dict[str, str]]:
    """(the value of a knob, the text of the other knobs), by the label of an arm.

    An arm for which the knob was not typed has no value. But if its other knobs are those of an arm with a value, it
    has the value of its config: two arms of one row stand in two columns.
    """
    own_values = {arm.label: arm.knobs[knob] for arm in setting_arms if knob in arm.knobs}
    others = {arm.label: labels.text({k: v for k, v in arm.knobs.items() if k != knob}) for arm in setting_arms}
    with_value = {others[label] for label in own_values}
    for arm in setting_arms:
        if arm.label not in own_values and others[arm.label] in with_value:
            own_values[arm.label] = value_of(arm, knob) or "null"
    return own_values, others
