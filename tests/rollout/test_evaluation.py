"""Metrics of an evaluation, by hand."""

from __future__ import annotations

import math

import pytest

from rlvr.metrics import VALIDATION
from rlvr.records import Problem
from rlvr.rollout.evaluation import evaluate, metric_names
from tests.rollout.scripted import SAMPLING, ScriptedTask, sampler


def test_evaluation_leaves_failed_verifications_out_of_n() -> None:
    task = ScriptedTask(["++--", "+!--", "!!!!"])
    problems = [task.problem("test", i) for i in range(3)]
    metrics, _ = evaluate(sampler(task), problems, samples=4, k=[1, 2, 4], sampling=SAMPLING)
    # problem 0: n=4 c=2; problem 1: n=3 c=1; problem 2: n=0
    assert metrics["evaluation/bench/avg_at_4"] == pytest.approx((2 / 4 + 1 / 3) / 2)
    # pass@2 = 1 − C(n−c,2)/C(n,2): 1 − 1/6 and 1 − 1/3
    assert metrics["evaluation/bench/pass_at_2"] == pytest.approx((5 / 6 + 2 / 3) / 2)
    assert metrics["evaluation/bench/pass_at_4"] == 1.0  # only problem 0 has four judged samples
    assert metrics["evaluation/bench/error"] == pytest.approx(5 / 12)
    assert not any(math.isnan(v) for v in metrics.values())
    assert set(metrics) == set(metric_names(task, problems, samples=4, k=[1, 2, 4]))
    same, _ = evaluate(sampler(task), problems, samples=4, k=[1, 2, 4], sampling=SAMPLING, prefix=VALIDATION)
    assert same == {f"validation/{name.removeprefix('evaluation/')}": value for name, value in metrics.items()}
    assert set(same) == set(metric_names(task, problems, samples=4, k=[1, 2, 4], prefix=VALIDATION))


class ParityTask(ScriptedTask):
    """Right samples of even number give one answer, those of odd number another."""

    max_tokens = 1
    several_answers = True

    def canonical(self, problem: Problem, response: str) -> str | None:
        return f"{int(response) % 2}"


def test_evaluation_counts_different_right_answers_of_wholly_judged_problems() -> None:
    task = ParityTask(["+-+-", "++--", "----", "+!++"])
    problems = [task.problem("test", i) for i in range(4)]
    metrics, _ = evaluate(sampler(task), problems, samples=4, k=[1], sampling=SAMPLING)
    # Samples 0 and 2 of the first are one answer, 0 and 1 of the second two, the third has none; the fourth an error.
    assert metrics["evaluation/bench/distinct_correct_at_4"] == pytest.approx((1 + 2 + 0) / 3)
    assert set(metrics) == set(metric_names(task, problems, samples=4, k=[1]))
    task.several_answers = False
    metrics, _ = evaluate(sampler(task), problems, samples=4, k=[1], sampling=SAMPLING)
    assert set(metrics) == {f"evaluation/bench/{name}" for name in ("avg_at_4", "pass_at_1", "error")}
    assert set(metrics) == set(metric_names(task, problems, samples=4, k=[1]))
