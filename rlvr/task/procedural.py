"""Problems that are made on the fly: an endless training stream, and held-out sets that it never meets."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence
from itertools import count, islice
from typing import Any, Generic, TypeVar

from rlvr.records import Problem, Split

PATIENCE = 10_000  # draws without anything new
Item = TypeVar("Item")  # what a problem is made from: hashable
Option = TypeVar("Option")


class Dice:
    """Random numbers that are a function of a name, in every process and in every version of Python.

    Of Python's generator only `random()` is promised to stay as it is (documentation of the module `random`).
    """

    def __init__(self, name: str) -> None:
        self._generator = random.Random(hashlib.sha256(name.encode()).digest())

    def share(self) -> float:
        """A number in [0, 1)."""
        return self._generator.random()

    def below(self, limit: int) -> int:
        """A number of 0 to limit − 1."""
        return int(self.share() * limit)

    def choose(self, options: Sequence[Option], weights: Sequence[float] | None = None) -> Option:
        """One of them, each as likely as its weight says."""
        if weights is None:
            return options[self.below(len(options))]
        point = self.share() * sum(weights)
        for option, weight in zip(options, weights, strict=True):
            point -= weight
            if point < 0:
                return option
        return next(option for option, weight in zip(reversed(options), reversed(weights), strict=True) if weight)

    def sample(self, options: Sequence[Option], count: int) -> list[Option]:
        """So many different ones, in the order they were drawn."""
        left = list(options)
        return [left.pop(self.below(len(left))) for _ in range(count)]


class Procedural(Generic[Item]):
    """The splits of a task whose problems are drawn, not read.

    A subclass gives `draws`, `held_out` and `posed`. `held_out` looks at the item alone: whatever the seed, the stream
    or the index, an item is on one side for good. Training problems and demonstrations are drawn from one side; `test`
    and `validation` from the other, without an item in common.

    test_problems, validation_problems: sizes of the held-out sets; validation None: as many as test, fewer where few
        are left.
    train_problems: a fixed training set of so many distinct problems, the first of the endless stream, so that a
        smaller set is part of a larger one; None: the stream itself.
    mistakes: share of the demonstrations that answer another problem than they ask: a base policy that has learned
        them is right 1 − mistakes of the time at most.
    """

    source: str

    def __init__(
        self,
        *,
        test_problems: int,
        validation_problems: int | None = None,
        train_problems: int | None = None,
        mistakes: float = 0.0,
        num_items: float,
        share: float,
        fill: float = 0.5,
        kind: str,
        remedy: str = "",
    ) -> None:
        """num_items: how many there are, share: of them on the held-out side; kind, remedy: words for messages.

        Raises ValueError for sets of more than `fill` of a side: the draws that fill them would become slow, the sooner
        the less alike the chances of items are.
        """
        most, most_train = (int(min(num_items * of * fill, 1e6)) for of in (share, 1 - share))
        if not 1 <= test_problems <= most:
            raise ValueError(
                f"task.test_problems={test_problems}: 1 to {most} {kind} can be held out. "
                f"Pass task.test_problems={min(most, max(1, test_problems))}{remedy}."
            )
        rest = most - test_problems
        if validation_problems is not None and not 0 <= validation_problems <= rest:
            raise ValueError(
                f"task.validation_problems={validation_problems}: 0 to {rest} {kind} can be held out beside "
                f"task.test_problems={test_problems}. Pass a number of these, or null."
            )
        if train_problems is not None and not 1 <= train_problems <= most_train:
            raise ValueError(
                f"task.train_problems={train_problems}: a fixed training set has 1 to {most_train} {kind}. "
                f"Pass task.train_problems={min(most_train, max(1, train_problems))}, or null for an endless stream."
            )
        if not 0 <= mistakes < 1:
            raise ValueError(f"task.mistakes={mistakes}: a share of the demonstrations, from 0 to less than 1.")
        if validation_problems is None:
            validation_problems = min(test_problems, rest)
        self._sizes: dict[Split, int | None] = {
            "train": train_problems,
            "validation": validation_problems,
            "test": test_problems,
        }
        self.mistakes = mistakes
        self._sets: dict[Split, list[Item]] = {}

    # --- what a subclass gives

    def draws(self, stream: str, index: int) -> Iterator[Item]:
        """Endless items of one place of a stream: a pure function of the task's knobs, `stream` and `index`."""
        raise NotImplementedError

    def held_out(self, item: Item) -> bool:
        """Whether an item belongs to the held-out side: decided by the item alone."""
        raise NotImplementedError

    def posed(self, item: Item) -> tuple[str, Any]:
        """(prompt, answer) of a problem."""
        raise NotImplementedError

    def source_of(self, item: Item) -> str:
        """The benchmark that an item belongs to."""
        return self.source

    def held_out_streams(self, split: Split) -> Sequence[str]:
        """The streams of a held-out split: from each come as many items as the split's size says."""
        return (split,)

    # --- what a task has

    def size(self, split: Split) -> int | None:
        size = self._sizes[split]
        return size if split == "train" or size is None else size * len(self.held_out_streams(split))

    def problem(self, split: Split, index: int) -> Problem:
        """Raises IndexError beyond a split's end."""
        size = self.size(split)
        if index < 0 or (size is not None and index >= size):
            raise IndexError(f"{self.source} has no {split} problem {index}")
        item = self._first("train", index) if size is None else self._set(split)[index]
        prompt, answer = self.posed(item)
        source = self.source_of(item)
        return Problem(f"{source}-{split}-{index}", prompt, answer, source)

    def close(self) -> None:
        """Nothing to stop."""

    # --- items

    def demonstrated(self, index: int) -> tuple[Item, Item]:
        """(item that is asked, item that is answered) of a demonstration: the same one but for `mistakes`."""
        asked = self._first("demonstration", index)
        if Dice(f"mistake {index}").share() < self.mistakes:
            return asked, self._first("mistake", index)
        return asked, asked

    def stream(self, name: str) -> Iterator[Item]:
        """Held-out items, from which the set of this name takes the first distinct ones."""
        return (next(filter(self.held_out, self.draws(name, index))) for index in count())

    def _first(self, stream: str, index: int) -> Item:
        """The first draw that may be trained on."""
        for item in islice(self.draws(stream, index), PATIENCE):
            if not self.held_out(item):
                return item
        raise ValueError(f"{PATIENCE} draws of {self.source} gave no training problem. Allow for more problems.")

    def _set(self, split: Split) -> list[Item]:
        if split not in self._sets:
            taken = set(self._set("test")) if split == "validation" else set[Item]()
            streams = [self.stream(name) for name in self.held_out_streams(split)]
            if split == "train":
                streams = [(self._first("train", index) for index in count())]
            self._sets[split] = [item for items in streams for item in _new(items, taken, self._sizes[split] or 0)]
        return self._sets[split]


def _new(items: Iterator[Item], taken: set[Item], wanted: int) -> list[Item]:
    """The first so many that are not taken yet; they are now. ValueError if there are not as many."""
    kept: list[Item] = []
    idle = 0
    while len(kept) < wanted:
        item = next(items)
        idle = idle + 1 if item in taken else 0
        if idle == PATIENCE:
            raise ValueError(
                f"only {len(kept)} of {wanted} different problems came up: ask for fewer, or allow for more problems."
            )
        if not idle:
            taken.add(item)
            kept.append(item)
    return kept
