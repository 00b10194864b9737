"""The table of evaluated policies, counted by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.figures import policies as figure_room
from analysis.frames.load import load
from analysis.report.style import encode
from analysis.scores.cell import cell
from analysis.scores.evaluated import evaluations
from analysis.scores.metric import pass_at
from analysis.tables import comparison, policies
from analysis.tables.comparison import Ask
from tests.analysis.ledger_factory import config, counts, write_run, write_sweep


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A base policy that solves problems 0 and 1, and one that was trained from it and solves 0 and 2."""
    planned = []
    for name, correct in (("base", (4, 2, 0, 0)), ("lad@40", (8, 0, 2, 0))):
        frozen = {**config("grpo"), "policy": {"name": name, "digest": name, "step": 0, "path": "/x"}, "steps": 1}
        frozen = {**frozen, "loss": None, "choices": {"task": "maze"}}
        run_id = write_run(tmp_path, frozen, {1: {"maze7": counts(*correct)}}, name=f"{name}-s0", study="evaluation")
        planned.append((run_id, f"{name}-s0", [f"policy={name}", "seed=0"]))
    write_sweep(tmp_path, "abcd1234", planned, study="evaluation")
    return tmp_path


def test_what_is_kept_newly_solved_and_reached_is_counted_against_the_base_policy(home: Path) -> None:
    frames = load(home, study="evaluation")
    table = policies.table(frames)
    assert table is not None
    cells = {
        (row, column): mean for row, column, mean in table.cells[["row", "column", "mean"]].itertuples(index=False)
    }
    assert cells["base", "avg@8"] == pytest.approx(6 / 32)
    assert cells["lad@40", "avg@8"] == pytest.approx(10 / 32)
    assert cells["lad@40", "pass@8"] == 0.5
    assert cells["lad@40", policies.KEEP] == 0.5  # of problems 0 and 1, the first
    assert cells["lad@40", policies.EXPLORE] == 0.5  # of 2 and 3, the first
    # The base policy covers 1/2. (1 + x)/4 is 1/2 where x = 1 - C(6, k)/C(8, k) is 1: from k = 7 on.
    assert cells["lad@40", policies.REACH] == 7
    assert ("base", policies.KEEP) not in cells


def test_policies_are_compared_as_arms_are_without_a_step_zero(home: Path) -> None:
    frames = load(home, study="evaluation")
    table = comparison.table(frames, Ask(against="policy=base"))
    assert table is not None
    assert set(table.cells["row"]) == {"policy=base", "policy=lad@40"}
    difference = table.cells.set_index(["row", "metric"])["difference"]["policy=lad@40", "avg@8"]
    assert difference == pytest.approx(4 / 32)


def test_the_curve_ends_at_coverage(home: Path) -> None:
    frames = load(home, study="evaluation")
    figure = figure_room.figure(frames)
    assert figure is not None
    (axes,) = [axes for axes in figure.axes if axes.get_visible()]
    ends = {line.get_ydata()[-1] for line in axes.get_lines()}
    assert ends == {50.0}
    arm = evaluations(frames)[0]
    assert cell(frames, arm, pass_at(8), ("maze7",)).mean == 0.5
    assert encode(figure, "png").startswith(b"\x89PNG")
