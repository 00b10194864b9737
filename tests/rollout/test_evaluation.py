"""Metrics of an evaluation, by hand."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import pytest

from rlvr.metrics import VALIDATION
from rlvr.records import Outcome, Problem, Reward, Rollout, Split
from rlvr.rollout.evaluation import (
    Abandoned,
    Answers,
    answer_of,
    complete_evaluation_metrics,
    evaluate,
    evaluation_metrics,
    held_out_problems,
    metric_names,
    never_right,
    without_answers,
)
from rlvr.rollout.sampler import RolloutCost
from rlvr.task.math import Math
from tests.rollout.scripted import SAMPLING, ScriptedTask, sampler

SHARES = ("error", "unparsable", "finished", "length")


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
    assert metrics["evaluation/bench/unparsable"] == 0
    assert not any(math.isnan(v) for v in metrics.values())
    assert set(metrics) == set(metric_names(task, problems, samples=4, k=[1, 2, 4]))
    same, _ = evaluate(sampler(task), problems, samples=4, k=[1, 2, 4], sampling=SAMPLING, prefix=VALIDATION)
    assert same == {f"validation/{name.removeprefix('evaluation/')}": value for name, value in metrics.items()}
    assert set(same) == set(metric_names(task, problems, samples=4, k=[1, 2, 4], prefix=VALIDATION))


@pytest.mark.parametrize("mine", [True, False])
def test_an_evaluation_that_one_rank_abandons_is_abandoned_by_all(mine: bool) -> None:
    """Of two ranks one has been asked to stop: it samples no more, judges nothing, and still meets the other."""
    task = ScriptedTask(["+-"])
    problems = [task.problem("test", i) for i in range(4)]
    whole = sampler(task)(problems, 2, SAMPLING, RolloutCost())
    judged = list[int]()

    def gather(own: list[Rollout]) -> list[list[Rollout]]:
        judged.append(len(own))
        return [own, whole[1::2] if mine else []]

    one = sampler(task, rank=0, world=2, gather=gather)
    with pytest.raises(Abandoned):
        evaluate(one, problems, samples=2, k=[1], sampling=SAMPLING, abandoned=lambda: mine)
    assert judged == [0 if mine else 2]


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
    assert set(metrics) == {f"evaluation/bench/{name}" for name in ("avg_at_4", "pass_at_1", *SHARES)}
    assert set(metrics) == set(metric_names(task, problems, samples=4, k=[1]))


class PartialTask(ScriptedTask):
    """A right answer earns 1, a wrong one a quarter; of what the verifier failed to judge the value means nothing."""

    max_tokens = 1
    graded = True
    VALUES: ClassVar = {"correct": 1.0, "wrong": 0.25, "timeout": 0.5, "error": 9.0}

    def reward(self, answers: Sequence[tuple[Problem, str]]) -> list[Reward]:
        return [replace(reward, value=self.VALUES[reward.outcome]) for reward in super().reward(answers)]


def test_the_mean_reward_of_a_graded_task_is_of_judged_samples_problem_by_problem() -> None:
    task = PartialTask(["+--t", "+!!!", "!!!!"])
    problems = [task.problem("test", i) for i in range(3)]
    metrics, groups = evaluate(sampler(task), problems, samples=4, k=[1], sampling=SAMPLING)
    # (1 + 1/4 + 1/4 + 1/2)/4 = 1/2 of the first; 1 of the second, of which one sample was judged; the third has none.
    assert metrics["evaluation/bench/mean_reward"] == (0.5 + 1.0) / 2
    assert metrics["evaluation/bench/avg_at_4"] == (0.25 + 1.0) / 2  # one of four, one of one
    assert set(metrics) == set(metric_names(task, problems, samples=4, k=[1]))
    nothing = evaluation_metrics(task, {"bench": [Answers.of(task, groups[2])]}, samples=4, k=[1], prefix="")
    assert (set(nothing), nothing["bench/error"]) == ({f"bench/{name}" for name in SHARES}, 1.0)
    task.graded = False  # rewards of 0 and 1: their mean is avg@n
    assert "mean_reward" not in " ".join(metric_names(task, problems, samples=4, k=[1]))
    by_source = {"bench": [Answers.of(task, group) for group in groups]}
    binary = evaluation_metrics(task, by_source, samples=4, k=[1], prefix="")
    assert set(binary) == {f"bench/{name}" for name in ("avg_at_4", "pass_at_1", *SHARES)}


def test_an_evaluation_says_why_answers_are_not_right() -> None:
    """Of the first problem one answer is right and three cannot be read, of which one was cut; of the second all are
    wrong."""
    outcomes: list[list[Outcome]] = [["correct", "unparsable", "unparsable", "unparsable"], ["wrong"] * 4]
    lengths, finished = [(1, 2, 3, 10), (4, 4, 4, 4)], [(True, True, True, False), (True,) * 4]
    rows = zip(outcomes, lengths, finished, strict=True)
    problems = [Answers(tuple(o), (None,) * 4, (), length, ended) for o, length, ended in rows]
    metrics = evaluation_metrics(ScriptedTask([]), {"bench": problems}, samples=4, k=[], prefix="")
    assert metrics == {
        **{"bench/error": 0.0, "bench/avg_at_4": 1 / 8},
        **{"bench/unparsable": 3 / 8, "bench/finished": 7 / 8, "bench/length": 4.0},
    }


@pytest.mark.parametrize(
    ("graded", "script", "said"), [(True, "--!-", True), (True, "-+--", False), (False, "----", False)]
)
def test_graded_rewards_without_a_right_answer_are_named(graded: bool, script: str, said: bool) -> None:
    task = (PartialTask if graded else ScriptedTask)([script])
    lines = never_right(sampler(task)([task.problem("test", 0)], 4, SAMPLING, RolloutCost()))
    assert [line.startswith("none of 3 samples has the outcome `correct`") for line in lines] == [True] * said


def test_the_majority_is_counted_over_answers() -> None:
    def samples(*pairs: tuple[str | None, bool]) -> Answers:
        return Answers(tuple("correct" if ok else "wrong" for _, ok in pairs), tuple(answer for answer, _ in pairs))

    first = samples(("4", True), ("5", False), ("5", False), ("4", True), ("4", True))  # 4 thrice of five
    second = samples(("1", False), ("1", False), (None, False), ("2", True), ("1", False))
    task = ParityTask([])
    metrics = complete_evaluation_metrics(task, {"bench": [first, second]}, samples=5, k=[1, 2, 3, 5])
    maj = {1: 0.5, 2: (0.5 + 0) / 2, 3: 0.0, 5: 0.5}  # of the first two, 4 and 5 tie
    expected = {f"evaluation/bench/maj_at_{k}": share for k, share in maj.items()}
    assert metrics == {"evaluation/bench/coverage_at_5": 1.0, **expected}
    unnamed = complete_evaluation_metrics(task, {"bench": [samples((None, True), (None, False))]}, samples=2, k=[1, 2])
    assert unnamed == {"evaluation/bench/coverage_at_2": 1.0}
    nothing = {"bench": [samples((None, False), (None, False))]}  # as a policy that never comes to an answer
    none = {"evaluation/bench/coverage_at_2": 0.0}
    of_parity = complete_evaluation_metrics(task, nothing, samples=2, k=[2])
    assert of_parity == {**none, "evaluation/bench/maj_at_2": 0.0}
    assert complete_evaluation_metrics(ScriptedTask([]), nothing, samples=2, k=[2]) == none


def test_samples_that_nobody_judged_have_no_vote() -> None:
    first = Answers(("correct", "correct", "error", "error", "error"), ("4", "4", "5", "5", "5"))
    second = Answers(("error",) * 5, ("1",) * 5)
    third = Answers(("wrong", "error", "wrong", "wrong", "error"), ("1", "2", "1", "3", "2"))
    answers = {"bench": [first, second, third], "broken": [second]}
    metrics = complete_evaluation_metrics(ParityTask([]), answers, samples=5, k=[1, 2, 3, 5])
    maj = {"maj_at_1": 0.5, "maj_at_2": 0.5, "maj_at_3": 0.0}  # the last of the third problem alone
    assert metrics == {f"evaluation/bench/{name}": share for name, share in {"coverage_at_5": 0.5, **maj}.items()}


def test_right_answers_are_one_answer_however_they_are_written() -> None:
    task = Math.__new__(Math)  # its data and processes have no part in this
    task.max_tokens, task.boxed = 1, True
    problem = Problem("1", "?", "1/2")
    right, wrong, none = Reward(1.0, "correct"), Reward(0.0, "wrong"), Reward(0.0, "unparsable")
    for text, reward, answer in (
        *((r"\boxed{\frac{1}{2}}", right, "1/2"), (r"\boxed{0.5}", right, "1/2")),
        *((r"so \boxed{ 10{,}000 }", wrong, "10000"), (r"\boxed{10000}", wrong, "10000"), ("no idea", none, None)),
    ):
        assert answer_of(task, problem, text, reward) == answer
    task.boxed = False  # no answer has a name: a few boxes must not outvote all else
    assert answer_of(task, problem, "The answer is 1/2.", right) is None
    assert answer_of(task, problem, r"The answer is \boxed{3}.", wrong) is None
    assert answer_of(ParityTask([]), problem, "3", right) == "1"
    assert answer_of(ScriptedTask([]), problem, "3", wrong) is None


class OneIdTask(ScriptedTask):
    """The first and the last problem have one id."""

    def problem(self, split: Split, index: int) -> Problem:
        return replace(super().problem(split, index), id=f"day-{index % 2}")


def test_problems_that_share_an_id_are_refused() -> None:
    """A report would take them for one problem with twice the samples: another pass@k than that of the run."""
    message = "its test problems 0 and 2 both have the id 'day-0'"
    for limit in (None, 1):
        with pytest.raises(ValueError, match=message):
            held_out_problems(OneIdTask(["+-"], size=3), limit)
    assert len(held_out_problems(OneIdTask(["+-"], size=2), None)) == 2


def test_benchmarks_without_answers_are_named_with_the_end_of_a_response() -> None:
    for script, num in (*((["+---"], ""), (["???+"], "3 of 4"), (["??-?", "?-+-"], "")), (["???-", "??+-"], "5 of 8")):
        task = ScriptedTask(script)
        problems = [task.problem("test", i) for i in range(len(script))]
        lines = without_answers(sampler(task)(problems, 4, SAMPLING, RolloutCost()))
        assert len(lines) == bool(num)
        for line in lines:
            assert line.startswith(f"bench: {num} samples have no answer that the task can read")
            assert line.endswith("(the same command with --dry-run --show). One ends in '0'.")
