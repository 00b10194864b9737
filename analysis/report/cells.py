"""From rows of arms, columns of metrics and benchmarks, and references to the cells of a table.

Every table is made here. A layout (a table of a paper, or the comparison that any sweep gets) defines which arms stand
in which row of which block, and which row each one is compared to.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from analysis.frames.frames import Frames
from analysis.report.table import COLUMNS, COMPARED
from analysis.scores.arm import SEEDS, Arm
from analysis.scores.cell import Cell, base_cell, cell, combine
from analysis.scores.comparison import LUCKY, Compared, cheapest, compare, more_problems, study_level
from analysis.scores.failures import intention_to_treat
from analysis.scores.metric import AVERAGE, Kind, Metric
from analysis.scores.trajectory import caveat_of_time

BASE = "base policy (step 0)"


@dataclass(frozen=True)
class MetricColumn:
    """A metric on the benchmarks `sources`, averaged where there are several. name: the head of the column."""

    metric: Metric
    sources: tuple[str, ...]
    name: str

    @property
    def key(self) -> tuple[str, str]:
        return str(self.metric), self.name


def columns(metrics: Sequence[Metric], sources: Sequence[str]) -> list[MetricColumn]:
    """Each metric on each benchmark and, if there are several, on their average; a metric that is not measured by
    problem has one column, without a name.
    """
    chosen: list[MetricColumn] = []
    for metric in metrics:
        if metric.per_problem:
            chosen += [MetricColumn(metric, (source,), source) for source in sources]
        if not metric.per_problem or len(sources) > 1:
            chosen.append(MetricColumn(metric, tuple(sources), AVERAGE if metric.per_problem else ""))
    return chosen


@dataclass(frozen=True)
class Row:
    """A row of a block.

    arms: whose scores it shows, averaged where there are several. base: shows the base policy of `arms` instead.
    against: the label of the row of the block that this one is compared to; "": none. hint: the command that runs what
    the row lacks, where it has no arms.
    """

    label: str
    arms: tuple[Arm, ...] = ()
    base: bool = False
    against: str = ""
    hint: str = ""
    groups: tuple[tuple[Arm, ...], ...] = ()  # in place of arms: the mean of the groups' means, each with equal weight


@dataclass(frozen=True)
class Block:
    title: str
    rows: tuple[Row, ...]


def fill(frames: Frames, blocks: Iterable[Block], columns: Sequence[MetricColumn]) -> pd.DataFrame:
    """The cells of all blocks, one row each, with the columns COLUMNS, `bounded`, `undefined`, `base` and COMPARED.

    All rows that are compared to another one are one family of hypotheses, whatever their block: how a table is divided
    into blocks does not change a verdict. ValueError for two rows of one name in a block.
    """
    placed_rows = [(block, row) for block in blocks for row in block.rows]
    by_column = [_column(frames, placed_rows, column) for column in columns]
    return cells_frame([records[i] for i in range(len(placed_rows)) for records in by_column])


def record(
    block: str, row: str, column: tuple[str, str], scored: Cell, compared: Compared | None = None, reference: str = ""
) -> dict[str, Any]:
    """One row of a table's `cells`. column: (metric, name); compared: its difference to the row `reference`."""
    values = {"block": block, "row": row, "metric": column[0], "column": column[1], **scored.record(), "hint": ""}
    values |= {"bounded": scored.bounded, "undefined": scored.undefined, "base": False, **COMPARED}
    return values if compared is None else {**values, "reference": reference, **compared.record()}


def row_records(block: str, row: str, cells: Mapping[str, Cell]) -> list[dict[str, Any]]:
    """The records of a row whose cells were computed outside of `fill`, without a metric. cells: by column."""
    return [record(block, row, ("", column), scored) for column, scored in cells.items()]


