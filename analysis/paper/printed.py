"""The tables of papers as printed: a YAML file of this folder per paper, read into cells (docs/papers.md)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from analysis.report.table import Published, mark_of, ranked

FOLDER = Path(__file__).parent
AVERAGE = "Average"  # a column: the mean of the others
MINUS = " - "  # between two rows: their difference
MARKS = {"**": "best", "_": "second", "": ""}
RAW = ("rating", "dist-3", "dist-4", "GPT4-Judge", "S_div")  # metrics that are no percentages
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # of libyaml, ten times faster, where it is built in
_CELL = re.compile(r"(?P<mark>\*\*|_|)(?P<text>[^\s*_]*)(?P=mark)(?: \[(?P<mean>.*)\])?")


@dataclass(frozen=True)
class Place:
    """A printed cell, where the table has it (panel, line, head), and what it is (row, benchmark, metric: `avg@32`).

    text: as printed, `-` where the paper has no number; mark: best, second or ""; mean: of the columns, where a printed
    average is not that. arm: what corresponds among runs, as a selector with the model, or `ROW - ROW`; "": nothing.
    """

    panel: str
    line: str
    head: str
    row: str
    benchmark: str
    metric: str
    text: str
    mark: str
    mean: str
    arm: str

    @property
    def number(self) -> float | None:
        return None if self.text in ("", "-") else float(self.text)


@dataclass(frozen=True, kw_only=True)
class OfPaper:
    """A table or figure of a paper.

    name: among those of all papers; title: in its own. says: what it shows; place: where it stands.
    """

    name: str
    paper: str
    source: str
    title: str
    says: str
    place: str
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Printed(OfPaper):
    """A table.

    benchmarks: names among runs by the paper's; unmarked: columns whose printed marks are not those of the best and the
    second.
    """

    of: str
    benchmarks: Mapping[str, tuple[str, ...]]
    cells: tuple[Place, ...]
    unmarked: tuple[str, ...]

    @property
    def footnotes(self) -> tuple[str, ...]:
        """The notes, and what is known of misprints."""
        averages = [
            f"{cell.line if cell.line != cell.row else f'{cell.panel}, {cell.line}'}: {cell.text} is printed, the mean "
            f"of the columns is {cell.mean}."
            for cell in self.cells
            if cell.mean
        ]
        marks = [f"Marked otherwise than by rank: {', '.join(self.unmarked)}."] if self.unmarked else []
        return (*self.notes, *averages, *marks)


@cache
def tables() -> Mapping[str, Printed]:
    """Every table of every paper by its name, such as `lad_table_1`."""
    return {table.name: table for file in sorted(FOLDER.glob("*.yaml")) for table in _paper(file)}


def published(paper: str, *numbers: int) -> Published:
    """Tables of a paper as one, to stand beside one of ours: `published("lad", 6)`."""
    return as_published(*(tables()[f"{paper}_table_{number}"] for number in numbers))


def as_published(*chosen: Printed) -> Published:
    """The cells of one table, or of several in the order given, each as a block."""
    first, several = chosen[0], len(chosen) > 1
    title = f"tables {first.title.split()[-1]} to {chosen[-1].title.split()[-1]}" if several else first.title
    unit = "" if any(cell.metric in RAW for cell in first.cells) else ", %"
    label = f"{first.paper} ({first.source}), {title}, {first.of}, as printed{unit}"
    rows = [_record(cell, cell.panel or (table.title if several else "")) for table in chosen for cell in table.cells]
    return Published(label, pd.DataFrame(rows), tuple(note for table in chosen for note in table.footnotes))


def _record(cell: Place, block: str) -> dict[str, str]:
    named = {"block": block, "line": cell.line, "head": cell.head, "row": cell.row, "metric": cell.metric}
    return {**named, "column": cell.benchmark, "text": cell.text, "mark": cell.mark}


# --- the files


def _paper(file: Path) -> Iterator[Printed]:
    paper: Mapping[str, Any] = yaml.load(file.read_text(encoding="utf-8"), LOADER)
    benchmarks = {name: tuple(sources.split()) for name, sources in paper["benchmarks"].items()}
    for table in paper["tables"]:
        cells = [cell for panel in table["panels"] for cell in _panel(table, panel, paper["arms"])]
        notes, marks = list(table.get("notes", ())), table.get("marks")
        if isinstance(marks, int):
            cells = with_marks(cells, marks)
            notes.append(f"The paper marks the best {'two ' * (marks > 1)}of each column: marks by this rule.")
        title = table["number"] if isinstance(table["number"], str) else f"table {table['number']}"
        yield Printed(
            name=f"{file.stem}_{title.replace(' ', '_')}",
            paper=paper["paper"],
            source=paper["source"],
            title=title,
            says=table["says"],
            place=table["place"],
            of=table["of"],
            benchmarks=benchmarks,
            cells=tuple(cells),
            notes=tuple(notes),
            unmarked=tuple(table.get("unmarked", ())),
        )


def _panel(table: Mapping[str, Any], panel: Mapping[str, Any], arms: Mapping[str, str]) -> Iterator[Place]:
    """Its cells, row by row. `label: metric` names a metric where the panel has not one for all."""
    runs = f"{panel.get('runs', '')} {table.get('runs', '')}".strip()
    header, *rows = ([part.strip() for part in line.split("|")] for line in panel["cells"].splitlines())
    for line, *texts in rows:
        row, _, of_row = line.partition(": ")
        for head, text in zip(header[1:], texts, strict=True):
            benchmark, _, of_column = head.partition(": ")
            found = _CELL.fullmatch(text)
            assert found is not None, (table["number"], line, head, text)
            yield Place(
                panel=panel["title"],
                line=line.replace(": ", ", "),
                head=head.replace(": ", " "),
                row=row,
                benchmark=benchmark,
                metric=of_row or of_column or panel.get("metric", ""),
                text=found["text"],
                mark=MARKS[found["mark"]],
                mean=found["mean"] or "",
                arm=_selector(arms.get(row, ""), runs),
            )


def _selector(arm: str, runs: str) -> str:
    """runs: of the whole table; a difference of two rows, `A - B`, has none of its own."""
    return f"{arm} {runs}" if arm.startswith("model=") else f"{runs} {arm}" if arm and MINUS not in arm else arm


def with_marks(cells: Sequence[Place], count: int) -> list[Place]:
    """The same with the best, and for count=2 the second, of each column and metric marked."""
    columns: dict[tuple[str, str, str], list[Place]] = {}
    for cell in cells:
        columns.setdefault((cell.panel, cell.head, cell.metric), []).append(cell)
    best = {key: ranked(cell.number for cell in column)[:count] for key, column in columns.items()}
    return [replace(c, mark=mark_of(c.number, best[c.panel, c.head, c.metric])) for c in cells]
