r"""Checks that a right answer is complete: it has content, closed braces and environments, and commands with arguments.

Works on the text, without a parser: tens of thousands of right answers are checked when data are loaded. Sentences
pass as well.
"""

import re
from collections.abc import Sequence

from rlvr.task.verify.math_text import inside

SPECIAL = re.compile(r"[\\{}^_]")
TOKEN = re.compile(r"\\[a-zA-Z]+|\\?\S|\\\s")
FRACTIONS = {r"\frac", r"\dfrac", r"\tfrac", r"\cfrac", r"\binom", r"\dbinom", r"\tbinom"}
ACCENTS = {r"\overline", r"\overrightarrow", r"\vec", r"\hat", r"\bar"}
ARGUMENTS = {"^": 1, "_": 1, r"\sqrt": 1, **dict.fromkeys(ACCENTS, 1), **dict.fromkeys(FRACTIONS, 2)}
OPERATORS = {r"\sum", r"\prod", r"\int", r"\iint", r"\iiint", r"\oint", r"\lim"}  # their operand follows
ENDS = {"}", ")", ",", "&", "$", "^", "_", r"\\", r"\)", r"\]"}  # tokens that cannot begin an argument
ENVIRONMENT = re.compile(r"\\(begin|end)(?![a-zA-Z])(?:\s*\{([^{}]*)\})?")
# Commands around or between the content of an answer, which are not content themselves.
AROUND = re.compile(
    r"\\(?:text|mathrm|textbf|mathbf|mbox|operatorname|displaystyle|left|right|[bB]igg?[lmr]?|q?quad|sqrt|[dtc]?frac"
    r"|cdot|times|div|pm|mp|[lc]?dots|leq?|geq?|neq?|lt|gt|equiv|approx|sim|to|begin|end)(?![a-zA-Z])"
)
CONTENT = re.compile(r"[^\W_]|[∞∅]|\\\{\s*\\\}")  # the empty set \{\} has no letter


def fault(text: str) -> str:
    """The defect because of which a right answer is neither mathematics nor a sentence; "" if there is none."""
    if not CONTENT.search(AROUND.sub("", inside(text))):
        return "neither a letter nor a number"
    if not SPECIAL.search(text):
        return ""
    tokens = [token for token in TOKEN.findall(text) if token != r"\limits"]
    closing = _closing(tokens)
    if closing is None:
        return "braces that are not balanced"
    defect = _open_environment(text)
    for at in range(len(tokens)):
        defect = defect or _missing_argument(tokens, closing, at)
    return defect


def _closing(tokens: Sequence[str]) -> dict[int, int] | None:
    """{index of an opening brace: index of its closing brace}; None if the braces are not balanced."""
    open_at: list[int] = []
    closing: dict[int, int] = {}
    for at, token in enumerate(tokens):
        if token == "{":
            open_at.append(at)
        elif token == "}":
            if not open_at:
                return None
            closing[open_at.pop()] = at
    return None if open_at else closing


def _open_environment(text: str) -> str:
    """A description of the first environment without a begin or an end; "" if there is none."""
    open_names: list[str] = []
    for side, name in ENVIRONMENT.findall(text):
        if side == "begin" and name:
            open_names.append(name)
        elif not name or not open_names or open_names.pop() != name:
            return rf"\{side}{{{name}}} alone"
    return rf"\begin{{{open_names[-1]}}} that is not closed" if open_names else ""


def _missing_argument(tokens: Sequence[str], closing: dict[int, int], at: int) -> str:
    """A description of the token at index `at` if it lacks an argument; "" if it lacks none."""
    token, after = tokens[at], at + 1
    if token in OPERATORS:
        while after < len(tokens) and tokens[after] in ("^", "_"):
            after = closing.get(after + 1, after + 1) + 1  # a script is a token or a group
        return "" if _begins(tokens, after) else f"{token} of nothing"
    if token == r"\sqrt" and tokens[after : after + 1] == ["["]:
        after = tokens.index("]", after) + 1 if "]" in tokens[after:] else after
    for _ in range(ARGUMENTS.get(token, 0)):
        empty = token not in ("^", "_") and tokens[after : after + 2] == ["{", "}"]
        if empty or not _begins(tokens, after):
            return f"{token} without {'an argument' if ARGUMENTS[token] == 1 else 'two arguments'}"
        after = closing.get(after, after) + 1
    return ""


def _begins(tokens: Sequence[str], at: int) -> bool:
    """Whether an argument can begin at index `at`."""
    return at < len(tokens) and tokens[at] not in ENDS
