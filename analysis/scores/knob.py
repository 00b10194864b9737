"""Arms that differ by one knob: the rows of an ablation's table, the line of its figure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Number
from typing import Any

import pandas as pd

from analysis.frames.load import Frames
from analysis.report.table import Published, Table, with_notes
from analysis.scores.arms import Arm, arms, settings
from analysis.scores.cells import Cell, Metric, benchmarks, score, score_base
from analysis.scores.setting import Setting

BASE = "base policy (step 0)"


@dataclass(frozen=True)
class Line:
    """Arms of one loss that differ by one knob alone, in the order of its values."""

    name: str  # the loss, and what tells it from the setting's other lines
    loss: str
    values: tuple[Any, ...]
    arms: tuple[Arm, ...]


def lines(frames: Frames, knob: str, *, losses: Sequence[str] = (), least: int = 2) -> list[tuple[Setting, list[Line]]]:
    """Every setting with its lines along `knob`, a column of the runs frame, of at least `least` values.

    losses: only these. A run that is silent about the knob belongs to no line.
    """
    if knob not in frames.runs.columns:
        return []
    value_of = frames.runs.set_index("run_id")[knob]
    chosen = [a for a in arms(frames.runs) if (a.loss in losses or not losses) and not pd.isna(value_of[a.run_ids[0]])]
    found = []
    for name in settings(chosen):
        groups: dict[tuple[str, str], dict[Any, Arm]] = {}
        for arm in (a for a in chosen if a.setting == name):
            groups.setdefault((arm.method, _without(arm.variant, knob)), {})[value_of[arm.run_ids[0]]] = arm
        made = [_line(*key, group) for key, group in groups.items() if len(group) >= least]
        here = tuple(a for line in made for a in line.arms)
        setting = Setting(name, here, *benchmarks(frames, [i for a in here for i in a.run_ids]))
        if made and setting.metrics:
            found.append((setting, made))
    return found


def _line(method: str, rest: str, group: Mapping[Any, Arm]) -> Line:
    # Numbers ascend; names keep the order in which the runs stand.
    values = sorted(group) if all(isinstance(v, Number) for v in group) else list(group)
    name = f"{method} ({rest})" if rest else method
    return Line(name, group[values[0]].loss, tuple(values), tuple(group[v] for v in values))


def _without(variant: str, knob: str) -> str:
    key = knob.removeprefix("config.")
    return ", ".join(part for part in variant.split(", ") if not part.startswith(f"{key}="))


def columns(setting: Setting) -> dict[str, Metric]:
    """avg@n and every pass@k but the first, which is the same number."""
    return {str(m): m for m in setting.metrics if (m.kind, m.k) != ("pass", 1)}


def cells(frames: Frames, arm: Arm, setting: Setting) -> dict[str, Cell]:
    """What an arm scores overall, by column."""
    wanted = columns(setting)
    scores = score(frames, arm, setting.sources, list(wanted.values()))
    return {name: scores[metric, setting.overall] for name, metric in wanted.items()}


def base_cells(frames: Frames, setting: Setting) -> dict[str, Cell]:
    wanted = columns(setting)
    scores = score_base(frames, setting.arms, setting.sources, list(wanted.values()))
    return {name: scores[metric, setting.overall] for name, metric in wanted.items()}


def row(block: str, name: str, found: Mapping[str, Cell]) -> list[dict[str, Any]]:
    return [
        {"block": block, "row": name, "metric": "", "column": column, **cell.record(), "hint": ""}
        for column, cell in found.items()
    ]


def ablation(
    frames: Frames,
    found: Sequence[tuple[Setting, Sequence[Line]]],
    *,
    name: str,
    title: str,
    question: str,
    label: Callable[[Any], str],
    published: tuple[Published, ...] = (),
) -> Table:
    """A block per line, a row per value, the base policy first; avg@n and every pass@k as columns."""
    rows: list[dict[str, Any]] = []
    for setting, made in found:
        base = base_cells(frames, setting)
        for line in made:
            block = setting.titled(f"{line.name}, {setting.overall}")
            rows += row(block, BASE, base)
            for value, arm in zip(line.values, line.arms, strict=True):
                rows += row(block, label(value), cells(frames, arm, setting))
    notes = ("Runs count at their last evaluation; no checkpoint is selected. avg@n is pass@1.",)
    made_table = Table(name, title, question, pd.DataFrame(rows), ("",), notes, published)
    return with_notes(made_table, frames)
