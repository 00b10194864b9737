"""Steps with too few groups to learn from, or none: the run goes on, unless it is hopeless."""

from __future__ import annotations

import logging

from rlvr.rollout.selection import Selection
from rlvr.rollout.step_sampler import StepGroups

EMPTY_STEPS = 10  # in a row, without a right answer: the run ends

log = logging.getLogger("rlvr")


class NothingToLearn(ValueError):
    """No answer of many steps was right: this policy learns nothing from these problems."""


class EmptySteps:
    """Looks at every step's groups, the same on all ranks. It counts from where an attempt begins."""

    def __init__(self, selection: Selection, *, warns: bool) -> None:
        """warns: one rank of several does."""
        self._selection, self._warns = selection, warns
        self._num_hopeless = 0  # steps in a row that had neither groups nor a right answer
        self._was_empty = self._was_short = False  # the step before

    def look(self, sampled: StepGroups) -> None:
        """Warns at the first in a row that has no groups, or under refill fewer than it asked for.

        Raises NothingToLearn at the last of EMPTY_STEPS that have neither groups nor a right answer. (A policy whose
        answers are all right has learned its task.)
        """
        num_groups, prompts = len(sampled.groups), self._selection.prompts
        empty = num_groups == 0
        short = not empty and num_groups < prompts and self._selection.dynamic == "refill"
        if empty and not self._was_empty:
            self._warn(sampled, "has nothing to learn from", "it makes no update, and the run goes on")
        if short and not self._was_short:
            rounds = f"rollout.max_rounds={self._selection.max_rounds} gave no more with right and wrong answers"
            self._warn(sampled, f"learns from {num_groups} of {prompts} groups", rounds)
        self._was_empty, self._was_short = empty, short
        self._num_hopeless = 0 if sampled.groups or sampled.right else self._num_hopeless + 1
        if self._num_hopeless >= EMPTY_STEPS:
            raise _nothing_to_learn(sampled)

    def _warn(self, sampled: StepGroups, what: str, more: str) -> None:
        if not self._warns:
            return
        accuracy = sampled.metrics.get("reward/accuracy")  # a filter may leave nothing to sample
        known = "" if accuracy is None else f" (accuracy {accuracy:.3f})"
        log.warning(
            "step %d %s%s: %s. Those like it that follow at once are not named", sampled.step, what, known, more
        )


def _nothing_to_learn(sampled: StepGroups) -> NothingToLearn:
    head = f"no answer of {EMPTY_STEPS} steps was right"
    if sampled.metrics.get("reward/error") == 1:
        return NothingToLearn(f"{head}: the verifier failed to judge them (reward/error). Repair the task.")
    return NothingToLearn(
        f"{head}: these problems teach this policy nothing. Pass easier problems, more samples (rollout.samples), or a "
        "better base policy."
    )
