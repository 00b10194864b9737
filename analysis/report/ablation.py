"""The table of an ablation: a block per line of arms that differ by one knob alone, a row per value of the knob."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd

from analysis.frames.frames import Frames
from analysis.report.cells import BASE, Block, Column, Row, fill
from analysis.report.table import Published, Table, with_notes
from analysis.scores.ablation import Line, metrics
from analysis.scores.comparable import Comparable


def ablation(
    frames: Frames,
    lines_by_setting: Sequence[tuple[Comparable, Sequence[Line]]],
    *,
    name: str,
    title: str,
    question: str,
    label: Callable[[Any], str],
    published: tuple[Published, ...] = (),
) -> Table:
    """One block per line: the base policy, then a row per value of the knob. Columns: avg@n and every pass@k over all
    benchmarks.

    lines_by_setting: from `analysis.scores.ablation.lines`; label: the text of a row, from its value of the knob.
    """
    parts: list[pd.DataFrame] = []
    for setting, lines in lines_by_setting:
        columns = [Column(metric, tuple(setting.sources), "") for metric in metrics(setting).values()]
        parts.append(fill(frames, [_block(setting, line, label) for line in lines], columns))
    cells = pd.concat(parts, ignore_index=True)
    cells = cells.assign(column=cells["metric"], metric="")  # all metrics stand side by side in one grid
    notes = ("Runs count at their last evaluation; no checkpoint is selected. avg@n is pass@1.",)
    return with_notes(Table(name, title, question, cells, ("",), notes, published), frames)


def _block(setting: Comparable, line: Line, label: Callable[[Any], str]) -> Block:
    rows = [Row(label(value), (arm,)) for value, arm in zip(line.values, line.arms, strict=True)]
    title = setting.titled(f"{line.name}, {setting.overall}")
    return Block(title, (Row(BASE, setting.arms, base=True), *rows))
