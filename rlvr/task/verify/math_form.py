r"""What an answer leaves to be done that the right answer does not: restating a problem is no answer to it.

A right answer is in a normal form. Where it is a numeral, the answer must be one (`is_numeral`); else the answer may
leave undone only the steps that the right answer leaves undone as well (`steps`). docs/tasks.md has both as a table.
"""

import re
from collections.abc import Iterator
from typing import Any

import sympy

from rlvr.task.verify.math_notation import GAP, WORDS
from rlvr.task.verify.math_text import sides
from rlvr.task.verify.math_unit import MONEY

NUMBER = r"(?:(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d*)?|\.\d+)"
TEN = r"10\^\{?[-+]?\d+\}?"
SCIENTIFIC = rf"(?:{NUMBER}(?:\\times|\\cdot|\*){TEN}|{TEN}|{NUMBER})"
NUMERAL = re.compile(  # 12, 1\frac12, 3/4, 3:4, 4.5\times10^3, 1011_2
    rf"[-+]?(?:\d*\\[dtc]?frac\{{[-+]?{SCIENTIFIC}\}}\{{[-+]?{SCIENTIFIC}\}}(?:\\cdot{TEN})?|{SCIENTIFIC}(?:[/:]-?{SCIENTIFIC})?"
    r"|[\dA-Z]+_\{?\d+\}?)"
)
NUMERAL_LENGTH = 1000  # characters; a longer text is none, nor searched for one
BRACKETED = re.compile(r"([-+]?)(?:\((.*)\)|\{(.*)\}|\\\{(.*)\\\}|\[(.*)\])")
EQUAL = re.compile(r"\\(?:approx|equiv|simeq|sim|in)(?![a-zA-Z])")
UPRIGHT = r"\\(?:text|textrm|mathrm|mbox|textbf|operatorname|rm)\s*\{(?:[^{}]|\{[^{}]*\})*\}"
UNIT = re.compile(
    rf"(?:{UPRIGHT}|{GAP}|[.°¢€£]|(?<=[\d)}}\s])[a-zA-Z]+(?:/[a-zA-Z]+)?|(?<=[\d)}}])\^\s*\{{?\s*\\circ\s*\}}?)"
    r"(?:\^\s*\{?-?[123]\}?(?=\s*$))?$"
)

MINUS_ONE: Any = sympy.Integer(-1)


def last_side(text: str) -> str:
    """The last side of a chain of equations, but the value of a name: 6 of x = 2 + 4 = 6 and of 6 = x."""
    parts = sides(EQUAL.sub("=", text))
    return parts[0] if len(parts) == 2 and re.fullmatch(r"\s*\\?[a-zA-Z]+\s*", parts[1]) else parts[-1]


def is_numeral(text: str) -> bool:
    r"""Whether a text is a number that is written out, with or without a unit: 12, 3/4, 1\frac12, 4.5 \times 10^3."""
    if len(text) > NUMERAL_LENGTH:
        return False
    if upright := WORDS.fullmatch(text.strip()):
        return is_numeral(upright[1])
    text = re.sub(rf"^{UPRIGHT}|{MONEY}|\\(?:left|right|[bB]igg?[lr]?)(?![a-zA-Z])", "", last_side(text)).strip()
    while unit := UNIT.search(text):
        text = text[: unit.start()]
    text = re.sub(r"\{\{([^{}]*)\}\}", r"{\1}", re.sub(rf"{GAP}|\*\*", "", text))
    if NUMERAL.fullmatch(text):
        return True
    bracketed = BRACKETED.fullmatch(text)
    content = next((part for part in bracketed.groups()[1:] if part), "") if bracketed else ""
    return bool(bracketed and not (bracketed[1] and content[:1] in "-+")) and is_numeral(content)


# --- the steps that an expression leaves undone


def steps(expression: Any) -> set[str]:
    """The steps that a parsed and unevaluated expression, the right side of an equation, leaves undone."""
    while isinstance(expression, sympy.Eq):
        expression = expression.rhs
    if isinstance(expression, sympy.MatrixBase):
        return set[str]().union(*(steps(entry) for entry in expression))
    if not isinstance(expression, sympy.Basic):
        return set()
    return {step for node in sympy.preorder_traversal(expression) for step in _steps_of(node)}


def is_product(expression: Any) -> bool:
    """Whether an expression is factored: a product or a power of sums with unknowns."""
    factors = list(_factors(expression)) if isinstance(expression, sympy.Expr) else []
    return bool(_sums(factors)) and _num_sums(factors) > 1


def is_sum(expression: Any) -> bool:
    """Whether an expression is a sum, or a number times one."""
    factors = list(_factors(expression)) if isinstance(expression, sympy.Expr) else []
    return [not factor.is_number for factor, _ in factors].count(True) == 1 and _num_sums(factors) == 1


def _steps_of(node: Any) -> Iterator[str]:
    if isinstance(node, (sympy.Derivative, sympy.Integral, sympy.Sum, sympy.Product, sympy.Limit)):
        yield "operator"
    elif isinstance(node, sympy.Add):
        yield from _steps_of_sum(node)
    elif isinstance(node, sympy.Mul):
        yield from _steps_of_product(list(_factors(node)))
    elif isinstance(node, sympy.Pow):
        yield from _steps_of_power(*node.args)
    elif isinstance(node, (sympy.Function, sympy.Max, sympy.Min)) and node.is_number:
        value = node.xreplace({f: sympy.Rational(str(f)) for f in node.atoms(sympy.Float)}).doit()  # of \ln 1.5 none
        if value.is_rational or not value.has(node.func, sympy.E):
            yield "value"  # \log_2 32, \sin\frac{\pi}{6}, |-5|


