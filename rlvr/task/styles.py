"""Sort digits and write them in any of five styles, all of them right: how many styles does training keep? (After the
five-styles experiment of DPH-RL, arXiv 2509.07430.)

The prompt `sort 7 1 3 :` has five right responses. The first word names the style:

    plain 1 3 7 end          spelled one three seven end          listed 1 , 3 , 7 end
    boxed [ 1 3 7 ] end      falling 7 3 1 end

Demonstrations use each style one time in five, whatever the digits; the reward requires the right digits in any one
style. A policy that answers in one style only is as accurate as one that uses all five.
"""

import hashlib
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count

from rlvr.records import Outcome, Problem, Reward
from rlvr.task.procedural import Procedural

STYLES = ("plain", "spelled", "listed", "boxed", "falling")
NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
DIGITS = tuple(map(str, range(10)))
TEST_SHARE = 8  # one string of digits in TEST_SHARE is held out


def written(style: str, digits: Sequence[int]) -> str:
    """The right response in one style, without the end word."""
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


@dataclass(kw_only=True, eq=False)
class Styles(Procedural[tuple[int, ...]]):
    """Strings of `shortest` to `longest` digits: an endless training stream and distinct held-out strings.

    A hash of the string assigns one in eight to the held-out side. The other knobs:
    `rlvr.task.procedural.Procedural`.
    """

    shortest: int
    longest: int

    name = "styles"
    source = "styles"
    end_word = "end"
    several_answers = True
    vocabulary = ("PAD", end_word, "sort", ":", ",", "[", "]", *DIGITS, *NAMES, *STYLES)

    def __post_init__(self) -> None:
        shortest, longest = self.shortest, self.longest
        if not 2 <= shortest <= longest <= 32:
            raise ValueError(
                f"task.shortest={shortest}, task.longest={longest}: strings have 2 to 32 digits, shortest first, such "
                "as task.shortest=3 task.longest=8."
            )
        num_items = sum(10**n for n in range(shortest, longest + 1))
        self.set_sizes(num_items=num_items, share=1 / TEST_SHARE, kind=f"strings of {shortest} to {longest} digits")
        # The longest style is `listed` (its name, digits, commas, the end word) or, of two digits, `boxed`.
        self.max_tokens = max(2 * longest + 1, longest + 4)

    def draws(self, stream: str, index: int) -> Iterator[tuple[int, ...]]:
        for attempt in count():
            key = struct.pack("<qqq", self.seed, index, attempt) + stream.encode()
            length_byte, *digit_bytes = hashlib.shake_128(key).digest(8 + 4 * self.longest)[7:]
            length = self.shortest + length_byte % (self.longest - self.shortest + 1)
            yield tuple(digit_bytes[4 * i] % 10 for i in range(length))

    def held_out(self, item: tuple[int, ...]) -> bool:
        return held_out(item)

    def posed(self, item: tuple[int, ...]) -> tuple[str, list[int]]:
        return prompt(item), list(item)

    def demonstration(self, index: int) -> tuple[str, str]:
        """(prompt, right response) `index` of a separate stream, each style in turn, never a held-out string."""
        digits, _ = self.demonstrated(index)
        return prompt(digits), f"{written(STYLES[index % len(STYLES)], digits)} {self.end_word}"

    def canonical(self, problem: Problem, response: str) -> str | None:
        """The style of a right response: a problem has one right answer per style. None for other responses."""
        return response.partition(" ")[0] if self._judged(problem, response).correct else None

    def reward(self, answers: Sequence[tuple[Problem, str]]) -> list[Reward]:
        """1 for all of the right digits, in any style. Unparsable: no style at the start, or no end word."""
        return [self._judged(problem, text) for problem, text in answers]

    def _judged(self, problem: Problem, text: str) -> Reward:
        style, _, _ = text.partition(" ")
        if style not in STYLES or not text.endswith(f" {self.end_word}"):
            return Reward(0.0, "unparsable")
        right = text == f"{written(style, problem.answer)} {self.end_word}"
        outcome: Outcome = "correct" if right else "wrong"
        return Reward(float(right), outcome)


def prompt(digits: Sequence[int]) -> str:
    return f"sort {' '.join(map(str, digits))} :"


def held_out(digits: Sequence[int]) -> bool:
    """Whether a string of digits belongs to the held-out side: a function of the string alone."""
    return hashlib.sha256(bytes(digits)).digest()[0] % TEST_SHARE == 0
