"""The engine of every table: rows of arms, columns of metrics and benchmarks, a reference → cells.

A layout (a table of a paper, or the comparison that any sweep gets) says which arms stand in which row of which block,
and against what; everything else is here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from analysis.frames.frames import Frames
from analysis.report.table import COLUMNS, COMPARED
from analysis.scores import study
from analysis.scores.arm import Arm
from analysis.scores.cell import Cell, base_cell, cell, combine
from analysis.scores.comparison import Compared, cheapest, compare
from analysis.scores.metric import AVERAGE, Kind, Metric

BASE = "base policy (step 0)"


@dataclass(frozen=True)
class Column:
    """A metric on a benchmark, or averaged over several; `name`: of the column, where it is not the benchmark's."""

    metric: Metric
    sources: tuple[str, ...]
    name: str

    @property
    def key(self) -> tuple[str, str]:
        return str(self.metric), self.name


def columns(metrics: Sequence[Metric], sources: Sequence[str]) -> list[Column]:
    """Every metric on every benchmark and, of several, on their average; of the whole run where it has no problems."""
    found: list[Column] = []
    for metric in metrics:
        if metric.per_problem:
            found += [Column(metric, (source,), source) for source in sources]
        if not metric.per_problem or len(sources) > 1:
            found.append(Column(metric, tuple(sources), AVERAGE if metric.per_problem else ""))
    return found


@dataclass(frozen=True)
class Row:
    """arms: their mean where there are several. base: the base policy of these arms. Neither: never run, see `hint`.

    against: label of the row of the block that this one is compared to; "": none.
    """

    label: str
    arms: tuple[Arm, ...] = ()
    base: bool = False
    against: str = ""
    hint: str = ""
    groups: tuple[tuple[Arm, ...], ...] = ()  # a mean of means: each group's mean counts alike


@dataclass(frozen=True)
class Block:
    title: str
    rows: tuple[Row, ...]


def fill(frames: Frames, blocks: Iterable[Block], columns: Sequence[Column]) -> pd.DataFrame:
    """The cells of all blocks, one row each, with the columns COLUMNS, `alike`, `base` and COMPARED.

    The rows of all blocks that stand against another one are one family: how a table is cut does not change a verdict.
    """
    places = [(block, row) for block in blocks for row in block.rows]
    by_column = [_column(frames, places, column) for column in columns]
    return frame([records[i] for i in range(len(places)) for records in by_column])


def record(
    block: str, row: str, column: tuple[str, str], own: Cell, compared: Compared | None = None, reference: str = ""
) -> dict[str, Any]:
    """One cell. column: (metric, name); compared: to the row called `reference`."""
    found = {**_BLANK, "block": block, "row": row, "metric": column[0], "column": column[1], **own.record()}
    found["alike"] = own.alike
    return found if compared is None else {**found, "reference": reference, **compared.record()}


def written(block: str, row: str, cells: Mapping[str, Cell]) -> list[dict[str, Any]]:
    """The records of a row of cells that no metric of an arm stands for; cells: by column."""
    return [record(block, row, ("", column), own) for column, own in cells.items()]


def frame(records: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """ValueError for two rows of one name: whoever reads them would take one for the other."""
    found = pd.DataFrame(records, columns=[*COLUMNS, "alike", "base", *COMPARED])
    twice = found[found.duplicated(["block", "row", "metric", "column"])]
    if len(twice):
        raise ValueError(f"two rows of a table have one name: {twice['row'].iloc[0]!r} of {twice['block'].iloc[0]!r}")
    return found


_BLANK: dict[str, Any] = dict.fromkeys(COMPARED, math.nan) | {
    "reference": "",
    "verdict": "",
    "unpaired_seeds": "",
    "per_seed": "",
    "cheapest": "",
    "base": False,
    "hint": "",
}


def _column(frames: Frames, places: Sequence[tuple[Block, Row]], column: Column) -> list[dict[str, Any]]:
    """One record per place."""
    labels = [(block.title, row.label) for block, row in places]
    cells = {key: value(frames, row, column) for key, (_, row) in zip(labels, places, strict=True)}
    against = {key: (key[0], row.against) for key, (_, row) in zip(labels, places, strict=True) if row.against}
    wanted = {key: cells[key] for key in against}
    rows = [row for _, row in places]
    samples, level = samples_of(frames, rows, column), study.level(frames)
    compared = compare(wanted, {key: cells[other] for key, other in against.items()}, samples, level)
    records: list[dict[str, Any]] = []
    for key, (_, row) in zip(labels, places, strict=True):
        one = compared.get(key)
        found = record(*key, column.key, cells[key], one, row.against)
        if one is not None:
            found["cheapest"] = cheapest(one, *costs(frames, row.arms))
        records.append({**found, "base": row.base, "hint": row.hint})
    return records


def value(frames: Frames, row: Row, column: Column) -> Cell:
    if row.base:
        if not column.metric.per_problem and column.metric.kind != Kind.EVALUATION:
            return Cell(state="not trained")
        return base_cell(frames, row.arms, column.metric, column.sources)

    def of(arm: Arm) -> Cell:
        return cell(frames, arm, column.metric, column.sources)

    if row.groups:
        return combine([_mean(group, of) for group in row.groups])
    return _mean(row.arms, of) if row.arms else Cell(state="missing")


def _mean(arms: Sequence[Arm], of: Callable[[Arm], Cell]) -> Cell:
    return of(arms[0]) if len(arms) == 1 else combine([of(arm) for arm in arms])


def costs(frames: Frames, arms: Sequence[Arm]) -> tuple[float, float]:
    """(hours of one run's steps, hours of one evaluation of it), as measured; NaN where it was not."""
    for run in (run for arm in arms for run in arm.runs):
        if steps := frames.digest.steps(run.run_id):
            trained, evaluated = (
                frames.digest.sum(run.run_id, name, steps[-1]) for name in ("time/step_s", "time/evaluation_s")
            )
            return trained / 3600, evaluated / len(steps) / 3600
    return math.nan, math.nan


def samples_of(frames: Frames, rows: Sequence[Row], column: Column) -> int:
    """Samples per problem of the evaluations behind these rows: the most of any problem."""
    if column.metric.kind not in (Kind.AVG, Kind.PASS):
        return 0
    for run in (run for row in rows for arm in row.arms for run in arm.runs):
        steps = frames.digest.steps(run.run_id)
        judged = [frames.judged(run.run_id, steps[-1], source) for source in column.sources] if steps else []
        if any(j is not None for j in judged):
            return max(int(j.n.max()) for j in judged if j is not None)
    return 0
