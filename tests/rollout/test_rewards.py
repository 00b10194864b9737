import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from rlvr.job.cause import cause_of
from rlvr.ledger import layout
from rlvr.ledger.cause import Cause
from rlvr.ledger.rollouts import read_rollouts, write_rollouts
from rlvr.ledger.samples import write_samples
from rlvr.records import Outcome, Problem, Reward
from rlvr.rollout import evaluation
from rlvr.rollout.rewards import rewards_of
from rlvr.rollout.sampler import RolloutCost
from tests.rollout.scripted import SAMPLING, ScriptedTask, sampler

Answers = Sequence[tuple[Problem, str]]


class Returning(ScriptedTask):
    """Judges by a function of the answers."""

    name, max_tokens = "returning", 1

    def __init__(self, judge: Callable[[Answers], Any], *, graded: bool = False) -> None:
        super().__init__(["++"])
        self.judge, self.graded = judge, graded

    def reward(self, answers: Answers) -> Any:
        return self.judge(answers)


def always(reward: Any) -> Callable[[Answers], Any]:
    return lambda answers: [reward for _ in answers]


def test_an_invalid_reward_is_a_users_error_that_names_the_task() -> None:
    right = Reward(1.0, "correct")
    rows: list[tuple[Callable[[Answers], Any], str]] = [
        (always(Reward(math.nan, "wrong")), r"Reward\(value=nan.*finite number"),
        (always(Reward(math.inf, "correct")), "finite number"),
        (always(Reward("1", "correct")), "finite number"),  # pyright: ignore[reportArgumentType]
        (always(1.0), "judged an answer to problem train/0 with 1.0. Return rlvr.records.Reward"),
        (lambda answers: [right] * (len(answers) - 1), "returned 5 rewards for 6 answers"),
        (lambda answers: [right] * 2 * len(answers), "returned 12 rewards for 6 answers"),
        (lambda _: None, "returned None. Return a list of Reward"),
        (always(Reward(0.5, "wrong")), "1 for correct, else 0, unless the task says `graded = True`"),
        (always(Reward(1.0, "wrong")), "1 for correct, else 0"),
        (always(Reward(0.0, "correct")), "1 for correct, else 0"),
        (always(Reward(1.0, "correct", {"moves": math.nan})), "The extra moves is a finite number"),
        (always(Reward(1.0, "correct", {"wrong": 1.0})), "'wrong' is no name for an extra"),
        (always(Reward(1.0, "correct", {"avg_at_2": 1.0})), "'avg_at_2' is no name for an extra"),
        (always(Reward(1.0, "right")), "Outcomes: correct, wrong"),  # pyright: ignore[reportArgumentType]
    ]
    for judge, problem in rows:
        task = Returning(judge)
        with pytest.raises(ValueError, match=f"task returning: .*Returning .*{problem}") as caught:
            sampler(task)([task.problem("train", i) for i in range(3)], 2, SAMPLING, RolloutCost())
        assert cause_of(caught.value) is Cause.USER_ERROR
    task = Returning(always(Reward(0.5, "wrong")))
    del task.graded  # a task that declares nothing gives rewards of 0 and 1
    with pytest.raises(ValueError, match="graded = True"):
        sampler(task)([task.problem("train", 0)], 2, SAMPLING, RolloutCost())


def test_a_valid_reward_is_accepted() -> None:
    for reward, graded in (
        (Reward(0.5, "wrong"), True),
        (Reward(-2.0, "wrong"), True),
        (Reward(np.float32(0.25), "wrong"), True),  # pyright: ignore[reportArgumentType]
        (Reward(1, "correct"), False),
        (Reward(np.True_, "correct"), False),  # pyright: ignore[reportArgumentType]
        (Reward(0.3, "error"), False),  # has no reward
    ):
        task = Returning(always(reward), graded=graded)
        (group,) = sampler(task)([task.problem("train", 0)], 2, SAMPLING, RolloutCost())
        assert group.rewards == (reward, reward)
        assert type(group.rewards[0].value) is float
    task = Returning(lambda answers: (Reward(1.0, "correct") for _ in answers))  # a generator will do
    assert rewards_of(task, [(task.problem("train", 0), "")] * 3) == [Reward(1.0, "correct")] * 3


def test_what_a_task_measures_beside_the_reward_is_logged_and_stored(tmp_path: Path) -> None:
    """Two samples of each of two problems: 1 and 2 moves of the first, 3 and a failed verifier's of the second.
    Training means samples, (1 + 2 + 3)/3; an evaluation problems, (1.5 + 3)/2."""
    outcomes: list[Outcome] = ["correct", "correct", "correct", "error"]
    task = Returning(
        lambda answers: [
            Reward(float(outcome == "correct"), outcome, {"moves": number + 1})
            for number, (outcome, _) in enumerate(zip(outcomes, answers, strict=True))
        ]
    )
    cost = RolloutCost()
    groups = sampler(task)([task.problem("train", 0), task.problem("train", 1)], 2, SAMPLING, cost)
    assert cost.metrics()["reward/moves"] == 2.0
    by_source = {"bench": [evaluation.Answers.of(task, group) for group in groups]}
    evaluated = evaluation.evaluation_metrics(task, by_source, samples=2, k=[1], prefix="")
    assert evaluated["bench/moves"] == 2.25
    write_samples(groups, tmp_path, step=0, right_answer=lambda problem: "")
    stored = pq.read_table(layout.evaluation(tmp_path, 0))["extras"].to_pylist()
    assert stored == [f'{{"moves": {number}.0}}' for number in (1, 2, 3, 4)]
    write_rollouts(groups, tmp_path / "step.parquet")
    assert [group.rewards for group in read_rollouts(tmp_path / "step.parquet")] == [group.rewards for group in groups]


def test_true_may_stand_beside_a_number(tmp_path: Path) -> None:
    """As from a task that compares answers and, where that fails, returns 0.0."""
    task = Returning(lambda answers: [Reward(True, "correct"), *(Reward(0.0, "error") for _ in answers[1:])])
    groups = sampler(task)([task.problem("train", 0)], 2, SAMPLING, RolloutCost())
    write_samples(groups, tmp_path, step=0, right_answer=lambda problem: "")
    assert pq.read_table(layout.evaluation(tmp_path, 0))["reward"].to_pylist() == [1.0, 0.0]
