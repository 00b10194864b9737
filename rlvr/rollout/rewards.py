"""Rewards of a task, checked at once.

An invalid reward would otherwise end a run far from its cause, or be learned from.
"""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from numbers import Real
from typing import Any, cast, get_args

from rlvr.metrics import OF_SAMPLES
from rlvr.records import Outcome, Problem, Reward, Task, may_be_graded

OUTCOMES = frozenset(get_args(Outcome))
# Names that rewards and evaluations log of all tasks.
TAKEN = OUTCOMES | {"mean", "accuracy", "solved_fraction", "mean_reward", "expected_reward", *OF_SAMPLES}


def rewards_of(task: Task, answers: Sequence[tuple[Problem, str]]) -> list[Reward]:
    """The task's rewards of (problem, response text) pairs, in order; their values are Python's floats.

    Raises ValueError, which names the task: for a wrong number of rewards, for an object that is no Reward, and for
    a value that is not a finite number, or, from a task that does not declare `graded`, not 1 for `correct` and 0
    otherwise. The value of an `error` is not used as a reward, but must be a number: it enters batches with a weight of
    0.
    """
    returned: Any = task.reward(answers)
    if not isinstance(returned, Iterable):
        raise ValueError(_message(task, f"returned {returned!r}", "Return a list of Reward, one for each answer."))
    rewards: list[Any] = list(cast("Iterable[Any]", returned))
    if len(rewards) != len(answers):
        raise ValueError(
            _message(task, f"returned {len(rewards)} rewards for {len(answers)} answers", "Return one for each.")
        )
    graded = may_be_graded(task)
    for row, ((problem, _), reward) in enumerate(zip(answers, rewards, strict=True)):
        # The usual case in one comparison: this loop sees every sample.
        is_plain = type(reward) is Reward and reward.value == (reward.outcome == "correct") and not reward.extras
        is_usual = is_plain and reward.outcome in OUTCOMES
        if not is_usual and (fault := _fault(reward, graded=graded)):
            raise ValueError(_message(task, f"judged an answer to problem {problem.id} with {reward!r}", fault))
        if type(reward.value) is not float or reward.extras:  # the files of samples cannot hold true beside 0.0
            extras = {name: float(measured) for name, measured in reward.extras.items()}
            rewards[row] = replace(reward, value=float(reward.value), extras=extras)
    return rewards


def _fault(reward: Any, *, graded: bool) -> str:
    """What is wrong with a reward, and what is allowed; "" if it is valid."""
    if not isinstance(reward, Reward):
        return 'Return rlvr.records.Reward, as in Reward(1.0, "correct").'
    value: Any = reward.value
    if reward.outcome not in OUTCOMES:
        return f"Outcomes: {', '.join(get_args(Outcome))}."
    if not isinstance(value, Real) or not math.isfinite(value):
        return "A reward is a finite number."
    if not graded and value != (reward.outcome == "correct") and reward.outcome != "error":
        return "Rewards are 1 for correct, else 0, unless the task says `graded = True`."
    for name, measured in reward.extras.items():
        if name in TAKEN or not re.fullmatch(r"(?!.*_at_\d)[a-z][a-z0-9_]{0,98}", str(name)):
            return f"{name!r} is no name for an extra: lowercase letters, digits and _, and none that every run logs."
        if not isinstance(measured, Real) or not math.isfinite(measured):
            return f"The extra {name} is a finite number."
    return ""


def _message(task: Task, event: str, allowed: str) -> str:
    task_class = type(task)
    return f"task {task.name}: `reward` of {task_class.__module__}.{task_class.__qualname__} {event}. {allowed}"
