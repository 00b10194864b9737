"""Handwritten digits as a language task: intensity words in, one class word out (MaxRL's exact-likelihood study).

The data are the 1,797 images of 8 x 8 pixels of the test part of "Optical Recognition of Handwritten Digits" (E.
Alpaydin and C. Kaynak, 1998, UCI Machine Learning Repository, doi:10.24432/C50P49, licence CC BY 4.0), in the order of
scikit-learn's `load_digits`. Every answer is known, so cross-entropy can be compared with reinforcement learning on the
same policy. Two or three images side by side are numbers of 100 and 1000 classes, where a policy that guesses is hardly
ever right.
"""

import gzip
from collections import Counter
from collections.abc import Collection, Sequence
from functools import lru_cache
from itertools import count
from pathlib import Path
from typing import Any

from pydantic import PositiveInt

from rlvr.records import Outcome, Problem, Reward, Split, binary, hash64
from rlvr.task.procedural import Dice, Share

DATA = Path(__file__).with_name("digits.txt.gz")
INK = tuple(f"INK_{level}" for level in range(17))  # 0 is paper, 16 the darkest
TEST_EVERY = 5  # of each class, every fifth image is held out
HELD_OUT_NUMBERS = 2048  # of several images, in validation and in test


class Digits:
    """Every fifth image of each class, in the order of the data set, is held out: the same split in every run.

    The data set is ordered by writer, so every writer's digits are in both splits.
    labelled: number of training images in the demonstrations, which repeat them; None: all. Together with the model's
        `steps` it decides how much the base policy is taught.
    images: 1 to 3 per problem. One: each image once. Several: an endless stream of numbers drawn from the training
        images, and `HELD_OUT_NUMBERS` different ones, or as many as there are, from the held-out images.
    validation: share of the training images that form the validation split, by a hash of the picture; they are then
        neither trained on nor demonstrated. train_problems: size of a fixed training set; None: all, or the stream.
    """

    name = "digits"
    end_word = "END"
    max_tokens = 1

    def __init__(
        self,
        *,
        labelled: int | None,
        images: int = 1,
        validation: Share = 0.0,
        train_problems: PositiveInt | None = None,
    ) -> None:
        if images not in (1, 2, 3):
            raise ValueError(f"task.images={images}: numbers have 1 to 3 digits.")
        if not 0 <= validation < 1:
            raise ValueError(f"task.validation={validation} is a share of the training images, 0 to less than 1.")
        self._pictures: dict[Split, tuple[int, ...]] = {
            "train": tuple(i for i in _numbers("train") if _share(i) >= validation),
            "validation": tuple(i for i in _numbers("train") if _share(i) < validation),
            "test": _numbers("test"),
        }
        num_train = len(self._pictures["train"])
        labelled = num_train if labelled is None else labelled
        if not 1 <= labelled <= num_train:
            raise ValueError(f"task.labelled={labelled}: base policies learn from 1 to {num_train} training images.")
        most = {split: len(p) if images == 1 else len(p) ** images // 2 for split, p in self._pictures.items()}
        if train_problems is not None and not 1 <= train_problems <= most["train"]:
            raise ValueError(
                f"task.train_problems={train_problems}: 1 to {most['train']} training problems, or null for all."
            )
        self.labelled, self.images, self.validation = labelled, images, validation
        self.source = "digits" if images == 1 else f"digits_{images}"
        stem = "DIGIT" if images == 1 else "NUMBER"
        self.classes = tuple(f"{stem}_{number:0{images}d}" for number in range(10**images))
        self.vocabulary = ("PAD", self.end_word, *INK, *self.classes)
        self._classes = frozenset(self.classes)
        self._fixed: dict[Split, list[tuple[int, ...]]] = {}
        if images == 1:
            learned = sorted(self._pictures["train"], key=_share)[:train_problems]
            self._fixed = {split: [(i,) for i in pictures] for split, pictures in self._pictures.items()}
            self._fixed["train"] = [(i,) for i in sorted(learned)]
        else:
            for split in ("validation", "test"):
                self._fixed[split] = self._different_numbers(split, min(HELD_OUT_NUMBERS, most[split]))
            if train_problems is not None:
                self._fixed["train"] = self._different_numbers("train", train_problems)

    @property
    def identity(self) -> dict[str, Any]:
        """What decides the demonstrations: of the knobs, not `train_problems`; `validation` if it takes images away."""
        names = ("labelled", "images", "source", "classes", "vocabulary", *(["validation"] if self.validation else []))
        return {name: getattr(self, name) for name in names}

    def size(self, split: Split) -> int | None:
        return len(self._fixed[split]) if split in self._fixed else None

    def problem(self, split: Split, index: int) -> Problem:
        """Problem `index` of a split. Its prompt has the images one after another, each row by row."""
        fixed = self._fixed.get(split)
        if index < 0 or (fixed is not None and index >= len(fixed)):
            raise IndexError(f"{self.source} have {self.size(split)} {split} problems: there is no number {index}")
        shown = self._drawn(split, index) if fixed is None else fixed[index]
        label = f"digits-{shown[0]}" if self.images == 1 else f"{self.source}-{split}-{index}"
        prompt, answer = self._posed(shown)
        return Problem(label, prompt, answer, self.source)

    def solution(self, problem: Problem) -> str:
        """The right response, which cross-entropy learns."""
        return problem.answer

    def demonstration(self, index: int) -> tuple[str, str]:
        """(prompt, right response) from the first `labelled` training images, which repeat, unlike in endless tasks."""
        labelled = self._pictures["train"][: self.labelled]
        if self.images == 1:
            return self._posed((labelled[index % self.labelled],))
        dice = Dice(f"{self.source} demonstration {index}")
        return self._posed(tuple(dice.choose(labelled) for _ in range(self.images)))

    def reward(self, answers: Sequence[tuple[Problem, str]]) -> list[Reward]:
        """1 for the word of the right class, else 0. A word that names no class is unparsable."""
        return [binary(judge(problem, text, self._classes)) for problem, text in answers]

    def close(self) -> None:
        """Nothing to stop."""

    def _drawn(self, split: Split, index: int) -> tuple[int, ...]:
        dice = Dice(f"{self.source} {split} {index}")
        return tuple(dice.choose(self._pictures[split]) for _ in range(self.images))

    def _different_numbers(self, split: Split, num_wanted: int) -> list[tuple[int, ...]]:
        """The first `num_wanted` different numbers of the split's draws."""
        different: dict[tuple[int, ...], None] = {}
        draws = (self._drawn(split, index) for index in count())
        while len(different) < num_wanted:
            different[next(draws)] = None
        return list(different)

    def _posed(self, shown: Sequence[int]) -> tuple[str, str]:
        """(prompt, class word) for images, given by their numbers in the data set."""
        pixels = [f"INK_{ink}" for number in shown for ink in _images()[number][0]]
        value = int("".join(str(_images()[number][1]) for number in shown))
        return " ".join(pixels), self.classes[value]


def judge(problem: Problem, text: str, classes: Collection[str]) -> Outcome:
    """The verdict on a response that should be one word of `classes`."""
    if text.strip() == problem.answer:
        return "correct"
    return "wrong" if text.strip() in classes else "unparsable"


@lru_cache
def _images() -> tuple[tuple[tuple[int, ...], int], ...]:
    """(64 intensities 0 to 16, digit) of every image. A line of the file: 64 characters from 0 to g, and the digit."""
    with gzip.open(DATA, "rt", encoding="ascii") as file:
        lines = [line.split() for line in file]
    return tuple((tuple(int(ink, 17) for ink in picture), int(digit)) for picture, digit in lines)


@lru_cache
def _numbers(split: Split) -> tuple[int, ...]:
    """Numbers (positions in the data set) of the images of a split, ascending."""
    seen = Counter[int]()
    numbers: list[int] = []
    for number, (_, digit) in enumerate(_images()):
        seen[digit] += 1
        if (seen[digit] % TEST_EVERY == 0) == (split == "test"):
            numbers.append(number)
    return tuple(numbers)


def _share(number: int) -> float:
    """A number in [0, 1), a hash of the picture alone."""
    return hash64(bytes(_images()[number][0])) / 2**64
