"""Which problems are drawn, which groups are kept, and what is counted: with a scripted engine and task."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rlvr.records import Completion, Outcome, Problem, Request, Reward, Rollout, Sampling, Split
from rlvr.rollout.collect import NothingToLearn, Sampler, Spent, Stream, collect, noise_key
from rlvr.rollout.evaluation import evaluate, metric_names

SAMPLING = Sampling(max_tokens=1, seed=0, step=1)
CODES: dict[str, Outcome] = {"+": "correct", "-": "wrong", "?": "unparsable", "t": "timeout", "!": "error"}


class ScriptedTask:
    """Problem i answers by script[i % len]: one character of CODES per sample."""

    name = "scripted"

    def __init__(self, script: Sequence[str], size: int | None = None) -> None:
        self.script, self.length = script, size

    def size(self, split: Split) -> int | None:
        return self.length

    def problem(self, split: Split, index: int) -> Problem:
        return Problem(f"{split}/{index}", str(index), source="bench")

    def reward(self, answers: Sequence[tuple[Problem, str]]) -> list[Reward]:
        outcomes = [CODES[self.script[int(q.prompt) % len(self.script)][int(text)]] for q, text in answers]
        return [Reward(float(o == "correct"), o) for o in outcomes]

    def close(self) -> None: ...


class ScriptedEngine:
    """Sample i of every request answers with the token i."""

    def sync(self, weights: Iterable[tuple[str, Any]]) -> None: ...

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[tuple[Completion, ...]]:
        zero = np.zeros(1, dtype=np.float32)
        return [tuple(Completion(np.array([i]), zero, zero, True) for i in range(r.num_samples)) for r in requests]

    def close(self) -> None: ...


def sampler(task: ScriptedTask, **ranks: Any) -> Sampler:
    return Sampler(
        task, ScriptedEngine(), lambda qs: [np.array([1]) for _ in qs], lambda rows: [str(r[0]) for r in rows], **ranks
    )


def run(
    script: Sequence[str], dynamic: str, prompts: int = 4, rounds: int = 10, filter: str = "none"
) -> tuple[list[Rollout], Spent, Stream]:
    task = ScriptedTask(script)
    stream = Stream(task, seed=0)
    kept, spent = collect(
        sampler(task),
        stream,
        SAMPLING,
        prompts=prompts,
        samples=len(script[0]),
        dynamic=dynamic,
        max_rounds=rounds,
        filter=filter,
    )
    return kept, spent, stream


def test_without_dynamic_sampling_every_group_is_kept() -> None:
    kept, spent, stream = run(["++", "+-", "--", "+-"], "none")
    assert [g.problem.prompt for g in kept] == ["0", "1", "2", "3"]
    assert spent.rounds == 1
    assert stream.position == 4


def test_drop_keeps_the_mixed_groups() -> None:
    kept, _, stream = run(["++", "+-", "--", "+-"], "drop")
    assert [g.problem.prompt for g in kept] == ["1", "3"]
    assert stream.position == 4


def test_refill_draws_on_until_enough_groups_are_mixed() -> None:
    kept, spent, stream = run(["++", "+-"], "refill")  # every odd problem is mixed
    assert [g.problem.prompt for g in kept] == ["1", "3", "5", "7"]
    # 4 drawn, 2 kept; then ⌈2·5/3⌉ = 4 more, capped at 4: exactly the four mixed ones among problems 0 … 7
    assert spent.rounds == 2
    assert stream.position == 8


def test_refill_gives_up_with_advice() -> None:
    with pytest.raises(NothingToLearn, match="3 generation rounds gave 0 of 4 groups.*too easy or too hard"):
        run(["++"], "refill", rounds=3)
    with pytest.raises(NothingToLearn, match="none of 4 groups"):
        run(["--"], "drop")


def test_problems_whose_greedy_answer_is_right_are_not_sampled() -> None:
    """The scripted greedy answer is the first: problems 0 and 2 of each four fail it, ? too."""
    kept, spent, stream = run(["-+", "+-", "?+", "!-"], "none", prompts=8, filter="greedy_fails")
    assert [g.problem.prompt for g in kept] == ["0", "2", "4", "6"]
    assert spent.tokens == 8 + 4 * 2  # one greedy answer of one token each, then two samples of four problems
    assert len(spent.rollouts) == 4  # greedy answers enter no metric
    assert spent.metrics()["reward/accuracy"] == 0.5
    assert stream.position == 8


def test_the_greedy_filter_refills_and_gives_up() -> None:
    kept, spent, _ = run(["-+", "+-"], "refill", filter="greedy_fails")
    assert [g.problem.prompt for g in kept] == ["0", "2", "4", "6"]
    assert spent.rounds == 2
    with pytest.raises(NothingToLearn, match="3 generation rounds gave 0 of 4"):
        run(["+-"], "refill", rounds=3, filter="greedy_fails")
    with pytest.raises(NothingToLearn, match="none of 4 groups.*rollout.filter=greedy_fails"):
        run(["+-"], "none", filter="greedy_fails")


def test_the_greedy_answer_is_drawn_at_temperature_zero() -> None:
    seen: list[float] = []

    class Listening(ScriptedEngine):
        def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[tuple[Completion, ...]]:
            seen.append(sampling.temperature)
            return super().generate(requests, sampling)

    task = ScriptedTask(["-+"])
    listening = replace(sampler(task), engine=Listening())
    collect(
        listening,
        Stream(task, seed=0),
        SAMPLING,
        prompts=2,
        samples=2,
        dynamic="none",
        max_rounds=1,
        filter="greedy_fails",
    )
    assert seen == [0.0, SAMPLING.temperature]


def test_a_group_with_a_failed_verifier_is_never_trained_on() -> None:
    kept, spent, _ = run(["+!", "+-"], "none", prompts=2)
    assert [g.problem.prompt for g in kept] == ["1"]
    assert spent.metrics()["reward/error"] == 0.25


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


def test_every_problem_of_a_finite_set_is_drawn_once_an_epoch_in_a_new_order() -> None:
    stream = Stream(ScriptedTask(["+-"], size=20), seed=3)
    first, second = ([p.id for p in stream.draw(20)] for _ in range(2))
    assert sorted(first) == sorted(second) == sorted(f"train/{i}" for i in range(20))
    assert first != second
    again = Stream(ScriptedTask(["+-"], size=20), seed=3, position=20)
    assert [p.id for p in again.draw(20)] == second  # the position alone resumes the stream


def test_noise_keys_name_problems() -> None:
    keys = {noise_key(Problem(f"p{i}", "")) for i in range(1000)}
    assert len(keys) == 1000
    assert all(0 <= k < 2**63 for k in keys)


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


class ParityTask(ScriptedTask):
    """Right samples of even number give one answer, those of odd number another."""

    def canonical(self, problem: Problem, response: str) -> str | None:
        return f"{int(response) % 2}"


def test_evaluation_counts_different_right_answers_of_wholly_judged_problems() -> None:
    task = ParityTask(["+-+-", "++--", "----", "+!++"])
    problems = [task.problem("test", i) for i in range(4)]
    metrics, _ = evaluate(sampler(task), problems, samples=4, k=[1], sampling=SAMPLING)
    # Samples 0 and 2 of the first are one answer, 0 and 1 of the second two, the third has none; the fourth an error.
    assert metrics["evaluation/bench/distinct_correct_at_4"] == pytest.approx((1 + 2 + 0) / 3)
    assert set(metrics) == set(metric_names(task, problems, samples=4, k=[1]))