def cells_frame(records: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """The `cells` of a table. ValueError for two rows of one name: a reader could not distinguish them."""
    cells = pd.DataFrame(records, columns=[*COLUMNS, "bounded", "undefined", "base", *COMPARED])
    repeated = cells[cells.duplicated(["block", "row", "metric", "column"])]
    if len(repeated):
        raise ValueError(
            f"two rows of a table have one name: {repeated['row'].iloc[0]!r} of {repeated['block'].iloc[0]!r}"
        )
    return cells


def _column(frames: Frames, placed_rows: Sequence[tuple[Block, Row]], column: MetricColumn) -> list[dict[str, Any]]:
    rows = {(block.title, row.label): row for block, row in placed_rows}
    cells = {key: value(frames, row, column) for key, row in rows.items()}
    references = {key: cells[key[0], row.against] for key, row in rows.items() if row.against}
    unfair = caveat_of_time(column.metric, [arm for row in rows.values() for arm in row.arms])
    compared = compare(
        {key: cells[key] for key in references},
        references,
        study_level(frames),
        samples=samples_of(frames, rows.values(), column),
        unfair=unfair,
        more_problems=more_problems(arm for row in rows.values() for arm in row.arms),
    )
    for key, judged in compared.items():
        reference = rows[key[0], rows[key].against]
        if judged.unfair == LUCKY and not rows[key].groups and not reference.groups:
            pair, level = (rows[key].arms, () if reference.base else reference.arms), study_level(frames)
            bounds = intention_to_treat(frames, *pair, column.metric, column.sources, level)
            compared[key] = replace(judged, unfair=f"{LUCKY}{f' ({key[1]} {bounds})' if bounds else ''}")
    records: list[dict[str, Any]] = []
    for block, row in placed_rows:
        key = (block.title, row.label)
        difference = compared.get(key)
        values = record(*key, column.key, cells[key], difference, row.against)
        if difference is not None:
            values["cheapest"] = cheapest(difference, *costs(frames, row.arms))
        elif _lacks_partner(row, cells[key], references.get(key)):
            values["reference"] = row.against  # `difference_notes` names both
        records.append({**values, "base": row.base, "hint": row.hint})
    return records


def _lacks_partner(row: Row, own: Cell, reference: Cell | None) -> bool:
    """Whether a row that has no difference to its reference might have one: both have a score, of different seeds or
    problems. The noise floor has other seeds on purpose."""
    if reference is None or any(arm.control == SEEDS for arm in row.arms):
        return False
    return not own.empty and not reference.empty


def value(frames: Frames, row: Row, column: MetricColumn) -> Cell:
    """What a row scores in a column."""
    if row.base:
        if not column.metric.per_problem and column.metric.kind != Kind.EVALUATION:
            return Cell(state="not trained")
        return base_cell(frames, row.arms, column.metric, column.sources)

    def score(arm: Arm) -> Cell:
        return cell(frames, arm, column.metric, column.sources)

    groups = row.groups or (row.arms,)
    return combine([combine([score(arm) for arm in group]) for group in groups])


def costs(frames: Frames, arms: Sequence[Arm]) -> tuple[float, float]:
    """(hours of the training steps of a run, hours of one evaluation), measured on the first run with an evaluation;
    (NaN, NaN) where no run has one.
    """
    for run in (run for arm in arms for run in arm.runs):
        steps = frames.digest.steps(run.run_id)
        if steps:
            trained, evaluated = (
                frames.digest.sum(run.run_id, name, steps[-1]) for name in ("time/step_s", "time/evaluation_s")
            )
            return trained / 3600, evaluated / len(steps) / 3600
    return math.nan, math.nan


def samples_of(frames: Frames, rows: Iterable[Row], column: MetricColumn) -> int:
    """Samples per problem of the evaluations behind the rows: the most of any problem of the first run with samples; 0
    without samples, and for a metric that is not measured by sample.
    """
    if column.metric.kind not in (Kind.AVG, Kind.PASS):
        return 0
    for run in (run for row in rows for arm in row.arms for run in arm.runs):
        steps = frames.digest.steps(run.run_id)
        by_source = [frames.problem_counts(run.run_id, steps[-1], source) for source in column.sources] if steps else []
        judged = [counts for counts in by_source if counts is not None]
        if judged:
            return max(int(counts.n.max()) for counts in judged)
    return 0
