"""Renders a table as Markdown, CSV, LaTeX, or in the terminal."""

import csv
import io
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from analysis.report.grid import Grid, deciding_grids, grids, published_averages, published_grids, within
from analysis.report.table import COLUMNS, COMPARED, Table
from analysis.scores.claim import Verdict


def markdown(table: Table) -> str:
    """GitHub Markdown, ending in a newline."""
    parts = [f"# {table.title}", table.question]
    parts += [_markdown_grid(g) for g in grids(table)]
    if table.notes:
        parts.append("\n".join(f"- {_without_html(n)}" for n in table.notes))
    for paper in table.published_apart:
        parts.append(f"## Published: {paper.label}")
        parts += [_markdown_grid(g) for g in published_grids(paper)]
    return "\n\n".join(parts) + "\n"


def _markdown_grid(grid: Grid) -> str:
    header = [_escaped(c) for c in grid.header]
    rows = [
        [_with_mark(_escaped(c), grid.mark(i, j), "**{}**", "<u>{}</u>") for j, c in enumerate(r)]
        for i, r in enumerate(grid.rows)
    ]
    widths = [max(3, *(len(row[i]) for row in (header, *rows))) for i in range(len(header))]

    def line(row: Sequence[str]) -> str:
        cells = [c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))]
        return f"| {' | '.join(cells)} |"

    rule = "|".join(["", "-" * (widths[0] + 2), *("-" * (w + 1) + ":" for w in widths[1:]), ""])
    title = [f"**{_without_html(grid.title)}**", ""] if grid.title else []
    notes = [f"\n{_without_html(n)}" for n in grid.notes]
    return "\n".join([*title, line(header), rule, *map(line, rows), *notes])


def _with_mark(text: str, mark: str, best: str, second: str) -> str:
    """The text in the form of its mark. best, second: templates with {} in place of the text."""
    return {"best": best, "second": second}.get(mark, "{}").replace("{}", text)


def _escaped(text: str) -> str:
    """The text with | escaped, which ends a cell in Markdown."""
    return _without_html(text).replace("|", r"\|")


def _without_html(text: str) -> str:
    """The text in one line, in which no < begins a tag: names come from data sets, and from bundles of strangers."""
    return re.sub(r"<(?=[a-zA-Z/!?])", r"\<", " ".join(text.split("\n")))


def to_csv(table: Table) -> str:
    """Every cell at full precision, shares as fractions: COLUMNS, and COMPARED where a row has a reference.

    An apostrophe is put before a text that a spreadsheet would compute.
    """
    compared = [c for c in COMPARED if (table.cells["reference"] != "").any()]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*COLUMNS, *compared])
    for cell in table.records:
        writer.writerow([_full_precision(cell[c]) for c in (*COLUMNS, *compared)])
    return out.getvalue()


_FORMULA = re.compile(r"[=@\t]|[-+](?![-+\d.e ]*\Z)")  # but numbers, one or several


def _full_precision(value: Any) -> Any:
    """NaN as an empty cell, whole numbers above 1 without a decimal point."""
    if isinstance(value, str) and _FORMULA.match(value):
        return f"'{value}"
    if not isinstance(value, float):
        return value
    if math.isnan(value):
        return ""
    return int(value) if value.is_integer() and abs(value) > 1 else repr(float(value))


def latex(table: Table) -> str:
    r"""One `table` environment per grid; the document needs \usepackage{booktabs,amssymb}."""
    parts = [f"% {table.title}: {table.question}".replace("\n", " ")]
    parts += [_latex_grid(g, f"tab:{table.name}-{i + 1}") for i, g in enumerate(grids(table))]
    parts += [f"% {note}".replace("\n", " ") for note in table.notes]
    for p, paper in enumerate(table.published_apart):
        titled = [replace(g, title=": ".join(filter(None, (paper.label, g.title)))) for g in published_grids(paper)]
        parts += [_latex_grid(g, f"tab:{table.name}-published-{p + 1}-{i + 1}") for i, g in enumerate(titled)]
    return "\n".join(parts) + "\n"


