"""The figures of papers, from `figures` in the YAML file of each paper (docs/papers.md): which numbers of a table each
shows, in which layout; or, where the paper prints no number of it, what draws the same of our runs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from analysis.paper.printed import FOLDER, LOADER, PaperItem, PaperTable, PrintedCell, tables

LAYOUTS = ("lines", "bars")


@dataclass(frozen=True)
class FigureLayout:
    """How the cells of a table are drawn.

    kind: one of LAYOUTS. panel, x, series: the part of a cell (`part_of`) that determines its panel, place and series.
    only: by part, the values of the cells that are drawn. across: rows that are drawn as a line over all x. means: by
    name, groups of x of which a dashed line shows the mean.
    """

    kind: str
    x: str
    series: str
    panel: str = "panel"
    only: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    across: Sequence[str] = ()
    means: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])

    def chosen(self, printed: PaperTable) -> list[PrintedCell]:
        """The cells of a table that have a number and are drawn."""
        wanted = {name: set(map(str, values)) for name, values in self.only.items()}
        return [
            cell
            for cell in printed.cells
            if cell.number is not None and all(part_of(cell, name) in values for name, values in wanted.items())
        ]


@dataclass(frozen=True, kw_only=True)
class PaperFigure(PaperItem):
    """A figure of a paper.

    printed, layout: the table with its numbers, and how they are drawn; both None where the paper prints no number.
    ours: figures of a report (`analysis/figures`) that show the same of our runs; command: a command that does, "" for
    none; study: the sweep file whose runs have the data, "" for none.
    """

    printed: PaperTable | None
    layout: FigureLayout | None
    ours: tuple[str, ...]
    command: str
    study: str


@cache
def figures() -> Mapping[str, PaperFigure]:
    """Every figure of every paper that shows data, by its name, such as `lad_figure_3`."""
    return {figure.name: figure for file in sorted(FOLDER.glob("*.yaml")) for figure in _paper(file)}


def _paper(file: Path) -> Iterator[PaperFigure]:
    paper: Mapping[str, Any] = yaml.load(file.read_text(encoding="utf-8"), LOADER)
    for entry in paper["figures"]:
        table = entry.get("table")
        name = f"{file.stem}_{table}".replace(" ", "_") if isinstance(table, str) else f"{file.stem}_table_{table}"
        yield PaperFigure(
            name=f"{file.stem}_figure_{entry['number']}",
            paper=paper["paper"],
            source=paper["source"],
            title=f"figure {entry['number']}",
            says=entry["says"],
            place=entry["place"],
            printed=tables()[name] if table else None,
            layout=_layout(entry["layout"]) if table else None,
            ours=tuple(entry.get("ours", "").split()),
            command=entry.get("command", ""),
            study=entry.get("study", ""),
            notes=tuple(entry.get("notes", ())),
        )


def _layout(words: Mapping[str, Any]) -> FigureLayout:
    assert words["kind"] in LAYOUTS, words
    return FigureLayout(**words)


def part_of(cell: PrintedCell, name: str) -> str:
    """A part of a cell: panel, row, column (the benchmark) or metric; else the value of the knob `name` in its row, as
    4 in `LAD-JS, 1/η = 4`, "" where the row does not name it.
    """
    parts = {"panel": cell.panel, "row": cell.row, "column": cell.benchmark, "metric": cell.metric}
    if name in parts:
        return parts[name]
    value = re.search(rf"{re.escape(name)} = (\S+)", cell.row)
    return value[1] if value else ""


def series_of(cell: PrintedCell, layout: FigureLayout) -> str:
    """The name of the series of a cell; of a row, without the knob that is along x."""
    name = part_of(cell, layout.series)
    return re.sub(rf",? *{re.escape(layout.x)} = \S+", "", name) if layout.series == "row" else name
