"""What a table is: a title, its question, cells with uncertainty and state, notes, and published tables beside it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import pandas as pd

from analysis.frames.frames import Frames, records
from analysis.scores import labels
from analysis.scores.comparison import study_level
from analysis.scores.metric import Kind, Metric, benchmarks
from rlvr.metrics import EVALUATION

COLUMNS = (
    *("block", "row", "metric", "column", "mean", "low", "high", "problems", "seeds", "planned", "diverged", "errors"),
    *("state", "hint"),
)
# Filled for a row that is compared to another one, its reference; with these values otherwise.
COMPARED: Mapping[str, Any] = {
    "reference": "",
    **dict.fromkeys(("difference", "difference_low", "difference_high", "plain_low", "plain_high"), math.nan),
    **dict.fromkeys(("p", "p_family", "family"), math.nan),
    **dict.fromkeys(("verdict", "unfair"), ""),
    **dict.fromkeys(("paired_seeds", "paired_problems"), math.nan),
    **{"unpaired_seeds": "", "unpaired_problems": math.nan, "per_seed": ""},
    **dict.fromkeys(("improvement", "detectable", "same_within"), math.nan),
    **dict.fromkeys(("needed_seeds", "needed_problems", "needed_samples"), math.nan),
    "cheapest": "",
}


@dataclass(frozen=True)
class Format:
    """How a column is printed: multiplied by `scale`, rounded, with a unit. decimals: None for as many as needed."""

    scale: float = 100.0
    decimals: int | None = 1
    unit: str = "%"
    better: int = 1  # +1: larger values are better, −1: smaller ones, 0: neither
    name: str = ""  # at the head of the column, in place of the metric's


IN_SECONDS = Format(3600.0, None, "seconds", -1, "time")
LEAST_HOURS = 0.2  # shorter times are printed in seconds


def are_short(hours: Iterable[float]) -> bool:
    """Whether times in hours are printed in seconds."""
    return max(filter(math.isfinite, hours), default=1.0) < LEAST_HOURS


def format_of(metric: Metric, values: Iterable[float] = ()) -> Format:
    """How a column of the metric is printed. values: all of the column, by which times are in seconds or in hours."""
    if metric.unit == "%":
        return Format(better=metric.better)
    if metric.kind == Kind.HOURS and are_short(values):
        return IN_SECONDS
    return Format(1.0, None, metric.unit, metric.better)


@dataclass(frozen=True)
class Published:
    """A table of a paper as printed. It is shown beside ours, never subtracted from it: models and benchmarks differ.

    cells: columns row, metric, column, text (as printed), mark ("best", "second" or ""), in the order of the paper;
    block, line and head: where the paper prints the cell.
    """

    label: str
    cells: pd.DataFrame
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Table:
    """A table of a report, before it is laid out.

    cells: one row per cell, columns COLUMNS, and COMPARED where rows have a reference. shown: the metrics that are
    printed; the CSV file holds all. formats: by name of a column, else of a metric; format: of all others.
    differences: print the differences to the reference, not only their marks. scores: print the scores; without them
    the differences alone. beside: lay the table out as its one published table, our rows below the printed ones.
    """

    name: str
    title: str
    question: str
    cells: pd.DataFrame
    shown: tuple[str, ...]
    notes: tuple[str, ...] = ()
    published: tuple[Published, ...] = ()
    formats: Mapping[str, Format] = field(default_factory=dict[str, Format])
    format: Format = field(default_factory=Format)
    differences: bool = False
    scores: bool = True
    beside: bool = False

    @property
    def published_apart(self) -> tuple[Published, ...]:
        """The published tables that are rendered after our grids, not within them."""
        return () if self.beside else self.published

    @cached_property
    def records(self) -> list[dict[str, Any]]:
        """The rows of `cells` as dictionaries."""
        return records(self.cells)

    def format_of(self, metric: str, column: str) -> Format:
        return self.formats.get(column, self.formats.get(metric, self.format))


def ranked(values: Iterable[float | None]) -> list[float]:
    """The distinct finite values, the best first: in papers' tables the largest. [] for fewer than two values."""
    finite = [v for v in values if v is not None and math.isfinite(v)]
    return sorted(set(finite), reverse=True) if len(finite) > 1 else []


