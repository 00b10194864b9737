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
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise, product
from typing import TYPE_CHECKING, Any

import math_verify.parser
import sympy
from latex2sympy2_extended.latex2sympy2 import ConversionConfig, latex2sympy
from math_verify import LatexExtractionConfig, parse

from rlvr.task.verify import math_equal, math_form, math_list, math_notation, math_text, math_unit

if TYPE_CHECKING:
    from rlvr.records import Outcome

# math-verify warns once in each process that its timeouts are off, and logs every parse failure.
logging.getLogger("math_verify").setLevel(logging.CRITICAL)
logging.getLogger("latex2sympy2_extended").setLevel(logging.CRITICAL)

# By default R is read as r. math-verify passes on no configuration of the conversion, hence the function is replaced.
math_verify.parser.latex2sympy = partial(latex2sympy, conversion_config=ConversionConfig(lowercase_symbols=False))


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
    equal = [
        (g, a)
        for g, a in _pairs(gold, answer, asked)
        if math_equal.holds(math_equal.equal, g, a) or math_equal.within(tolerance, g, a)
    ]
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
    if math_equal.holds(_is_rational, math_equal.value(g)) and math_form.is_numeral(math_text.bare(gold.text)):
        return not math_form.is_numeral(side)
    return bool(math_form.steps(a) - math_form.steps(g)) or (
        math_form.is_product(math_equal.value(g)) and math_form.is_sum(math_equal.value(a))
    )


def _is_rational(part: Any) -> bool:
    return math_equal.number(part) is not None and part.is_rational is not False  # of a float sympy does not know it


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
    parsed = _boxed(math_text.bare(content)) if content.strip() else []
    joined = math_notation.without_thousands(content)
    if joined != content and re.search(r"[^-+\d.,\s]", content):  # of numbers alone the parser knows it
        content = joined
        parsed += _boxed(math_text.bare(content))  # x = 100,200 may be a list as well
    number = math_text.measured(math_text.bare(content))
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
        parsed = [sympy.And(*part.args) if math_equal.has_orders(part) else part for part in parsed]
    if (outside := math_notation.divided_outside(content)) != content:
        parsed += _whole(outside)
    if "I" in content:
        # The parser takes I, a current or an identity matrix, for the imaginary unit: I^2 R would be -R.
        return [part if isinstance(part, str) else part.xreplace({sympy.I: CURRENT}) for part in parsed]
    parsed = [part for part in parsed if not math_form.is_huge(part)] or [content]
    return parsed + [part.xreplace(dict.fromkeys(part.free_symbols, sympy.I)) for part in parsed if _is_complex(part)]


def _is_complex(parsed: Any) -> bool:
    """Whether its only letter is i, which the parser takes for a variable. Alone it would be equal to the letter I."""
    if not isinstance(parsed, (sympy.Expr, *math_equal.LISTS)) or parsed.is_Atom:
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
    if answer.percent and (
        not ASKS_FOR_PERCENTAGE.search(asked) or any(math_equal.holds(_is_share, g) for g, _ in numbers)
    ):
        pairs = []
    return pairs + [(g / 100, a) if gold.percent else (g, a / 100) for g, a in numbers]


# What percent, as a percentage, x\%; not a share that is given, such as 20% or 20 percent.
ASKS_FOR_PERCENTAGE = re.compile(
    r"(?i)percentage|(?<!\d)(?<!\d[ $-])(?<!\d\$ )percent|\b(?:what|in|as a|the|many|[a-z])[ $]*\\?%"
    r"|what (?:is|are) [^.?]*(?:chance|probability)"
)


def _is_share(expression: Any) -> bool:
    number = math_equal.number(expression)
    return number is not None and 0 < abs(number) <= 1


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
    if "infty" in gold or re.search(r"interval|inequalit|domain|\branges?\b", asked):
        return True
    return bool(re.search(r"values? of(?! \S+ and )", asked)) and not re.search(r"\b(?:point|pair|coordinate)", asked)


def _values_match(gold: str, answer: str) -> bool:
    """Whether named unknowns have the same values in both. math-verify takes a = 3, b = 7 for the set {3, 7}."""
    pairs = math_list.matched(gold, answer)
    return pairs is not None and all(_same_value(*pair) for pair in pairs)


def _same_value(gold: str, answer: str) -> bool:
    same_text = math_text.spelled(gold) == math_text.spelled(answer)
    return same_text or any(math_equal.holds(math_equal.equal, g, a) for g, a in product(_boxed(gold), _boxed(answer)))


def _true_equations(text: str) -> bool:
    """Whether all numbers in a chain of equations are equal: in 2 + 4 = 6 and x = 6 they are, in 5 = 6 they are not.

    False if a side cannot be evaluated.
    """
    text = re.sub(r"\\equiv(?![a-zA-Z])", "=", text)
    if "=" not in text or any(sign in text for sign in (",", ";", "\\\\", "\\ne", "<", ">")):
        return True
    sides = [_boxed(side) for side in math_text.sides(text) if side.strip()]
    return math_equal.holds(_all_near, [side[0] for side in sides if side])


def _all_near(sides: Sequence[Any]) -> bool:
    numbers = [side for side in sides if math_equal.number(side) is not None]
    return all(math_equal.near(a, b) for a, b in pairwise(numbers))


judge({"gold": "1", "answer": "\\boxed{2}"})  # the first parse compiles the grammar: before the first time limit
