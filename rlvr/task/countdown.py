"""Countdown: make a target from given numbers with + - * / and parentheses. Most targets have many solutions.

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
COUNTED = 40  # largest number of sets of numbers that are examined to count or estimate the problems
Target = tuple[int, tuple[int, ...]]  # the target, and the numbers to make it from, ascending


class Expression(NamedTuple):
    """A number, or a sum or a product of other expressions, in a canonical form: equal texts are equal expressions.

    parts: (inverse, expression) pairs, inverse if the expression is subtracted (in a sum) or divided by (in a product).
    They are sorted; no part of a sum is a sum, and no part of a product is a product.
    """

    text: str
    kind: str  # "number", "sum" or "product"
    parts: tuple[tuple[bool, Expression], ...]
    numerator: int
    denominator: int  # above 0, and without a common divisor with the numerator


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
    parts = [*_parts(kind, left), *((side != inverse, part) for side, part in _parts(kind, right))]
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
    """(expression, the numbers that it uses, in order).

    Raises ValueError unless `words` are one complete expression, and ZeroDivisionError for a division by 0.
    """
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

    expression = chain("sum", lambda: chain("product", operand))
    if left:
        raise ValueError(f"{left[-1]!r} follows a whole expression")
    return expression, used


@lru_cache(maxsize=4096)
def expressions(numbers: tuple[int, ...]) -> tuple[Expression, ...]:
    """All different expressions that use each of these numbers exactly once."""
    if len(numbers) == 1:
        return (number(numbers[0]),)
    different: dict[str, Expression] = {}
    for chosen in _halves(len(numbers)):
        parts = [tuple(n for i, n in enumerate(numbers) if (i in chosen) == side) for side in (True, False)]
        for left, right in product(*map(expressions, parts)):
            combined = [joined(kind, left, right, inverse=False) for kind in ("sum", "product")]
            combined += [joined("sum", a, b, inverse=True) for a, b in ((left, right), (right, left))]
            quotients = [(a, b) for a, b in ((left, right), (right, left)) if b.numerator]
            combined += [joined("product", a, b, inverse=True) for a, b in quotients]
            different.update((expression.text, expression) for expression in combined)
    return tuple(different.values())


def _halves(size: int) -> Iterator[tuple[int, ...]]:
    """Every division of `size` places into two non-empty parts, once: each time the part that contains place 0."""
    for num_others in range(size - 1):
        yield from ((0, *others) for others in combinations(range(1, size), num_others))


@lru_cache(maxsize=4096)
def answers(numbers: tuple[int, ...]) -> dict[int, tuple[str, ...]]:
    """{positive integer: the different expressions from some or all of these numbers that have this value}."""
    texts_of: dict[int, set[str]] = {}
    for size in range(1, len(numbers) + 1):
        for chosen in set(combinations(numbers, size)):
            for expression in expressions(chosen):
                if expression.denominator == 1 and expression.numerator > 0:
                    texts_of.setdefault(expression.numerator, set()).add(expression.text)
    return {value: tuple(sorted(texts)) for value, texts in sorted(texts_of.items())}


class Countdown(Procedural[Target]):
    """Targets of `smallest` to `largest` from `num_numbers` numbers of 1 to `largest_number`, which may be equal.

    least: the fewest different answers of a problem. seed: selects the problems. It is not the seed of a run: all runs
    have the same problems in the same order. A hash of the problem assigns one in four to the held-out side. The other
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
        self.max_tokens = 4 * num_numbers - 2  # numbers, signs, parentheses and the end word
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
        """(prompt, right answer) `index` of a separate stream, all different answers equally likely."""
        shown, (target, numbers) = self.demonstrated(index)
        answer = Dice(f"countdown {self.seed} answer {index}").choose(answers(numbers)[target])
        return prompt(*shown), f"{answer} {self.end_word}"

    def canonical(self, problem: Problem, response: str) -> str | None:
        """The expression of a right answer in canonical order, without redundant parentheses; else None."""
        if self._judged(problem, response) != "correct":
            return None
        return parse(response.split()[:-1])[0].text

    def reward(self, answers: Sequence[tuple[Problem, str]]) -> list[Reward]:
        """1 for an expression of the target's value that uses each given number at most once. Unparsable: anything but
        one complete expression and the end word."""
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
        target, *numbers = problem.answer
        allowed = all(used.count(number) <= numbers.count(number) for number in used)
        value = (expression.numerator, expression.denominator)
        return "correct" if allowed and value == (target, 1) else "wrong"

    def _targets(self, numbers: tuple[int, ...]) -> list[int]:
        """The targets in range that these numbers can make in at least `least` ways, ascending."""
        allowed = range(self.smallest, self.largest + 1)
        return [target for target, texts in answers(numbers).items() if target in allowed and len(texts) >= self.least]

    def _num_problems(self) -> float:
        """The number of problems: exact for up to COUNTED sets of numbers, else estimated from COUNTED random sets."""
        num_sets = comb(self.largest_number + self.num_numbers - 1, self.num_numbers)
        options = range(1, self.largest_number + 1)
        sets: Iterator[tuple[int, ...]] = combinations_with_replacement(options, self.num_numbers)
        if num_sets > COUNTED:
            dice = Dice("countdown")
            sets = (tuple(sorted(dice.choose(options) for _ in range(self.num_numbers))) for _ in range(COUNTED))
        return sum(len(self._targets(numbers)) for numbers in sets) * num_sets / min(num_sets, COUNTED)


def prompt(target: int, numbers: Sequence[int]) -> str:
    return f"make {target} from {' '.join(map(str, numbers))} :"