def mark_of(value: float | None, best: Sequence[float]) -> str:
    """The mark of a value: "best", "second" or "". best: the values from `ranked`."""
    return next((mark for mark, marked in zip(("best", "second"), best, strict=False) if value == marked), "")


def with_notes(table: Table, frames: Frames) -> Table:
    """Add the notes that every table needs: intervals, seeds, differences, samples left out, runs of other studies."""
    cells = table.cells[table.cells["state"].isin(["ok", "partial"])]
    seeds = seeds_of(table.cells[table.cells["metric"].isin(table.shown)])
    on_problems = bool(len(cells) and (cells["problems"] > 0).any())
    notes = [*interval_notes(seeds, on_problems=on_problems)]
    if len(cells) and cells["bounded"].any():
        notes.append(
            "Where every problem of a benchmark scored alike, ± counts what problems unlike those in the set may still "
            "do to the mean (Beta-Binomial; 3 in P, roughly)."
        )
    notes += undefined_notes(cells)
    if (table.cells["state"] == "partial").any():
        notes.append(
            "† not every planned run behind the cell is finished: it averages those that are (†2/3: 2 of 3 seeds)."
        )
    if errors := int(cells["errors"].max()) if len(cells) else 0:
        notes.append(f"Samples whose verifier failed are left out of n: at most {errors} in a cell (CSV, errors).")
    _, judged = benchmarks(frames, [run.run_id for run in frames.rows])
    if seeds and judged and frames.judgements.empty:
        notes.append("The samples of these runs are not at hand: cells are logged means, intervals span seeds only.")
    chosen = {str(name) for sweep in frames.sweeps for name in sweep.info.get("metrics") or ()}
    if on_test := sorted(name for name in chosen if name.startswith(EVALUATION)):
        notes.append(
            f"A search chose by {', '.join(on_test)}, of the test problems: the best run's score is optimistic."
        )
    other_studies = sorted({run.study for run in frames.rows if run.borrowed})
    if other_studies:
        notes.append(f"GRPO runs come from the study {', '.join(other_studies)}: same task, model and length.")
    return replace(table, notes=(*table.notes, *difference_notes(table.cells, study_level(frames)), *notes))


def seeds_of(cells: pd.DataFrame) -> list[int]:
    """The numbers of seeds of the cells that have a result."""
    return [int(seeds) for seeds in cells.loc[cells["state"].isin(["ok", "partial"]), "seeds"] if seeds]


def interval_notes(seeds: Iterable[int], *, on_problems: bool = True) -> tuple[str, ...]:
    """The note on what ± means for cells over these numbers of seeds; () without any. on_problems: for scores by
    problem, not numbers per run, of which a single one has no ±."""
    numbers = sorted({number for number in seeds if on_problems or number > 1})
    if not numbers:
        return ()
    over = str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"
    if not on_problems:
        return (f"± is half the width of a 95 % t interval over {over} seeds; its ends are in the CSV.",)
    how = "± is half the width of a 95 % interval (t over crossed seeds and problems; its ends are in the CSV)"
    parts = [f"{how}." if numbers == [1] else f"{how} over {over} seeds and their problems."]
    if 1 in numbers:
        parts.append("1 seed: it covers the choice of problems and samples, not the luck of training.")
    if 2 in numbers:
        parts.append("Two seeds show little of the luck of training: such intervals cover about 90 %.")
    return (" ".join(parts),)


