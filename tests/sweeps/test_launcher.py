"""Arms that a study's grid cannot express."""

from __future__ import annotations

from sweeps.launcher import also


def test_a_baseline_is_repeated_over_what_the_user_sweeps_beside_the_study() -> None:
    grid = [[f"eta={eta}", f"seed={seed}"] for eta in (1, 2) for seed in (0, 1, 2)]
    assert also(["loss=grpo"], grid, ["eta"]) == [
        ["seed=0", "loss=grpo"],
        ["seed=1", "loss=grpo"],
        ["seed=2", "loss=grpo"],
    ]


def test_a_line_may_sweep_and_its_own_values_win() -> None:
    grid = [["eta=1", "lr=1e-3"]]
    assert also(["loss=grpo lr=1,2"], grid, ["eta"]) == [["loss=grpo", "lr=1"], ["loss=grpo", "lr=2"]]


def test_without_lines_there_are_no_further_points() -> None:
    assert also([], [["eta=1"]], []) == []
