"""Handling of steps with too few groups to learn from, or none: a warning, and the end of a hopeless run."""

import logging
import math

from rlvr.rollout.selection import Selection
from rlvr.rollout.step_sampler import StepGroups

# A run ends after so many steps in a row without a right answer, once they have drawn so many answers. If none of 300
# is right, at most 1 % of the policy's answers are (95 % bound 3/n of a binomial).
EMPTY_STEPS = 10
EMPTY_ANSWERS = 300

log = logging.getLogger("rlvr")


class NothingToLearn(ValueError):
    """Raised after many steps without a right answer: this policy learns nothing from these problems."""


class EmptySteps:
    """Inspects the groups of every step; the result is the same on all ranks. Counting restarts with each attempt."""

    def __init__(self, selection: Selection, *, warns: bool) -> None:
        """warns: whether to log warnings; one rank of several does."""
        self._selection, self._warns = selection, warns
        self._most_hopeless = max(EMPTY_STEPS, math.ceil(EMPTY_ANSWERS / (selection.prompts * selection.samples)))
        self._num_hopeless = 0  # steps in a row that had neither groups nor a right answer
        self._was_empty = self._was_short = False  # the previous step

    def check(self, sampled: StepGroups) -> None:
        """Warn at the first step of a row that has no groups, or under refill fewer groups than it asked for.

        Raises NothingToLearn at the last of EMPTY_STEPS steps in a row, or of more where steps are so small that they
        draw fewer than EMPTY_ANSWERS answers, that have neither groups nor a right answer.
        (A policy whose answers are all right has learned its task.)
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
        if self._num_hopeless < self._most_hopeless:
            return
        head = f"no answer of {self._num_hopeless} steps was right"
        if sampled.metrics.get("reward/error") == 1:
            raise NothingToLearn(f"{head}: the verifier failed to judge them (reward/error). Repair the task.")
        raise NothingToLearn(
            f"{head}: these problems teach this policy nothing. Pass easier problems, more samples (rollout.samples), "
            "or a better base policy."
        )

    def _warn(self, sampled: StepGroups, event: str, consequence: str) -> None:
        if not self._warns:
            return
        accuracy = sampled.metrics.get("reward/accuracy")  # a filter may leave nothing to sample
        shown = "" if accuracy is None else f" (accuracy {accuracy:.3f})"
        log.warning(
            "step %d %s%s: %s. Consecutive steps like it are not reported", sampled.step, event, shown, consequence
        )
