import io
from pathlib import Path

import pytest
from rich.console import Console

from analysis import command
from analysis.paper.counterparts import table
from analysis.paper.printed import tables
from analysis.report import render
from tests.analysis.ledger_factory import write_run
from tests.analysis.paper.test_counterparts import config_of


@pytest.mark.slow
def test_tables_are_listed_shown_and_filled_of_every_study(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["paper"]) == 0
    listed = capsys.readouterr().out
    assert "lad_table_8" in listed
    assert "pacs_figure_6" in listed
    assert command.main(["paper", "maxrl_table_3", "--markdown", "--home", str(tmp_path)]) == 0
    assert "| MaxRL " in capsys.readouterr().out
    arm = "model=maze_3m task=maze loss=maxrl"
    logged = {40: {"evaluation/maze_17x17/pass_at_128": 0.90625}}
    write_run(tmp_path, config_of(arm), {}, logged_at=logged, name="there-s0", study="mazes")
    write_run(tmp_path, config_of(arm.replace("maxrl", "rloo")), {}, logged_at=logged, name="r-s0", study="other")
    assert command.main(["paper", "maxrl", "--home", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "Printed: MaxRL (arXiv:2602.02710), table 3, section 6.2; maze 17x17." in shown
    assert "90.6" in shown  # no printed number: of the study `mazes`, though `other` is newer
    assert "Few problems, seen again and again" in shown  # the paper's other tables


def test_a_narrow_terminal_cuts_no_number_and_shows_every_one() -> None:
    """Table 3 of DPH-RL: 9 rows of 7 columns, which at 80 characters are two grids."""
    printed = tables()["dph_rl_table_3"]
    out = io.StringIO()
    render.terminal(table(None, printed), Console(width=80, file=out))
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    shown = [cell.strip() for line in lines if line.startswith("│") for cell in line.split("│")[2:-1]]
    assert (sorted(shown), len(shown)) == (sorted(cell.text for cell in printed.cells), 63)


def test_an_unknown_name_is_refused_with_a_list_of_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["paper", "lad_table_5"]) == command.BAD_INPUT
    assert "lad_table_5: there is no such table. Tables: dph_rl_table_2" in capsys.readouterr().err


def test_a_home_that_is_not_there_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["paper", "lad_table_6", "--home", str(tmp_path / "nowhere")]) == command.BAD_INPUT
    assert "nowhere: there is no such directory" in capsys.readouterr().err


@pytest.mark.slow
def test_figures_are_drawn_of_printed_numbers_and_a_bundle(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = ["--home", str(tmp_path)]
    assert command.main(["paper", "lad_figure_3", *home]) == 0
    folder = tmp_path / "reports" / "paper"
    assert sorted(path.name for path in folder.iterdir()) == ["lad_figure_3.pdf", "lad_figure_3.png"]
    once = (folder / "lad_figure_3.png").read_bytes()
    assert once.startswith(b"\x89PNG")
    assert command.main(["paper", "lad_figure_3", *home]) == 0
    assert (folder / "lad_figure_3.png").read_bytes() == once
    assert command.main(["paper", "lad_figure_1", *home]) == command.BAD_INPUT  # no number is printed, no runs
    error = capsys.readouterr().err
    assert "no runs here show it (bandit). python -m rlvr.run study=bandit_off_policy makes some." in error
    evidence = Path(__file__).parents[3] / "docs" / "evidence" / "bandit_off_policy.rlvr"
    assert command.main(["paper", "lad_figure_1", str(evidence), *home]) == 0
    assert (folder / "lad_figure_1-bandit-bandit_off_policy.png").is_file()
    assert command.main(["paper", "maxrl_figure_1", *home]) == command.BAD_INPUT
    assert "Ours: python -m rlvr.diagnostics.weights" in capsys.readouterr().err
