"""Is this the right mathematical answer? math-verify on \\boxed{...}. Imported by a verifying child process only.

math-verify says whether two expressions are equal. What it does not look at is looked at here, on the text of both
(`rlvr.task.verify.math_text`) and on their values, so that no answer is right that only restates the problem, drops
what matters or is read as something that it does not say.

math-verify's own timeouts use signal.alarm, which needs the main thread and cannot interrupt one long integer
operation: they are off here, and `rlvr.task.verify.pool` kills the process instead.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise, product
from typing import TYPE_CHECKING, Any

import sympy
from math_verify import LatexExtractionConfig, parse, verify

from rlvr.task.verify import math_text

if TYPE_CHECKING:
    from rlvr.records import Outcome

# It warns once in each process that its timeouts are off, and reports every parse failure.
logging.getLogger("math_verify").setLevel(logging.CRITICAL)
logging.getLogger("latex2sympy2_extended").setLevel(logging.CRITICAL)

EXACT, ROUNDED = 1e-9, 1e-2  # largest relative distance of equal numbers: both exact; one of them a decimal number
DIGITS = 30  # of numbers that are compared


@dataclass(frozen=True)
class Answer:
    """One answer as math-verify reads it, and what its text says beside."""

    text: str
    parsed: list[Any]  # sympy expressions, and text where that failed; nothing if there is nothing
    percent: bool = False
    boxed: bool = True


def judge(request: dict[str, Any]) -> dict[str, Any]:
    """{"gold": right answer, "answer": text to be judged} -> {"outcome": ...}. "tolerance", where there is one: how far
    a number may be from the right one.

    `error`: the right answer itself cannot be parsed. `unparsable`: nothing to compare in the answer, or several
    numbers side by side. `unevaluated`: of the right value, but with operators (sums, integrals, limits, binomials,
    factorials and the like) that the right answer does not have. Where the right answer is not mathematics, so that the
    same text alone is right, the reply has "unreadable": true as well.
    """
    gold = _gold(request["gold"])
    reply = {"outcome": _outcome(gold, request["answer"], request.get("tolerance", 0.0))}
    return {**reply, "unreadable": True} if _text_only(gold) else reply


def _outcome(gold: Answer, text: str, tolerance: float = 0.0) -> Outcome:
    if not gold.parsed:
        return "error"
    answer = _read(text)
    if answer.boxed and math_text.squeezed(answer.text) == math_text.squeezed(gold.text):
        return "correct"
    pairs = _pairs(gold, answer)
    if any(_equal(g, a) or _within(tolerance, g, a) for g, a in pairs) and _consistent(gold, answer):
        said = math_text.sides(math_text.bare(answer.text))[-1]  # \binom{10}{3} = 120 is evaluated
        asked = math_text.operators(said) - math_text.operators(gold.text)
        return "unevaluated" if asked else "correct"
    # What math-verify could not parse it returns as plain text, which equals equal text only.
    return "unparsable" if _text_only(answer) else "wrong"


def _text_only(answer: Answer) -> bool:
    return all(isinstance(each, str) for each in answer.parsed)


# --- reading


@lru_cache(maxsize=4096)
def _gold(text: str) -> Answer:
    return _read(text if "\\boxed" in text else f"\\boxed{{{text}}}")


def _read(text: str) -> Answer:
    """An answer in a box is read whole; in another text math-verify looks for one."""
    if not text.startswith("\\boxed"):
        parsed = _parse(text)
        said = [each for each in parsed if isinstance(each, str)]
        return Answer(said[-1] if said else "", parsed, boxed=False)
    content, percent = math_text.without_percent(math_text.inside(text))
    content = math_text.plain(content)
    if math_text.adjacent_numbers(content):
        return Answer(content, [content], percent)
    return Answer(content, _boxed(math_text.bare(content)) if content.strip() else [], percent)


# math-verify's default takes any number of a text that it cannot read for the whole: 5 of x \neq \pm 5.
WHOLE = (LatexExtractionConfig(try_extract_without_anchor=False),)


def _boxed(content: str) -> list[Any]:
    return _parse(f"\\boxed{{{content}}}", extraction_config=WHOLE) or [content]


def _parse(text: str, **options: Any) -> list[Any]:
    try:
        return parse(text, parsing_timeout=0, raise_on_error=True, **options)
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 - the grammar and sympy raise anything on malformed text: it is unparsable
        return []


# --- comparing


def _pairs(gold: Answer, answer: Answer) -> list[tuple[Any, Any]]:
    """What may be equal. A percent sign that only one of them has may stand for a hundredth or be left out."""
    pairs = list(product(gold.parsed, answer.parsed))
    if gold.percent == answer.percent:
        return pairs
    numbers = [(g, a) for g, a in pairs if isinstance(g, sympy.Expr) and isinstance(a, sympy.Expr)]
    return pairs + [(g / 100, a) if gold.percent else (g, a / 100) for g, a in numbers]


def _equal(gold: Any, answer: Any) -> bool:
    try:
        return bool(verify(gold, answer, timeout_seconds=None, raise_on_error=True)) and _near(gold, answer)
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 - sympy raises anything on expressions that cannot be compared: they are unequal
        return False


def _within(tolerance: float, gold: Any, answer: Any) -> bool:
    """Are these numbers that are so close? The last digit of a decimal number is no distance."""
    if not tolerance:
        return False
    first, second = _number(_value(gold)), _number(_value(answer))
    return first is not None and second is not None and bool(abs(first - second) <= tolerance * (1 + EXACT))


def _near(gold: Any, answer: Any) -> bool:
    """Whether numbers that math-verify calls equal are: it compares six decimals, and small numbers have none.

    True where there is nothing to compare: other things than numbers, and than lists of them of one length.
    """
    gold, answer = _value(gold), _value(answer)
    if isinstance(gold, LISTS) and isinstance(answer, LISTS):
        lists = [_entries(each) for each in (gold, answer)]
        if len(lists[0]) != len(lists[1]) or not all(_number(e) is not None for each in lists for e in each):
            return True
        if isinstance(gold, sympy.FiniteSet):
            lists = [sorted(each, key=lambda e: _number(e).as_real_imag()) for each in lists]
        return all(_near(g, a) for g, a in zip(*lists, strict=True))
    first, second = _number(gold), _number(answer)
    if first is None or second is None:
        return True
    rounded = any(isinstance(e, sympy.Basic) and e.has(sympy.Float) for e in (gold, answer))
    distance, size = abs(_number(gold - answer) or 0), max(abs(first), abs(second))
    return distance <= (ROUNDED if rounded else EXACT) * size


LISTS = (sympy.FiniteSet, sympy.Tuple, sympy.Interval)


def _entries(expression: Any) -> list[Any]:
    """Of a list; the two ends of an interval, which is how (1, 2) is read."""
    if isinstance(expression, sympy.Interval):
        return [expression.start, expression.end]
    return list(expression.args)


def _value(expression: Any) -> Any:
    """What an equation says of its left side: 6 of x = 6."""
    while isinstance(expression, sympy.Eq):
        expression = expression.rhs
    return expression


def _number(expression: Any) -> Any:
    """Its value to `DIGITS` digits; None for anything but a finite number."""
    if not isinstance(expression, sympy.Expr) or not expression.is_number:
        return None
    value = expression.doit().evalf(DIGITS)
    parts = value.as_real_imag()
    return value if all(part.is_Number and part.is_finite for part in parts) else None


# --- what equality does not look at


def _consistent(gold: Answer, answer: Answer) -> bool:
    """Whether nothing that the texts say beside their values stands against it: units, brackets, false equations."""
    units = [math_text.unit(each.text) for each in (gold, answer)]
    if None not in units and units[0] != units[1]:
        return False
    if (math_text.brackets(gold.text), math_text.brackets(answer.text)) == ("(", "{"):
        return False
    moduli = [math_text.modulus(each.text) for each in (gold, answer)]
    if None not in moduli and moduli[0] != moduli[1]:
        return False
    return _true_equations(math_text.bare(answer.text))


def _true_equations(text: str) -> bool:
    """Whether the numbers that a chain of equations sets equal are: 2 + 4 = 6 is, 5 = 6 is not, x = 6 says nothing."""
    if "=" not in text or any(sign in text for sign in (",", ";", "\\\\", "\\ne", "<", ">")):
        return True
    sides = [_boxed(side) for side in math_text.sides(text) if side.strip()]
    numbers = [side[0] for side in sides if side and _number(side[0]) is not None]
    return all(_near(a, b) for a, b in pairwise(numbers))


judge({"gold": "1", "answer": "\\boxed{2}"})  # the first parse compiles the grammar: before the first clock starts
