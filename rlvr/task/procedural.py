"""Problems that are generated: an endless training stream, and held-out sets that have no item in common with it."""

import hashlib
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, count, islice, zip_longest
from typing import Annotated, Any, Generic, TypeVar

from annotated_types import Interval
from pydantic import NonNegativeInt, PositiveInt

from rlvr.records import Problem, Split

PATIENCE = 10_000  # draws without a new item before a stream counts as exhausted
SMALL = 4096  # items that can be held out, up to which `final` knows all that larger held-out sets would have
GROWTH = 8  # where there are more: how many times `test_problems` test and validation may have, for `final` to know
Item = TypeVar("Item")  # what a problem is generated from: hashable
Option = TypeVar("Option")


class Dice:
    """Random numbers that are a function of a name, the same in every process and every version of Python.

    Only `random()` of Python's generator is used: the documentation of the module `random` guarantees that its
    sequence does not change between versions.
    """

    def __init__(self, name: str) -> None:
        self._generator = random.Random(hashlib.sha256(name.encode()).digest())

    def share(self) -> float:
        """A number in [0, 1)."""
        return self._generator.random()

    def below(self, limit: int) -> int:
        """An integer from 0 to limit − 1."""
        return int(self.share() * limit)

    def choose(self, options: Sequence[Option], weights: Sequence[float] | None = None) -> Option:
        """One of the options, with a probability proportional to its weight; without weights all are equally likely."""
        if weights is None:
            return options[self.below(len(options))]
        point = self.share() * sum(weights)
        for option, weight in zip(options, weights, strict=True):
            point -= weight
            if point < 0:
                return option
        return next(option for option, weight in zip(reversed(options), reversed(weights), strict=True) if weight)

    def sample(self, options: Sequence[Option], count: int) -> list[Option]:
        """`count` of the options, drawn without replacement, in the order of the draws."""
        left = list(options)
        return [left.pop(self.below(len(left))) for _ in range(count)]


Share = Annotated[float, Interval(ge=0, lt=1)]
SIZES = ("test_problems", "validation_problems", "train_problems")


