"""Whether two parsed answers are equal: math-verify, and what it ignores of intervals, equations and decimals."""

import re
from collections.abc import Callable
from typing import Any

import sympy
from latex2sympy2_extended.symbols import GREEK_LETTER_MAP
from math_verify import verify
from sympy.core.function import AppliedUndef
from sympy.functions.elementary.trigonometric import TrigonometricFunction

EXACT, ROUNDED = 1e-9, 1e-2  # largest relative distance of equal numbers: both exact; at least one a decimal number
LISTS = (sympy.FiniteSet, sympy.Tuple, sympy.Interval)
ORDERS = (sympy.StrictLessThan, sympy.LessThan, sympy.StrictGreaterThan, sympy.GreaterThan)
GREEK = frozenset(GREEK_LETTER_MAP.values())
DIGITS = 30  # to which numbers are evaluated before they are compared


def equal(gold: Any, answer: Any) -> bool:
    answer = _with_constant_of(gold, answer)
    gold, answer = (_without_arguments(side) for side in (gold, answer))
    if (
        isinstance(gold, sympy.Set) != isinstance(answer, sympy.Set)
        or has_orders(gold) != has_orders(answer)
        or (isinstance(gold, sympy.And) and gold.free_symbols == answer.free_symbols)
    ):
        sets = [_interval(gold), _interval(answer)]
        if sets != [gold, answer] and any(isinstance(side, sympy.FiniteSet) for side in sets):
            return False  # the ends of -2 < x < 3
        gold, answer = sets
    vectors = [side for side in (gold, answer) if isinstance(side, sympy.MatrixBase) and 1 in side.shape]
    if len(vectors) == 1 and all(
        isinstance(side, (sympy.Tuple, sympy.Interval, sympy.MatrixBase)) for side in (gold, answer)
    ):
        gold, answer = (sympy.Tuple(*_entries(side)) for side in (gold, answer))
    if isinstance(answer, sympy.Eq) and not isinstance(gold, sympy.Eq) and not _names(answer.lhs):
        return False
    if _other_symbol(gold, answer):
        return False
    if _exactly_equal(gold, answer) or (isinstance(gold, sympy.Eq) and _multiple(gold, answer)):
        return True
    return bool(verify(gold, answer, timeout_seconds=None, raise_on_error=True)) and near(gold, answer)


def _exactly_equal(gold: Any, answer: Any) -> bool:
    """Whether both are equal numbers if decimals are exact: 435 and 4.35 \\cdot 10^2, whose floats differ."""
    if any(number(side) is None for side in (gold, answer)) or not (gold - answer).has(sympy.Float):
        return False
    golds, answers = (
        side.xreplace({f: sympy.Rational(str(f)) for f in side.atoms(sympy.Float)}) for side in (gold, answer)
    )
    return bool((golds - answers).doit() == 0)


def _multiple(gold: Any, answer: Any) -> bool:
    """Whether the answer is the right equation moved, or multiplied by a number: 2x + 2y - 4 = 0 for x + y = 2.

    An unknown's value must be there to read: x - 5 = 0 may stand for x = 5, but x - 7 = -2 has yet to be solved.
    """
    if not isinstance(answer, sympy.Eq) or (_solved(gold) and not _solved(answer)):
        return False
    # Symbols of one name differ where the parser takes only one of the texts for real numbers.
    equations: list[Any] = [gold, answer]
    first, second = (
        (side.lhs - side.rhs).xreplace({x: sympy.Symbol(str(x)) for x in side.free_symbols}) for side in equations
    )
    if first.free_symbols != second.free_symbols:
        return False
    ratio = sympy.simplify(sympy.radsimp(first / second))
    return number(ratio) is not None and ratio != 0


def _solved(equation: Any) -> bool:
    """Whether an equation is an unknown and its value, on two sides or as a difference that is zero."""
    lhs, rhs = equation.args
    sides = lhs.args if isinstance(lhs, sympy.Add) and rhs == 0 else (lhs, rhs)
    return len(sides) == 2 and {side.is_Symbol for side in sides} == {True, False} and any(s.is_number for s in sides)


def _interval(answer: Any) -> Any:
    """The interval of one variable between numbers, of -1 < x <= 3 or x >= 0. Any other answer unchanged.

    An inequality that is still to be solved, such as x^2 < 4, is no answer.
    """
    if has_orders(answer):
        return sympy.Union(*map(_interval, answer.args))
    relations = answer.args if isinstance(answer, sympy.And) else (answer,)
    ordered = all(isinstance(relation, ORDERS) for relation in relations)
    if ordered and all(side.is_Symbol or side.is_number for relation in relations for side in relation.args):
        return answer.as_set()
    return answer


