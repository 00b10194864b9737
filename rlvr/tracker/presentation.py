"""What MLflow shows of a sweep beside its runs: columns, a description, the report and the configs. Imports no mlflow.

The dashboard keeps the columns of its table of runs in a saved view, which is a tag of the experiment. It opens on no
saved view by itself: one chooses it under "Saved views", or opens `/#/experiments/<id>/runs?viewStateShareKey=rlvr`.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rlvr.ledger import journal, layout
from rlvr.ledger.files import read_json
from rlvr.ledger.runs import Unreadable, choices, read_config
from rlvr.ledger.sweeps import Ledger, Sweep
from rlvr.ledger.tags import MAX_VALUE, OURS, redact
from rlvr.metrics import EVALUATION, VALIDATION

VIEW = "rlvr"  # the saved view, in the address too
VIEW_TAG = f"mlflow.sharedViewState.{VIEW}"
DESCRIPTION = "mlflow.note.content"
PAGE, CONFIGS = "report.html", "configs.yaml"  # artifacts of the parent run
REPORT, RUNS, VERDICTS = f"{OURS}report", f"{OURS}runs", f"{OURS}verdicts"  # tags of the parent run
PIXELS = 9  # of a letter in a heading
OF_TRAINING = ("policy/entropy", "response/length")  # columns, beside what evaluations measure
_PASS = re.compile(r"(.*/pass_at_)(\d+)")


# --- columns


def metric_columns(names: Iterable[str]) -> list[str]:
    """The metrics that stand as columns: avg@n and the largest pass@k of each benchmark, then of training."""
    known = set(names)
    columns: list[str] = []
    for split in (EVALUATION, VALIDATION):
        measured = sorted(name for name in known if name.startswith(split))
        columns += [name for name in measured if "/avg_at_" in name or name.endswith("/expected_reward")]
        largest: dict[str, int] = {}
        for found in filter(None, map(_PASS.fullmatch, measured)):
            largest[found[1]] = max(largest.get(found[1], 1), int(found[2]))
        columns += [f"{stem}{k}" for stem, k in largest.items() if k > 1]
    return [f"metrics.`{name}`" for name in (*columns, *(name for name in OF_TRAINING if name in known))]


def measured(sweep: Sweep, ledger: Ledger) -> set[str]:
    """The names of all metrics of one of its runs: the first that has any."""
    for run_id in sweep.run_ids:
        if records := journal.read(layout.journal(ledger.run_dir(run_id))).records:
            return {name for record in records for name in record.metrics}
    return set()


def swept(sweep: Sweep, ledger: Ledger) -> tuple[dict[str, str], dict[str, str]]:
    """What the sweep varies, with all values, as tags (choices in groups) and as params of MLflow. Empty if no config
    of it can be read."""
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
    return [*(f"tags.`{name}`" for name in tags), *(f"params.`{name}`" for name in params)]


def saved_view(before: str, columns: Iterable[str], now: float) -> str:
    """The tag of a saved view with these columns beside those that it has; `before` itself where it has them all.

    before: the tag as it is, "" for none. now: seconds since the epoch.
    """
    view, state = _read_view(before)
    selected: list[str] = state.get("selectedColumns", [])
    wanted = list(dict.fromkeys([*selected, *columns]))
    if wanted == selected:
        return before
    in_order = sorted(wanted, key=lambda column: column.startswith("metrics."))  # knobs first; else as they came
    widths = {column: max(110, PIXELS * len(column.split("`")[1])) for column in in_order}
    state = {**state, "selectedColumns": in_order, "columnOrder": in_order, "columnWidths": widths}
    at = round(now * 1000)
    return json.dumps(
        {"name": VIEW, "createdAt": view.get("createdAt", at), "updatedAt": at, "state": json.dumps(state)}
    )


def _read_view(text: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """A saved view and the state of the table in it; empty ones of a text that is none of ours."""
    try:
        view = json.loads(text)
        return dict(view), dict(json.loads(view["state"]))
    except (ValueError, KeyError, TypeError):
        return {}, {}


# --- a sweep's parent run


def description(sweep: Sweep, report: Mapping[str, Any]) -> str:
    """Markdown: its question, its command, what is decided, where the report is. report: of the analysis, if any."""
    swept: Mapping[str, Sequence[Any]] = sweep.info.get("swept") or {}
    words = [word.strip() for word in str(sweep.info.get("tags") or "").split(",") if word.strip()]
    lines = [sweep.question, f"    {redact(sweep.command)}"]
    lines += ["Swept: " + "; ".join(f"`{key}` = {', '.join(map(str, values))}" for key, values in swept.items())]
    lines += ["Tags: " + ", ".join(words)] if words else []
    found = report.get("verdicts") or []
    lines += ["\n".join(f"- **{each['outcome']}**: {each['says']} {each['found']}".rstrip() for each in found)]
    lines += ["\n".join(f"- {line}" for line in report.get("headlines") or [])]
    name = sweep.name or sweep.sweep_id
    lines += [f"Report: {PAGE} under Artifacts" if report else f"Report: `python -m analysis {name}`"]
    return "\n\n".join(line for line in lines if line.strip() not in ("", "Swept:"))[:MAX_VALUE]


def tags_of(sweep: Sweep, report: Mapping[str, Any]) -> dict[str, str]:
    """Of its parent run, beside those of its files; "" where there is nothing to say."""
    return {
        DESCRIPTION: description(sweep, report),
        VERDICTS: _counts(report),
        f"{OURS}name": sweep.name,
        f"{OURS}tags": str(sweep.info.get("tags") or ""),
    }


def _counts(report: Mapping[str, Any]) -> str:
    """`2 holds, 1 undecided`."""
    counts = Counter(str(each["outcome"]) for each in report.get("verdicts") or [])
    return ", ".join(f"{count} {outcome}" for outcome, count in counts.items())


def configs(sweep: Sweep, ledger: Ledger) -> str:
    """The frozen configs of its runs, a YAML document each. What cannot be read is left out."""
    documents: list[str] = []
    for run in sweep.runs:
        try:
            text = layout.config(ledger.run_dir(run["run_id"])).read_text(encoding="utf-8")
        except (OSError, ValueError):
            continue
        documents.append(f"--- # {run.get('name') or ''} {run['run_id']}\n{redact(text)}")
    return "".join(documents)


def newest_report(home: Path, sweep: Sweep) -> tuple[dict[str, Any], Path | None, str]:
    """(what the newest report on a sweep says, its page, when it was made); ({}, None, "") if there is none."""
    newest: tuple[float, dict[str, Any], Path] | None = None
    for file in layout.report_summaries(home):
        content, page = read_json(file) or {}, layout.report_page(file.parent)
        if sweep.sweep_id in content.get("sweeps", ()) and page.exists():
            changed = page.stat().st_mtime
            newest = max(newest or (0.0, {}, page), (changed, content, page), key=lambda each: each[0])
    if newest is None:
        return {}, None, ""
    return newest[1], newest[2], datetime.fromtimestamp(newest[0], UTC).isoformat()


def is_behind(home: Path, sweep: Sweep) -> bool:
    """Is there a report on the sweep that no store, of those that have its parent run, has?"""
    cursors = read_json(layout.cursor(layout.sweep(home, sweep.sweep_id))) or {}
    made = newest_report(home, sweep)[2] if cursors else ""
    there = [each["tags"] for each in cursors.values() if isinstance(each, dict) and each.get("mlflow_run_id")]
    return bool(made) and any(tags.get(REPORT) != made for tags in there)
