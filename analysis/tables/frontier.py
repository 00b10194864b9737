"""The frontier: arms compared to their reference at equal accuracy, tokens and time, not only at equal steps."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from analysis.frames.frames import Frames
from analysis.report.cells import cells_frame, record
from analysis.report.table import Format, Table, difference_notes, format_of
from analysis.scores.arm import Arm
from analysis.scores.claim import Where
from analysis.scores.comparable import Comparable
from analysis.scores.comparison import Compared, compare, study_level
from analysis.scores.metric import ENTROPY, Kind, Metric, training_names
from analysis.scores.selection import default_reference, ordered
from analysis.scores.trajectory import Level, cell_of, level, settings_with_curves

QUESTION = "Is an arm still ahead at equal accuracy, equal tokens, equal time?"
NEEDS = "two arms of one setting, evaluated on problems during training"
AXES = (Where.ACCURACY, Where.TOKENS, Where.SECONDS)


def table(frames: Frames) -> Table | None:
    """None without NEEDS."""
    records: list[dict[str, Any]] = []
    formats: dict[str, Format] = {}
    for setting in settings_with_curves(frames):
        setting_arms = ordered(setting.arms, frames.swept)
        against = default_reference(setting_arms, frames.baseline)
        if against:
            measured = metrics(frames, setting)
            formats |= {str(m): format_of(m) for m in measured}
            for where in AXES:
                records += _records(frames, setting, setting_arms, against, where, measured)
    if not records:
        return None
    shown = tuple(dict.fromkeys(str(r["metric"]) for r in records))
    cells = cells_frame(records)
    notes = (
        "At equal accuracy: at the highest avg@n that every run of both arms reached. Tokens: sampled in training. "
        "Device-seconds: of training steps, times GPUs, or times processes where there is no GPU. Between two "
        "evaluations each problem's score is interpolated.",
        *difference_notes(cells, study_level(frames)),
        *sorted({r["hint"] for r in records} - {""}),
    )
    cells = cells.assign(hint="")
    return Table("frontier", "Frontier", QUESTION, cells, shown, notes, formats=formats, differences=True, scores=False)


def metrics(frames: Frames, setting: Comparable) -> list[Metric]:
    """What arms are compared by: avg@n and pass@k, and entropy where it was logged."""
    logged = training_names(frames, [i for arm in setting.arms for i in arm.run_ids])
    return [*setting.shown, *([ENTROPY] if ENTROPY.key in logged else [])]


def _records(
    frames: Frames,
    setting: Comparable,
    setting_arms: Sequence[Arm],
    against: Mapping[str, Arm],
    where: Where,
    metrics: Sequence[Metric],
) -> list[dict[str, Any]]:
    """The records of a setting at one kind of level. against: by group of an arm, its reference."""
    accuracy = next((m for m in metrics if m.kind == Kind.AVG), None)
    if accuracy is None:
        return []
    arms = [arm for arm in setting_arms if arm.group_id in against]
    levels = {a.group_id: level(frames, [a, against[a.group_id]], where, accuracy, setting.sources) for a in arms}
    records: list[dict[str, Any]] = []
    title = f"{setting.name}: at {where}" if setting.name else f"At {where}"
    for metric in metrics:
        if where == Where.ACCURACY and metric == accuracy:
            continue
        compared = _compared(frames, setting.sources, {a: against[a.group_id] for a in arms}, levels, metric)
        for arm in arms:
            arm_level = levels[arm.group_id]
            row = f"{arm.label}{_level_text(arm_level)}"
            scored = cell_of(frames, arm, metric, setting.sources, arm_level)
            reference = against[arm.group_id].label
            difference = compared.get(arm.group_id)
            hint = f"{row} is not compared at {where}: {arm_level.why}." if arm_level.why else ""
            values = record(title, row, (str(metric), ""), scored, difference, reference)
            records.append({**values, "hint": hint})
    return records


def _compared(
    frames: Frames, sources: tuple[str, ...], pairs: Mapping[Arm, Arm], levels: Mapping[str, Level], metric: Metric
) -> dict[str, Compared]:
    """By group of an arm, its difference to its reference. pairs: the reference of each arm."""
    cells = {a.group_id: cell_of(frames, a, metric, sources, levels[a.group_id]) for a in pairs}
    references = {a.group_id: cell_of(frames, r, metric, sources, levels[a.group_id]) for a, r in pairs.items()}
    compared = compare(cells, references, study_level(frames))
    reasons = {group: f"at {at.where}, {at.caveat}" if at.caveat else "" for group, at in levels.items()}
    return {group: replace(one, unfair=reasons[group] or one.unfair) for group, one in compared.items()}


def _level_text(pair_level: Level) -> str:
    """`, at 47.9 %` or `, at 0.16 s`: the level at which an arm and its reference are compared."""
    if math.isnan(pair_level.value):
        return ""
    if pair_level.where == Where.ACCURACY:
        return f", at {100 * pair_level.value:.1f} %"
    unit = "s" if pair_level.where == Where.SECONDS else "tokens"
    digits = ",.0f" if pair_level.value >= 100 else ".3g"
    return f", at {pair_level.value:{digits}} {unit}"