def undefined_notes(cells: pd.DataFrame) -> tuple[str, ...]:
    """The note on problems that have no value, by metric, from the cell that lacks most; () without any."""
    lacking = cells[cells["undefined"] > 0].sort_values("undefined", ascending=False, kind="stable")
    names = lacking["metric"].where(lacking["metric"] != "", lacking["column"])
    most = lacking.assign(name=names).drop_duplicates("name")
    counts = [
        f"at most {undefined} of {undefined + problems} problems ({name})"
        for name, undefined, problems in zip(most["name"], most["undefined"], most["problems"], strict=True)
    ]
    why = "Left out of means, for want of a value, as with too few judged samples"
    return (f"{why}: {', '.join(counts)}.",) if counts else ()


def difference_notes(cells: pd.DataFrame, level: float) -> tuple[str, ...]:
    """The notes on differences: reference, seeds, problems, family of hypotheses. level: of the intervals."""
    alone = cells[cells["difference"].isna() & (cells["reference"] != "")]
    names = alone["metric"].where(alone["metric"] != "", alone["column"])
    pairs = [
        f"{row} and {reference} ({', '.join(metrics.unique())})"
        for (row, reference), metrics in names.groupby([alone["row"], alone["reference"]], sort=False)
    ]
    not_compared = [f"Not compared, for want of a common seed or problem: {'; '.join(pairs)}."] if pairs else []
    cells = cells[cells["difference"].notna()]
    if cells.empty:
        return tuple(not_compared)
    against = labels.joined(list(cells["reference"]))
    on_problems = cells["paired_problems"] > 0
    seeds, size = _span(cells["paired_seeds"]), _span(cells["family"])
    problems = _span(cells.loc[on_problems, "paired_problems"]) if on_problems.any() else "0"
    notes = [
        f"Against {against}: differences paired over {seeds} seed{'' if seeds == '1' else 's'}"
        f"{f' and {problems} problems' if problems != '0' else ''}, {100 * level:.4g} %, simultaneous over {size} "
        f"{'arm' if size == '1' else 'arms'} of each metric (max-|t|). ▲ ▼ above and below; △ ▽ only if no other arm "
        "had been looked at."
    ]
    if (cells["paired_seeds"] == 1).any():
        notes.append("Differences over 1 seed say that these runs differ, not yet that their arms do.")
    if (cells["paired_seeds"] == 1).any() and (cells["paired_seeds"] > 1).any():
        notes.append(
            "Differences over 1 seed and over several are two families, each with a chance of "
            f"{100 * (1 - level):.4g} % of a false ▲ or ▼."
        )
    for reason, metrics in cells[cells["unfair"] != ""].groupby("unfair")["metric"]:
        shown = ["time" if metric == Kind.HOURS else metric for metric in metrics.unique()]
        notes.append(f"Some differences in {', '.join(shown)} are shown and not decided: {reason}.")
    unpaired = cells[(cells["unpaired_seeds"] != "") | (cells["unpaired_problems"] > 0)]
    if len(unpaired):
        seeds = sorted({s for text in unpaired["unpaired_seeds"] for s in str(text).split()}, key=int)
        num_problems = int(unpaired["unpaired_problems"].max())
        left_out = [f"seeds {', '.join(seeds)}"] if seeds else []
        left_out += [f"up to {num_problems} problems"] if num_problems else []
        notes.append(f"Left out of differences, for want of a partner: {', '.join(left_out)} (CSV, unpaired).")
    return (*notes, *not_compared)


def _span(values: pd.Series[int]) -> str:
    """`3`, or `2 to 3` where the values differ."""
    low, high = int(values.min()), int(values.max())
    return str(low) if low == high else f"{low} to {high}"


def decimals_for(values: Iterable[float]) -> int:
    """Decimals that show three significant digits of the largest value: 0 to 6; 1 without a finite value but 0."""
    finite = [abs(v) for v in values if math.isfinite(v) and v]
    return max(0, min(6, 2 - math.floor(math.log10(max(finite))))) if finite else 1
