"""Judges mathematical answers: math-verify on \\boxed{...}. Imported by a verifying child process only.

math-verify decides whether two expressions are equal. This module also checks, on the text of both
(`rlvr.task.verify.math_text`, `math_unit`, `math_list`) and on their values, what math-verify ignores, so that no
answer is right that only restates the problem, omits an essential part, or is parsed as something other than what is
written.

math-verify's own timeouts use signal.alarm, which works in the main thread only and cannot interrupt one long integer
operation: they are off here, and `rlvr.task.verify.pool` kills the process instead.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise, product
from typing import TYPE_CHECKING, Any

import math_verify.parser
import sympy
from latex2sympy2_extended.latex2sympy2 import ConversionConfig, latex2sympy
from latex2sympy2_extended.symbols import GREEK_LETTER_MAP
from math_verify import LatexExtractionConfig, parse, verify
from sympy.core.function import AppliedUndef
from sympy.functions.elementary.trigonometric import TrigonometricFunction

from rlvr.task.verify import math_form, math_list, math_notation, math_text, math_unit

if TYPE_CHECKING:
    from rlvr.records import Outcome

# math-verify warns once in each process that its timeouts are off, and logs every parse failure.
logging.getLogger("math_verify").setLevel(logging.CRITICAL)
logging.getLogger("latex2sympy2_extended").setLevel(logging.CRITICAL)

# By default R is read as r. math-verify passes on no configuration of the conversion, hence the function is replaced.
math_verify.parser.latex2sympy = partial(latex2sympy, conversion_config=ConversionConfig(lowercase_symbols=False))

EXACT, ROUNDED = 1e-9, 1e-2  # largest relative distance of equal numbers: both exact; at least one a decimal number
LISTS = (sympy.FiniteSet, sympy.Tuple, sympy.Interval)
DIGITS = 30  # to which numbers are evaluated before they are compared


@dataclass(frozen=True)
class Answer:
    """One answer as math-verify parses it, and properties of its text.

    measured: what it is if its last letter is a unit: 5 of 5 m, which is `parsed` as a product; empty if it cannot be.
    label: the letter of the choice that it is marked with: B of (B) 12.
    """

    text: str
    parsed: list[Any]  # sympy expressions, and text where parsing failed; empty if there is no answer
    measured: Sequence[Any] = ()
    percent: bool = False
    boxed: bool = True
    label: str = ""


def judge(request: dict[str, Any]) -> dict[str, Any]:
    """{"gold": right answer, "answer": text to be judged} -> {"outcome": ...}. Optional: "tolerance", the largest
    allowed distance from the right number; "problem", its text, which may ask for a percentage or an interval.

    `error`: the right answer itself cannot be parsed. `unparsable`: nothing to compare in the answer, or several
    numbers side by side. `unevaluated`: of the right value, but with operators (sums, integrals, limits, binomials,
    factorials and the like) or other steps to do (7 + 5) that the right answer does not have
    (`rlvr.task.verify.math_form`). If the right answer is not mathematics, so that only the same text is right, the
    reply also has "unreadable": true. Without an "answer": {"parsed": the right answer as it is read}, null if it is
    not mathematics.
    """
    gold = _gold(request["gold"])
    if "answer" not in request:
        return {"parsed": next((str(part) for part in gold.parsed if not isinstance(part, str)), None)}
    reply = {"outcome": _outcome(gold, request["answer"], request.get("tolerance", 0.0), request.get("problem", ""))}
    return {**reply, "unreadable": True} if _text_only(gold) else reply


def _outcome(gold: Answer, text: str, tolerance: float, asked: str) -> Outcome:
    if not gold.parsed:
        return "error"
    answer = _read(text)
    if answer.boxed and _same_text(gold, answer):
        return "correct"
    if gold.label and answer.label and gold.label != answer.label:
        return "wrong"
    equal = [(g, a) for g, a in _pairs(gold, answer, asked) if _holds(_equal, g, a) or _within(tolerance, g, a)]
    if equal and _consistent(gold, answer, asked):
        return "unevaluated" if all(_unevaluated(gold, answer, *pair) for pair in equal) else "correct"
    # math-verify returns what it cannot parse as plain text, which is equal to the same text only.
    return "unparsable" if _text_only(answer) else "wrong"


def _same_text(gold: Answer, answer: Answer) -> bool:
    """Whether both are the same text, list the same words or letters, or are the same choice: B and (B) 12."""
    same_marks = (gold.label, gold.percent) == (answer.label, answer.percent)
    if same_marks and math_text.spelled(answer.text) == math_text.spelled(gold.text):
        return True
    golds, answers = math_list.names(gold.text), math_list.names(answer.text)
    if golds and golds in (answers, math_list.names(answer.label)):
        return True
    return bool(gold.label) and answers == math_list.names(gold.label)


def _unevaluated(gold: Answer, answer: Answer, g: Any, a: Any) -> bool:
    """Whether an answer that equals the right one has steps to do that the right one does not have."""
    side = math_form.last_side(math_text.bare(answer.text))  # \binom{10}{3} = 120 is evaluated
    if not answer.text or isinstance(a, str):
        return False
    if math_text.operators(side) - math_text.operators(gold.text):
        return True
    if math_text.operators(gold.text) or (isinstance(g, sympy.Eq) and len(g.lhs.free_symbols) > 1):
        return False  # x + y = 2 has no form of its own
    if _holds(_is_rational, _value(g)) and math_form.is_numeral(math_text.bare(gold.text)):
        return not math_form.is_numeral(side)
    return bool(math_form.steps(a) - math_form.steps(g)) or (
        math_form.is_product(_value(g)) and math_form.is_sum(_value(a))
    )


def _is_rational(part: Any) -> bool:
    return _number(part) is not None and part.is_rational is not False  # of a float sympy does not know it


def _text_only(answer: Answer) -> bool:
    return all(isinstance(part, str) for part in answer.parsed)


# --- parsing


@lru_cache(maxsize=4096)
def _gold(text: str) -> Answer:
    return _read(text if "\\boxed" in text else f"\\boxed{{{text}}}")


def _read(text: str) -> Answer:
    """The answer in a text: the entire content of a box, or in a text without a box what math-verify extracts."""
    if not text.startswith("\\boxed"):
        parsed = _parse(text)
        with_letters = math_text.variables_within(text)
        parsed += _parse(with_letters) if with_letters != text else []
        texts = [part for part in parsed if isinstance(part, str)]
        return Answer(texts[-1] if texts else "", parsed, boxed=False)
    content, percent = math_text.without_percent(math_text.inside(text))
    label, content = math_text.labelled(content)
    content = math_unit.with_upright_words(math_notation.plain(content))
    if math_text.adjacent_numbers(content):
        return Answer(content, [content], percent=percent)
    number = math_text.measured(math_text.bare(content))
    parsed = _boxed(math_text.bare(content)) if content.strip() else []
    return Answer(content, parsed, _boxed(number) if number else (), percent, label=label)


HUGE = re.compile(r"\d{6}|\d\s*\^\s*(?:\{[^{}]*[\^!]|\{?\d{4})|!\)?!|\d{2}\^\{?\d{2}")
CURRENT = sympy.Symbol("I", real=True)
# By default math-verify takes any number in a text that it cannot parse as the answer: 5 of x \neq \pm 5.
WHOLE = (LatexExtractionConfig(try_extract_without_anchor=False),)


def _boxed(content: str) -> list[Any]:
    parsed = _whole(content) or [content]
    if all(isinstance(part, str) for part in parsed):
        values, sides = math_list.both_signs(content), math_text.sides(content)
        if values != content:
            parsed += _whole(values)  # math-verify reads 1 \pm \sqrt5, but no \pm in a fraction
        elif len(sides) == 2 and not re.search("[,;]", content):
            parsed += _whole(sides[1])  # 17 \bmod 5 = 2
    if math_list.ALL_HOLD.search(content):
        parsed = [sympy.And(*part.args) if _has_orders(part) else part for part in parsed]
    if (outside := math_notation.divided_outside(content)) != content:
        parsed += _whole(outside)
    if "I" in content:
        # The parser takes I, a current or an identity matrix, for the imaginary unit: I^2 R would be -R.
        return [part if isinstance(part, str) else part.xreplace({sympy.I: CURRENT}) for part in parsed]
    parsed = [part for part in parsed if not math_form.is_huge(part)] or [content]
    return parsed + [part.xreplace(dict.fromkeys(part.free_symbols, sympy.I)) for part in parsed if _is_complex(part)]


def _is_complex(parsed: Any) -> bool:
    """Whether its only letter is i, which the parser takes for a variable. Alone it would be equal to the letter I."""
    if not isinstance(parsed, (sympy.Expr, *LISTS)) or parsed.is_Atom:
        return False
    return {str(symbol) for symbol in parsed.free_symbols} == {"i"}


def _whole(content: str) -> list[Any]:
    text = math_text.variables(math_list.without_inner_units(content))
    return _parse(f"\\boxed{{{text}}}", extraction_config=WHOLE)


def _parse(text: str, **options: Any) -> list[Any]:
    if HUGE.search(text) and math_text.operators(text):
        return []  # the parser computes binomials and the like
    try:
        return parse(text, parsing_timeout=0, raise_on_error=True, **options)
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 - the grammar and sympy raise anything on malformed text: it is unparsable
        return []


# --- comparing


def _pairs(gold: Answer, answer: Answer, asked: str) -> list[tuple[Any, Any]]:
    r"""Pairs of expressions, of which one equal pair suffices.

    The answer may omit a percent sign. Where the right answer has none, the sign means a hundredth, unless the problem
    asks for a percentage and the number is more than 1: 0.5\% is not 1/2. The m of 5 m is a unit if the right answer
    has no such letter, or if both have the same unit: 5\,\mathrm{m}.
    """
    pairs = list(product(gold.parsed, answer.parsed))
    if answer.measured and not gold.measured:
        pairs += product(gold.parsed, answer.measured)
    if gold.measured and math_unit.unit(gold.text) == math_unit.unit(answer.text):
        pairs += product(gold.measured, answer.measured or answer.parsed)
    if gold.percent == answer.percent:
        return pairs
    numbers = [(g, a) for g, a in pairs if isinstance(g, sympy.Expr) and isinstance(a, sympy.Expr)]
    is_percentage = re.search(r"percent|%", asked)
    if answer.percent and (not is_percentage or any(_holds(_is_share, g) for g, _ in numbers)):
        pairs = []
    return pairs + [(g / 100, a) if gold.percent else (g, a / 100) for g, a in numbers]


def _is_share(expression: Any) -> bool:
    number = _number(expression)
    return number is not None and 0 < abs(number) <= 1


def _holds(check: Callable[..., bool], *arguments: Any) -> bool:
    """The result of a check of an answer. False if it raises: sympy raises anything on what it cannot evaluate."""
    try:
        return check(*arguments)
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 - as above: what cannot be evaluated or compared is not equal
        return False


def _equal(gold: Any, answer: Any) -> bool:
    answer = _with_constant_of(gold, answer)
    gold, answer = (_without_arguments(side) for side in (gold, answer))
    if (
        isinstance(gold, sympy.Set) != isinstance(answer, sympy.Set)
        or _has_orders(gold) != _has_orders(answer)
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
    return bool(verify(gold, answer, timeout_seconds=None, raise_on_error=True)) and _near(gold, answer)


def _exactly_equal(gold: Any, answer: Any) -> bool:
    """Whether both are equal numbers if decimals are exact: 435 and 4.35 \\cdot 10^2, whose floats differ."""
    if any(_number(side) is None for side in (gold, answer)) or not (gold - answer).has(sympy.Float):
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
    return _number(ratio) is not None and ratio != 0


def _solved(equation: Any) -> bool:
    """Whether an equation is an unknown and its value, on two sides or as a difference that is zero."""
    lhs, rhs = equation.args
    sides = lhs.args if isinstance(lhs, sympy.Add) and rhs == 0 else (lhs, rhs)
    return len(sides) == 2 and {side.is_Symbol for side in sides} == {True, False} and any(s.is_number for s in sides)


def _interval(answer: Any) -> Any:
    """The interval of one variable between numbers, of -1 < x <= 3 or x >= 0. Any other answer unchanged.

    An inequality that is still to be solved, such as x^2 < 4, is no answer.
    """
    if _has_orders(answer):
        return sympy.Union(*map(_interval, answer.args))
    relations = answer.args if isinstance(answer, sympy.And) else (answer,)
    ordered = all(isinstance(relation, ORDERS) for relation in relations)
    if ordered and all(side.is_Symbol or side.is_number for relation in relations for side in relation.args):
        return answer.as_set()
    return answer


def _has_orders(expression: Any) -> bool:
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


ORDERS = (sympy.StrictLessThan, sympy.LessThan, sympy.StrictGreaterThan, sympy.GreaterThan)


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


GREEK = frozenset(GREEK_LETTER_MAP.values())


def _other_symbol(gold: Any, answer: Any) -> bool:
    r"""Whether both are symbols that differ, such as R and r, which math-verify compares as words. A, a: a choice."""
    if not (isinstance(gold, sympy.Symbol) and isinstance(answer, sympy.Symbol)) or gold.name == answer.name:
        return False
    return not re.fullmatch("[a-fA-F]|[a-zA-Z]{2,}", gold.name) or gold.name in GREEK


def _within(tolerance: float, gold: Any, answer: Any) -> bool:
    """Whether both are numbers with at most this distance, plus a relative margin of EXACT."""
    number = _number(_value(gold)) if tolerance else None
    return number is not None and _holds(_at_most, tolerance, number, answer)


def _at_most(distance: float, number: Any, answer: Any) -> bool:
    other = _number(_value(answer))
    return other is not None and bool(abs(number - other) <= distance * (1 + EXACT))


def _near(gold: Any, answer: Any) -> bool:
    """Whether numbers that are equal for math-verify are close: it compares six decimals, too few for small numbers.

    True for anything but two numbers, or two lists of numbers of the same length.
    """
    gold, answer = _value(gold), _value(answer)
    if isinstance(gold, LISTS) and isinstance(answer, LISTS):
        golds, answers = _entries(gold), _entries(answer)
        if len(golds) != len(answers) or any(_number(entry) is None for entry in golds + answers):
            return True
        if isinstance(gold, sympy.FiniteSet):
            golds, answers = (sorted(entries, key=_real_and_imaginary) for entries in (golds, answers))
        return all(_near(g, a) for g, a in zip(golds, answers, strict=True))
    first, second = _number(gold), _number(answer)
    if first is None or second is None:
        return True
    rounded = any(isinstance(e, sympy.Basic) and e.has(sympy.Float) for e in (gold, answer))
    distance, size = abs(_number(gold - answer) or 0), max(abs(first), abs(second))
    return distance <= (ROUNDED if rounded else EXACT) * size


def _entries(expression: Any) -> list[Any]:
    """The entries of a list, or the two ends of an interval (which is what (1, 2) is parsed as)."""
    if isinstance(expression, sympy.Interval):
        return [expression.start, expression.end]
    if isinstance(expression, sympy.MatrixBase):
        return list(expression.flat())
    return list(expression.args)


def _real_and_imaginary(number: Any) -> Any:
    return _number(number).as_real_imag()


def _value(expression: Any) -> Any:
    """The right side of an equation: 6 of x = 6. Any other expression unchanged."""
    while isinstance(expression, sympy.Eq):
        expression = expression.rhs
    return expression


def _number(expression: Any) -> Any:
    """The value of an expression to `DIGITS` digits; None for anything but a finite number."""
    if not isinstance(expression, sympy.Expr) or not expression.is_number:
        return None
    value = expression.doit().evalf(DIGITS)
    parts = value.as_real_imag()
    return value if all(part.is_Number and part.is_finite for part in parts) else None


# --- checks beyond equality


def _consistent(gold: Answer, answer: Answer, asked: str) -> bool:
    """Whether the texts do not contradict each other: in units, brackets, moduli and bases, or by a false equation."""
    if math_unit.other_unit(gold.text, answer.text):
        return False
    brackets = [math_text.brackets(text) for text in (gold.text, answer.text)]
    if set(brackets) == {"(", "{"}:
        return False
    if (
        brackets[0] == "("
        and re.search(r"[<>]|\\(?:[lg]eq?(?:slant)?|[lg]t)(?![a-zA-Z])", answer.text)
        and not _asks_for_interval(gold.text, asked)
    ):
        return False
    if math_text.primes(gold.text) != math_text.primes(answer.text) or math_text.other_prime(gold.text, answer.text):
        return False
    if math_text.statements(answer.text) - math_text.statements(gold.text):
        return False
    moduli = [math_text.modulus(text) for text in (gold.text, answer.text)]
    if None not in moduli and moduli[0] != moduli[1]:
        return False
    bases = [math_text.base(text) for text in (gold.text, answer.text)]
    if bases[0] is None and not re.search(r"\bbase\b|binary|ternary|octal|decimal", asked):
        bases[0] = "10"
    if None not in bases and bases[0] != bases[1]:
        return False
    if math_list.goes_on(gold.text) != math_list.goes_on(answer.text):
        return False
    if gold.percent and not answer.percent and math_list.ending(answer.text):
        return False
    if math_list.other_ending(gold.text, answer.text) or math_list.other_words(gold.text, answer.text):
        return False
    return _values_match(gold.text, answer.text) and _true_equations(math_text.bare(answer.text))


def _asks_for_interval(gold: str, asked: str) -> bool:
    """Whether (1, 2) is an interval and no point: one without an end is, and one of which the problem says so."""
    return "infty" in gold or re.search(r"interval|inequalit|domain|range|values? of", asked) is not None


def _values_match(gold: str, answer: str) -> bool:
    """Whether named unknowns have the same values in both. math-verify takes a = 3, b = 7 for the set {3, 7}."""
    pairs = math_list.matched(gold, answer)
    return pairs is not None and all(_same_value(*pair) for pair in pairs)


def _same_value(gold: str, answer: str) -> bool:
    same_text = math_text.spelled(gold) == math_text.spelled(answer)
    return same_text or any(_holds(_equal, g, a) for g, a in product(_boxed(gold), _boxed(answer)))


def _true_equations(text: str) -> bool:
    """Whether all numbers in a chain of equations are equal: in 2 + 4 = 6 and x = 6 they are, in 5 = 6 they are not.

    False if a side cannot be evaluated.
    """
    text = re.sub(r"\\equiv(?![a-zA-Z])", "=", text)
    if "=" not in text or any(sign in text for sign in (",", ";", "\\\\", "\\ne", "<", ">")):
        return True
    sides = [_boxed(side) for side in math_text.sides(text) if side.strip()]
    return _holds(_all_near, [side[0] for side in sides if side])


def _all_near(sides: Sequence[Any]) -> bool:
    numbers = [side for side in sides if _number(side) is not None]
    return all(_near(a, b) for a, b in pairwise(numbers))


judge({"gold": "1", "answer": "\\boxed{2}"})  # the first parse compiles the grammar: before the first time limit
