"""Generation and rewards: what is counted, how ranks share the work, and which noise a problem gets."""

from __future__ import annotations

import pytest

from rlvr.records import Problem, Rollout
from rlvr.rollout.sampler import Spent, noise_key, throughput
from tests.rollout.scripted import SAMPLING, ScriptedTask, sampler


def test_outcomes_are_counted_apart_and_errors_leave_the_mean() -> None:
    spent = Spent()
    task = ScriptedTask(["+-?t!+"])
    sampler(task)([task.problem("train", 0)], 6, SAMPLING, spent)
    metrics = spent.metrics()
    sixth = pytest.approx(1 / 6)
    assert [metrics[f"reward/{o}"] for o in ("wrong", "unparsable", "timeout", "error")] == [sixth] * 4
    assert metrics["reward/accuracy"] == pytest.approx(2 / 5)  # five answers were judged
    assert metrics["reward/solved_fraction"] == 1.0


def test_ranks_share_the_problems_and_all_see_all_groups_in_order() -> None:
    task = ScriptedTask(["+-"])
    problems = [task.problem("train", i) for i in range(5)]
    whole = sampler(task)(problems, 2, SAMPLING, Spent())
    parts = [whole[0::2], whole[1::2]]  # what ranks 0 and 1 of two generate

    for rank in range(2):

        def gather(mine: list[Rollout], rank: int = rank) -> list[list[Rollout]]:
            assert [g.problem.id for g in mine] == [g.problem.id for g in parts[rank]]
            return parts

        joined = sampler(task, rank=rank, world=2, gather=gather)(problems, 2, SAMPLING, Spent())
        assert [g.problem.id for g in joined] == [g.problem.id for g in whole]


def test_noise_keys_name_problems() -> None:
    keys = {noise_key(Problem(f"p{i}", "")) for i in range(1000)}
    assert len(keys) == 1000
    assert all(0 <= k < 2**63 for k in keys)


def test_every_gpu_of_a_run_counts_in_the_cost_of_a_token() -> None:
    """2 ranks and 4 workers with a GPU each, 3 s, 900 tokens: 6 · 3 / 900 = 0.02."""
    step = {"tokens/rollout": 900.0, "tokens/train": 1200.0, "time/train_s": 2.0, "time/step_s": 3.0}
    assert throughput(step, devices=2 + 4) == pytest.approx(
        {"throughput/train_tokens_per_s": 600.0, "throughput/tokens_per_s": 300.0, "throughput/gpu_s_per_token": 0.02}
    )
