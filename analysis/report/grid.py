"""Lays a table out as titled grids of short texts, the same for every format."""

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import pandas as pd

from analysis.frames.frames import grouped
from analysis.report.table import Format, Published, Table, decimals_for, mark_of, ranked
from analysis.scores import labels
from analysis.scores.comparison import ABOVE, BELOW, DECIDED
from analysis.scores.metric import AVERAGE

WIDE = 126  # characters: a wider grid is split between metrics
Record = Mapping[str, Any]
Key = tuple[str, str]  # metric, column
MOST_DECIMALS = 6
OURS = ", ours"  # stands between the name of a printed row and the label of our row that belongs to it


@dataclass(frozen=True)
class Grid:
    """What every format renders: texts in rows and columns, and which of them are the best of their column."""

    title: str
    header: tuple[str, ...]  # its first text heads the column of row labels
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    best: frozenset[tuple[int, int]] = frozenset()  # (row, column) of the best of each column
    second: frozenset[tuple[int, int]] = frozenset()
    folded: bool = False  # a page shows it on request

    def mark(self, row: int, column: int) -> str:
        """The mark of a text: "best", "second" or ""."""
        if (row, column) in self.best:
            return "best"
        return "second" if (row, column) in self.second else ""

    @property
    def width(self) -> int:
        """Characters of the widest line, with three between columns."""
        lengths = [max(len(row[i]) for row in (self.header, *self.rows)) for i in range(len(self.header))]
        return sum(lengths) + 3 * len(lengths) + 1


@lru_cache(maxsize=64)  # every format lays out the same tables
def grids(table: Table, *, width: int = WIDE, side_by_side: bool = False) -> list[Grid]:
    """The grids of our cells, block by block; a block wider than `width` characters is split between metrics.

    side_by_side: differences stand beside the scores, not in a grid of their own, unless there are several benchmarks.
    A table with `beside` set is laid out as its published table instead, at any width.
    """
    if table.beside:
        (published,) = table.published
        return published_grids(published, _as_printed(table))
    blocks = grouped((c for c in table.records if c["metric"] in table.shown), lambda c: str(c["block"]))
    laid_out: list[Grid] = []
    for title, cells in blocks.items():
        compared = [c for c in cells if not math.isnan(c["difference"])]
        together = side_by_side and table.scores and len({c["column"] for c in cells}) == 1
        if table.scores:
            draw = _deciding_grid if together and table.differences else _score_grid
            laid_out += _split(partial(draw, title, table), cells, table, width)
        if table.differences and compared:
            if not together:
                laid_out += _split(partial(_difference_grid, title, table), compared, table, width)
            laid_out += _deciding(title, compared, table) if table.scores else []
    return laid_out


def deciding_grids(table: Table, metrics: Sequence[str] = ()) -> list[Grid]:
    """What decides, a grid per block: the scores of each row, metric by metric, and beside them its differences.

    metrics: those that are shown; (): those measured by problem, or all where there are none. Of several benchmarks the
    average alone is shown.
    """
    shown = [c for c in table.records if c["metric"] in (metrics or table.shown)]
    if not metrics:
        shown = [c for c in shown if c["problems"] > 0] or shown
    averaged = {c["metric"] for c in shown if c["column"].startswith(AVERAGE)}
    shown = [c for c in shown if c["column"].startswith(AVERAGE) or c["metric"] not in averaged]
    blocks = grouped(shown, lambda c: str(c["block"]))
    return [_deciding_grid(block, table, cells) for block, cells in blocks.items()]


def _deciding_grid(block: str, table: Table, cells: Sequence[Record]) -> Grid:
    compared = [c for c in cells if not math.isnan(c["difference"])]
    scores = _score_grid(block, table, cells)
    if not compared:
        return scores
    differences = _difference_grid(block, table, compared)
    place = {key: i for i, key in enumerate(dict.fromkeys(key for _, key in _by_position(compared)), start=1)}
    keys = list(dict.fromkeys(key for _, key in _by_position(cells)))
    row_of = {row[0]: row for row in differences.rows}
    order = [0]  # places in the scores, or minus places in the differences
    for i, key in enumerate(keys, start=1):
        order += [i, -place[key]] if key in place else [i]
    order += range(len(keys) + 1, len(scores.header))
    rows = [
        tuple(row[i] if i >= 0 else row_of.get(row[0], [""] * len(differences.header))[-i] for i in order)
        for row in scores.rows
    ]
    header = tuple(scores.header[i] if i >= 0 else "difference" for i in order)
    best = frozenset((row, order.index(column)) for row, column in scores.best)
    return Grid(scores.title, header, tuple(rows), scores.notes, best)


