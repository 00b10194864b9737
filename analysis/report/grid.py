"""A table laid out: titled grids of short texts, the same for every format."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from analysis.frames.frame import records
from analysis.report.table import Format, Published, Table, decimals_for

WIDE = 126  # characters; a wider grid is split by metric
Record = Mapping[str, Any]


@dataclass(frozen=True)
class Grid:
    title: str
    header: tuple[str, ...]  # the first is the row labels'
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    best: frozenset[tuple[int, int]] = frozenset()  # (row, column) of the best of each column

    @property
    def width(self) -> int:
        """Characters of its widest line, with three between columns."""
        lengths = [max(len(row[i]) for row in (self.header, *self.rows)) for i in range(len(self.header))]
        return sum(lengths) + 3 * len(lengths) + 1


def grids(table: Table, *, width: int = WIDE) -> list[Grid]:
    """Our cells, block by block; a block wider than `width` characters is split, between metrics."""
    found: list[Grid] = []
    for block, cells in table.cells.groupby("block", sort=False):
        cells = cells[cells["metric"].isin(table.shown)]
        if table.scores:
            found += _split(lambda metrics, b=str(block), c=cells: _scores(b, c, metrics, table), cells, table, width)
        if table.differences and cells["difference"].notna().any():
            rows = cells[cells["difference"].notna()]
            found += _split(
                lambda metrics, b=str(block), c=rows: _differences(b, c, metrics, table), rows, table, width
            )
            found += _deciding(str(block), rows, table) if table.scores else []
    return found


def _split(draw: Callable[[Sequence[str]], Grid], cells: pd.DataFrame, table: Table, width: int) -> list[Grid]:
    """One grid, or as few as keep within the width with whole metrics in each."""
    metrics = [m for m in table.shown if (cells["metric"] == m).any()]
    parts: list[list[str]] = []
    for metric in metrics:
        if parts and draw([*parts[-1], metric]).width <= width:
            parts[-1].append(metric)
        else:
            parts.append([metric])
    several = bool((cells.groupby("metric")["column"].nunique() > 1).any())
    if several and len(parts) > 1:  # benchmarks side by side: a metric each, or all
        parts = [[metric] for metric in metrics]
    return [draw(part) for part in parts]


def published_grids(published: Published) -> list[Grid]:
    """Printed values, one grid per metric, columns in the paper's order."""
    found: list[Grid] = []
    for metric in published.cells["metric"].drop_duplicates():
        part = published.cells[published.cells["metric"] == metric]
        found.append(_printed(metric, part, "column"))
    return [*found[:-1], replace(found[-1], notes=published.notes)]


def published_averages(published: Published) -> Grid:
    """The printed averages of every metric in one grid, without averages those of the first benchmark: what fits."""
    columns = list(published.cells["column"])
    chosen = "Average" if "Average" in columns else columns[0]
    part = published.cells[published.cells["column"] == chosen]
    return _printed(f"{published.label}: {chosen}", part, "metric")


# --- texts ---


def text_of(cell: Record, form: Format, *, marked: bool = True) -> str:
    """`41.2 ± 1.9 ▲`; a dagger and the seeds that count where some are not finished; the reason where empty."""
    if not math.isfinite(cell["mean"]):
        return f"—({cell['state']})"
    text = f"{cell['mean'] * form.scale:.{form.decimals}f}"
    half = (cell["high"] - cell["low"]) / 2 * form.scale
    if half > 0:  # NaN: nothing to repeat
        text += f" ± {half:.{form.decimals}f}"
    if cell["state"] == "partial":
        text += f" †{cell['seeds']}/{cell['planned']}" if cell["seeds"] < cell["planned"] else " †"
    return f"{text} {cell['verdict']}".rstrip() if marked else text


def difference_text(cell: Record, form: Format) -> str:
    """`+6.6 [3.5, 9.6] ▲`."""
    values = [cell[name] * form.scale for name in ("difference", "difference_low", "difference_high")]
    difference, low, high = (_rounded(v, form.decimals or 0) for v in values)
    text = difference if difference.startswith("−") else f"+{difference}"
    if math.isfinite(values[1]):
        text += f" [{low}, {high}]"
    return f"{text} {cell['verdict']}".rstrip()