def has_orders(expression: Any) -> bool:
    return isinstance(expression, sympy.FiniteSet) and all(isinstance(part, ORDERS) for part in expression.args)


def _names(side: Any) -> bool:
    """Whether the left side of an equation names a quantity, as x, f(2), sin A and a + b do, but not 2x or x + 1."""
    return side.is_Symbol or len(side.free_symbols) != 1 or isinstance(side, (AppliedUndef, TrigonometricFunction))


def _without_arguments(side: Any) -> Any:
    """y = e^t of y(t) = e^t. Any other expression, such as f(2) = 3, unchanged."""
    if not isinstance(side, sympy.Eq) or not isinstance(side.lhs, AppliedUndef):
        return side
    is_named = all(argument.is_Symbol for argument in side.lhs.args) and not side.rhs.has(side.lhs.func)
    return sympy.Eq(sympy.Symbol(side.lhs.func.__name__, real=True), side.rhs) if is_named else side


def _with_constant_of(gold: Any, answer: Any) -> Any:
    """The answer with c or C (c_1, C_2, ...) in the case of the right answer's, as constants of integration are equal.

    Unchanged if one of the two has both.
    """
    if isinstance(gold, str) or isinstance(answer, str):
        return answer
    golds, answers = ({symbol.name: symbol for symbol in side.free_symbols} for side in (gold, answer))
    constants = [name for name in answers if re.fullmatch(r"[cC](_\d)?", name) and name not in golds]
    others = {name: name.swapcase() for name in constants if name.swapcase() not in answers}
    return answer.xreplace({answers[name]: golds[other] for name, other in others.items() if other in golds})


def _other_symbol(gold: Any, answer: Any) -> bool:
    r"""Whether both are symbols that differ, such as R and r, which math-verify compares as words. A, a: a choice."""
    if not (isinstance(gold, sympy.Symbol) and isinstance(answer, sympy.Symbol)) or gold.name == answer.name:
        return False
    return not re.fullmatch("[a-fA-F]|[a-zA-Z]{2,}", gold.name) or gold.name in GREEK


def within(tolerance: float, gold: Any, answer: Any) -> bool:
    """Whether both are numbers with at most this distance, plus a relative margin of EXACT."""
    right = number(value(gold)) if tolerance else None
    return right is not None and holds(_at_most, tolerance, right, answer)


def _at_most(distance: float, right: Any, answer: Any) -> bool:
    other = number(value(answer))
    return other is not None and bool(abs(right - other) <= distance * (1 + EXACT))


def near(gold: Any, answer: Any) -> bool:
    """Whether numbers that are equal for math-verify are close: it compares six decimals, too few for small numbers.

    True for anything but two numbers, or two lists of numbers of the same length.
    """
    gold, answer = value(gold), value(answer)
    if isinstance(gold, LISTS) and isinstance(answer, LISTS):
        golds, answers = _entries(gold), _entries(answer)
        if len(golds) != len(answers) or any(number(entry) is None for entry in golds + answers):
            return True
        if isinstance(gold, sympy.FiniteSet):
            golds, answers = (sorted(entries, key=_real_and_imaginary) for entries in (golds, answers))
        return all(near(g, a) for g, a in zip(golds, answers, strict=True))
    first, second = number(gold), number(answer)
    if first is None or second is None:
        return True
    rounded = any(isinstance(e, sympy.Basic) and e.has(sympy.Float) for e in (gold, answer))
    distance, size = abs(number(gold - answer) or 0), max(abs(first), abs(second))
    return distance <= (ROUNDED if rounded else EXACT) * size


def _entries(expression: Any) -> list[Any]:
    """The entries of a list, or the two ends of an interval (which is what (1, 2) is parsed as)."""
    if isinstance(expression, sympy.Interval):
        return [expression.start, expression.end]
    if isinstance(expression, sympy.MatrixBase):
        return list(expression.flat())
    return list(expression.args)


def _real_and_imaginary(entry: Any) -> Any:
    return number(entry).as_real_imag()


def value(expression: Any) -> Any:
    """The right side of an equation: 6 of x = 6. Any other expression unchanged."""
    while isinstance(expression, sympy.Eq):
        expression = expression.rhs
    return expression


def number(expression: Any) -> Any:
    """The value of an expression to `DIGITS` digits; None for anything but a finite number."""
    if not isinstance(expression, sympy.Expr) or not expression.is_number:
        return None
    evaluated = expression.doit().evalf(DIGITS)
    parts = evaluated.as_real_imag()
    return evaluated if all(part.is_Number and part.is_finite for part in parts) else None


def holds(check: Callable[..., bool], *arguments: Any) -> bool:
    """The result of a check of an answer. False if it raises: sympy raises anything on what it cannot evaluate."""
    try:
        return check(*arguments)
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 - as above: what cannot be evaluated or compared is not equal
        return False