def _split(draw: Callable[[Sequence[Record]], Grid], cells: Sequence[Record], table: Table, width: int) -> list[Grid]:
    """One grid, or as few as keep within `width` characters; no metric is divided between two grids."""
    columns = {metric: {c["column"] for c in cells if c["metric"] == metric} for metric in table.shown}
    metrics = [metric for metric in table.shown if columns[metric]]
    parts: list[list[str]] = []
    for metric in metrics:
        if parts and draw(_cells_of_metrics(cells, [*parts[-1], metric])).width <= width:
            parts[-1].append(metric)
        else:
            parts.append([metric])
    if len(parts) > 1 and any(len(columns[metric]) > 1 for metric in metrics):
        # With several benchmarks per metric: one grid for all metrics, or else one for each.
        parts = [[metric] for metric in metrics]
    return [draw(_cells_of_metrics(cells, part)) for part in parts]


def _cells_of_metrics(cells: Sequence[Record], metrics: Sequence[str]) -> list[Record]:
    return [c for metric in metrics for c in cells if c["metric"] == metric]


def within(grid: Grid, width: int) -> list[Grid]:
    """The columns of a grid in as few grids as keep within `width` characters, each with the row labels: in a terminal
    no number wraps. Row labels may wrap; heads are wrapped between words. The notes go with the last grid.
    """
    if grid.width <= width:
        return [grid]
    columns = zip(grid.header, *grid.rows, strict=True)
    widths = [max(len(text) for text in (*head.split(), *cells)) for head, *cells in columns]
    label_width = min(widths[0], width // 3)
    parts: list[list[int]] = []
    for column in range(1, len(widths)):
        # Borders and padding of n columns take 3 n + 1 characters; the labels and `column` are two more columns.
        if parts and label_width + sum(widths[i] for i in (*parts[-1], column)) + 3 * len(parts[-1]) + 7 <= width:
            parts[-1].append(column)
        else:
            parts.append([column])
    header = tuple(
        textwrap.fill(head, most, break_on_hyphens=False) for head, most in zip(grid.header, widths, strict=True)
    )
    wrapped = replace(grid, header=header)
    narrow = [_columns(wrapped, [0, *part]) for part in parts]
    return [*(replace(part, notes=()) for part in narrow[:-1]), *narrow[-1:]]


def _columns(grid: Grid, chosen: Sequence[int]) -> Grid:
    rows = tuple(tuple(row[i] for i in chosen) for row in grid.rows)
    best, second = (
        frozenset((row, chosen.index(column)) for row, column in marks if column in chosen)
        for marks in (grid.best, grid.second)
    )
    return replace(grid, header=tuple(grid.header[i] for i in chosen), rows=rows, best=best, second=second)


def published_grids(published: Published, ours: pd.DataFrame | None = None) -> list[Grid]:
    """Printed values in the layout of the paper, with the marks of the paper. ours: our rows, which stand below the
    printed ones that they belong to, with marks among ours alone.
    """
    blocks: list[Grid] = []
    for block, printed in published.cells.groupby("block", sort=False):
        lines: list[tuple[str, pd.DataFrame]] = []
        for line, cells in printed.groupby("line", sort=False):
            lines.append((str(line), cells))
            if ours is not None:
                below = ours[(ours["block"] == block) & ours["line"].str.startswith(f"{line}{OURS}")]
                own_lines = below.groupby("line", sort=False)
                lines += [(f"· {str(row).removeprefix(f'{line}, ')}", own_cells) for row, own_cells in own_lines]
        blocks.append(_published_grid(str(block), lines))
    return [*blocks[:-1], replace(blocks[-1], notes=published.notes)]


def _as_printed(table: Table) -> pd.DataFrame:
    """Our cells with the columns of `Published.cells`; of each column and metric the best and the second are marked."""
    rows: list[tuple[Any, ...]] = []
    for cell in table.records:
        form, text, number = table.format_of(cell["metric"], cell["column"]), "", math.nan
        if math.isfinite(cell["mean"]):
            text, number = text_of(cell, form), round(cell["mean"] * form.scale, form.decimals)
        rows.append((cell["block"], cell["row"], cell["column"], cell["metric"], text, number))
    ours = pd.DataFrame(rows, columns=["block", "line", "head", "metric", "text", "number"])
    best = {key: ranked(part["number"]) for key, part in ours.groupby(["block", "head", "metric"])}
    keys = zip(ours["block"], ours["head"], ours["metric"], strict=True)
    return ours.assign(mark=[mark_of(number, best[key]) for number, key in zip(ours["number"], keys, strict=True)])


def _published_grid(title: str, lines: Sequence[tuple[str, pd.DataFrame]]) -> Grid:
    heads = list(lines[0][1]["head"])
    rows: list[tuple[str, ...]] = []
    marks: dict[tuple[int, int], str] = {}
    for number, (label, cells) in enumerate(lines):
        texts = dict(zip(cells["head"], cells["text"], strict=True))
        rows.append((label, *(texts.get(head) or "–" for head in heads)))
        marks |= {(number, 1 + heads.index(h)): m for h, m in zip(cells["head"], cells["mark"], strict=True)}
    best, second = (
        frozenset(position for position, mark in marks.items() if mark == kind) for kind in ("best", "second")
    )
    return Grid(title, ("", *heads), tuple(rows), (), best, second)


def published_averages(published: Published) -> Grid:
    """A short form for the terminal: every metric in one grid, as the printed average, or on the first benchmark where
    the paper prints no averages.
    """
    columns = list(published.cells["column"])
    chosen = AVERAGE if AVERAGE in columns else columns[0]
    part = published.cells[published.cells["column"] == chosen]
    metrics = list(part["metric"].drop_duplicates())
    rows: list[tuple[str, ...]] = []
    for row, of_row in part.groupby("row", sort=False):
        texts = dict(zip(of_row["metric"], of_row["text"], strict=True))
        rows.append((str(row), *(texts.get(metric) or "–" for metric in metrics)))
    return Grid(f"{published.label}: {chosen}", ("", *metrics), tuple(rows))


# --- texts ---


def text_of(cell: Record, form: Format, *, marked: bool = True) -> str:
    """A cell as text: `41.2 ± 1.9 ▲`. A partial cell has a dagger and the number of finished seeds; an empty one is
    `— (reason)`.
    """
    if not math.isfinite(cell["mean"]):
        return f"— ({cell['state']})"
    mean, low, high = (cell[name] * form.scale for name in ("mean", "low", "high"))
    half, decimals = max(mean - low, high - mean), form.decimals or 0
    while form.unit == "%" and half > 0 and round(half, decimals) == 0 and decimals < MOST_DECIMALS:
        decimals += 1  # 99.98 ± 0.03, not 100.0 ± 0.0
    text = f"{mean:.{decimals}f}"
    if not math.isclose(mean - low, high - mean, abs_tol=1e-9) and math.isfinite(half):  # cut at what is possible
        ends = (f"{end:.0f}" if end in (0, 100) else f"{end:.{decimals}f}" for end in (low, high))
        text += f" [{', '.join(ends)}]"
    elif half > 0:  # NaN where nothing was repeated
        text += f" ± {half:.{decimals}f}"
    if cell["state"] == "partial":
        text += f" †{cell['seeds']}/{cell['planned']}" if cell["seeds"] < cell["planned"] else " †"
    return f"{text} {cell['verdict']}".rstrip() if marked else text


def difference_text(cell: Record, form: Format) -> str:
    """A difference as text: `+6.6 [3.5, 9.6] ▲`. If decided, with enough decimals that no end reads zero."""
    values = [cell[name] * form.scale for name in ("difference", "difference_low", "difference_high")]
    decimals, decided = form.decimals or 0, cell["verdict"] in DECIDED
    while decided and decimals < MOST_DECIMALS and any(round(end, decimals) == 0 for end in values[1:]):
        decimals += 1
    difference, low, high = (_rounded(v, decimals) for v in values)
    text = difference if difference.startswith("−") else f"+{difference}"
    if math.isfinite(values[1]):
        text += f" [{low}, {high}]"
    return f"{text} {cell['verdict']}".rstrip()


def _rounded(value: float, decimals: int) -> str:
    text = f"{value:.{decimals}f}"
    return text.replace("-", "−") if float(text) else text.lstrip("-")


# --- grids ---


def _score_grid(block: str, table: Table, cells: Sequence[Record]) -> Grid:
    cell_at, forms, rows = _laid_out(cells, table, "mean", partial(text_of, marked=not table.differences))
    names = [row[0] for row in rows]
    best = {
        (names.index(name), 1 + column)
        for column, (key, form) in enumerate(forms.items())
        for name in _best(cell_at, names, key, form)
    }
    hints = {c["row"]: c for c in cells if c["hint"]}
    notes = tuple(f"{row}: {c['state']} – run `{c['hint']}`" for row, c in hints.items())
    keys = list(forms)
    grid = Grid(_title(block, keys, table), ("", *_header(keys, table)), rows, notes, frozenset(best))
    return _with_seeds(grid, cells) if table.differences else grid


def _laid_out(
    cells: Sequence[Record], table: Table, value: str, text: Callable[[Record, Format], str]
) -> tuple[dict[tuple[str, Key], Record], dict[Key, Format], tuple[tuple[str, ...], ...]]:
    """(cells by position, format of each column, rows of texts). value: the name of the number that is shown."""
    cell_at = _by_position(cells)
    keys = dict.fromkeys(key for _, key in cell_at)
    forms = {key: _with_decimals(table.format_of(*key), cells, key, value) for key in keys}
    rows = tuple(
        (name, *(text(cell_at[name, key], form) if (name, key) in cell_at else "—" for key, form in forms.items()))
        for name in dict.fromkeys(name for name, _ in cell_at)
    )
    return cell_at, forms, rows


def _by_position(cells: Sequence[Record]) -> dict[tuple[str, Key], Record]:
    """The cells by (row, (metric, column)), in the order given."""
    return {(c["row"], (c["metric"], c["column"])): c for c in cells}


def _best(at: Mapping[tuple[str, Key], Record], rows: Sequence[str], key: Key, form: Format) -> list[str]:
    """The labels of the rows that print the best value, never of the base policy; [] where all values print alike,
    where neither a larger nor a smaller value is better, or where a comparison of the values would not be fair.
    """
    cells = {row: at[row, key] for row in rows if (row, key) in at and not at[row, key]["base"]}
    if any(cell["unfair"] for cell in cells.values()):
        return []
    values = {row: cell["mean"] for row, cell in cells.items()}
    printed = {label: round(v * form.scale, form.decimals or 0) for label, v in values.items() if math.isfinite(v)}
    if not form.better or len(set(printed.values())) < 2:
        return []
    best = max(printed.values()) if form.better > 0 else min(printed.values())
    return [label for label, v in printed.items() if v == best]


def _with_seeds(grid: Grid, cells: Sequence[Record]) -> Grid:
    """The grid with a last column: finished seeds (of those planned, where some are missing), and how many diverged."""
    rows: list[tuple[str, ...]] = []
    for row in grid.rows:
        row_cells = [c for c in cells if c["row"] == row[0]]
        seeds, planned, diverged = (max(int(c[name]) for c in row_cells) for name in ("seeds", "planned", "diverged"))
        text = str(seeds) if seeds >= planned else f"{seeds} of {planned}"
        rows.append((*row, f"{text} ({diverged} diverged)" if diverged else text))
    return replace(grid, header=(*grid.header, "seeds"), rows=tuple(rows))


def _difference_grid(block: str, table: Table, cells: Sequence[Record]) -> Grid:
    _, forms, rows = _laid_out(cells, table, "difference", difference_text)
    against, keys = labels.joined([c["reference"] for c in cells]), list(forms)
    title = f"{block}: difference to {against}" if block else f"Difference to {against}"
    return Grid(_title(title, keys, table, "points"), ("", *_header(keys, table, "points")), rows)


# The columns of the grid of `_deciding` that the legend explains.
_MEANINGS = {
    "seen from": "the smallest difference that is decided with 80 % chance",
    "same within": "the smallest margin at which the arms are equivalent (TOST, 5 %)",
    "P(improvement)": "the chance that a run of the arm beats a run of the reference (over all pairs of seeds)",
}
_NEEDED = ("seeds", "problems", "samples")
_ONE_SEED = (
    "3 or more seeds: one does not say how much seeds differ. To runs of ours, `until=decided budget=RUNS` adds as "
    "many as it takes (docs/deciding.md)."
)


def _legend(header: Sequence[str]) -> str:
    """The note that explains the columns of the grid of `_deciding`, of which `header` may have only some."""
    meanings = "; ".join(f"{name}: {meaning}" for name, meaning in _MEANINGS.items() if name in header)
    kinds = ", ".join(kind for kind in _NEEDED if kind in header)
    needed = (
        f"{kinds}: how many in all, of one kind alone, would decide a difference of the size seen; – where none would"
    )
    sentences = ["Points", *([meanings] if meanings else []), *([needed] if kinds else [])]
    return " ".join(f"{sentence[0].upper()}{sentence[1:]}." for sentence in sentences)


def _deciding(block: str, cells: Sequence[Record], table: Table) -> list[Grid]:
    """What is known of each difference of a per-problem metric, and what would decide those that are undecided."""
    cells = [c for c in cells if c["paired_problems"] > 0]
    average = [c for c in cells if c["column"].startswith(AVERAGE)]
    rows = [_deciding_row(c, table) for c in average or cells]
    header = ("", "verdict", "seen from", "same within", "P(improvement)", "seeds", "problems", "samples", "cheapest")
    if not rows:
        return []
    shown = [i for i in range(len(header)) if i < 2 or any(row[i] not in ("–", "") for row in rows)]
    title = f"{block}: what decides" if block else "What decides"
    shown_rows = tuple(tuple(row[i] for i in shown) for row in rows)
    shown_header = tuple(header[i] for i in shown)
    notes = (_legend(shown_header), *([_ONE_SEED] if any(c["paired_seeds"] == 1 for c in cells) else []))
    return [Grid(title, shown_header, shown_rows, notes, folded=True)]


def _deciding_row(cell: Record, table: Table) -> tuple[str, ...]:
    form = table.format_of(cell["metric"], cell["column"])
    detectable, same = (_number(cell[name] * form.scale, form.decimals or 0) for name in ("detectable", "same_within"))
    decided = cell["verdict"] in DECIDED
    counts = [] if decided else [cell[f"needed_{kind}"] for kind in _NEEDED]
    needed = ["–" if n is None or math.isnan(n) else f"{int(n):,}" for n in counts] or ["", "", ""]
    if not decided and cell["paired_seeds"] == 1:
        needed[0] = "3 or more"
    arm = f"{cell['row']} {cell['column'].removeprefix(AVERAGE)}".strip()
    verdict = {ABOVE: "above", BELOW: "below"}.get(cell["verdict"], "undecided")
    improvement = _number(cell["improvement"], 2)
    return (f"{arm}: {cell['metric']}", verdict, detectable, same, improvement, *needed, cell["cheapest"])


def _number(value: float, decimals: int) -> str:
    return f"{value:.{decimals}f}" if math.isfinite(value) else "–"


def _header(keys: Sequence[Key], table: Table, per_cent: str = "%") -> list[str]:
    """The head of each column: the benchmark; the metric where there are several; the unit where columns differ in it.

    per_cent: the unit of columns in per cent, "points" for differences.
    """
    one_metric = len({metric for metric, _ in keys}) == 1 and len(keys) > 1
    several_units = len(_units(keys, table)) > 1
    header: list[str] = []
    for metric, column in keys:
        form = table.format_of(metric, column)
        name = column if one_metric or not metric else f"{column} {form.name or metric}".strip()
        unit = form.unit
        unit = per_cent if unit == "%" else unit
        header.append(f"{name}, {unit}" if several_units and unit not in ("", name) else name)
    return header


def _units(keys: Sequence[Key], table: Table) -> set[str]:
    return {table.format_of(*key).unit for key in keys}


def _title(block: str, keys: Sequence[Key], table: Table, per_cent: str = "%") -> str:
    """The title of a grid: the block, the metric where it is the only one, and the unit that all columns share."""
    units, metrics = _units(keys, table), {metric for metric, _ in keys}
    unit = units.pop() if len(units) == 1 else ""
    unit = per_cent if unit == "%" else unit
    only_metric = (table.format_of(*keys[0]).name or metrics.pop()) if len(metrics) == 1 and len(keys) > 1 else ""
    title = ": ".join(part for part in (block, only_metric) if part)
    return f"{title}, {unit}" if title and unit not in ("", only_metric) else title or unit


def _with_decimals(form: Format, cells: Sequence[Record], key: Key, value: str) -> Format:
    """The format with as many decimals as the values of the column need. value: the name of the number in a cell."""
    if form.decimals is not None:
        return form
    numbers = [c[value] * form.scale for c in cells if (c["metric"], c["column"]) == key]
    return replace(form, decimals=decimals_for(numbers))
