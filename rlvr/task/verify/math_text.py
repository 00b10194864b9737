r"""Reads from the text of a mathematical answer what is not part of its value: percent, units, brackets, operators.

A text in this module is the content of \boxed{...}, of a right answer or a model's. Does not import sympy.
"""

import re

from rlvr.task.verify.math_notation import FRACTION, GAP, REPEATING, WORDS, typeset
from rlvr.task.verify.math_unit import MONEY

WRAPPERS = (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"), ("`", "`"), ("*", "*"))
# Not the white space behind a backslash: "\\ " at an end is a control space, which strip() would cut in two.
END = re.compile(r"(?:(?<!\\)(?:\s|~|\\[,;:! ]|\\q?quad)|(?<=\\\\)\s|(?<!\\)[.,;:])$")
END_LENGTH = 8  # characters in which a match of END begins
QUOTED = re.compile(r"""\[\s*(["'])(.*)\1\s*\]""", re.DOTALL)  # ["3", "5"]
PERCENT = re.compile(rf"{GAP}*(?:\\?%|\\(?:text|mathrm)\{{\s*(?:\\?%|per\s?cent)\s*\}}|per\s?cent){GAP}*$")
LABEL = re.compile(  # \textbf{(B)}\ 12, (B) 12; not (A) \cup (B), (A) - 3
    rf"(?:\\(?:text|textbf|mathrm|mathbf)\s*\{{{GAP}*\(?([A-J])[).]+{GAP}*\}}{GAP}*|\(?([A-J])\){GAP}+)"
    r"(?=-?[\d\\$.])(?!\\(?:cup|cap|cdot|times|div|pm|text|to|leq?|geq?|neq?)(?![a-z]))"
)
SHORT_SCRIPT = re.compile(r"([_^])\{(\w)\}(?!\w)")  # x_{1} is x_1
MODULUS = re.compile(
    rf"{GAP}*(?:\\pmod(?:{GAP}*\{{([^{{}}]*)\}}|{GAP}*(\w))|\({GAP}*\\?b?mod(?![a-zA-Z]){GAP}*([^()]*)\)){GAP}*$"
)
# The base of 1011_2, -2516_{8} or \text{A5}_{11}
BASE = re.compile(r"(?<![\w.\\])(?:[A-Z\d.]+|\\(?:text|mathrm)\s*\{[A-Z\d]+\})\s*_\s*(?:\{\s*(\d+)\s*\}|(\d))\s*$")
AMOUNT = re.compile(
    rf"(?:\*\*)?{GAP}*([-+]?)(?:{MONEY})?{GAP}*([-+]?(?:\d[\d,]*(?:\.\d+)?|\.\d+))"
    rf"{GAP}*(?:{MONEY}|[°¢])?{GAP}*(?:\*\*)?"
)
ADJACENT = re.compile(rf"\d(?:{GAP}+|{GAP}*\{{{GAP}*)[\d.]")


def inside(text: str) -> str:
    r"""The content of a text's box, or the text if there is none, without math delimiters and final punctuation."""
    # The last dots of a decimal or a list would be taken for final punctuation.
    text = REPEATING.sub(r"\1\\overline{\2}", typeset(text))
    text = re.sub(r"((?<=[,;])|(?<![\d.])\d+)(\s*)\.\.\.", r"\1\2\\ldots ", text)
    text = _without_end(text).lstrip()
    if text.startswith(r"\boxed{") and text.endswith("}"):
        text = text[len(r"\boxed{") : -1]
    previous = ""
    while text != previous:
        previous = text
        text = _without_end(text).lstrip()
        if quoted := QUOTED.fullmatch(text):
            quote, entries = quoted.groups()
            text = re.sub(rf"{quote}\s*,\s*{quote}", ", ", entries).replace(r"\\", "\\")
        for opening, closing in WRAPPERS:
            content = text[len(opening) : len(text) - len(closing)]
            wrapped = len(text) >= len(opening) + len(closing) and text.startswith(opening) and text.endswith(closing)
            if wrapped and opening not in content and closing not in content and not content.endswith("\\"):
                text = content
                break
    return text


def _without_end(text: str) -> str:
    """The text without what matches END at its end: in steps from the end, since a search tries every place."""
    end = len(text)
    while match := END.search(text, max(0, end - END_LENGTH), end):
        end = match.start()
    return text[:end]


def squeezed(text: str) -> str:
    """The text without the braces of a short index and without white space, except between digits.

    Answers with the same result are equal, whatever they mean.
    """
    text = re.sub(rf"(?<=\d){GAP}+(?=\.?\d)", "\0", text)
    return SHORT_SCRIPT.sub(r"\1\2", re.sub(GAP, "", text)).replace("\0", " ")


def spelled(text: str) -> str:
    r"""The text squeezed, and its words outside of \text{...}."""
    return squeezed(WORDS.sub(r"\1", text))


def without_percent(text: str) -> tuple[str, bool]:
    r"""(the text before a percent sign at its end, whether there was one). A list of percentages is left as it is."""
    sign = PERCENT.search(text)
    if not sign or re.search(r",\s|;|\\%.*\\%", text):
        return text, False
    return text[: sign.start()], True


def labelled(text: str) -> tuple[str, str]:
    r"""(the letter of a choice, the text behind it): ("B", "12") of \textbf{(B)}\ 12 and of (B) 12. Else ("", text)."""
    label = LABEL.match(text)
    return (label[1] or label[2], text[label.end() :]) if label else ("", text)


def bare(text: str) -> str:
    r"""The part of the text that is compared: 5 of 5 \pmod{7}, and 12 of €12, USD 12 or **12**."""
    text = MODULUS.sub("", text)
    amount = AMOUNT.fullmatch(text)
    return amount[1] + amount[2] if amount else text


def modulus(text: str) -> str | None:
    r"""The modulus at the end of a text: 7 of 5 \pmod{7}; None if there is none."""
    match = MODULUS.search(text)
    return squeezed(next(group for group in match.groups() if group is not None)) if match else None


def base(text: str) -> str | None:
    """The base of the numeral at the end of a text: 2 of 1011_2; None if there is none, as in E_1, which is a name."""
    match = BASE.search(text)
    return match[1] or match[2] if match and re.search(r"\d.*_", match[0]) else None


def sides(text: str) -> list[str]:
    r"""The sides of a chain of equations. An = inside brackets does not count, such as that of \sum_{k=1}."""
    return split(text, "=")


def split(text: str, separators: str) -> list[str]:
    """The parts of a text between separators (one character each) that are not inside brackets."""
    depth, parts = 0, [""]
    for token in re.findall(r"\\.|[<>!:]=|.", text, re.DOTALL):
        depth += token in ("(", "[", "{", r"\{")
        depth -= token in (")", "]", "}", r"\}")
        if token in separators and depth <= 0:
            parts.append("")
        else:
            parts[-1] += token
    return parts


def adjacent_numbers(text: str) -> bool:
    r"""Whether two numbers are next to each other, as in `10 20`: not one answer. Parsers add or multiply.

    The numbers in rows of matrices and cases have & and \\ between them, and are not adjacent.
    """
    text = re.sub(r"\\\\", "&", text)
    text = FRACTION.sub("F", text)
    text = re.sub(r"(?:[\^_]|\\(?!q?quad)[a-zA-Z]+)\s*(?:\{[^{}]*\}|\[[^\[\]]*\]|\d)", "C", text)
    return bool(ADJACENT.search(text))


# --- brackets


def brackets(text: str) -> str:
    r"""The opening bracket of a list of several entries: "(" (tuple, open interval), "{" (set) or ""."""
    text = re.sub(r"\\(?:left|right|big|Big|bigl|bigr)(?![a-zA-Z])", "", text).strip()
    for opening, closing, kind in (("(", ")", "("), (r"\{", r"\}", "{")):
        if not (text.startswith(opening) and text.endswith(closing)):
            continue
        depth, commas = 0, 0
        tokens = re.findall(r"\\[{}]|[()\[\],]|[{}]", text)
        for place, token in enumerate(tokens):
            depth += token in ("(", "[", "{", r"\{")
            depth -= token in (")", "]", "}", r"\}")
            commas += token == "," and depth == 1
            if depth == 0 and place < len(tokens) - 1:
                return ""  # (1, 2) and (3, 4)
        return kind if commas else ""
    return ""


# --- operators that state a problem rather than solve it

OPERATORS = {
    "sum": r"\\sum(?![a-z])",
    "product or combination": (
        r"\\prod(?![a-z])|\\[dt]?binom(?![a-z])|\\choose(?![a-z])|(?<!\\)!(?!=)"
        r"|\\(?:text|mathrm|operatorname)\{[CP]\}(?=\s*[\d_^({])"  # not the choice C, nor 30^\circ\text{C}
        r"|\\(?:Gamma|zeta)(?=\s*(?:\\left)?\s*\(?\d)"
    ),
    "integral": r"\\i{1,3}nt(?![a-z])|\\oint(?![a-z])",
    "limit": r"\\lim(?![a-z])|\\lim(?:sup|inf)(?![a-z])",
    "derivative": (
        r"\\[dtc]?frac\s*\{\s*(?:d|\\partial|\\mathrm\{d\})[^{}]*\}\s*\{\s*(?:d|\\partial|\\mathrm\{d\})\s*[a-z]"
    ),
    "extremum": r"\\(?:max|min|sup|inf)(?![a-z])|\\operatorname\{(?:arg)?(?:max|min)\}",
    "divisor": r"\\(?:gcd|lcm)(?![a-z])|\\(?:operatorname|text|mathrm)\{(?:gcd|lcm)\}",
    "remainder": r"\\[bp]?mod(?![a-z])",
    "rounding": r"\\[lr](?:floor|ceil)(?![a-z])",
    "determinant": r"\\det(?![a-z])|\\begin\{vmatrix\}",
}


def operators(text: str) -> frozenset[str]:
    r"""The kinds of operators (keys of OPERATORS) that a text leaves to be evaluated: sums, limits, \binom, 5! etc."""
    return frozenset(name for name, pattern in OPERATORS.items() if re.search(pattern, text))


# Statements about a value, which a right answer seldom is. In the limits of an operator they say how it is meant.
LOGIC = re.compile(
    r"\\(?:land|wedge|implies|iff|not|neg|neq?|[lL]ong(?:left)?rightarrow|(?:Left|left)?[rR]ightarrow)(?![a-zA-Z])"
)
PRIMED = re.compile(r"([\w)}\]])('+)")


def statements(text: str) -> set[str]:
    r"""The logical signs of a text: \land, \implies, \ne and the like."""
    return set(LOGIC.findall(text))


def primes(text: str) -> list[tuple[str, str]]:
    """What is primed in the last side of a text, and how often: f and '' of f''(x)."""
    return sorted(PRIMED.findall(sides(text)[-1]))


def other_prime(gold: str, answer: str) -> bool:
    """Whether the texts give values to names that differ in their primes alone, as g(2) = 3 and g'(2) = 3 do."""
    names = [spelled(sides(text)[0]) for text in (gold, answer) if len(sides(text)) > 1]
    return len(names) == 2 and names[0] != names[1] and len({name.replace("'", "") for name in names}) == 1


# --- letters that are taken for units

# What math-verify drops at the end of an expression as a unit, but may be a variable or a product: t of 5 + 3t, 2 a b.
# The rest of its list (cm, kg, hours) is always a unit.
_PRODUCT = r"(?<=[\d}\s])([abcefghqs] [a-zA-Z]|[cdghlmost]s?|ab|bc|by|mp|lt|mt|cc|[ap]m|rs|st|rd|th)"
DROPPED = re.compile(rf"{_PRODUCT}(?=\s*(?:\\(?:text|mathrm)\s*\{{[^{{}}]*\}})?$)")
DROPPED_WITHIN = re.compile(rf"{_PRODUCT}(?=\s*(?:[$}}]|\\[)\]]|$))")  # at the end of any expression in a text
AFTER_COMMA = re.compile(r"([,;])\s+([a-zA-Z])$")  # {c} would be a set in a list
QUANTITY = re.compile(
    rf"((?:.*(?:=|\\approx|≈))?\s?[-+]?)((?:{GAP}|[\d.,/^{{}}]|\\(?:[dtc]?frac|sqrt|pi|times|cdot)(?![a-zA-Z]))+)"
    r"(?<=[\d}\s])(?:([mshgl])(?:\^\{?[23]\}?)?|ms|cc|[ap]m|rs|st|rd|th)",
    re.DOTALL,
)


def variables(text: str) -> str:
    """The text with the last letter in braces if it is a variable that math-verify would drop as a unit."""
    quantity = QUANTITY.fullmatch(text)
    if quantity and not quantity[3]:
        return text  # 21st, 10 am
    return DROPPED.sub(_last_in_braces, AFTER_COMMA.sub(r"\1\2", text))


def variables_within(text: str) -> str:
    """The same at the end of every expression in a text of words and expressions."""
    return DROPPED_WITHIN.sub(_last_in_braces, text)


def _last_in_braces(letters: re.Match[str]) -> str:
    return f"{letters[1][:-1]}{{{letters[1][-1]}}}"


def measured(text: str) -> str:
    """The text before its last letter if that may be a unit as well as a variable: x = 5 of x = 5 m. Else ""."""
    quantity = QUANTITY.fullmatch(text)
    return quantity[1] + quantity[2] if quantity and quantity[3] and re.search(r"\d", quantity[2]) else ""
