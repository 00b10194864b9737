"""The copy of the papers' tables, checked against averages, marks and a second transcription."""

import csv
import re
from collections import defaultdict
from pathlib import Path

import pytest

from analysis.paper.counterparts import table
from analysis.paper.printed import AVERAGE, MINUS, PaperTable, PrintedCell, published, tables
from analysis.report.grid import published_grids
from analysis.report.render import latex, markdown

SHARED = Path(__file__).parents[4] / "shared" / "papers"
# Names that differ in the transcription.
RENAMED = {
    "gain over Qwen3-4B": "Δ Qwen3-4B",
    "gain over Qwen3-8B": "Δ Qwen3-8B",
    "Maze 17x17 (256 held-out)": "Maze 17x17",
    "GSM8K (evaluated on GSM8K-Platinum, App. E.2)": "GSM8K",
    "AIME 2024+2025 rollouts": "AIME 24/25",
    "LiveCodeBench (2024-07-01..2025-01-01)": "LiveCodeBench",
}


def rows_of(printed: PaperTable) -> dict[tuple[str, str], list[PrintedCell]]:
    rows: dict[tuple[str, str], list[PrintedCell]] = defaultdict(list)
    for cell in printed.cells:
        rows[cell.panel, cell.line].append(cell)
    return rows


def test_every_table_with_numbers_is_there() -> None:
    numbers: dict[str, set[str]] = defaultdict(set)
    for name in tables():
        paper, _, number = name.replace("_figure_", "_table_F").partition("_table_")
        numbers[paper].add(number)
    assert numbers == {
        "lad": set("1234678"),
        "dph_rl": set("23478"),
        "pacs": {"1", "2", "3", *map(str, range(6, 14)), "F6"},
        "maxrl": set("347"),
    }


# Averages (rows that have one, by metrics), and how many of them are misprints.
AVERAGES = {
    "dph_rl_table_3": (9, 0),
    "dph_rl_table_4": (11, 0),
    "dph_rl_table_8": (11, 1),
    "lad_table_1": (6, 0),
    "lad_table_3": (4 * 2, 1),
    "lad_table_6": (9 * 2, 1),
    "lad_table_7": (6, 2),
    "lad_table_8": (6 * 6, 8),
    "pacs_table_1": (14, 0),
}


def averages_of(printed: PaperTable) -> list[tuple[float, PrintedCell]]:
    """(mean of the other columns of the row, average) for each average of a table."""
    averages = list[tuple[float, PrintedCell]]()
    for cells in rows_of(printed).values():
        parts = [cell.number for cell in cells if cell.benchmark != AVERAGE]
        for average in (cell for cell in cells if cell.benchmark == AVERAGE and cell.number is not None):
            averages.append((sum(part for part in parts if part is not None) / len(parts), average))
    return averages


def test_every_average_and_every_misprint_of_one_is_counted() -> None:
    counted = {name: [bool(cell.mean) for _, cell in averages_of(printed)] for name, printed in tables().items()}
    assert {name: (len(misprints), sum(misprints)) for name, misprints in counted.items() if misprints} == AVERAGES


@pytest.mark.parametrize("name", AVERAGES)
def test_averages_are_the_means_of_their_columns_or_named_as_misprints(name: str) -> None:
    for mean, average in averages_of(tables()[name]):
        assert abs(mean - float(average.mean or average.text)) <= 0.005 + 1e-9, (average, mean)
        if average.mean:  # the misprint is one: no rounding gives what is printed
            assert abs(mean - float(average.text)) > 0.005 - 1e-9


@pytest.mark.parametrize("name", [f"pacs_table_{number}" for number in (1, 2, *range(6, 14))])  # 3 marks nothing
def test_printed_marks_are_the_best_and_the_second_where_nothing_is_said(name: str) -> None:
    printed = tables()[name]
    columns: dict[str, list[PrintedCell]] = defaultdict(list)
    for cell in printed.cells:
        if cell.number is not None and MINUS not in cell.arm and not cell.row.startswith(("Claude", "Gemini")):
            columns[cell.head].append(cell)
    assert set(printed.unmarked) <= columns.keys()
    for head, cells in columns.items():
        values = sorted({cell.number for cell in cells}, reverse=True)
        by_rank = {values[0]: "best", values[1]: "second"}
        follows = all(cell.mark == by_rank.get(cell.number, "") for cell in cells)
        assert follows == (head not in printed.unmarked), head


