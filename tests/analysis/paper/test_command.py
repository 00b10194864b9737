"""`python -m analysis paper`: what is there, one table, a table with runs of any study, a name that is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis import command
from tests.analysis.ledger_factory import write_run
from tests.analysis.paper.test_ours import config_of


def test_tables_are_listed_shown_and_filled_from_every_study(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["paper"]) == 0
    listed = capsys.readouterr().out
    assert "lad_table_8" in listed
    assert "pacs_figure_6" in listed
    assert command.main(["paper", "maxrl_table_3", "--markdown", "--home", str(tmp_path)]) == 0
    assert "| MaxRL " in capsys.readouterr().out
    arm = "model=maze_3m task=maze loss=maxrl"
    logged = {40: {"evaluation/maze_17x17/pass_at_128": 0.875}}
    write_run(tmp_path, config_of(arm), {}, logged_at=logged, name="there-s0", study="mazes")
    write_run(tmp_path, config_of(arm.replace("maxrl", "rloo")), {}, logged_at=logged, name="r-s0", study="other")
    assert command.main(["paper", "maxrl", "--home", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "Printed: MaxRL (arXiv:2602.02710), table 3, section 6.2; maze 17x17." in shown
    assert "87.5" in shown  # of the study `mazes`, though `other` is newer
    assert "Few problems, seen again and again" in shown  # the paper's other tables


def test_a_name_that_is_none_is_refused_with_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["paper", "lad_table_5"]) == command.BAD_INPUT
    assert "lad_table_5: there is no such table. Tables: dph_rl_table_2" in capsys.readouterr().err