def _rounded(value: float, decimals: int) -> str:
    text = f"{value:.{decimals}f}"
    return text.replace("-", "−") if float(text) else text.lstrip("-")


# --- grids ---


def _scores(block: str, cells: pd.DataFrame, metrics: Sequence[str], table: Table) -> Grid:
    cells = cells[cells["metric"].isin(list(metrics))]
    keys, header = _header(cells, metrics, table)
    forms = {key: _exact(table.format_of(*key), cells, key, "mean") for key in keys}
    at = {(c["row"], c["metric"], c["column"]): c for c in records(cells)}
    labels = list(cells["row"].drop_duplicates())
    rows = [
        (
            label,
            *(
                text_of(at[label, *key], forms[key], marked=not table.differences) if (label, *key) in at else "—"
                for key in keys
            ),
        )
        for label in labels
    ]
    best = {(labels.index(label), 1 + keys.index(key)) for key in keys for label in _best(at, labels, key, forms[key])}
    hints = cells[cells["hint"] != ""].drop_duplicates(["row", "hint"])
    notes = tuple(f"{h['row']}: {h['state']} – run `{h['hint']}`" for h in records(hints))
    grid = Grid(_title(block, metrics, keys, table), ("", *header), tuple(rows), notes, frozenset(best))
    return _with_seeds(grid, cells, labels) if table.differences else grid


def _best(
    at: Mapping[tuple[str, str, str], Record], labels: Sequence[str], key: tuple[str, str], form: Format
) -> list[str]:
    """The arms that print the best value; none where there is one alone, or where neither more nor less is better."""
    values = {x: at[x, *key]["mean"] for x in labels if (x, *key) in at and not at[x, *key]["base"]}
    printed = {label: round(v * form.scale, form.decimals or 0) for label, v in values.items() if math.isfinite(v)}
    if not form.better or len(printed) < 2:
        return []
    first = max(printed.values()) if form.better > 0 else min(printed.values())
    return [label for label, v in printed.items() if v == first] if len(set(printed.values())) > 1 else []


def _with_seeds(grid: Grid, cells: pd.DataFrame, labels: Sequence[str]) -> Grid:
    """A last column: the seeds that count, of those planned where some are missing, and how many of them diverged."""
    counted: list[str] = []
    for label in labels:
        part = cells[cells["row"] == label]
        seeds, planned, diverged = (int(part[c].max()) for c in ("seeds", "planned", "diverged"))
        text = str(seeds) if seeds >= planned else f"{seeds} of {planned}"
        counted.append(f"{text} ({diverged} diverged)" if diverged else text)
    rows = tuple((*row, count) for row, count in zip(grid.rows, counted, strict=True))
    return replace(grid, header=(*grid.header, "seeds"), rows=rows)


def _differences(block: str, cells: pd.DataFrame, metrics: Sequence[str], table: Table) -> Grid:
    cells = cells[cells["metric"].isin(list(metrics))]
    keys, header = _header(cells, metrics, table)
    forms = {key: _exact(table.format_of(*key), cells, key, "difference") for key in keys}
    at = {(c["row"], c["metric"], c["column"]): c for c in records(cells)}
    rows = [
        (label, *(difference_text(at[label, *key], forms[key]) if (label, *key) in at else "—" for key in keys))
        for label in cells["row"].drop_duplicates()
    ]
    against = " or ".join(cells["reference"].drop_duplicates())
    title = _title(
        f"{block}: difference to {against}" if block else f"Difference to {against}", metrics, keys, table, "points"
    )
    return Grid(title, ("", *header), tuple(rows))


