"""The multi-armed bandit of LAD (arXiv 2602.20132, section 4.1): one prompt, one word of response, a known reward.

The reward of arm k is a mixture of Gaussians over the arm number, divided by its maximum:
R(k) = M(k) / max M, M(k) = Σ_m height_m · exp(−½·((k − centre_m)/width_m)²). Differs from the paper: its centres,
widths and heights are not printed; ours are knobs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rlvr.records import Outcome, Problem, Reward, Split


class Bandit:
    """One problem in both splits: the policy over arms is what a bandit learns, so there is nothing to hold out.

    arms: their words, in order: a policy over them can be read off exactly, without sampling.
    centres, widths [arms], heights [any unit]: one number per mode.
    """

    name = "bandit"
    end_word = "END"
    max_tokens = 1
    graded = True  # rewards other than 0 and 1

    def __init__(
        self, *, arms: int, centres: Sequence[float], widths: Sequence[float], heights: Sequence[float]
    ) -> None:
        if arms < 2:
            raise ValueError(f"task.arms={arms}: a bandit has at least 2 arms.")
        if not 0 < len(centres) == len(widths) == len(heights):
            raise ValueError(
                f"task.centres, task.widths and task.heights have {len(centres)}, {len(widths)} and {len(heights)} "
                "entries: give each mode one of each, such as task.centres=[10,25,40] task.widths=[2,3,2]."
            )
        if min(*widths, *heights, 1.0) <= 0 or not all(0 <= c <= arms - 1 for c in centres):
            raise ValueError(
                f"task.centres={list(centres)} must lie in 0 to {arms - 1}, "
                f"task.widths={list(widths)} and task.heights={list(heights)} above 0."
            )
        self.arms = tuple(f"ARM_{i}" for i in range(arms))
        self.vocabulary = ("PAD", self.end_word, "PULL", *self.arms)
        self.centres, self.widths, self.heights = (np.asarray(x, np.float64) for x in (centres, widths, heights))
        rewards = self.rewards()
        near = [bool((abs(k - self.centres) <= self.widths).any()) for k in range(arms)]
        self._rewards = {
            arm: Reward(float(value), "correct" if close else "wrong")
            for arm, value, close in zip(self.arms, rewards, near, strict=True)
        }

    def rewards(self) -> NDArray[np.float64]:
        """The reward of every arm: [arms], in (0, 1], maximum 1."""
        distance = (np.arange(len(self.arms))[:, None] - self.centres) / self.widths
        mixture = (self.heights * np.exp(-0.5 * distance**2)).sum(1)
        return mixture / mixture.max()

    def size(self, split: Split) -> int | None:
        return 1

    def problem(self, split: Split, index: int) -> Problem:
        if index != 0:
            raise IndexError(f"the bandit has one problem, number 0: there is no {split} problem {index}")
        return Problem("bandit", "PULL", None, "bandit")

    def demonstration(self, index: int) -> tuple[str, str]:
        """Every arm in turn: a policy taught by them is uniform."""
        return "PULL", self.arms[index % len(self.arms)]

    def reward(self, answers: Sequence[tuple[Problem, str]]) -> list[Reward]:
        """R(k) for arm k: correct within one width of a mode's centre, else wrong. No arm, or several: unparsable."""
        none: Outcome = "unparsable"
        return [self._rewards.get(text.strip(), Reward(0.0, none)) for _, text in answers]

    def close(self) -> None:
        """Nothing to stop."""
