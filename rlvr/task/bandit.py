"""The multi-armed bandit of LAD (arXiv 2602.20132, section 4.1): one prompt, one word of response, a known reward.

The reward of arm k is a mixture of Gaussians over the arm number, divided by its maximum:
R(k) = M(k) / max M, M(k) = Σ_m height_m · exp(−½·((k − centre_m)/width_m)²). Differs from the paper: its centres,
widths and heights are not printed; ours are knobs.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rlvr.records import Problem, Reward, Split


class Bandit:
    """One prompt in every split: what is learned is the policy over arms, so there is nothing to hold out.

    copies: number of problems, all with the same prompt, each with its own sampling noise and group: a step of many
        copies has many mini-batches from one sampling policy.
    arms: number of arms. The attribute `arms` has their words, in order, so that a policy over them can be computed
        exactly, without sampling.
    centres, widths [arms], heights [any unit]: one number per mode.
    binary: the reward is 1 within one width of a centre and 0 elsewhere, for objectives that require binary rewards.
    """

    name = "bandit"
    end_word = "END"
    max_tokens = 1

    def __init__(
        self,
        *,
        arms: int,
        centres: Sequence[float],
        widths: Sequence[float],
        heights: Sequence[float],
        binary: bool = False,
        copies: int = 1,
    ) -> None:
        if copies < 1:
            raise ValueError(f"task.copies={copies}: at least 1.")
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
        self.centres, self.widths, self.heights = (np.asarray(m, np.float64) for m in (centres, widths, heights))
        self.binary, self._copies = binary, copies
        self._rewards = {
            arm: Reward(float(value), "correct" if right else "wrong")
            for arm, value, right in zip(self.arms, self.rewards(), self._near_centre(), strict=True)
        }

    @property
    def graded(self) -> bool:
        """Whether there are rewards other than 0 and 1."""
        return not self.binary

    def rewards(self) -> NDArray[np.float64]:
        """The reward of every arm: [arms], in (0, 1] with maximum 1; with `binary` 0 or 1."""
        if self.binary:
            return self._near_centre().astype(np.float64)
        mixture = (self.heights * np.exp(-0.5 * self._distance() ** 2)).sum(1)
        return mixture / mixture.max()

    def _near_centre(self) -> NDArray[np.bool_]:
        """[arms] whether an arm is within one width of a centre, which counts as right."""
        return np.abs(self._distance()).min(1) <= 1

    def _distance(self) -> NDArray[np.float64]:
        """[arms, modes] distance of each arm from each centre, in widths of the mode."""
        return (np.arange(len(self.arms))[:, None] - self.centres) / self.widths

    def size(self, split: Split) -> int | None:
        return self._copies

    def problem(self, split: Split, index: int) -> Problem:
        if not 0 <= index < self._copies:
            raise IndexError(f"the bandit has problems 0 to {self._copies - 1}: there is no {split} problem {index}")
        return Problem(f"bandit/{index}" if index else "bandit", "PULL", None, "bandit")

    def demonstration(self, index: int) -> tuple[str, str]:
        """Each arm in turn: a policy that learns from them is uniform over the arms."""
        return "PULL", self.arms[index % len(self.arms)]

    def reward(self, answers: Sequence[tuple[Problem, str]]) -> list[Reward]:
        """R(k) for arm k: correct within one width of a mode's centre, else wrong. No arm, or several: unparsable."""
        unparsable = Reward(0.0, "unparsable")
        return [self._rewards.get(text.strip(), unparsable) for _, text in answers]

    def close(self) -> None:
        """Nothing to stop."""
