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
AVERAGE = "Average"  # the name of a column: the mean of the other columns
MINUS = " - "  # in an arm: the difference of the two rows that it names
MARKS = {"**": "best", "_": "second", "": ""}
RAW = ("rating", "dist-3", "dist-4", "GPT4-Judge", "S_div")  # metrics that are not percentages
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # of libyaml where it is available: ten times faster
_CELL = re.compile(r"(?P<mark>\*\*|_|)(?P<text>[^\s*_]*)(?P=mark)(?: \[(?P<mean>.*)\])?")


@dataclass(frozen=True)
class PrintedCell:
    """A cell of a table as printed.

    panel, line, head: where the table has it; row, benchmark, metric (such as `avg@32`): what it is. text: as
    printed, `-` where the paper has no number; mark: "best", "second" or "". mean: of a misprinted average, the true
    mean of the columns, else "". arm: the arms of ours that correspond to it, as a selector with the model, or
    `ROW - ROW`; "": none.
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
class PaperItem:
    """A table or figure of a paper.

    name: unique among all papers, such as `lad_table_1`; title: in its paper, such as `table 1`. says: what it shows;
    place: the section or page where the paper prints it.
    """

    name: str
    paper: str
    source: str
    title: str
    says: str
    place: str
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class PaperTable(PaperItem):
    """A table of a paper.

    of: the models or the task that it is about. benchmarks: our names of the benchmarks, by the paper's name.
    unmarked: columns whose printed marks are not on the best and the second best.
    """

    of: str
    benchmarks: Mapping[str, tuple[str, ...]]
    cells: tuple[PrintedCell, ...]
    unmarked: tuple[str, ...]

    @property
    def footnotes(self) -> tuple[str, ...]:
        """The notes, and the misprints that are known."""
        averages = [
            f"{cell.line if cell.line != cell.row else f'{cell.panel}, {cell.line}'}: {cell.text} is printed, the mean "
            f"of the columns is {cell.mean}."
            for cell in self.cells
            if cell.mean
        ]
        marks = [f"Marked otherwise than by rank: {', '.join(self.unmarked)}."] if self.unmarked else []
        return (*self.notes, *averages, *marks)


@cache
def tables() -> Mapping[str, PaperTable]:
    """Every table of every paper by its name, such as `lad_table_1`."""
    return {table.name: table for file in sorted(FOLDER.glob("*.yaml")) for table in _paper(file)}


def published(paper: str, *numbers: int) -> Published:
    """Tables of a paper as one, to be shown beside one of ours: `published("lad", 6)`."""
    return as_published(*(tables()[f"{paper}_table_{number}"] for number in numbers))


def as_published(*chosen: PaperTable) -> Published:
    """The cells of one table, or of several tables in the order given, with a block for each."""
    first, several = chosen[0], len(chosen) > 1
    title = f"tables {first.title.split()[-1]} to {chosen[-1].title.split()[-1]}" if several else first.title
    unit = "" if any(cell.metric in RAW for cell in first.cells) else ", %"
    label = f"{first.paper} ({first.source}), {title}, {first.of}, as printed{unit}"
    rows = [_record(cell, cell.panel or (table.title if several else "")) for table in chosen for cell in table.cells]
    return Published(label, pd.DataFrame(rows), tuple(note for table in chosen for note in table.footnotes))


def _record(cell: PrintedCell, block: str) -> dict[str, str]:
    position = {"block": block, "line": cell.line, "head": cell.head, "row": cell.row, "metric": cell.metric}
    return {**position, "column": cell.benchmark, "text": cell.text, "mark": cell.mark}


# --- the files


def _paper(file: Path) -> Iterator[PaperTable]:
    paper: Mapping[str, Any] = yaml.load(file.read_text(encoding="utf-8"), LOADER)
    benchmarks = {name: tuple(sources.split()) for name, sources in paper["benchmarks"].items()}
    for table in paper["tables"]:
        cells = [cell for panel in table["panels"] for cell in _panel(table, panel, paper["arms"])]
        notes, marks = list(table.get("notes", ())), table.get("marks")
        if isinstance(marks, int):
            cells = with_marks(cells, marks)
            notes.append(f"The paper marks the best {'two ' * (marks > 1)}of each column: marks by this rule.")
        title = table["number"] if isinstance(table["number"], str) else f"table {table['number']}"
        yield PaperTable(
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


def _panel(table: Mapping[str, Any], panel: Mapping[str, Any], arms: Mapping[str, str]) -> Iterator[PrintedCell]:
    """The cells of a panel, row by row. A row or a head `label: metric` names its metric; else the panel does."""
    runs = f"{panel.get('runs', '')} {table.get('runs', '')}".strip()
    header, *rows = ([part.strip() for part in line.split("|")] for line in panel["cells"].splitlines())
    for line, *texts in rows:
        row, _, of_row = line.partition(": ")
        for head, text in zip(header[1:], texts, strict=True):
            benchmark, _, of_column = head.partition(": ")
            parsed = _CELL.fullmatch(text)
            assert parsed is not None, (table["number"], line, head, text)
            yield PrintedCell(
                panel=panel["title"],
                line=line.replace(": ", ", "),
                head=head.replace(": ", " "),
                row=row,
                benchmark=benchmark,
                metric=of_row or of_column or panel.get("metric", ""),
                text=parsed["text"],
                mark=MARKS[parsed["mark"]],
                mean=parsed["mean"] or "",
                arm=_selector(arms.get(row, ""), runs),
            )


def _selector(arm: str, runs: str) -> str:
    """The selector of a row: that of its arm with that of the table, `runs`, the model first. A difference of two rows,
    `A - B`, stays as it is."""
    if not arm or MINUS in arm:
        return arm
    return f"{arm} {runs}" if arm.startswith("model=") else f"{runs} {arm}"


def with_marks(cells: Sequence[PrintedCell], count: int) -> list[PrintedCell]:
    """The cells with the best, and for count=2 the second best, of each column and metric marked."""
    columns: dict[tuple[str, str, str], list[PrintedCell]] = {}
    for cell in cells:
        columns.setdefault((cell.panel, cell.head, cell.metric), []).append(cell)
    best = {key: ranked(cell.number for cell in column)[:count] for key, column in columns.items()}
    return [replace(c, mark=mark_of(c.number, best[c.panel, c.head, c.metric])) for c in cells]
