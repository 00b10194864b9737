"""One text for all expressions that differ only in the order of terms and factors, in signs that cancel, in needless
parentheses, or in the notation of a number."""

from __future__ import annotations

import ast
from collections.abc import Sequence
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
    try:
        return _expression(ast.parse(text.strip(), mode="eval").body).text
    except (SyntaxError, RecursionError, MemoryError):  # the last two of thousands of terms or parentheses
        raise ValueError(f"{text[:60]!r} is not an expression") from None


def _expression(node: ast.expr) -> Expression:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return Expression(str(node.value))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return _negated(_expression(node.operand))
    if not isinstance(node, ast.BinOp) or type(node.op) not in KINDS:
        raise ValueError(f"{ast.unparse(node)} has other things than integers and + - * /")
    kind, inverse = KINDS[type(node.op)]
    right = [(side != inverse, part) for side, part in _parts(kind, _expression(node.right))]
    parts = [*_parts(kind, _expression(node.left)), *right]
    if kind == "sum":
        return _joined(kind, parts)
    negative = [len(part.parts) == 1 for _, part in parts]  # only of -x there is one part
    factors = [(side, part.parts[0][1] if len(part.parts) == 1 else part) for side, part in parts]
    product = _joined(kind, [f for side, part in factors for f in _flattened(side, part)])
    return _negated(product) if sum(negative) % 2 else product


def _flattened(inverse: bool, part: Expression) -> tuple[tuple[bool, Expression], ...]:
    return tuple((inverse != side, inner) for side, inner in _parts("product", part))


def _negated(expression: Expression) -> Expression:
    parts = [(not side, part) for side, part in _parts("sum", expression)]
    return parts[0][1] if len(parts) == 1 and not parts[0][0] else _joined("sum", parts)


def _joined(kind: str, parts: Sequence[tuple[bool, Expression]]) -> Expression:
    words, parts = list[str](), sorted(parts)
    for is_inverse, part in parts:
        bracket = kind == "product" and part.kind == "sum"
        words += [SIGNS[kind][is_inverse], f"( {part.text} )" if bracket else part.text]
    return Expression(" ".join(words if parts[0][0] else words[1:]), kind, tuple(parts))


def _parts(kind: str, expression: Expression) -> tuple[tuple[bool, Expression], ...]:
    return expression.parts if expression.kind == kind else ((False, expression),)
