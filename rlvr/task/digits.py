"""Handwritten digits as a language task: 64 intensity words in, one class word out (MaxRL's exact-likelihood study).

The data are the 1,797 images of 8 x 8 pixels that scikit-learn carries (its `load_digits`, the test part of the UCI set
"Optical Recognition of Handwritten Digits"): real images, and nothing to download. Every answer is known, so
cross-entropy can stand beside reinforcement learning on one and the same policy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Any

from rlvr.records import Outcome, Problem, Reward, Split

INK = tuple(f"INK_{level}" for level in range(17))  # 0 is paper, 16 the darkest
DIGITS = tuple(f"DIGIT_{digit}" for digit in range(10))
TEST_EVERY = 5  # of each class, every fifth image is held out


class Digits:
    """Every fifth image of each class, in the order of the data set, is held out: the same split in every run.

    That order goes by writers: both splits know all of them. labelled: how many training images demonstrations show,
    over and over; with the model's `steps`, how much the base policy is taught.
    """

    name = "digits"
    end_word = "END"
    max_tokens = 1
    vocabulary = ("PAD", end_word, *INK, *DIGITS)

    def __init__(self, *, labelled: int) -> None:
        most = len(_numbers("train"))
        if not 1 <= labelled <= most:
            raise ValueError(f"task.labelled={labelled}: base policies learn from 1 to {most} training images.")
        self.labelled = labelled

    def size(self, split: Split) -> int | None:
        return len(_numbers(split))

    def problem(self, split: Split, index: int) -> Problem:
        """Image `index` of a split, row by row."""
        numbers = _numbers(split)
        if not 0 <= index < len(numbers):
            raise IndexError(f"digits have {len(numbers)} {split} problems: there is no number {index}")
        pixels, digit = _images()[numbers[index]]
        return Problem(f"digits-{numbers[index]}", " ".join(INK[p] for p in pixels), DIGITS[digit], "digits")

    def solution(self, problem: Problem) -> str:
        """The response that is right: what cross-entropy learns."""
        return problem.answer

    def demonstration(self, index: int) -> tuple[str, str]:
        """The first `labelled` training images in turn: unlike those of endless tasks, they come again."""
        shown = self.problem("train", index % self.labelled)
        return shown.prompt, self.solution(shown)

    def reward(self, answers: Sequence[tuple[Problem, str]]) -> list[Reward]:
        """1 for the word of the right class, else 0. A word that names no class is unparsable."""
        outcomes: list[Outcome] = [judge(problem, text, DIGITS) for problem, text in answers]
        return [Reward(float(outcome == "correct"), outcome) for outcome in outcomes]

    def close(self) -> None:
        """Nothing to stop."""


def judge(problem: Problem, text: str, classes: Collection[str]) -> Outcome:
    """The verdict on a response that should be one word of `classes`."""
    if text.strip() == problem.answer:
        return "correct"
    return "wrong" if text.strip() in classes else "unparsable"


@lru_cache
def _images() -> tuple[tuple[tuple[int, ...], int], ...]:
    """(64 intensities 0 to 16, digit) of every image."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ValueError(
            "task=digits reads the images that scikit-learn carries, and it is not installed. "
            "Type: pip install 'scikit-learn>=1.5'"
        ) from error
    arrays: Any = load_digits(return_X_y=True)  # its stub knows of a dictionary alone
    pixels, digits = (array.astype(int).tolist() for array in arrays)
    return tuple((tuple(image), digit) for image, digit in zip(pixels, digits, strict=True))


@lru_cache
def _numbers(split: Split) -> tuple[int, ...]:
    """Numbers of the images of a split, in the order of the data set."""
    seen = Counter[int]()
    numbers: list[int] = []
    for number, (_, digit) in enumerate(_images()):
        seen[digit] += 1
        if (seen[digit] % TEST_EVERY == 0) == (split == "test"):
            numbers.append(number)
    return tuple(numbers)
