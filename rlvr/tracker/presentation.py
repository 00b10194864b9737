"""What MLflow shows of a sweep beside its runs: columns, a description, the report and the configs. Imports no mlflow.

The dashboard stores the columns of its table of runs in a saved view, which is a tag of the experiment. It never opens
a saved view by itself: choose it under "Saved views", or open `/#/experiments/<id>/runs?viewStateShareKey=rlvr`.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from rlvr.ledger import journal, layout
from rlvr.ledger.attempt import newest_attempt
from rlvr.ledger.files import read_json
from rlvr.ledger.runs import Unreadable, choices, read_config
from rlvr.ledger.sweeps import Ledger, Sweep
from rlvr.ledger.tags import MAX_VALUE, OURS, as_text, redact
from rlvr.metrics import EVALUATION, VALIDATION, is_main_result

REFUSED = "REFUSED"  # status, in a cursor, of a parent run that MLflow refuses, as one that was deleted there
VIEW = "rlvr"  # name of the saved view, also in its address
VIEW_TAG = f"mlflow.sharedViewState.{VIEW}"
DESCRIPTION = "mlflow.note.content"
PAGE, CONFIGS, FIGURES = "report.html", "configs.yaml", "figures"  # artifacts of the parent run
CONFIG, LOG, SAMPLES = layout.config(Path()).name, layout.log(Path()).name, "samples.json"  # artifacts of a run
FILES = f"{OURS}files"  # tag of a run: the attempt whose files are stored
TABLES = {"mlflow.loggedArtifacts": json.dumps([{"path": SAMPLES, "type": "table"}])}  # tag that shows it as a table
MOST_TEXT, MOST_SAMPLES = 1 << 20, 400  # characters of a file, samples in the table
REPORT, RUNS, VERDICTS = f"{OURS}report", f"{OURS}runs", f"{OURS}verdicts"  # tags of the parent run
COLOUR = "mlflow.runColor"  # tag of a run: its colour in tables and charts of MLflow 3
PIXELS = 9  # width of a letter in a heading
OF_TRAINING = ("policy/entropy", "response/length")  # columns, after the metrics of evaluations
_PASS = re.compile(r"(.*/pass_at_)(\d+)")


# --- columns


def metric_columns(names: Iterable[str]) -> list[str]:
    """Columns of metrics: avg@n and the largest pass@k of each benchmark, then OF_TRAINING. names: all metrics."""
    logged = set(names)
    columns: list[str] = []
    for split in (EVALUATION, VALIDATION):
        measured = sorted(name for name in logged if name.startswith(split))
        columns += filter(is_main_result, measured)
        largest: dict[str, int] = {}
        for match in filter(None, map(_PASS.fullmatch, measured)):
            stem, k = match[1], int(match[2])
            largest[stem] = max(largest.get(stem, 1), k)
        columns += [f"{stem}{k}" for stem, k in largest.items() if k > 1]
    columns += [name for name in OF_TRAINING if name in logged]
    return [f"metrics.`{name}`" for name in columns]


def measured_metrics(sweep: Sweep, ledger: Ledger) -> set[str]:
    """The names of all metrics of the first run of a sweep that has any."""
    for run_id in sweep.run_ids:
        if records := journal.read(layout.journal(ledger.run_dir(run_id))).records:
            return {name for record in records for name in record.metrics}
    return set()


def swept_values(sweep: Sweep, ledger: Ledger) -> tuple[dict[str, str], dict[str, str]]:
    """({tag: values}, {param: values}): what the sweep varies. Options of groups are tags; all else are params.

    Both are empty if no config of the sweep can be read.
    """
    for run_id in sweep.run_ids:
        try:
            groups = choices(read_config(ledger.run_dir(run_id)))
        except Unreadable:
            continue
        varied: Mapping[str, Sequence[Any]] = sweep.info.get("swept") or {}
        texts = {key: ", ".join(sorted(map(str, values)))[:MAX_VALUE] for key, values in varied.items()}
        tags = {f"{OURS}{key}": text for key, text in texts.items() if key in groups}
        return tags, {key: text for key, text in texts.items() if key not in groups}
    return {}, {}


def knob_columns(tags: Iterable[str], params: Iterable[str]) -> list[str]:
    """The columns of these tags and params."""
    return [*(f"tags.`{name}`" for name in tags), *(f"params.`{name}`" for name in params)]


def saved_view(before: str, columns: Iterable[str], now: float) -> str:
    """The tag of a saved view with these columns added; `before` itself if it has them all.

    before: the present tag, "" for none. now: seconds since the epoch. Runs are in the order of the first metric: in
    that of their creation the dashboard hides them below their parent run, and with them all that charts could show.
    """
    view, state = _read_view(before)
    selected: list[str] = state.get("selectedColumns", [])
    all_columns = list(dict.fromkeys([*selected, *columns]))
    metric = next((column for column in all_columns if column.startswith("metrics.")), "")
    if all_columns == selected and state.get("orderByKey", "") == metric:
        return before
    in_order = sorted(all_columns, key=lambda column: column.startswith("metrics."))  # stable: knobs, then metrics
    widths = {column: max(110, PIXELS * len(column.split("`")[1])) for column in in_order}
    state = {**state, "selectedColumns": in_order, "columnOrder": in_order, "columnWidths": widths}
    state |= {"orderByKey": metric, "orderByAsc": False} if metric else {}
    state |= {"runsHiddenMode": "FIRST_20_RUNS"}  # in charts; of 10 some of the quickstart's would be missing
    now_ms = round(now * 1000)
    return json.dumps(
        {"name": VIEW, "createdAt": view.get("createdAt", now_ms), "updatedAt": now_ms, "state": json.dumps(state)}
    )


def _read_view(text: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """A saved view, and the state of its table; ({}, {}) if the text is no saved view."""
    try:
        view = json.loads(text)
        return dict(view), dict(json.loads(view["state"]))
    except (ValueError, KeyError, TypeError):
        return {}, {}


# --- the files of a run


def files_of_run(run_dir: Path) -> dict[str, str]:
    """By name of the artifact: the frozen config, the end of the newest attempt's log, and samples of the last
    evaluation as a table of the dashboard. Those that the run does not have are left out."""
    import pyarrow.parquet as pq

    files: dict[str, str] = {}
    for name, path in (
        (CONFIG, layout.config(run_dir)),
        (LOG, layout.log(layout.attempt(run_dir, newest_attempt(run_dir)))),
    ):
        if path.exists():
            files[name] = redact(path.read_text(encoding="utf-8", errors="replace")[-MOST_TEXT:])
    if evaluations := layout.evaluations(run_dir):
        with pq.ParquetFile(evaluations[-1]) as parquet:
            rows = next(parquet.iter_batches(MOST_SAMPLES), None)
        if rows is not None:
            cells = [list(row.values()) for row in rows.to_pylist()]
            files[SAMPLES] = json.dumps({"columns": rows.schema.names, "data": cells})
    return files


# --- a sweep's parent run


def description(sweep: Sweep, report: Mapping[str, Any]) -> str:
    """Markdown: question, command, swept knobs, tags, verdicts and the place of the report.

    report: summary.json of its report, {} if there is none.
    """
    swept: Mapping[str, Sequence[Any]] = sweep.info.get("swept") or {}
    tags = [tag.strip() for tag in str(sweep.info.get("tags") or "").split(",") if tag.strip()]
    lines = [sweep.question, f"    {redact(sweep.command)}"]
    lines += ["Swept: " + "; ".join(f"`{key}` = {', '.join(map(str, values))}" for key, values in swept.items())]
    if tags:
        lines.append("Tags: " + ", ".join(tags))
    verdicts = report.get("verdicts") or []
    lines.append("\n".join(f"- **{v['outcome']}**: {v['says']} {v['found']}".rstrip() for v in verdicts))
    lines.append("\n".join(f"- {headline}" for headline in report.get("headlines") or []))
    place = f"{PAGE} under Artifacts" if report else f"`python -m analysis {sweep.name or sweep.sweep_id}`"
    lines.append(f"Report: {place}")
    return "\n\n".join(line for line in lines if line.strip() not in ("", "Swept:"))[:MAX_VALUE]


def tags_of(sweep: Sweep, report: Mapping[str, Any]) -> dict[str, str]:
    """The tags of its parent run, but for those of its artifacts; "" for a tag without content."""
    outcomes = Counter(str(verdict["outcome"]) for verdict in report.get("verdicts") or [])
    return {
        DESCRIPTION: description(sweep, report),
        VERDICTS: ", ".join(f"{count} {outcome}" for outcome, count in outcomes.items()),  # `2 holds, 1 undecided`
        f"{OURS}name": sweep.name,
        f"{OURS}created": as_text(sweep.created),
        f"{OURS}tags": str(sweep.info.get("tags") or ""),
    }


def configs(sweep: Sweep, ledger: Ledger) -> str:
    """The frozen configs of its runs, one YAML document each, without secrets. Unreadable ones are left out."""
    documents: list[str] = []
    for run in sweep.runs:
        try:
            text = layout.config(ledger.run_dir(run["run_id"])).read_text(encoding="utf-8")
        except (OSError, ValueError):
            continue
        documents.append(f"--- # {run.get('name') or ''} {run['run_id']}\n{redact(text)}")
    return "".join(documents)


class SweepReport(NamedTuple):
    """A report of the analysis on a sweep; empty if there is none."""

    summary: Mapping[str, Any]  # content of its summary.json
    page: Path | None
    time: str  # of its page, in ISO 8601


def newest_report(home: Path, sweep: Sweep) -> SweepReport:
    """The complete report on a sweep whose page was written last."""
    newest = SweepReport({}, None, "")
    newest_time = 0.0
    for file in layout.report_summaries(home):
        if file.parent.name.endswith((layout.OF_PARTS, layout.OF_BUNDLES)):
            continue
        summary, page = read_json(file) or {}, layout.report_page(file.parent)
        if sweep.sweep_id in summary.get("sweeps", ()) and page.exists():
            time = page.stat().st_mtime
            if time > newest_time:
                newest, newest_time = SweepReport(summary, page, datetime.fromtimestamp(time, UTC).isoformat()), time
    return newest


def is_behind(home: Path, sweep: Sweep) -> bool:
    """Whether a store that has the parent run of the sweep, and takes it, lacks the newest report on it."""
    cursors = read_json(layout.cursor(layout.sweep(home, sweep.sweep_id))) or {}
    report_time = newest_report(home, sweep).time if cursors else ""
    parents = [c for c in cursors.values() if isinstance(c, dict) and c.get("mlflow_run_id")]
    has_all = all(c.get("status") == REFUSED or (c.get("tags") or {}).get(REPORT) == report_time for c in parents)
    return bool(report_time) and not has_all
