"""The order in which training problems are drawn, fixed by the seed."""

import functools
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rlvr.records import Problem, Task


@dataclass
class Stream:
    """Training problems in an order fixed by the seed: arms of an ablation see the same ones in the same order.

    A finite data set is shuffled anew each epoch; an infinite one is read in order. `position` counts problems drawn
    and passed over. retired: ids of problems that are passed over.
    """

    task: Task
    seed: int
    position: int = 0
    retired: set[str] = field(default_factory=set[str])

    def draw(self, count: int) -> list[Problem]:
        """The next problems; fewer once all of a finite set are retired."""
        drawn, passed, size = list[Problem](), 0, self.task.size("train")
        while len(drawn) < count and (size is None or (len(self.retired) < size and passed < 2 * size)):
            problem = self.task.problem("train", self._index(self.position))
            self.position += 1
            passed = passed + 1 if problem.id in self.retired else 0  # beyond two epochs: problems that share their ids
            drawn += [] if passed else [problem]
        return drawn

    def _index(self, position: int) -> int:
        size = self.task.size("train")
        if size is None:
            return position
        epoch, offset = divmod(position, size)
        return int(_permutation(size, self.seed, epoch)[offset])


@functools.lru_cache(maxsize=2)  # the current epoch, of both streams of a mixture
def _permutation(size: int, seed: int, epoch: int) -> NDArray[np.int64]:
    return np.random.Generator(np.random.Philox(key=[seed, epoch])).permutation(size)
