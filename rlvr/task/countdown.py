"""Countdown: make a number from given ones with + - * / and parentheses. Many expressions reach most targets.

The prompt `make 24 from 3 4 8 9 :` is answered by `3 * 8 end`, `4 * ( 9 - 3 ) end` and others: an expression that uses
each given number at most once and has the target's value. Expressions that differ in the order of terms or factors, or
in parentheses that change nothing, are one answer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import combinations, combinations_with_replacement, count, product
from math import comb, gcd
from typing import Annotated, NamedTuple

from annotated_types import Interval
from pydantic import NonNegativeInt, PositiveInt

from rlvr.records import Outcome, Problem, Reward, binary
from rlvr.task.procedural import Dice, Procedural

HELD_OUT = 1  # of every 4 problems
COUNTED = 40  # sets of numbers that are looked at to say how many problems there are
Target = tuple[int, tuple[int, ...]]  # what is to be made, and from which numbers, ascending


class Expression(NamedTuple):
    """A number, or a sum or a product of others, in one form for all ways to write it.

    parts of a sum: (inverse, expression), inverse for what is subtracted; of a product: for what is divided by. They
    are sorted, and no part of a sum is a sum, no part of a product a product: equal texts are equal expressions.
    """

    text: str
    kind: str  # "number", "sum" or "product"
    parts: tuple[tuple[bool, Expression], ...]
    numerator: int
    denominator: int  # above 0, without a common divisor


def number(value: int) -> Expression:
    return Expression(str(value), "number", (), value, 1)


def joined(kind: str, left: Expression, right: Expression, *, inverse: bool) -> Expression:
    """left + right ("sum") or left * right ("product"); inverse: minus, divided by. Raises ZeroDivisionError."""
    (a, b), (c, d) = (left.numerator, left.denominator), (right.numerator, right.denominator)
    if kind == "sum":
        a, b = a * d - c * b if inverse else a * d + c * b, b * d
    else:
        a, b = (a * d, b * c) if inverse else (a * c, b * d)
    if not b:
        raise ZeroDivisionError
    divisor = gcd(a, b) if b > 0 else -gcd(a, b)
    parts = [*_parts(kind, left), *((was != inverse, part) for was, part in _parts(kind, right))]
    parts.sort()
    signs = ("+", "-") if kind == "sum" else ("*", "/")
    words: list[str] = []
    for is_inverse, part in parts:
        bracket = kind == "product" and part.kind == "sum"
        words += [signs[is_inverse], f"( {part.text} )" if bracket else part.text]
    return Expression(" ".join(words[1:]), kind, tuple(parts), a // divisor, b // divisor)


def _parts(kind: str, expression: Expression) -> Sequence[tuple[bool, Expression]]:
    return expression.parts if expression.kind == kind else ((False, expression),)


def parse(words: Sequence[str]) -> tuple[Expression, list[int]]:
    """The expression and the numbers that it uses, in order. ValueError for anything else than one whole expression."""
    left, used = list(reversed(words)), list[int]()

    def operand() -> Expression:
        word = left.pop() if left else ""
        if word == "(":
            inner = chain("sum", lambda: chain("product", operand))
            if not left or left.pop() != ")":
                raise ValueError("a parenthesis is not closed")
            return inner
        if not (word.isascii() and word.isdigit()):
            raise ValueError(f"{word!r} is no number")
        used.append(int(word))
        return number(int(word))

    def chain(kind: str, part: Callable[[], Expression]) -> Expression:
        signs = ("+", "-") if kind == "sum" else ("*", "/")
        result = part()
        while left and left[-1] in signs:
            inverse = left.pop() == signs[1]
            result = joined(kind, result, part(), inverse=inverse)
        return result

    whole = chain("sum", lambda: chain("product", operand))
    if left:
        raise ValueError(f"{left[-1]!r} follows a whole expression")
    return whole, used


@lru_cache(maxsize=4096)
def expressions(numbers: tuple[int, ...]) -> tuple[Expression, ...]:
    """All that use each of these numbers once, different ones only."""
    if len(numbers) == 1:
        return (number(numbers[0]),)
    different: dict[str, Expression] = {}
    for chosen in _halves(len(numbers)):
        parts = [tuple(n for i, n in enumerate(numbers) if (i in chosen) == side) for side in (True, False)]
        for left, right in product(*map(expressions, parts)):
            made = [joined(kind, left, right, inverse=False) for kind in ("sum", "product")]
            made += [joined("sum", left, right, inverse=True), joined("sum", right, left, inverse=True)]
            made += [joined("product", a, b, inverse=True) for a, b in ((left, right), (right, left)) if b.numerator]
            different.update((expression.text, expression) for expression in made)
    return tuple(different.values())


def _halves(size: int) -> Iterator[tuple[int, ...]]:
    """Every way to divide so many places into two parts, once: the part that holds the first place."""
    for others in range(size - 1):
        yield from ((0, *rest) for rest in combinations(range(1, size), others))


@lru_cache(maxsize=4096)
def answers(numbers: tuple[int, ...]) -> dict[int, tuple[str, ...]]:
    """{whole number above 0: the different expressions that make it from some of these numbers}."""
    made: dict[int, set[str]] = {}
    for size in range(1, len(numbers) + 1):
        for chosen in set(combinations(numbers, size)):
            for expression in expressions(chosen):
                if expression.denominator == 1 and expression.numerator > 0:
                    made.setdefault(expression.numerator, set()).add(expression.text)
    return {value: tuple(sorted(texts)) for value, texts in sorted(made.items())}


class Countdown(Procedural[Target]):
    """Targets of `smallest` to `largest` from `num_numbers` numbers of 1 to `largest_number`, which may be equal.

    least: targets with fewer different answers are not posed. seed: which problems; not the seed of a run, so that all
    runs meet the same ones in the same order. A hash of the problem gives one in four to the held-out side. The other
    knobs: `rlvr.task.procedural.Procedural`.
    """

    name = "countdown"
    source = "countdown"
    end_word = "end"
    several_answers = True

    def __init__(
        self,
        *,
        num_numbers: int,
        largest_number: int,
        smallest: int,
        largest: int,
        least: int,
        test_problems: PositiveInt,
        validation_problems: NonNegativeInt | None,
        train_problems: PositiveInt | None,
        mistakes: Annotated[float, Interval(ge=0, lt=1)],
        seed: NonNegativeInt,
    ) -> None:
        if not 2 <= num_numbers <= 4 or not 1 <= largest_number <= 100:
            raise ValueError(
                f"task.num_numbers={num_numbers}, task.largest_number={largest_number}: 2 to 4 numbers of 1 to 100."
            )
        if not 1 <= smallest <= largest <= 999 or least < 1:
            raise ValueError(
                f"task.smallest={smallest}, task.largest={largest}, task.least={least}: targets are 1 to 999, smallest "
                "first, and have at least one answer."
            )
        self.num_numbers, self.largest_number = num_numbers, largest_number
        self.smallest, self.largest, self.least, self.seed = smallest, largest, least, seed
        num_items = self._num_problems()
        if not num_items:
            raise ValueError(
                f"No target of {smallest} to {largest} has task.least={least} answers from {num_numbers} numbers of 1 "
                f"to {largest_number}. Pass a smaller task.least, or other targets."
            )
        super().__init__(
            test_problems=test_problems,
            validation_problems=validation_problems,
            train_problems=train_problems,
            mistakes=mistakes,
            num_items=num_items,
            share=HELD_OUT / 4,
            fill=0.8,
            kind="of these problems",
        )
        self.max_tokens = 4 * num_numbers - 2  # numbers, signs, parentheses and the end
        numbers = map(str, range(1, max(largest, largest_number) + 1))
        self.vocabulary = ("PAD", self.end_word, "make", "from", ":", "(", ")", "+", "-", "*", "/", *numbers)

    def draws(self, stream: str, index: int) -> Iterator[Target]:
        for attempt in count():
            dice = Dice(f"countdown {self.seed} {stream} {index} {attempt}")
            numbers = tuple(sorted(1 + dice.below(self.largest_number) for _ in range(self.num_numbers)))
            if targets := self._targets(numbers):
                yield dice.choose(targets), numbers

    def held_out(self, item: Target) -> bool:
        return hashlib.blake2b(f"{item}".encode(), digest_size=8).digest()[0] % 4 < HELD_OUT

    def posed(self, item: Target) -> tuple[str, list[int]]:
        """The answer is [the target, number, number, ...]."""
        target, numbers = item
        return prompt(target, numbers), [target, *numbers]

    def demonstration(self, index: int) -> tuple[str, str]:
        """(prompt, right answer) `index` of a stream of its own: any of the different answers with the same chance."""
        asked, (target, numbers) = self.demonstrated(index)
        answer = Dice(f"countdown {self.seed} answer {index}").choose(answers(numbers)[target])
        return prompt(*asked), f"{answer} {self.end_word}"

    def canonical(self, problem: Problem, response: str) -> str | None:
        """The expression without order and without parentheses that change nothing."""
        if self._judged(problem, response) != "correct":
            return None
        return parse(response.split()[:-1])[0].text

    def reward(self, answers: Sequence[tuple[Problem, str]]) -> list[Reward]:
        """1 for an expression of the target's value that uses each given number at most once. Unparsable: anything but
        one whole expression and an end."""
        return [binary(self._judged(problem, text)) for problem, text in answers]

    def _judged(self, problem: Problem, text: str) -> Outcome:
        *words, end = text.split() or [""]
        if end != self.end_word or len(words) >= self.max_tokens:
            return "unparsable"
        try:
            expression, used = parse(words)
        except ValueError:
            return "unparsable"
        except ZeroDivisionError:
            return "wrong"
        target, *given = problem.answer
        allowed = all(used.count(value) <= given.count(value) for value in used)
        made = (expression.numerator, expression.denominator)
        return "correct" if allowed and made == (target, 1) else "wrong"

    def _targets(self, numbers: tuple[int, ...]) -> list[int]:
        known = answers(numbers)
        return [t for t, texts in known.items() if self.smallest <= t <= self.largest and len(texts) >= self.least]

    def _num_problems(self) -> float:
        """Exact where there are few sets of numbers, else estimated from some of them."""
        sets = comb(self.largest_number + self.num_numbers - 1, self.num_numbers)
        options = range(1, self.largest_number + 1)
        every: Iterator[tuple[int, ...]] = combinations_with_replacement(options, self.num_numbers)
        if sets > COUNTED:
            dice = Dice("countdown")
            every = (tuple(sorted(dice.choose(options) for _ in range(self.num_numbers))) for _ in range(COUNTED))
        return sum(len(self._targets(numbers)) for numbers in every) * sets / min(sets, COUNTED)


def prompt(target: int, numbers: Sequence[int]) -> str:
    return f"make {target} from {' '.join(map(str, numbers))} :"
