"""Answers judged on several nodes: all of them once, in order, in equal parts, also when a node is lost."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from rlvr.records import Judge, Problem, Reward
from rlvr.rollout.child import ProcessLost
from rlvr.rollout.spread_judge import SpreadJudge

Answers = Sequence[tuple[Problem, str]]


def judge_into(seen: list[str], *, lost: bool = False) -> Judge:
    """The reward of an answer is its number."""

    def judge(answers: Answers) -> list[Reward]:
        if lost:
            raise ProcessLost("node 2 is not there")
        seen.extend(text for _, text in answers)
        return [Reward(float(text), "wrong") for _, text in answers]

    return judge


def numbered_answers(count: int) -> Answers:
    return [(Problem(str(row), ""), str(row)) for row in range(count)]


@pytest.mark.parametrize("count", [0, 1, 3, 4, 10])
def test_every_answer_is_judged_once_and_in_order(count: int) -> None:
    """Two nodes with ranks and two without: of ten answers the latter have numbers 2 and 6, 3 and 7."""
    local, third, fourth = list[str](), list[str](), list[str]()
    judge = SpreadJudge(judge_into(local), [judge_into(third), judge_into(fourth)], nodes=2)
    assert [reward.value for reward in judge(numbered_answers(count))] == list(range(count))
    assert sorted(map(int, local + third + fourth)) == list(range(count))
    assert third == [number for number in ("2", "6") if int(number) < count]
    assert fourth == [number for number in ("3", "7") if int(number) < count]


def test_answers_sent_to_a_lost_node_are_judged_locally(caplog: pytest.LogCaptureFixture) -> None:
    local, third = list[str](), list[str]()
    judge = SpreadJudge(judge_into(local), [judge_into(third), judge_into([], lost=True)], nodes=1)
    assert [reward.value for reward in judge(numbered_answers(7))] == list(range(7))
    assert third == ["1", "4"]
    assert sorted(local) == ["0", "2", "3", "5", "6"]
    assert "node 2 is not there" in caplog.text


def test_a_verifier_that_fails_elsewhere_fails_the_run() -> None:
    def broken(_: Answers) -> list[Reward]:
        raise RuntimeError("the verifier did not start")

    with pytest.raises(RuntimeError, match="did not start"):
        SpreadJudge(judge_into([]), [broken], nodes=1)(numbered_answers(4))
