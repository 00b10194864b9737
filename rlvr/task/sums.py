"""Arithmetic asked in plain words, for pretrained language models: a small one learns a level within minutes.

Levels: 1, sums and products of digits from 2 to 9; 2, sums and differences of two digits; 3, a + b − c; 4, word
problems of two steps. Every problem is asked in one of several phrasings. The answer of a response is its last number.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, NamedTuple

from pydantic import PositiveInt

from rlvr.records import Outcome, Problem, Reward, Split, binary, hash64
from rlvr.task.fence import NUMBER
from rlvr.task.procedural import Dice, Procedural
from rlvr.task.sources import check_template

LEVELS = (1, 2, 3, 4)
SIDES = 8  # one problem in SIDES is a test problem, one a validation problem
NUM_PROBLEMS = {1: 128, 2: 10_000, 3: 50_000, 4: 20_000}  # of a level, at least; each in every phrasing
DIGITS = 12  # of level 1 among the test problems

EXPRESSIONS = (
    *("What is {}?", "Calculate {}.", "Compute {}.", "How much is {}?", "{} = ?", "Please work out {}."),
    *("Tell me the result of {}.", "Find the value of {}."),
)
# Stories of level 4: a − b + c or d·e + c; b is at most a.
STORIES = (
    "Ann has {a} apples. She buys {c} more and gives {b} of them to Tom. How many apples does Ann have?",
    "A bus carries {a} people. At a stop {b} get off and {c} get on. How many people are on the bus?",
    "A box holds {d} pens. Sam has {e} full boxes and {c} single pens. How many pens does Sam have?",
    "A baker makes {d} trays of {e} rolls, and then {c} more rolls. How many rolls are there?",
    "Mia saves {d} euros a week for {e} weeks. Her aunt gives her {c} euros. How many euros does Mia have?",
    "There are {a} birds in a tree. {b} fly away, and then {c} arrive. How many birds are in the tree?",
)


class Sum(NamedTuple):
    level: int
    expression: str  # "7 + 5", or the text of a story
    value: int
    phrasing: int  # of EXPRESSIONS; 0 for a story

    @property
    def question(self) -> str:
        return self.expression if self.level == 4 else EXPRESSIONS[self.phrasing].format(self.expression)


@dataclass(kw_only=True, eq=False)
class Sums(Procedural[Sum]):
    """Arithmetic in words.

    level: of the training problems, 1 to 4, or a list of levels that take turns. test_levels: those of the held-out
        benchmarks sums_1 to sums_4; None: those that are trained.
    template: the prompt, with {problem} where the question goes.
    test_problems, validation_problems: number of problems of each benchmark. A hash of the arithmetic, whatever its
        phrasing, assigns one in eight to the test problems and one to the validation problems. The other knobs:
        `rlvr.task.procedural.Procedural`.
    max_tokens: default limit of a response.
    """

    level: int | Sequence[int]
    test_levels: Sequence[int] | None
    template: str
    max_tokens: PositiveInt

    name = "sums"
    source = "sums"
    has_final = False  # every held-out item is on the side of the test or of the validation problems

    def __post_init__(self) -> None:
        self._trained = _levels("level", [self.level] if isinstance(self.level, int) else self.level)
        self._tested = self._trained if self.test_levels is None else _levels("test_levels", self.test_levels)
        check_template(self.template)
        fewest = min(NUM_PROBLEMS[level] * (1 if level == 4 else len(EXPRESSIONS)) for level in self._tested)
        self.set_sizes(num_items=fewest, share=2 / SIDES, kind="problems of a level")
        most = DIGITS * len(EXPRESSIONS)
        if 1 in self._tested and self.test_problems > most:
            raise ValueError(
                f"task.test_problems={self.test_problems}: level 1 has {most} test problems, {DIGITS} expressions in "
                f"{len(EXPRESSIONS)} phrasings. Pass task.test_problems={most}."
            )

    def draws(self, stream: str, index: int) -> Iterator[Sum]:
        split, _, level = stream.partition(" ")
        asked = int(level) if level else self._trained[index % len(self._trained)]
        for attempt in count():
            item = _drawn(asked, Dice(f"sums {self.seed} {stream} {index} {attempt}"))
            if not level or _side(item) == split:
                yield item

    def held_out(self, item: Sum) -> bool:
        return _side(item) != "train"

    def held_out_streams(self, split: Split) -> Sequence[str]:
        return [f"{split} {level}" for level in self._tested]

    def source_of(self, item: Sum) -> str:
        return f"sums_{item.level}"

    def posed(self, item: Sum) -> tuple[str, list[Any]]:
        """The answer is [the value, the expression]."""
        return self.template.replace("{problem}", item.question), [item.value, item.expression]

    def solution(self, problem: Problem) -> str:
        return str(problem.answer[0])

    def answer(self, problem: Problem, response: str) -> str | None:
        """The last number outside of repetitions of the question, without commas; None if there is none."""
        numbers = NUMBER.findall(_without(problem.answer[1], response))
        return numbers[-1].replace(",", "").replace("−", "-") if numbers else None

    def reward(self, answers: Sequence[tuple[Problem, str]]) -> list[Reward]:
        """1 where the answer is the value. A response without any number is unparsable; one that only repeats the
        question is wrong.
        """
        return [binary(self._judged(problem, text)) for problem, text in answers]

    def _judged(self, problem: Problem, text: str) -> Outcome:
        answer, asked = self.answer(problem, text), NUMBER.findall(problem.answer[1])
        if NUMBER.findall(text) == asked:
            return "wrong"  # the question in other words, as 60 minus 30 where 30 is right
        if answer is None:
            return "wrong" if NUMBER.search(text) else "unparsable"
        return "correct" if float(answer) == problem.answer[0] else "wrong"


def _levels(knob: str, levels: Sequence[int]) -> tuple[int, ...]:
    if not levels or not set(levels) <= set(LEVELS) or len(set(levels)) < len(levels):
        raise ValueError(f"task.{knob}={list(levels)}: one or several of the levels {LEVELS}, each once.")
    return tuple(levels)


def _drawn(level: int, dice: Dice) -> Sum:
    """A random problem of a level."""
    if level == 4:
        return _story(dice)
    phrasing = dice.below(len(EXPRESSIONS))
    if level == 1:
        a, b = 2 + dice.below(8), 2 + dice.below(8)
        return Sum(1, f"{a} + {b}", a + b, phrasing) if dice.below(2) else Sum(1, f"{a} * {b}", a * b, phrasing)
    a, b = 10 + dice.below(90), 10 + dice.below(90)
    if level == 3:
        c = 1 + dice.below(a + b)
        return Sum(3, f"{a} + {b} - {c}", a + b - c, phrasing)
    if dice.below(2):
        return Sum(2, f"{a} + {b}", a + b, phrasing)
    a, b = max(a, b), min(a, b)
    return Sum(2, f"{a} - {b}", a - b, phrasing)


def _story(dice: Dice) -> Sum:
    text = STORIES[dice.below(len(STORIES))]
    numbers = {"a": 10 + dice.below(40), "c": 1 + dice.below(20), "d": 2 + dice.below(8), "e": 2 + dice.below(8)}
    numbers["b"] = 1 + dice.below(numbers["a"])
    first = numbers["a"] - numbers["b"] if "{a}" in text else numbers["d"] * numbers["e"]
    return Sum(4, text.format(**numbers), first + numbers["c"], 0)


def _side(item: Sum) -> Split:
    """The split of a problem: by its arithmetic alone, so that two phrasings of one are never on two sides.

    Nor are 3 + 8 and 8 + 3, of which training sees nearly all; of larger numbers it sees one in a hundred.
    """
    words = item.expression.split() if item.level == 1 else []
    arithmetic = " ".join((min(words[::2]), words[1], max(words[::2]))) if words else item.expression
    number = hash64(f"{item.level} {arithmetic}") % SIDES
    return "test" if number == 0 else "validation" if number == 1 else "train"


def _without(expression: str, response: str) -> str:
    """The response without repetitions of the question's expression or story, however they are spaced."""
    return re.sub(r"\s*".join(map(re.escape, expression.split())), " ", response)