def _deciding(block: str, cells: pd.DataFrame, table: Table) -> list[Grid]:
    """What is known of each difference of a metric of problems, and what would decide those that are not decided."""
    cells = cells[cells["paired_problems"] > 0]
    average = cells["column"].str.startswith("Average")
    cells = cells[average] if average.any() else cells
    rows: list[tuple[str, ...]] = []
    for cell in records(cells):
        form = table.format_of(cell["metric"], cell["column"])
        seen, same = (_number(cell[name] * form.scale, form.decimals or 0) for name in ("detectable", "same_within"))
        decided = cell["verdict"] in ("▲", "▼")
        needed = ["", "", ""] if decided else [_count(cell[f"needed_{k}"]) for k in ("seeds", "problems", "samples")]
        if not decided and cell["paired_seeds"] == 1:
            needed[0] = "3 or more"
        arm = f"{cell['row']} {cell['column'].removeprefix('Average')}".strip()
        rows.append(
            (
                f"{arm}: {cell['metric']}",
                {"▲": "above", "▼": "below"}.get(cell["verdict"], "undecided"),
                seen,
                same,
                _number(cell["improvement"], 2),
                *needed,
                str(cell["cheapest"]),
            )
        )
    header = ("", "verdict", "seen from", "same within", "P(improvement)", "seeds", "problems", "samples", "cheapest")
    shown = [i for i in range(len(header)) if i < 2 or any(row[i] not in ("–", "") for row in rows)]
    title = f"{block}: what decides" if block else "What decides"
    kept = tuple(tuple(row[i] for i in shown) for row in rows)
    return [Grid(title, tuple(header[i] for i in shown), kept, (_DECIDING,))] if rows else []


_DECIDING = (
    "Points. Seen from: the smallest difference that is decided with 80 % chance; same within: the smallest margin at "
    "which the arms are equivalent (TOST, 5 %). Seeds, problems, samples: how many in all, of one kind alone, would "
    "decide a difference of the size seen; – where none would."
)


def _number(value: float, decimals: int) -> str:
    return f"{value:.{decimals}f}" if math.isfinite(value) else "–"


def _count(value: float | None) -> str:
    return "–" if value is None or math.isnan(value) else f"{int(value):,}"


def _header(cells: pd.DataFrame, metrics: Sequence[str], table: Table) -> tuple[list[tuple[str, str]], list[str]]:
    """(metric, column) of every column, and how it is headed."""
    pairs = cells[["metric", "column"]].drop_duplicates()
    pairs = pairs.sort_values("metric", key=lambda s: s.map({m: i for i, m in enumerate(metrics)}), kind="stable")
    keys = [(str(metric), str(column)) for metric, column in pairs.itertuples(index=False, name=None)]
    alone = len(metrics) == 1 and len(keys) > 1
    header: list[str] = []
    for metric, column in keys:
        name = column if alone or not metric else f"{column} {metric}".strip()
        unit = table.format_of(metric, column).unit
        header.append(name if unit in ("%", "", name) or len(_units(keys, table)) == 1 else f"{name}, {unit}")
    return keys, header


def _units(keys: Sequence[tuple[str, str]], table: Table) -> set[str]:
    return {table.format_of(*key).unit for key in keys}


def _title(
    block: str, metrics: Sequence[str], keys: Sequence[tuple[str, str]], table: Table, per_cent: str = "%"
) -> str:
    """With the metric where it is the only one, and the unit where all columns share it."""
    units = _units(keys, table)
    unit = units.pop() if len(units) == 1 else ""
    unit = per_cent if unit == "%" else unit
    alone = metrics[0] if len(metrics) == 1 and len(keys) > 1 else ""
    named = ": ".join(part for part in (block, alone) if part)
    return f"{named}, {unit}" if named and unit else named or unit


def _exact(form: Format, cells: pd.DataFrame, key: tuple[str, str], value: str) -> Format:
    """With as many decimals as the column needs."""
    if form.decimals is not None:
        return form
    own = cells[(cells["metric"] == key[0]) & (cells["column"] == key[1])]
    return replace(form, decimals=decimals_for(own[value] * form.scale))


def _printed(title: str, cells: pd.DataFrame, across: str) -> Grid:
    columns = list(cells[across].drop_duplicates())
    rows: list[tuple[str, ...]] = []
    for row, part in cells.groupby("row", sort=False):
        at = dict(zip(part[across], part["text"], strict=True))
        rows.append((str(row), *(at.get(c) or "–" for c in columns)))
    return Grid(title, ("", *columns), tuple(rows))
