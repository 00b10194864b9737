"""The table that every sweep gets: a row per arm by what was swept, in the words typed, against a reference."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from analysis.frames.frame import records
from analysis.frames.frames import Frames
from analysis.frames.runs import IMPORTED
from analysis.report.layout import BASE as BASE_ROW
from analysis.report.layout import Block, Column, Row, columns, fill
from analysis.report.table import Table, format_of, with_notes
from analysis.scores import words
from analysis.scores.arm import Arm, arms, settings
from analysis.scores.metric import Metric, benchmarks, parse, usual
from analysis.scores.selection import BASE, ordered, reference_of
from analysis.scores.study import baseline, swept

QUESTION = "How do the arms compare, and which differences are decided?"
MOST_BENCHMARKS = 3  # of more, the average alone is shown


@dataclass(frozen=True)
class Ask:
    """What the user wants to see. metrics: names, "" for the usual ones; against: an arm, `base`, "" for the default;
    across: a knob whose values stand as columns."""

    metrics: str = ""
    against: str = ""
    across: str = ""


def table(frames: Frames, ask: Ask = Ask()) -> Table | None:
    """None only where there is no run. LookupError for a metric, an arm or a knob that is not there."""
    everything = arms(frames)
    if not everything:
        return None
    ids = [run.run_id for run in frames.rows]
    metrics = parse(ask.metrics, frames, ids) if ask.metrics else usual(frames, ids)
    if not metrics:
        return None
    named = False
    parts: list[pd.DataFrame] = []
    for setting in settings(everything):
        here = ordered([a for a in everything if a.setting == setting], swept(frames))
        based = _has_base(frames, here)
        comparable = based or (len(here) > 1 and ask.against != BASE)
        against = _references(here, ask.against, baseline(frames)) if comparable else {}
        named = named or bool(against) or ask.against == BASE
        block = Block(_title(frames, here), tuple(_rows(here, against, based=based)))
        measured = metrics if ask.metrics else usual(frames, [i for arm in here for i in arm.run_ids])
        cells = fill(frames, [block], _columns(frames, here, [m for m in metrics if m in measured]))
        parts.append(_crossed(cells, here, ask.across) if ask.across else cells)
    if ask.against and not named:
        known = "; ".join(arm.label for arm in everything)
        raise LookupError(f"--against {ask.against}: there is no such arm, or it is the only one. Arms: {known}.")
    cells = pd.concat(parts, ignore_index=True)
    return with_notes(
        Table(
            "comparison",
            "Comparison",
            QUESTION,
            cells,
            tuple(map(str, metrics)),
            tuple(_notes(everything, based=bool(cells["base"].any()))),
            formats={str(m): format_of(m) for m in metrics},
            differences=True,
        ),
        frames,
    )


def _notes(everything: Sequence[Arm], *, based: bool) -> Iterable[str]:
    best = "the best of the arms, not counting the base policy; it is" if based else "the best, which is"
    yield f"Runs count at their last evaluation; no checkpoint is selected. Bold: {best} no verdict."
    shared = words.shared([arm.first for arm in everything])
    if shared and len(everything) > 1:
        yield f"All arms: {words.text(shared)}."


def _references(here: Sequence[Arm], asked: str, baseline: str) -> dict[str, str]:
    """By group, the label of the row that an arm is compared to."""
    if asked == BASE or (not asked and len(here) == 1):
        return {arm.group_id: BASE_ROW for arm in here}
    return {group: arm.label for group, arm in reference_of(here, asked, baseline).items()}


def _rows(here: Sequence[Arm], against: Mapping[str, str], *, based: bool) -> Iterable[Row]:
    """The base policy, if there is to be one, then references, then all others."""
    if based:
        yield Row(BASE_ROW, tuple(here), base=True)
    for arm in sorted(here, key=lambda a: a.label not in set(against.values())):
        yield Row(arm.label, (arm,), against=against.get(arm.group_id, ""))


def _has_base(frames: Frames, here: Sequence[Arm]) -> bool:
    """Whether a base policy belongs to these, as their step 0. What was not trained but evaluated has none: there it is
    an arm like any other. Samples of another trainer have one if they hold it."""
    if here[0].first.study == IMPORTED:
        counts = frames.counts
        own = counts[counts["run_id"].isin([i for arm in here for i in arm.run_ids])]
        return bool((own["step"] == 0).any())
    return not here[0].first.knob("policy.digest")


def _columns(frames: Frames, here: Sequence[Arm], metrics: Sequence[Metric]) -> list[Column]:
    """Benchmarks by name where there are several, and their average."""
    sources, _ = benchmarks(frames, [i for arm in here for i in arm.run_ids])
    if len(sources) == 1:
        return [Column(metric, tuple(sources), "") for metric in metrics]
    found = columns(metrics, sources)
    return [c for c in found if c.name not in sources or len(sources) <= MOST_BENCHMARKS]


def _title(frames: Frames, here: Sequence[Arm]) -> str:
    """What holds for all: the setting, the benchmark where it is the only one."""
    sources, _ = benchmarks(frames, [i for arm in here for i in arm.run_ids])
    parts = [here[0].setting, sources[0] if len(sources) == 1 else ""]
    return ", ".join(part for part in parts if part)


def _crossed(cells: pd.DataFrame, here: Sequence[Arm], knob: str) -> pd.DataFrame:
    """The values of one knob as columns. Rows without it hold for every value, and stand in every column."""
    knobs = {arm.label: arm.knobs for arm in here}
    values = list(dict.fromkeys(arm.knobs[knob] for arm in here if knob in arm.knobs))
    if not values:
        known = ", ".join(dict.fromkeys(key for arm in here for key in arm.knobs)) or "none"
        raise LookupError(f"--across {knob}: it was not swept. Swept here: {known}.")
    found: list[dict[str, Any]] = []
    for record in records(cells):
        own = dict(knobs.get(record["row"], {}))
        chosen = own.pop(knob, None)
        row = words.text(own) or (words.text({"loss": "all"}) if chosen else record["row"])
        for value in values if chosen is None else [chosen]:
            where = f"{record['column']} {words.pair(knob, value)}".strip()
            found.append({**record, "row": record["row"] if chosen is None else row, "column": where})
    return pd.DataFrame(found, columns=cells.columns)
