"""A table laid out: titled grids of short texts, the same for every format."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from analysis.frames.frame import Frame
from analysis.report.table import Published, Table

WIDE = 126  # characters; a wider grid is split, one metric each


@dataclass(frozen=True)
class Grid:
    title: str
    header: tuple[str, ...]  # the first is the row labels'
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()

    @property
    def width(self) -> int:
        """Characters of its widest line, with three between columns."""
        lengths = [max(len(row[i]) for row in (self.header, *self.rows)) for i in range(len(self.header))]
        return sum(lengths) + 3 * len(lengths) + 1


def grids(table: Table, *, width: int = WIDE) -> list[Grid]:
    """Our cells, block by block; a block wider than `width` characters is split by metric."""
    found = []
    for block, cells in table.cells.groupby("block", sort=False):
        cells = cells[cells["metric"].isin(table.shown)]
        metrics = [m for m in table.shown if (cells["metric"] == m).any()]
        whole = _grid(str(block), cells, metrics, table)
        if whole.width <= width or len(metrics) == 1:
            found.append(whole)
        else:
            found += [_grid(str(block), cells[cells["metric"] == m], (m,), table) for m in metrics]
    return found


def published_grids(published: Published) -> list[Grid]:
    """Printed values, one grid per metric, columns in the paper's order."""
    found = []
    for metric in published.cells["metric"].drop_duplicates():
        part = published.cells[published.cells["metric"] == metric]
        found.append(_printed(metric, part, "column"))
    return [*found[:-1], Grid(found[-1].title, found[-1].header, found[-1].rows, published.notes)]


def published_averages(published: Published) -> Grid:
    """The printed averages of every metric in one grid, without averages those of the first benchmark: what fits."""
    columns = list(published.cells["column"])
    chosen = "Average" if "Average" in columns else columns[0]
    part = published.cells[published.cells["column"] == chosen]
    return _printed(f"{published.label}: {chosen}", part, "metric")


def text_of(cell: Frame, table: Table) -> str:
    """`41.2 ± 1.9`; a dagger and the seeds that count where some are not finished; the reason where empty."""
    if not math.isfinite(cell["mean"]):
        return f"—({cell['state']})"
    decimals = table.column_decimals.get(cell["column"], table.decimals)
    scale = table.column_scale.get(cell["column"], table.scale)
    text = f"{cell['mean'] * scale:.{decimals}f}"
    half = (cell["high"] - cell["low"]) / 2 * scale
    if half > 0:  # NaN: nothing to resample; 0: all alike, of which a bootstrap can only say that it saw no other
        text += f" ± {half:.{decimals}f}"
    if cell["state"] == "partial":
        text += f" †{cell['seeds']}/{cell['planned']}" if cell["seeds"] < cell["planned"] else " †"
    return text


def _grid(block: str, cells: Frame, metrics: Sequence[str], table: Table) -> Grid:
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


def _printed(title: str, cells: Frame, across: str) -> Grid:
    columns = list(cells[across].drop_duplicates())
    rows = []
    for row, part in cells.groupby("row", sort=False):
        at = dict(zip(part[across], part["text"], strict=True))
        rows.append((str(row), *(at.get(c) or "–" for c in columns)))
    return Grid(title, ("", *columns), tuple(rows))
