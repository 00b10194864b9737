"""Rewards as a task gives them, checked: what is no reward would else end a run far from its cause, or be learned."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from numbers import Real
from typing import Any, cast, get_args

from rlvr.records import Outcome, Problem, Reward, Task, may_be_graded

OUTCOMES = frozenset(get_args(Outcome))


def rewards_of(task: Task, answers: Sequence[tuple[Problem, str]]) -> list[Reward]:
    """What the task says of (problem, response text) pairs, in order.

    Raises ValueError, which names the task: for another number of rewards, for what is no Reward, and for a value that
    is no finite number, or other than 0 and 1 from a task that does not declare `graded`. An `error` has no reward, but
    its value must be a number: it stands in batches, at a weight of 0.
    """
    returned: Any = task.reward(answers)
    if not isinstance(returned, Iterable):
        raise ValueError(_told(task, f"returned {returned!r}", "Return a list of Reward, one for each answer."))
    rewards: list[Any] = list(cast("Iterable[Any]", returned))
    if len(rewards) != len(answers):
        raise ValueError(
            _told(task, f"returned {len(rewards)} rewards for {len(answers)} answers", "Return one for each.")
        )
    graded = may_be_graded(task)
    for (problem, _), reward in zip(answers, rewards, strict=True):
        # The usual ones in one comparison: this is done for every sample.
        if type(reward) is Reward and (reward.value == 0 or reward.value == 1) and reward.outcome in OUTCOMES:
            continue
        if fault := _fault(reward, graded=graded):
            raise ValueError(_told(task, f"judged an answer to problem {problem.id} with {reward!r}", fault))
    return rewards


def _fault(reward: Any, *, graded: bool) -> str:
    """What is wrong with it, and what is allowed; "" if nothing."""
    if not isinstance(reward, Reward):
        return 'Return rlvr.records.Reward, as in Reward(1.0, "correct").'
    value: Any = reward.value
    if reward.outcome not in OUTCOMES:
        return f"Outcomes: {', '.join(get_args(Outcome))}."
    if not isinstance(value, Real) or not math.isfinite(value):
        return "A reward is a finite number."
    if not graded and value not in (0, 1) and reward.outcome != "error":
        return "Rewards are 0 or 1 unless the task says `graded = True`."
    return ""


def _told(task: Task, what: str, allowed: str) -> str:
    kind = type(task)
    return f"task {task.name}: `reward` of {kind.__module__}.{kind.__qualname__} {what}. {allowed}"
