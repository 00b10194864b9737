"""One text for all expressions that differ only in the order of terms and factors, or in needless parentheses."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from fractions import Fraction
from typing import NamedTuple

# Operator -> the kind of expression that it makes, its inverse operator or not.
KINDS: dict[type[ast.operator], tuple[str, bool]] = {
    ast.Add: ("sum", False),
    ast.Sub: ("sum", True),
    ast.Mult: ("product", False),
    ast.Div: ("product", True),
}
OPERATIONS: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
SIGNS = {"sum": "+-", "product": "*/"}


class Expression(NamedTuple):
    """A number, or a sum or a product of other expressions: equal texts are equal expressions.

    parts: (inverse, expression) pairs, inverse if the expression is subtracted (in a sum) or divided by (in a product).
    They are sorted; no part of a sum is a sum, and no part of a product is a product.
    """

    text: str
    kind: str = "number"  # or "sum" or "product"
    parts: tuple[tuple[bool, Expression], ...] = ()


def canonical(text: str) -> str:
    """The text of an expression of integers with + - * / and parentheses. Raises ValueError for any other text."""
    if not re.fullmatch(r"[\d\s()+*/-]+", text, re.ASCII):
        raise ValueError(f"{text[:60]!r} is not arithmetic")
    without_zeros = re.sub(r"(?<!\d)0+(?=\d)", "", " ".join(text.split()))  # 07 is no number in Python
    try:
        return _expression(ast.parse(without_zeros, mode="eval").body).text
    except (SyntaxError, RecursionError, MemoryError):  # the last two of thousands of terms or parentheses
        raise ValueError(f"{text[:60]!r} is not an expression") from None


def evaluated(text: str) -> tuple[Fraction, list[int]]:
    """(value, numbers as written) of an expression of integers with + - * / and parentheses.

    Raises ValueError for any other text, and for a division by zero.
    """
    numbers: list[int] = []

    def value(node: ast.expr) -> Fraction:
        if isinstance(node, ast.Constant) and type(node.value) is int:
            numbers.append(node.value)
            return Fraction(node.value)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -value(node.operand)
        if isinstance(node, ast.BinOp) and type(node.op) in OPERATIONS:
            return OPERATIONS[type(node.op)](value(node.left), value(node.right))
        raise ValueError(f"{ast.unparse(node)[:60]} is no arithmetic of integers")

    try:
        return value(ast.parse(text.strip(), mode="eval").body), numbers
    except (SyntaxError, RecursionError, MemoryError, ZeroDivisionError) as error:
        raise ValueError(f"{text[:60]!r} is not an expression") from error


def _expression(node: ast.expr) -> Expression:
    if isinstance(node, ast.Constant):
        return Expression(str(node.value))
    if not isinstance(node, ast.BinOp) or type(node.op) not in KINDS:
        raise ValueError(f"{ast.unparse(node)} has operators other than + - * /")
    kind, inverse = KINDS[type(node.op)]
    right = [(side != inverse, part) for side, part in _parts(kind, _expression(node.right))]
    parts = sorted([*_parts(kind, _expression(node.left)), *right])
    words: list[str] = []
    for is_inverse, part in parts:
        bracket = kind == "product" and part.kind == "sum"
        words += [SIGNS[kind][is_inverse], f"( {part.text} )" if bracket else part.text]
    return Expression(" ".join(words[1:]), kind, tuple(parts))


def _parts(kind: str, expression: Expression) -> tuple[tuple[bool, Expression], ...]:
    return expression.parts if expression.kind == kind else ((False, expression),)
