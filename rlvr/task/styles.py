"""Sort digits, and say so in any of five equally right styles: how many does training keep? (After the five-styles
experiment of DPH-RL, arXiv 2509.07430.)

The prompt `sort 7 1 3 :` has five right responses. The first word names the style:

    plain 1 3 7 end          spelled one three seven end          listed 1 , 3 , 7 end
    boxed [ 1 3 7 ] end      falling 7 3 1 end

Demonstrations use each style one time in five, whatever the digits; the reward asks for the right digits in any one
style. A policy that answers in one style only is as accurate as one that knows five.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from itertools import count

from rlvr.records import Outcome, Problem, Reward, Split

STYLES = ("plain", "spelled", "listed", "boxed", "falling")
NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
DIGITS = tuple(map(str, range(10)))
TEST_SHARE = 8  # one string of digits in so many is held out


def written(style: str, digits: Sequence[int]) -> str:
    """The right response in a style, without the end word."""
    rising = sorted(digits)
    plain = " ".join(map(str, rising))
    words = {
        "plain": plain,
        "spelled": " ".join(NAMES[d] for d in rising),
        "listed": " , ".join(map(str, rising)),
        "boxed": f"[ {plain} ]",
        "falling": " ".join(map(str, reversed(rising))),
    }
    return f"{style} {words[style]}"


class Styles:
    """Strings of `shortest` to `longest` digits: an endless train stream and `test_problems` distinct held-out ones.

    seed: which strings; not the seed of a run, so that all runs meet the same problems in the same order. A hash of the
    string gives one in eight to the test side: training and test are disjoint by construction.
    """

    name = "styles"
    source = "styles"
    end_word = "end"
    vocabulary = ("PAD", end_word, "sort", ":", ",", "[", "]", *DIGITS, *NAMES, *STYLES)

    def __init__(self, *, shortest: int, longest: int, test_problems: int, seed: int) -> None:
        if not 2 <= shortest <= longest <= 32:
            raise ValueError(
                f"task.shortest={shortest}, task.longest={longest}: strings have 2 to 32 digits, shortest first, such "
                "as task.shortest=3 task.longest=8."
            )
        most = int(min(sum(10**n for n in range(shortest, longest + 1)) / TEST_SHARE / 2, 1e6))
        if not 1 <= test_problems <= most:
            raise ValueError(
                f"task.test_problems={test_problems}: 1 to {most} strings of {shortest} to {longest} digits can be "
                f"held out. Pass task.test_problems={min(most, max(1, test_problems))}."
            )
        self.shortest, self.longest, self.test_problems, self.seed = shortest, longest, test_problems, seed
        self.max_tokens = 2 * longest + 1  # the longest is `listed`: a style, digits and commas, the end
        self._held_out: list[tuple[int, ...]] = []

    def size(self, split: Split) -> int | None:
        return None if split == "train" else self.test_problems

    def problem(self, split: Split, index: int) -> Problem:
        """Raises IndexError beyond the test set."""
        if index < 0 or (split == "test" and index >= self.test_problems):
            raise IndexError(f"{self.source} has no {split} problem {index}")
        digits = self._drawn("train", index, test=False) if split == "train" else self._test()[index]
        return Problem(f"{self.source}-{split}-{index}", prompt(digits), list(digits), self.source)

    def demonstration(self, index: int) -> tuple[str, str]:
        """(prompt, right response) `index` of a stream of its own, each style in turn, never a held-out string."""
        digits = self._drawn("demonstration", index, test=False)
        return prompt(digits), f"{written(STYLES[index % len(STYLES)], digits)} {self.end_word}"

    def reward(self, answers: Sequence[tuple[Problem, str]]) -> list[Reward]:
        """1 for the right digits, complete and in any style. Unparsable: no style at the front, or no end."""
        return [self._judged(problem, text) for problem, text in answers]

    def _judged(self, problem: Problem, text: str) -> Reward:
        style, _, _ = text.partition(" ")
        if style not in STYLES or not text.endswith(f" {self.end_word}"):
            return Reward(0.0, "unparsable")
        right = text == f"{written(style, problem.answer)} {self.end_word}"
        outcome: Outcome = "correct" if right else "wrong"
        return Reward(float(right), outcome)

    def _drawn(self, stream: str, index: int, *, test: bool) -> tuple[int, ...]:
        """The first string on the wanted side in the sequence of draws of (seed, stream, index)."""
        for attempt in count():
            key = struct.pack("<qqq", self.seed, index, attempt) + stream.encode()
            length, *rest = hashlib.shake_128(key).digest(8 + 4 * self.longest)[7:]
            digits = tuple(rest[4 * i] % 10 for i in range(self.shortest + length % (self.longest - self.shortest + 1)))
            if held_out(digits) == test:
                return digits
        raise AssertionError("count() never ends")

    def _test(self) -> list[tuple[int, ...]]:
        if not self._held_out:
            found: dict[tuple[int, ...], None] = {}
            for index in count():
                found[self._drawn("test", index, test=True)] = None
                if len(found) == self.test_problems:
                    break
            self._held_out = list(found)
        return self._held_out

    def close(self) -> None:
        """Nothing to stop."""


def prompt(digits: Sequence[int]) -> str:
    return f"sort {' '.join(map(str, digits))} :"


def held_out(digits: Sequence[int]) -> bool:
    """Whether a string of digits belongs to the test side: a property of the string alone."""
    return hashlib.sha256(bytes(digits)).digest()[0] % TEST_SHARE == 0
