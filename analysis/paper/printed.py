"""The tables and figures of papers, from a YAML file of this folder per paper (docs/papers.md): the cells of a table as
printed; which numbers of a table a figure shows, in which layout, or, where the paper prints no number of it, what
draws the same of our runs."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from analysis.frames.frames import grouped
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


@dataclass(frozen=True)
class FigureLayout:
    """How the cells of a table, `printed`, are drawn.

    kind: lines or bars. panel, x, series: the part of a cell (`part_of`) that determines its panel, place and series.
    only: by part, the values of the cells that are drawn. across: rows that are drawn as a line over all x. means: by
    name, groups of x of which a dashed line shows the mean.
    """

    printed: PaperTable
    kind: str
    x: str
    series: str
    panel: str = "panel"
    only: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    across: Sequence[str] = ()
    means: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])

    def chosen(self) -> list[PrintedCell]:
        """The cells of the table that have a number and are drawn."""
        wanted = {name: set(map(str, values)) for name, values in self.only.items()}
        return [
            cell
            for cell in self.printed.cells
            if cell.number is not None and all(part_of(cell, name) in values for name, values in wanted.items())
        ]


@dataclass(frozen=True, kw_only=True)
class PaperFigure(PaperItem):
    """A figure of a paper.

    layout: how its numbers are drawn, and the table that has them; None where the paper prints no number. ours: figures
    of a report (`analysis/figures`) that show the same of our runs; command: a command that does, "" for none; study:
    the sweep file whose runs have the data, "" for none.
    """

    layout: FigureLayout | None
    ours: tuple[str, ...]
    command: str
    study: str

    @property
    def printed(self) -> PaperTable | None:
        """The table with its numbers."""
        return self.layout and self.layout.printed


@cache
def tables() -> Mapping[str, PaperTable]:
    """Every table of every paper by its name, such as `lad_table_1`."""
    return {table.name: table for stem, paper in _papers().items() for table in _tables(stem, paper)}


@cache
def figures() -> Mapping[str, PaperFigure]:
    """Every figure of every paper that shows data, by its name, such as `lad_figure_3`."""
    return {figure.name: figure for stem, paper in _papers().items() for figure in _figures(stem, paper)}


def published(paper: str, *numbers: int) -> Published:
    """Tables of a paper as one, to be shown beside one of ours: `published("lad", 6)`."""
    return as_published(*(tables()[f"{paper}_table_{number}"] for number in numbers))


def as_published(*chosen: PaperTable) -> Published:
    """The cells of one table, or of several tables in the order given, with a block for each."""
    first, several = chosen[0], len(chosen) > 1
    title = f"tables {first.title.split()[-1]} to {chosen[-1].title.split()[-1]}" if several else first.title
    unit = "" if any(cell.metric in RAW for cell in first.cells) else ", %"
    label = f"{first.paper} ({first.source}), {title}, {first.of}, as printed{unit}"
    rows = [
        (c.panel or (table.title if several else ""), c.line, c.head, c.row, c.metric, c.benchmark, c.text, c.mark)
        for table in chosen
        for c in table.cells
    ]
    cells = pd.DataFrame(rows, columns=["block", "line", "head", "row", "metric", "column", "text", "mark"])
    return Published(label, cells, tuple(note for table in chosen for note in table.footnotes))


# --- the files


@cache
def _papers() -> Mapping[str, Mapping[str, Any]]:
    """By its name, the content of each file."""
    files = sorted(FOLDER.glob("*.yaml"))
    return {file.stem: yaml.load(file.read_text(encoding="utf-8"), LOADER) for file in files}


def _tables(stem: str, paper: Mapping[str, Any]) -> Iterator[PaperTable]:
    benchmarks = {name: tuple(sources.split()) for name, sources in paper["benchmarks"].items()}
    for table in paper["tables"]:
        cells = [cell for panel in table["panels"] for cell in _panel(table, panel, paper["arms"])]
        notes, marks = list(table.get("notes", ())), table.get("marks")
        if isinstance(marks, int):
            cells = with_marks(cells, marks)
            notes.append(f"The paper marks the best {'two ' * (marks > 1)}of each column: marks by this rule.")
        title = table["number"] if isinstance(table["number"], str) else f"table {table['number']}"
        yield PaperTable(
            name=f"{stem}_{title.replace(' ', '_')}",
            **{key: paper[key] for key in ("paper", "source")},
            title=title,
            **{key: table[key] for key in ("says", "place", "of")},
            benchmarks=benchmarks,
            cells=tuple(cells),
            notes=tuple(notes),
            unmarked=tuple(table.get("unmarked", ())),
        )


def _figures(stem: str, paper: Mapping[str, Any]) -> Iterator[PaperFigure]:
    for entry in paper["figures"]:
        table = entry.get("table")
        name = f"{stem}_{table}".replace(" ", "_") if isinstance(table, str) else f"{stem}_table_{table}"
        yield PaperFigure(
            name=f"{stem}_figure_{entry['number']}",
            **{key: paper[key] for key in ("paper", "source")},
            title=f"figure {entry['number']}",
            **{key: entry[key] for key in ("says", "place")},
            layout=FigureLayout(tables()[name], **entry["layout"]) if table else None,
            ours=tuple(entry.get("ours", "").split()),
            command=entry.get("command", ""),
            study=entry.get("study", ""),
            notes=tuple(entry.get("notes", ())),
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
    columns = grouped(cells, lambda cell: (cell.panel, cell.head, cell.metric))
    best = {key: ranked(cell.number for cell in column)[:count] for key, column in columns.items()}
    return [replace(c, mark=mark_of(c.number, best[c.panel, c.head, c.metric])) for c in cells]


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
