"""The order in which training problems are drawn, fixed by the seed."""

import functools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlvr.records import Problem, Task


@dataclass
class Stream:
    """Training problems in an order fixed by the seed: arms of an ablation see the same ones in the same order.

    A finite data set is shuffled anew each epoch; an infinite one is read in order. `position` counts problems drawn.
    """

    task: Task
    seed: int
    position: int = 0

    def draw(self, count: int) -> list[Problem]:
        drawn = [self.task.problem("train", self._index(self.position + i)) for i in range(count)]
        self.position += count
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
