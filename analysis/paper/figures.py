"""The figures of papers, from the `figures` of the same files as their tables: which numbers of a table each shows, in
which layout; or, where a paper prints no number of it, what draws ours (docs/papers.md)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from analysis.paper.printed import FOLDER, LOADER, OfPaper, Place, Printed, tables

LAYOUTS = ("lines", "bars")


@dataclass(frozen=True)
class Layout:
    """How cells of a table become marks. panel, x, series: of what each has one, a part of a cell (`part_of`).

    only: the cells that are drawn, by part. across: rows that stand as a line over all x. means: groups of x whose mean
    is dashed, by name.
    """

    kind: str
    x: str
    series: str
    panel: str = "panel"
    only: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    across: Sequence[str] = ()
    means: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])

    def chosen(self, printed: Printed) -> list[Place]:
        """The cells with a number that it shows."""
        wanted = {name: set(map(str, values)) for name, values in self.only.items()}
        return [
            cell
            for cell in printed.cells
            if cell.number is not None and all(part_of(cell, name) in values for name, values in wanted.items())
        ]


@dataclass(frozen=True, kw_only=True)
class Pictured(OfPaper):
    """A figure. printed, layout: the table that holds its numbers, and how they stand; None: there is none.

    ours: figures of a report (`analysis/figures`) that show the same of our runs; command: what else does; study: the
    sweep file whose runs have it.
    """

    printed: Printed | None
    layout: Layout | None
    ours: tuple[str, ...]
    command: str
    study: str


@cache
def figures() -> Mapping[str, Pictured]:
    """Every figure of every paper that shows data, by its name, such as `lad_figure_3`."""
    return {each.name: each for file in sorted(FOLDER.glob("*.yaml")) for each in _paper(file)}


def _paper(file: Path) -> Iterator[Pictured]:
    paper: Mapping[str, Any] = yaml.load(file.read_text(encoding="utf-8"), LOADER)
    for each in paper["figures"]:
        table = each.get("table")
        name = f"{file.stem}_{table}".replace(" ", "_") if isinstance(table, str) else f"{file.stem}_table_{table}"
        yield Pictured(
            name=f"{file.stem}_figure_{each['number']}",
            paper=paper["paper"],
            source=paper["source"],
            title=f"figure {each['number']}",
            says=each["says"],
            place=each["place"],
            printed=tables()[name] if table else None,
            layout=_layout(each["layout"]) if table else None,
            ours=tuple(each.get("ours", "").split()),
            command=each.get("command", ""),
            study=each.get("study", ""),
            notes=tuple(each.get("notes", ())),
        )


def _layout(words: Mapping[str, Any]) -> Layout:
    assert words["kind"] in LAYOUTS, words
    return Layout(**words)


def part_of(cell: Place, name: str) -> str:
    """panel, row, column (the benchmark), metric; or the value of a knob that the row names: 4 of `LAD-JS, 1/η = 4`."""
    parts = {"panel": cell.panel, "row": cell.row, "column": cell.benchmark, "metric": cell.metric}
    if name in parts:
        return parts[name]
    found = re.search(rf"{re.escape(name)} = (\S+)", cell.row)
    return found[1] if found else ""


def series_of(cell: Place, layout: Layout) -> str:
    """The name of its series: of a row whose knob stands along x without that knob."""
    name = part_of(cell, layout.series)
    return re.sub(rf",? *{re.escape(layout.x)} = \S+", "", name) if layout.series == "row" else name