def test_marks_of_lad_follow_the_rule_of_its_captions() -> None:
    """The best and the second of a column; in table 3 the best alone."""
    marks = {cell.row: cell.mark for cell in tables()["lad_table_1"].cells if cell.head == "AIME 2025"}
    assert marks == {"GRPO": "", "EntAdv": "", "KLCov": "best", "ClipCov": "", "FlowRL": "", "LAD": "second"}
    assert {cell.mark for cell in tables()["lad_table_3"].cells} == {"best", ""}


def test_what_two_tables_print_of_one_arm_agrees() -> None:
    """Cells of a paper with one arm, benchmark and metric are equal, but for one of PACS, which a note states."""
    texts: dict[tuple[str, ...], set[float | None]] = defaultdict(set)
    for printed in tables().values():
        for cell in (cell for cell in printed.cells if cell.arm and cell.benchmark != AVERAGE):
            trained = printed.name if cell.arm.split()[-1] == "base" and printed.paper == "DPH-RL" else ""
            texts[printed.paper, trained, " ".join(sorted(cell.arm.split())), cell.benchmark, cell.metric].add(
                cell.number
            )
    differ = {key: values for key, values in texts.items() if len(values) > 1}
    assert list(differ.values()) == [{91.01, 91.0}]
    assert sum(len(values) for values in texts.values()) < sum(len(p.cells) for p in tables().values())


@pytest.mark.skipif(not SHARED.is_dir(), reason="the transcription of the papers is not here")
@pytest.mark.parametrize("paper", ["lad", "dph_rl", "pacs", "maxrl"])
def test_every_cell_is_that_of_the_transcription(paper: str) -> None:
    """Table, row, column, number, mark: of every row of the CSV, in its order, and no cell beside."""
    with (SHARED / f"{paper}_results.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    wanted: dict[str, list[tuple[str, ...]]] = defaultdict(list)
    for row in rows:
        knob = row["hyperparameter_value"] if row["hyperparameter"] != "divergence" else ""
        number = f"{float(knob):g}" if row["hyperparameter"] == "1/eta" else knob
        method = RENAMED.get(row["method"], row["method"]) or row["model"]
        benchmark = RENAMED.get(row["benchmark"], row["benchmark"])
        name = f"{paper}_figure_6" if row["table"] == "Fig6-text" else f"{paper}_table_{row['table']}"
        mark = {"bold": "best", "underline": "second"}.get(row["mark"], "")
        wanted[name].append((method, number, benchmark, row["k"], row["value_text"], mark))
    for name, expected in wanted.items():
        copied = [described(cell, marks=paper != "lad") for cell in tables()[name].cells if cell.text]
        assert sorted(copied) == sorted((*cell[:3], *cell[4:]) for cell in expected), name


def described(cell: PrintedCell, *, marks: bool) -> tuple[str, ...]:
    """Method, knob, benchmark, text, mark. marks: of LAD they are lost, and ours follow its rule."""
    method, _, knob = cell.row.partition(", 1/η = ")
    with_knob = re.fullmatch(r"(.*) \((?:alpha|divergence loss weight|advantage estimator|T) ([^)]*)\)", method)
    method, knob = with_knob.groups() if with_knob else (method, knob)
    over, _, under = knob.partition("/")
    knob = f"{int(over) / int(under):g}" if under else knob
    return method, knob, cell.benchmark, cell.text, cell.mark if marks else ""


def test_marks_and_misprints_are_rendered() -> None:
    shown = table(None, tables()["pacs_table_1"])
    assert "<u>94.80</u>" in markdown(shown)
    assert "**90.45**" in markdown(shown)
    assert r"\underline{94.80} & \textbf{90.45}" in latex(shown)
    misprinted = markdown(table(None, tables()["lad_table_3"]))
    assert "OpenMath-Nemotron-1.5B: pass@32, FlowRL: 66.98 is printed, the mean of the columns is 62.23." in misprinted
    assert "Marked otherwise than by rank: MATH-500 pass@4" in markdown(table(None, tables()["pacs_table_8"]))


def test_several_tables_are_published_as_one_in_the_layout_of_each() -> None:
    laid_out = published_grids(published("pacs", 9, 10, 11, 12, 13))
    assert [grid.title for grid in laid_out] == [f"table {number}" for number in range(9, 14)]
    assert laid_out[4].header[1:3] == ("BeyondAIME pass@1", "BeyondAIME pass@4")
    assert laid_out[4].rows[1][:2] == ("PACS (advantage estimator GRPO)", "26.41")
