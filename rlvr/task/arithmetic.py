"""One text for all expressions that differ only in the order of terms and factors, or in needless parentheses."""

from __future__ import annotations

import ast
import re
from typing import NamedTuple

# Operator -> the kind of expression that it makes, its inverse operator or not.
KINDS: dict[type[ast.operator], tuple[str, bool]] = {
    ast.Add: ("sum", False),
    ast.Sub: ("sum", True),
    ast.Mult: ("product", False),
    ast.Div: ("product", True),
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