@dataclass(kw_only=True, eq=False)
class Procedural(Generic[Item]):
    """The splits of a task whose problems are drawn at random, not read from data.

    A subclass implements `draws`, `held_out` and `posed`, and calls `set_sizes`. `held_out` depends on the item alone:
    an item is on the same side whatever the seed, the stream or the index. Training problems and demonstrations are
    drawn from one side; `test`, `validation` and `final` from the other, without an item in common. No evaluation of
    training reads `final` (rlvr/ledger/final.py): it has as many items as `test`, or as many as are left, of those that
    larger sets of test and validation would reach last.

    test_problems, validation_problems: sizes of the held-out sets; validation None: as many as test, or as many as are
        left if those are fewer.
    train_problems: size of a fixed training set of distinct problems, the first of the endless stream, so that a
        smaller set is part of a larger one; None: the endless stream.
    seed: selects the problems. It is not the seed of a run: all runs have the same problems in the same order.
    mistakes (of tasks that have this knob): share of the demonstrations whose answer belongs to another problem: a base
        policy that has learned from them is right in at most 1 − mistakes of its responses.
    """

    source = ""
    has_final = True

    test_problems: PositiveInt
    validation_problems: NonNegativeInt | None = None
    train_problems: PositiveInt | None = None
    seed: NonNegativeInt

    def set_sizes(self, *, num_items: float, share: float, fill: float = 0.5, kind: str, remedy: str = "") -> None:
        """num_items: how many items exist. share: part of them on the held-out side. kind, remedy: words for messages.

        Raises ValueError for sets of more than `fill` of a side: filling them by random draws would become slow, the
        more so the more the probabilities of items differ.
        """
        test, validation, train = self.test_problems, self.validation_problems, self.train_problems
        most, most_train = (int(min(num_items * side * fill, 1e6)) for side in (share, 1 - share))
        if test > most:
            raise ValueError(
                f"task.test_problems={test}: 1 to {most} {kind} can be held out. "
                f"Pass task.test_problems={most}{remedy}."
            )
        if validation is not None and validation > most - test:
            raise ValueError(
                f"task.validation_problems={validation}: 0 to {most - test} {kind} can be held out beside "
                f"task.test_problems={test}. Pass a number of these, or null."
            )
        if train is not None and train > most_train:
            raise ValueError(
                f"task.train_problems={train}: a fixed training set has 1 to {most_train} {kind}. "
                f"Pass task.train_problems={most_train}, or null for an endless stream."
            )
        validation = min(test, most - test) if validation is None else validation
        self._sizes: dict[Split, int | None] = {"train": train, "validation": validation, "test": test}
        # Without end nothing is foreseen: to draw so many may take hours, and the same item hardly comes twice.
        self._foreseen = most if most <= SMALL else GROWTH * test if num_items < math.inf else 0
        self._sets: dict[Split, list[Item]] = {}

    @property
    def identity(self) -> dict[str, Any]:
        """What demonstrations depend on: all knobs but the sizes of the sets (`rlvr.ledger.stages.task_identity`)."""
        public = {name: value for name, value in vars(self).items() if not name.startswith("_") and name not in SIZES}
        return {"mistakes": self._share_of_mistakes, **public}

    @property
    def _share_of_mistakes(self) -> float:
        """The knob `mistakes` of the tasks that have it: no attribute here, which would be a default of theirs."""
        return getattr(self, "mistakes", 0.0)

    # --- implemented by a subclass

    def draws(self, stream: str, index: int) -> Iterator[Item]:
        """Endless candidates for item `index` of a stream: a pure function of the task's knobs and the arguments."""
        raise NotImplementedError

    def held_out(self, item: Item) -> bool:
        """Whether an item belongs to the held-out side: a function of the item alone."""
        raise NotImplementedError

    def posed(self, item: Item) -> tuple[str, Any]:
        """(prompt, answer) of the problem for an item."""
        raise NotImplementedError

    def source_of(self, item: Item) -> str:
        """The benchmark that an item belongs to."""
        return self.source

    def held_out_streams(self, split: Split) -> Sequence[str]:
        """The streams of a held-out split. The split has `test_problems` or `validation_problems` items of each."""
        return (split,)

    # --- the interface of a task

    def size(self, split: Split) -> int | None:
        if split == "final":
            return len(self._fixed_set(split)) if self.has_final else 0
        size = self._sizes[split]
        return size if split == "train" or size is None else size * len(self.held_out_streams(split))

    def problem(self, split: Split, index: int) -> Problem:
        """Problem `index` of a split. Raises IndexError for an index outside the split."""
        size = self.size(split)
        if index < 0 or (size is not None and index >= size):
            raise IndexError(f"{self.source} has no {split} problem {index}")
        item = self._training_item("train", index) if size is None else self._fixed_set(split)[index]
        prompt, answer = self.posed(item)
        source = self.source_of(item)
        return Problem(f"{source}-{split}-{index}", prompt, answer, source)

    def close(self) -> None:
        """Nothing to stop."""

    # --- items

    def demonstrated(self, index: int) -> tuple[Item, Item]:
        """(item of the prompt, item of the answer) of a demonstration: the same item, except in a mistake."""
        item = self._training_item("demonstration", index)
        if Dice(f"mistake {index}").share() < self._share_of_mistakes:
            return item, self._training_item("mistake", index)
        return item, item

    def stream(self, name: str) -> Iterator[Item]:
        """Endless held-out items, repetitions included; the set of this name takes the first distinct ones."""
        return (next(filter(self.held_out, self.draws(name, index))) for index in count())

    def _training_item(self, stream: str, index: int) -> Item:
        """The first draw that is not on the held-out side."""
        for item in islice(self.draws(stream, index), PATIENCE):
            if not self.held_out(item):
                return item
        raise ValueError(f"{PATIENCE} draws of {self.source} gave no training problem. Allow for more problems.")

    def _fixed_set(self, split: Split) -> list[Item]:
        """The items of a split of fixed size, drawn at the first call."""
        if split not in self._sets:
            self._sets[split] = self._far_end() if split == "final" else self._first_items(split)
        return self._sets[split]

    def _first_items(self, split: Split) -> list[Item]:
        """The first distinct items of the streams of a split. Raises ValueError if there are too few."""
        taken = {*self._fixed_set("test")} if split == "validation" else set[Item]()
        streams = [self.stream(name) for name in self.held_out_streams(split)]
        if split == "train":
            streams = [(self._training_item("train", index) for index in count())]
        num_wanted, items = self._sizes[split] or 0, list[Item]()
        for stream in streams:
            new = list(islice(_new(stream, taken), num_wanted))
            if len(new) < num_wanted:
                raise ValueError(
                    f"only {len(new)} of {num_wanted} different problems came up: ask for fewer, or allow for more "
                    "problems."
                )
            items += new
        return items

    def _far_end(self) -> list[Item]:
        """The items of `final`: first those that no larger set of test or validation would have, as far as foreseen;
        then, where all are within their reach, those that come last there.
        """
        own, items = {*self._fixed_set("test"), *self._fixed_set("validation")}, list[Item]()
        splits: tuple[Split, ...] = ("test", "validation", "final")
        for *growing, name in zip(*map(self.held_out_streams, splits), strict=True):
            reached = [islice(_new(self.stream(stream), set()), self._foreseen) for stream in growing]
            in_order = dict.fromkeys(item for item in chain(*zip_longest(*reached)) if item is not None)
            beyond = _new(self.stream(name), {*own, *in_order, *items})
            last = (item for item in reversed(in_order) if item not in own)
            items += islice(chain(beyond, last), self._sizes["test"])
        return items


def _new(stream: Iterator[Item], taken: set[Item]) -> Iterator[Item]:
    """The items that are not in `taken`, to which they are added, until PATIENCE draws in a row give none."""
    num_repeated = 0
    for item in stream:
        num_repeated = num_repeated + 1 if item in taken else 0
        if num_repeated == PATIENCE:
            return
        if not num_repeated:
            taken.add(item)
            yield item