def _steps_of_sum(node: Any) -> Iterator[str]:
    terms = list(node.args)
    if sum(_is_literal(term) for term in terms) > 1:
        yield "arithmetic"  # 7 + 5
    like = [frozenset(_besides_rationals(term)) for term in terms if not _is_literal(term)]
    if len(set(like)) < len(like):
        yield "collecting"  # 2x + x, \frac{\pi}{2} + \frac{\pi}{4}


def _besides_rationals(term: Any) -> Iterator[tuple[Any, Any]]:
    """The factors of a term that are no rational numbers."""
    yield from ((base, power) for base, power in _factors(term) if not _is_literal(base) or not power.is_Integer)


def _steps_of_product(factors: list[tuple[Any, Any]]) -> Iterator[str]:
    numbers = [(base, power) for base, power in factors if _is_literal(base) and abs(base) != 1]
    if any([power for _, power in numbers].count(sign) > 1 for sign in (1, -1)):
        yield "arithmetic"  # 17 \cdot 23
    if sum(not power.is_Integer for _, power in numbers) > 1:
        yield "root"  # \sqrt2\sqrt3
    bases = [base for base, power in factors if power.is_Integer and power > 0 and not _is_literal(base)]
    if any(base.is_Symbol for base in bases if bases.count(base) > 1):
        yield "collecting"  # x \cdot x
    if _num_sums(factors) > 1:
        yield "expanding"  # (x+1)(x+2)
    if any(power.is_Integer and power < 0 for _, power in _sums(factors)):
        yield "division"  # \frac{x^2-1}{x-1}


def _steps_of_power(base: Any, power: Any) -> Iterator[str]:
    literal = _is_literal(base)
    if (literal or base == sympy.I) and power.is_Integer and power != MINUS_ONE and not _is_power_of_ten(base):
        yield "power"  # 3^{10}
    if literal and power == MINUS_ONE and not base.is_Integer:
        yield "arithmetic"  # \frac{1/2}{1/3}
    if power.is_Rational and abs(power.p) == 1 and power.q > 1:
        parts = sympy.Rational(base).as_numer_denom() if literal else ()
        if any((abs(part) ** abs(power)).as_coeff_Mul()[0] != 1 for part in parts if abs(part) != 1):
            yield "root"  # \sqrt{18}
        if not literal and base.is_number and isinstance(base, (sympy.Add, sympy.Mul)):
            yield "root"  # \sqrt{9 \cdot 2}, \sqrt{3 + 2\sqrt2}
    if isinstance(base, sympy.Add) and power.is_Integer:
        yield "expanding" if power > 1 else "division"  # (x+1)^5


def _factors(expression: Any) -> Iterator[tuple[Any, Any]]:
    """(base, power) of each factor of a product of products; 3 and -1 of 1/3. A power of ten is itself a base."""
    if isinstance(expression, sympy.Mul):
        for factor in expression.args:
            yield from _factors(factor)
    elif isinstance(expression, sympy.Pow) and not _is_power_of_ten(expression.base):
        inner = list(_factors(expression.base)) if expression.exp == -1 else [(expression.base, sympy.Integer(1))]
        yield from ((base, power * expression.exp) for base, power in inner)
    else:
        yield expression, sympy.Integer(1)


def _sums(factors: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    return [(base, power) for base, power in factors if isinstance(base, sympy.Add)]


def _num_sums(factors: list[tuple[Any, Any]]) -> int:
    """The number of sums that are multiplied: 5 of (x+1)^5."""
    return sum(int(power) for _, power in _sums(factors) if power.is_Integer and power > 0)


def _is_literal(expression: Any) -> bool:
    return isinstance(expression, (sympy.Rational, sympy.Float)) and bool(expression.is_finite)


def _is_power_of_ten(base: Any) -> bool:
    return _is_literal(base) and base == 10


# --- what would take too long to evaluate

DIGITS = 100_000  # more digits of a number, or terms of a power, are not computed


def is_huge(expression: Any) -> bool:
    """Whether a number in an expression may have more than `DIGITS` digits, such as 9^{9^9}."""
    entries = expression if isinstance(expression, sympy.MatrixBase) else [expression]
    return any(isinstance(entry, sympy.Basic) and _digits(entry) > DIGITS for entry in entries)


def _digits(node: Any) -> float:
    """A bound of the digits of every number that evaluating an expression computes; unknowns count as 1."""
    if _is_literal(node):
        number: Any = sympy.Rational(str(node)) if node.is_Float else node
        return 0.302 * max(int(number.p).bit_length(), int(number.q).bit_length())
    sizes = [_digits(child) for child in node.args]
    largest = max(sizes, default=1.0)
    exponent = node if isinstance(node, sympy.Product) else node.args[-1] if node.args else sympy.S.One
    if largest > DIGITS or (exponent.free_symbols and not isinstance(node, (sympy.Add, sympy.Mul))):
        return largest
    if isinstance(node, sympy.Product):
        return sum(sizes) * 10 ** min(largest, 9.0)
    if isinstance(node, sympy.Pow):
        return max(sizes[0], 0.1) * 10 ** min(sizes[1], 9.0)
    if isinstance(node, (sympy.factorial, sympy.gamma, sympy.exp, sympy.binomial)):
        return 10 ** min(largest, 9.0) * max(largest, 1.0)
    return sum(sizes) if isinstance(node, (sympy.Add, sympy.Mul)) else largest
