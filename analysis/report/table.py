"""What a table is: a title, its question, cells with uncertainty and state, notes, the published one beside."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.frames.frame import Frame
from analysis.frames.load import Frames
from analysis.scores.cells import Cell, Scores

PAPER = Path(__file__).parents[1] / "paper"
COLUMNS = (
    "block",
    "row",
    "metric",
    "column",
    "mean",
    "low",
    "high",
    "problems",
    "seeds",
    "planned",
    "errors",
    "state",
    "hint",
)


@dataclass(frozen=True)
class Published:
    """A table of a paper as printed, beside ours and never subtracted from it: models and benchmarks differ.

    cells: row, metric, column, text (as printed), in the order of the paper.
    """

    label: str
    cells: Frame
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Table:
    """cells: one row per cell, columns COLUMNS; mean, low and high are multiplied by `scale` when shown.

    shown: the metrics that the narrow renderings print; the CSV holds all.
    """

    name: str
    title: str
    question: str
    cells: Frame
    shown: tuple[str, ...]
    notes: tuple[str, ...] = ()
    published: tuple[Published, ...] = ()
    scale: float = 100.0
    decimals: int = 1
    column_decimals: Mapping[str, int] = field(default_factory=dict)  # where a column differs
    column_scale: Mapping[str, float] = field(default_factory=dict)
    unit: str = "%"


def rows_of(block: str, row: str, scores: Scores, *, hint: str = "") -> list[dict[str, Any]]:
    """The cells of one row."""
    return [
        {"block": block, "row": row, "metric": str(metric), "column": column, **cell.record(), "hint": hint}
        for (metric, column), cell in scores.items()
    ]


def blank_row(block: str, row: str, like: Scores, *, hint: str) -> list[dict[str, Any]]:
    """A row for something that was never run: missing, and what to type."""
    return rows_of(block, row, dict.fromkeys(like, Cell(state="missing")), hint=hint)


def published(file: str, *, label: str, order: tuple[str, ...] = ()) -> Published:
    """Rows of `analysis/paper/<file>` as a published table; `order` lists the row labels that come first."""
    frame = pd.read_csv(PAPER / file, dtype=str, keep_default_na=False)
    rows = [
        _row_label(method, key, value)
        for method, key, value in zip(
            frame["method"], frame["hyperparameter"], frame["hyperparameter_value"], strict=True
        )
    ]
    named = frame["metric"].str.removesuffix("k") + frame["k"]
    metric = named.where(frame["metric"].str.endswith("@k"), frame["metric"])  # "greedy" has no k
    cells = pd.DataFrame({"row": rows, "metric": metric, "column": frame["benchmark"], "text": frame["value_text"]})
    if order:
        rank = {name: i for i, name in enumerate(order)}
        cells = cells.sort_values("row", key=lambda s: s.map(rank).fillna(len(rank)), kind="stable", ignore_index=True)
    cells = cells.sort_values("metric", key=lambda s: s.map(_metric_rank), kind="stable", ignore_index=True)
    told = zip(frame["method"], frame["note"], strict=True)
    notes = tuple(dict.fromkeys(f"{method}: {note}" for method, note in told if note))
    return Published(label, cells, notes)


def _metric_rank(metric: str) -> tuple[str, int]:
    kind, _, k = metric.partition("@")
    return kind, int(k or 0)


def _row_label(method: str, key: str, value: str) -> str:
    if key in ("", "divergence"):  # a divergence is part of the method's name
        return method
    if key != "1/eta":
        return f"{method} ({key.replace('_', ' ')} {value})"
    number = float(value)
    return f"{method}, 1/η = {f'1/{round(1 / number)}' if number < 1 else f'{number:g}'}"


def with_notes(table: Table, frames: Frames) -> Table:
    """Add what every table must say: intervals, seeds, samples left out, references from other studies."""
    cells = table.cells[table.cells["state"].isin(["ok", "partial"])]
    seeds = int(cells["seeds"].max()) if len(cells) else 0
    notes = [*interval_notes(seeds)] if seeds else []
    if ((cells["low"] == cells["high"]) & (cells["problems"] > 0)).any():
        notes.append("No ±: every problem scored alike, and resampling them says nothing of those not in the set.")
    if (table.cells["state"] == "partial").any():
        notes.append(
            "† not every planned run behind the cell is finished: it averages those that are (†2/3: 2 of 3 seeds)."
        )
    if errors := int(cells["errors"].max()) if len(cells) else 0:
        notes.append(f"Samples whose verifier failed are left out of n: at most {errors} in a cell (CSV, errors).")
    if seeds and frames.counts.empty:
        notes.append("The samples of these runs are not at hand: cells are logged means, intervals span seeds only.")
    others = frames.runs.loc[frames.runs["reference"], "study"].unique() if len(frames.runs) else []
    if len(others):
        notes.append(f"GRPO runs come from the study {', '.join(map(str, others))}: same task, model and length.")
    return replace(table, notes=(*table.notes, *notes))


def interval_notes(seeds: int) -> tuple[str, ...]:
    """What ± means for this many seeds."""
    how = "± is half the width of a 95 % bootstrap interval (2000 draws; its ends are in the CSV)"
    if seeds == 1:
        return (f"{how}. 1 seed: it covers the choice of problems and samples, not the luck of training.",)
    narrow = " With fewer than 5 seeds such an interval is too narrow." if seeds < 5 else ""
    return (f"{how} over {seeds} seeds, then problems with their samples.{narrow}",)