def _latex_grid(grid: Grid, label: str) -> str:
    def line(row: tuple[str, ...], number: int = -1) -> str:
        marks = [grid.mark(number, j) for j in range(len(row))]
        cells = [_with_mark(tex(c), m, r"\textbf{{}}", r"\underline{{}}") for c, m in zip(row, marks, strict=True)]
        return "  " + " & ".join(cells) + r" \\"

    caption = ". ".join(tex(sentence.removesuffix(".")) for sentence in (grid.title or "Scores", *grid.notes))
    return "\n".join(
        [
            r"\begin{table}",
            r"  \centering",
            f"  \\caption{{{caption}.}}",
            f"  \\label{{{label}}}",
            f"  \\begin{{tabular}}{{l{'r' * (len(grid.header) - 1)}}}",
            r"  \toprule",
            line(grid.header),
            r"  \midrule",
            *(line(row, i) for i, row in enumerate(grid.rows)),
            r"  \bottomrule",
            r"  \end{tabular}",
            r"\end{table}",
        ]
    )


_GREEK = (
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi pi rho sigma tau upsilon phi chi psi "
    "omega Gamma Delta Theta Lambda Xi Pi Phi Psi Omega"
)
_TEX = {
    **{letter: f"$\\{name}$" for letter, name in zip("αβγδεζηθικλμνξπρστυφχψωΓΔΘΛΞΠΦΨΩ", _GREEK.split(), strict=True)},
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "—": "---",
    "–": "--",
    "†": r"$^\dagger$",
    "·": r"$\cdot$",
    "∝": r"$\propto$",
    "≤": r"$\le$",
    "≥": r"$\ge$",
    "→": r"$\to$",
    "×": r"$\times$",
    "…": r"\dots{}",
    "½": r"$\frac12$",
    "Σ": r"$\sum$",
    "−": r"$-$",
    "▲": r"$\blacktriangle$",
    "▼": r"$\blacktriangledown$",
    "△": r"$\vartriangle$",
    "▽": r"$\triangledown$",
}


def tex(text: str) -> str:
    """Text with every special character of LaTeX escaped; `code` is set in typewriter type."""
    pieces = re.split(r"`([^`]*)`", text)
    escaped = ["".join(_TEX.get(ch, ch) for ch in piece) for piece in pieces]
    return "".join(rf"\texttt{{{p}}}" if i % 2 else p for i, p in enumerate(escaped))


def terminal(table: Table, console: Console) -> None:
    """Print all of our grids, and each published table as its averages alone."""
    console.print(f"\n[bold]{escape(table.title)}[/bold]  [dim]{escape(table.question)}[/dim]")
    for grid in grids(table, width=console.width):
        _print_grid(grid, console)
    for note in table.notes:
        console.print(f"[dim]{escape(note)}[/dim]")
    for paper in table.published_apart:
        _print_grid(published_averages(paper), console, style="dim")


def deciding(table: Table, metrics: Sequence[str], console: Console) -> None:
    """Print the scores and differences of a table (`deciding_grids`)."""
    for grid in deciding_grids(table, metrics):
        _print_grid(grid, console)


def claims(verdicts: Sequence[Verdict], console: Console) -> None:
    """Print each claim: its verdict, the finding, its basis, and what the paper prints."""
    colours = {"holds": "green", "contradicted": "red", "above": "green", "below": "red"}
    for verdict in verdicts:
        colour, claim = colours.get(verdict.outcome, "yellow"), verdict.claim
        console.print(
            f"\n[{colour}]{verdict.outcome}{verdict.extent}[/{colour}]: {escape(claim.says)}", highlight=False
        )
        finding = f"{verdict.measured} ({verdict.basis})" if verdict.measured else ""
        printed = f"printed: {claim.printed}" + (f" ({claim.source})" if claim.source else "") if claim.printed else ""
        for line in filter(None, (finding, verdict.note, *verdict.rows)):
            console.print(f"  {line}", markup=False)
        if printed:
            console.print(f"  {printed}", style="dim", markup=False)


def _print_grid(grid: Grid, console: Console, style: str = "") -> None:
    for part in within(grid, console.width):
        console.print(f"\n[italic]{escape(part.title)}[/italic]", style=style)
        drawn = RichTable(style=style, row_styles=[style])
        for i, name in enumerate(part.header):
            drawn.add_column(escape(name), justify="left" if i == 0 else "right", no_wrap=i > 0)
        for i, row in enumerate(part.rows):
            drawn.add_row(*(_styled(c, part.mark(i, j)) for j, c in enumerate(row)))
        console.print(drawn)
        for note in part.notes:
            console.print(f"[yellow]{escape(note)}[/yellow]")


def _styled(text: str, mark: str) -> str:
    styles = {"—": "yellow", "▲": "green", "▼": "red"}
    style = styles.get(text[:1], styles.get(text[-1:], "")) or {"best": "bold", "second": "underline"}.get(mark, "")
    return f"[{style}]{escape(text)}[/{style}]" if style else escape(text)
