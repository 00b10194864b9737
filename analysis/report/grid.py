"""A table laid out: titled grids of short texts, the same for every format."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import pandas as pd

from analysis.report.table import Format, Published, Table, decimals_for, mark_of, ranked
from analysis.scores import words

WIDE = 126  # characters; a wider grid is split by metric
Record = Mapping[str, Any]
Key = tuple[str, str]  # metric, column
AVERAGE = "Average"
MOST_DECIMALS = 6
OURS = ", ours"  # ends the name of a printed row that a row of ours belongs to


@dataclass(frozen=True)
class Grid:
    title: str
    header: tuple[str, ...]  # the first is the row labels'
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    best: frozenset[tuple[int, int]] = frozenset()  # (row, column) of the best of each column
    second: frozenset[tuple[int, int]] = frozenset()

    def mark(self, row: int, column: int) -> str:
        """best, second or ""."""
        return "best" if (row, column) in self.best else "second" if (row, column) in self.second else ""

    @property
    def width(self) -> int:
        """Characters of its widest line, with three between columns."""
        lengths = [max(len(row[i]) for row in (self.header, *self.rows)) for i in range(len(self.header))]
        return sum(lengths) + 3 * len(lengths) + 1


@lru_cache(maxsize=64)  # every format asks
def grids(table: Table, *, width: int = WIDE) -> list[Grid]:
    """Our cells, block by block; a block wider than `width` characters is split, between metrics."""
    if table.beside:
        return side_by_side(table)
    blocks: dict[str, list[Record]] = {}
    for cell in table.records:
        if cell["metric"] in table.shown:
            blocks.setdefault(cell["block"], []).append(cell)
    found: list[Grid] = []
    for title, cells in blocks.items():
        compared = [c for c in cells if not math.isnan(c["difference"])]
        if table.scores:
            found += _split(lambda part, t=title: _scores(t, part, table), cells, table, width)
        if table.differences and compared:
            found += _split(lambda part, t=title: _differences(t, part, table), compared, table, width)
            found += _deciding(title, compared, table) if table.scores else []
    return found


def _split(draw: Callable[[Sequence[Record]], Grid], cells: Sequence[Record], table: Table, width: int) -> list[Grid]:
    """One grid, or as few as keep within the width with whole metrics in each."""
    columns = {metric: {c["column"] for c in cells if c["metric"] == metric} for metric in table.shown}
    metrics = [metric for metric in table.shown if columns[metric]]
    parts: list[list[str]] = []
    for metric in metrics:
        if parts and draw(_of(cells, [*parts[-1], metric])).width <= width:
            parts[-1].append(metric)
        else:
            parts.append([metric])
    if len(parts) > 1 and any(len(columns[metric]) > 1 for metric in metrics):
        parts = [[metric] for metric in metrics]  # benchmarks side by side: a metric each, or all
    return [draw(_of(cells, part)) for part in parts]


def _of(cells: Sequence[Record], metrics: Sequence[str]) -> list[Record]:
    """Those of some metrics, in the order of these."""
    return [c for metric in metrics for c in cells if c["metric"] == metric]


def within(grid: Grid, width: int) -> list[Grid]:
    """A grid with every number on one line of a terminal: its columns in as few grids as keep within the width, in
    characters, the row labels before each. Labels may wrap, and heads are wrapped between words.
    """
    if grid.width <= width:
        return [grid]
    columns = zip(grid.header, *grid.rows, strict=True)
    wide = [max(len(text) for text in (*head.split(), *cells)) for head, *cells in columns]
    label = min(wide[0], width // 3)
    parts: list[list[int]] = []
    for column in range(1, len(wide)):
        if parts and label + sum(wide[i] for i in (*parts[-1], column)) + 3 * len(parts[-1]) + 7 <= width:
            parts[-1].append(column)
        else:
            parts.append([column])
    header = (textwrap.fill(head, most, break_on_hyphens=False) for head, most in zip(grid.header, wide, strict=True))
    whole = replace(grid, header=tuple(header))
    found = [_columns(whole, [0, *part]) for part in parts]
    return [*(replace(part, notes=()) for part in found[:-1]), *found[-1:]]


def _columns(grid: Grid, chosen: Sequence[int]) -> Grid:
    """These columns alone, with their marks."""
    rows = tuple(tuple(row[i] for i in chosen) for row in grid.rows)
    best, second = (
        frozenset((row, chosen.index(column)) for row, column in marks if column in chosen)
        for marks in (grid.best, grid.second)
    )
    return replace(grid, header=tuple(grid.header[i] for i in chosen), rows=rows, best=best, second=second)


def published_grids(published: Published) -> list[Grid]:
    """Printed values in the layout of the paper, with its marks."""
    found = [
        _marked(str(block), [(str(line), part) for line, part in own.groupby("line", sort=False)])
        for block, own in published.cells.groupby("block", sort=False)
    ]
    return [*found[:-1], replace(found[-1], notes=published.notes)]


def side_by_side(table: Table) -> list[Grid]:
    """The published table with each row of ours below the printed one; of either the best and the second are marked."""
    (published,) = table.published
    ours = _as_printed(table)
    found: list[Grid] = []
    for block, own in published.cells.groupby("block", sort=False):
        lines: list[tuple[str, pd.DataFrame]] = []
        for line, part in own.groupby("line", sort=False):
            below = ours[(ours["block"] == block) & ours["line"].str.startswith(f"{line}{OURS}")]
            lines.append((str(line), part))
            named = ((str(row).removeprefix(f"{line}, "), cells) for row, cells in below.groupby("line", sort=False))
            lines += [(f"· {name}", cells) for name, cells in named]
        found.append(_marked(str(block), lines))
    return [*found[:-1], replace(found[-1], notes=published.notes)]


def _as_printed(table: Table) -> pd.DataFrame:
    """Our cells as those of a published table."""
    rows: list[dict[str, Any]] = []
    for cell in table.records:
        form = table.format_of(cell["metric"], cell["column"])
        known = math.isfinite(cell["mean"])
        rows.append(
            {
                "block": cell["block"],
                "line": cell["row"],
                "head": cell["column"],
                "metric": cell["metric"],
                "text": text_of(cell, form) if known else "",
                "number": round(cell["mean"] * form.scale, form.decimals) if known else math.nan,
            }
        )
    ours = pd.DataFrame(rows, columns=["block", "line", "head", "metric", "text", "number"])
    best = {key: ranked(part["number"]) for key, part in ours.groupby(["block", "head", "metric"])}
    keys = zip(ours["block"], ours["head"], ours["metric"], strict=True)
    return ours.assign(mark=[mark_of(number, best[key]) for number, key in zip(ours["number"], keys, strict=True)])


def _marked(title: str, lines: Sequence[tuple[str, pd.DataFrame]]) -> Grid:
    """lines: how each is called, and its cells."""
    heads = list(lines[0][1]["head"])
    rows: list[tuple[str, ...]] = []
    marks: dict[tuple[int, int], str] = {}
    for number, (label, cells) in enumerate(lines):
        texts = dict(zip(cells["head"], cells["text"], strict=True))
        rows.append((label, *(texts.get(head) or "–" for head in heads)))
        marks |= {(number, 1 + heads.index(h)): m for h, m in zip(cells["head"], cells["mark"], strict=True)}
    best, second = (frozenset(where for where, mark in marks.items() if mark == each) for each in ("best", "second"))
    return Grid(title, ("", *heads), tuple(rows), (), best, second)


def published_averages(published: Published) -> Grid:
    """The printed averages of every metric in one grid, without averages those of the first benchmark: what fits."""
    columns = list(published.cells["column"])
    chosen = AVERAGE if AVERAGE in columns else columns[0]
    part = published.cells[published.cells["column"] == chosen]
    return _printed(f"{published.label}: {chosen}", part, "metric")


def _printed(title: str, cells: pd.DataFrame, across: str) -> Grid:
    columns = list(cells[across].drop_duplicates())
    rows: list[tuple[str, ...]] = []
    for row, part in cells.groupby("row", sort=False):
        at = dict(zip(part[across], part["text"], strict=True))
        rows.append((str(row), *(at.get(c) or "–" for c in columns)))
    return Grid(title, ("", *columns), tuple(rows))


# --- texts ---


def text_of(cell: Record, form: Format, *, marked: bool = True) -> str:
    """`41.2 ± 1.9 ▲`; a dagger and the seeds that count where some are not finished; the reason where empty."""
    if not math.isfinite(cell["mean"]):
        return f"—({cell['state']})"
    text = f"{cell['mean'] * form.scale:.{form.decimals}f}"
    half = (cell["high"] - cell["low"]) / 2 * form.scale
    if half >= 100 and form.unit == "%":  # of two problems, say: t of one degree of freedom is 12.7
        text += " (too few for ±)"
    elif half > 0:  # NaN: nothing to repeat
        text += f" ± {half:.{form.decimals}f}"
    if cell["state"] == "partial":
        text += f" †{cell['seeds']}/{cell['planned']}" if cell["seeds"] < cell["planned"] else " †"
    return f"{text} {cell['verdict']}".rstrip() if marked else text


def difference_text(cell: Record, form: Format) -> str:
    """`+6.6 [3.5, 9.6] ▲`; with further decimals where it is decided and an end would be printed as zero."""
    values = [cell[name] * form.scale for name in ("difference", "difference_low", "difference_high")]
    decimals, decided = form.decimals or 0, cell["verdict"] in ("▲", "▼")
    while decided and decimals < MOST_DECIMALS and any(round(end, decimals) == 0 for end in values[1:]):
        decimals += 1
    difference, low, high = (_rounded(v, decimals) for v in values)
    text = difference if difference.startswith("−") else f"+{difference}"
    if math.isfinite(values[1]):
        text += " [too few]" if values[2] - values[1] >= 200 and form.unit == "%" else f" [{low}, {high}]"
    return f"{text} {cell['verdict']}".rstrip()


def _rounded(value: float, decimals: int) -> str:
    text = f"{value:.{decimals}f}"
    return text.replace("-", "−") if float(text) else text.lstrip("-")


# --- grids ---


def _scores(block: str, cells: Sequence[Record], table: Table) -> Grid:
    at = _placed(cells)
    keys, labels = list(dict.fromkeys(key for _, key in at)), list(dict.fromkeys(label for label, _ in at))
    forms = {key: _exact(table.format_of(*key), cells, key, "mean") for key in keys}
    marked = not table.differences
    rows = [
        (x, *(text_of(at[x, key], forms[key], marked=marked) if (x, key) in at else "—" for key in keys))
        for x in labels
    ]
    best = {
        (labels.index(x), 1 + column) for column, key in enumerate(keys) for x in _best(at, labels, key, forms[key])
    }
    hints = {c["row"]: c for c in cells if c["hint"]}
    notes = tuple(f"{row}: {c['state']} – run `{c['hint']}`" for row, c in hints.items())
    title = _title(block, keys, table)
    grid = Grid(title, ("", *_header(keys, table)), tuple(rows), notes, frozenset(best))
    return _with_seeds(grid, cells) if table.differences else grid


def _placed(cells: Sequence[Record]) -> dict[tuple[str, Key], Record]:
    """By row and column, rows in the order of the first column."""
    return {(c["row"], (c["metric"], c["column"])): c for c in cells}


def _best(at: Mapping[tuple[str, Key], Record], labels: Sequence[str], key: Key, form: Format) -> list[str]:
    """The arms that print the best value; none where there is one alone, or where neither more nor less is better."""
    values = {x: at[x, key]["mean"] for x in labels if (x, key) in at and not at[x, key]["base"]}
    printed = {label: round(v * form.scale, form.decimals or 0) for label, v in values.items() if math.isfinite(v)}
    if not form.better or len(set(printed.values())) < 2:
        return []
    first = max(printed.values()) if form.better > 0 else min(printed.values())
    return [label for label, v in printed.items() if v == first]


def _with_seeds(grid: Grid, cells: Sequence[Record]) -> Grid:
    """A last column: the seeds that count, of those planned where some are missing, and how many of them diverged."""
    rows: list[tuple[str, ...]] = []
    for row in grid.rows:
        own = [c for c in cells if c["row"] == row[0]]
        seeds, planned, diverged = (max(int(c[name]) for c in own) for name in ("seeds", "planned", "diverged"))
        text = str(seeds) if seeds >= planned else f"{seeds} of {planned}"
        rows.append((*row, f"{text} ({diverged} diverged)" if diverged else text))
    return replace(grid, header=(*grid.header, "seeds"), rows=tuple(rows))


def _differences(block: str, cells: Sequence[Record], table: Table) -> Grid:
    at = _placed(cells)
    keys, labels = list(dict.fromkeys(key for _, key in at)), list(dict.fromkeys(label for label, _ in at))
    forms = {key: _exact(table.format_of(*key), cells, key, "difference") for key in keys}
    rows = [(x, *(difference_text(at[x, key], forms[key]) if (x, key) in at else "—" for key in keys)) for x in labels]
    against = words.together([c["reference"] for c in cells])
    named = f"{block}: difference to {against}" if block else f"Difference to {against}"
    return Grid(_title(named, keys, table, "points"), ("", *_header(keys, table, "points")), tuple(rows))


_SEEN = {
    "seen from": "the smallest difference that is decided with 80 % chance",
    "same within": "the smallest margin at which the arms are equivalent (TOST, 5 %)",
    "P(improvement)": "the chance that a run of the arm beats a run of the reference (over all pairs of seeds)",
}
_KINDS = ("seeds", "problems", "samples")
_ONE_SEED = (
    "3 or more seeds: one does not say how much seeds differ. To runs of ours, `until=decided budget=RUNS` adds as "
    "many as it takes (docs/deciding.md)."
)


def _legend(header: Sequence[str]) -> str:
    """What the columns that are there mean."""
    seen = "; ".join(f"{name}: {what}" for name, what in _SEEN.items() if name in header)
    kinds = ", ".join(kind for kind in _KINDS if kind in header)
    needed = (
        f"{kinds}: how many in all, of one kind alone, would decide a difference of the size seen; – where none would"
    )
    said = ["Points", *([seen] if seen else []), *([needed] if kinds else [])]
    return " ".join(f"{sentence[0].upper()}{sentence[1:]}." for sentence in said)


def _deciding(block: str, cells: Sequence[Record], table: Table) -> list[Grid]:
    """What is known of each difference of a metric of problems, and what would decide those that are not decided."""
    cells = [c for c in cells if c["paired_problems"] > 0]
    average = [c for c in cells if c["column"].startswith(AVERAGE)]
    rows = [_deciding_row(c, table) for c in average or cells]
    header = ("", "verdict", "seen from", "same within", "P(improvement)", "seeds", "problems", "samples", "cheapest")
    shown = [i for i in range(len(header)) if i < 2 or any(row[i] not in ("–", "") for row in rows)]
    title = f"{block}: what decides" if block else "What decides"
    kept = tuple(tuple(row[i] for i in shown) for row in rows)
    kept_header = tuple(header[i] for i in shown)
    notes = (_legend(kept_header), *([_ONE_SEED] if any(c["paired_seeds"] == 1 for c in cells) else []))
    return [Grid(title, kept_header, kept, notes)] if rows else []


def _deciding_row(cell: Record, table: Table) -> tuple[str, ...]:
    form = table.format_of(cell["metric"], cell["column"])
    seen, same = (_number(cell[name] * form.scale, form.decimals or 0) for name in ("detectable", "same_within"))
    decided = cell["verdict"] in ("▲", "▼")
    needed = ["", "", ""] if decided else [_count(cell[f"needed_{k}"]) for k in ("seeds", "problems", "samples")]
    if not decided and cell["paired_seeds"] == 1:
        needed[0] = "3 or more"
    arm = f"{cell['row']} {cell['column'].removeprefix(AVERAGE)}".strip()
    verdict = {"▲": "above", "▼": "below"}.get(cell["verdict"], "undecided")
    improvement = _number(cell["improvement"], 2)
    return (f"{arm}: {cell['metric']}", verdict, seen, same, improvement, *needed, cell["cheapest"])


def _number(value: float, decimals: int) -> str:
    return f"{value:.{decimals}f}" if math.isfinite(value) else "–"


def _count(value: float | None) -> str:
    return "–" if value is None or math.isnan(value) else f"{int(value):,}"


def _header(keys: Sequence[Key], table: Table, per_cent: str = "%") -> list[str]:
    """The benchmark, the metric where there are several, the unit where columns differ in it."""
    alone = len({metric for metric, _ in keys}) == 1 and len(keys) > 1
    several_units = len(_units(keys, table)) > 1
    header: list[str] = []
    for metric, column in keys:
        name = column if alone or not metric else f"{column} {metric}".strip()
        unit = table.format_of(metric, column).unit
        unit = per_cent if unit == "%" else unit
        header.append(f"{name}, {unit}" if several_units and unit not in ("", name) else name)
    return header


def _units(keys: Sequence[Key], table: Table) -> set[str]:
    return {table.format_of(*key).unit for key in keys}


def _title(block: str, keys: Sequence[Key], table: Table, per_cent: str = "%") -> str:
    """With the metric where it is the only one, and the unit where all columns share it."""
    units, metrics = _units(keys, table), {metric for metric, _ in keys}
    unit = units.pop() if len(units) == 1 else ""
    unit = per_cent if unit == "%" else unit
    alone = metrics.pop() if len(metrics) == 1 and len(keys) > 1 else ""
    named = ": ".join(part for part in (block, alone) if part)
    return f"{named}, {unit}" if named and unit else named or unit


def _exact(form: Format, cells: Sequence[Record], key: Key, value: str) -> Format:
    """With as many decimals as the column needs."""
    if form.decimals is not None:
        return form
    own = [c[value] * form.scale for c in cells if (c["metric"], c["column"]) == key]
    return replace(form, decimals=decimals_for(own))
