"""A table laid out: titled grids of short texts, the same for every format."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from analysis.table import Published, Table

WIDE = 6  # value columns that still fit side by side; beyond, each metric gets a grid of its own


@dataclass(frozen=True)
class Grid:
    title: str
    header: tuple[str, ...]  # the first is the row labels'
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()


def grids(table: Table) -> list[Grid]:
    """Our cells, block by block."""
    found = []
    for block, cells in table.cells.groupby("block", sort=False):
        cells = cells[cells["metric"].isin(table.shown)]
        columns = cells["column"].nunique()
        together = [table.shown] if columns * len(table.shown) <= WIDE else [(m,) for m in table.shown]
        found += [_grid(str(block), cells[cells["metric"].isin(metrics)], metrics, table) for metrics in together]
    return found


def published_grids(published: Published) -> list[Grid]:
    """Printed values, one grid per metric, columns in the paper's order."""
    found = []
    for metric in published.cells["metric"].drop_duplicates():
        part = published.cells[published.cells["metric"] == metric]
        found.append(_printed(f"{published.label}: {metric}", part, "column"))
    return [*found[:-1], Grid(found[-1].title, found[-1].header, found[-1].rows, published.notes)]


def published_averages(published: Published) -> Grid:
    """The printed averages of every metric in one grid: what fits a terminal."""
    part = published.cells[published.cells["column"] == "Average"]
    return _printed(f"{published.label}: Average", part, "metric")


def text_of(cell: pd.Series, table: Table) -> str:
    """`41.2 ± 1.9`; a dagger and the seeds that count where some are not finished; the reason where empty."""
    if not math.isfinite(cell["mean"]):
        return f"—({cell['state']})"
    text = f"{cell['mean'] * table.scale:.{table.decimals}f}"
    half = (cell["high"] - cell["low"]) / 2 * table.scale
    if math.isfinite(half):
        text += f" ± {half:.{table.decimals}f}"
    if cell["state"] == "partial":
        some = f" ({cell['seeds']}/{cell['planned']} seeds)" if cell["seeds"] < cell["planned"] else ""
        text += f"{some} †"
    return text


def _grid(block: str, cells: pd.DataFrame, metrics: Sequence[str], table: Table) -> Grid:
    columns = cells[["metric", "column"]].drop_duplicates()
    columns = columns.sort_values("metric", key=lambda s: s.map({m: i for i, m in enumerate(metrics)}), kind="stable")
    keys = list(columns.itertuples(index=False, name=None))
    alone = len(metrics) == 1
    unit = f", {table.unit}" if table.unit else ""
    title = f"{block}: {metrics[0]}{unit}" if alone and metrics[0] else f"{block}{unit}"
    header = ["", *(column if alone or not metric else f"{column} {metric}" for metric, column in keys)]
    rows = []
    for row, part in cells.groupby("row", sort=False):
        at = {(c["metric"], c["column"]): text_of(c, table) for _, c in part.iterrows()}
        rows.append((str(row), *(at.get(key, "—") for key in keys)))
    hints = cells[cells["hint"] != ""].drop_duplicates(["row", "hint"])
    notes = tuple(f"{h['row']}: {h['state']} – run `{h['hint']}`" for _, h in hints.iterrows())
    return Grid(title, tuple(header), tuple(rows), notes)


def _printed(title: str, cells: pd.DataFrame, across: str) -> Grid:
    columns = list(cells[across].drop_duplicates())
    rows = []
    for row, part in cells.groupby("row", sort=False):
        at = dict(zip(part[across], part["text"], strict=True))
        rows.append((str(row), *(at.get(c) or "–" for c in columns)))
    return Grid(title, ("", *columns), tuple(rows))
