r"""Reads from the text of a mathematical answer its elements: letters, words, named values, and what is said of them.

An element is a part of a list, or one side of an equation in it. math-verify takes a word for a product of its letters,
in any order. Texts are those of `rlvr.task.verify.math_text`. Does not import sympy.
"""

from __future__ import annotations

import re

from rlvr.task.verify.math_notation import GAP, WORDS
from rlvr.task.verify.math_text import spelled, split, squeezed

WORD = re.compile(r"[a-zA-Z]{3,}|[A-Z]{2}|[nN][oO]|[oO][nN]")
PRODUCT = re.compile(r"(?:a(?=b))?[b-df-hj-np-tv-z]+")
JOINED = re.compile(r"\\(?:text|mathrm|mbox)\s*\{\s*(?:and|or)\s*\}")


def elements(text: str) -> list[str]:
    r"""The elements of a list, not of one in brackets: a and b of `a, b`, `a; b` and `a \text{ and } b`."""
    return [part for part in split(JOINED.sub(",", text), ",;") if part.strip()]


def names(text: str) -> list[str] | None:
    r"""The words and single letters that a text lists, in lower case and sorted: a, c of `\text{(A)}, C`.

    None if there is anything else in it, or a letter in both cases.
    """
    listed = [re.sub(r"^\((.)\)$", r"\1", spelled(part)) for part in elements(text)]
    letters = {name for name in listed if len(name) == 1}
    if len({letter.lower() for letter in letters}) < len(letters) or not all(_name(name) for name in listed):
        return None
    return sorted(name.lower() for name in listed)


def _name(text: str) -> bool:
    letter = re.fullmatch("[a-hj-zA-Z]", text)  # i is a number
    return bool(letter or (WORD.fullmatch(text) and not product(text)))


def product(word: str) -> bool:
    """Whether a run of letters is a product of variables, which commutes.

    These are different consonants (xyz, mgh), also behind ab if in alphabetical order (abc). Any other run (cab, act,
    BADC) may be a word or an order of choices.
    """
    ordered = word[0] != "a" or list(word) == sorted(word)
    return bool(PRODUCT.fullmatch(word)) and len(set(word)) == len(word) and ordered


def other_words(gold: str, answer: str) -> bool:
    """Whether both have words as elements, but not the same ones: silent for listen, (x=) ABCD for BADC."""
    golds, answers = _words(gold), _words(answer)
    if not golds or not answers or any(product(word) for word in golds):
        return False
    return sorted(word.lower() for word in golds) != sorted(word.lower() for word in answers)


def _words(text: str) -> list[str]:
    """The words among the elements. The segments AB and CD of AB = CD are none."""
    equations = [[spelled(side) for side in split(part, "=")] for part in elements(text)]
    return [
        side for sides in equations for side in sides if WORD.fullmatch(side) and (len(side) > 2 or len(sides) == 1)
    ]


# --- values of named unknowns

NAME = re.compile(r"(?:[a-zA-Z]|\\[a-zA-Z]+)(?:_(?:\w|\{\w+\}))?'*(?:\([^()=]*\))?")  # x, x_1, \lambda, f(2)
BRACKETS = re.compile(r"(?:\\left\s*)?(?:\(|\[|\\\{)(.*?)(?:\\right\s*)?(?:\)|\]|\\\})", re.DOTALL)


def named(text: str) -> dict[str, str]:
    """The values of different unknowns: {a: 3, b: 7} of `a=3, b=7` or `(a,b)=(3,7)`. Empty for anything else."""
    equations = [split(part, "=") for part in elements(text)]
    if len(equations) == 1 and len(equations[0]) > 1:
        pairs = list(zip(unnamed(equations[0][0]), unnamed(equations[0][-1]), strict=False))
    else:
        pairs = [(sides[0], sides[-1]) for sides in equations if len(sides) > 1]
        pairs = pairs if len(pairs) == len(equations) else []
    values = {squeezed(name): value for name, value in pairs}
    different = len(values) == len(pairs) > 1
    return values if different and all(NAME.fullmatch(name) for name in values) else {}


def unnamed(text: str) -> list[str]:
    """The elements of a list, also of one in brackets."""
    bracketed = BRACKETS.fullmatch(text.strip())
    return elements(bracketed[1] if bracketed else text)


def matched(gold: str, answer: str) -> list[tuple[str, str]] | None:
    """Pairs of values that must be equal if one of two lists names different unknowns; None if the lists cannot match.

    Values without names are in the order of the right answer's names; those of a right answer without names are in
    alphabetical order of the answer's names. Unknowns that differ in their index alone are also a set: x_1, x_2.
    """
    golds, answers = named(gold), named(answer)
    if golds and answers:
        return [(golds[name], answers[name]) for name in golds] if golds.keys() == answers.keys() else None
    names_given, values = (golds or dict(sorted(answers.items()))), unnamed(answer if golds else gold)
    if not names_given or len(values) < 2 or len({name.partition("_")[0] for name in names_given}) == 1:
        return []
    if len(values) != len(names_given):
        return None
    if golds:
        return list(zip(names_given.values(), values, strict=True))
    return list(zip(values, names_given.values(), strict=True))


# --- what is said of a value

DOTS = re.compile(rf"[,;]{GAP}*(?:\\[lcd]?dots[cb]?(?![a-zA-Z])|…|\.\.\.)")
# The texts at the end: \text{ or more} of 5\text{ or more}
ENDING = re.compile(rf"(?:\\(?:text|textrm|mathrm|mbox|textbf)\s*\{{[^{{}}]*\}}{GAP}*)+[.)]*$")
REMARKS = re.compile(
    r"\b(?:or (?:more|less|fewer)|or|and|nor|not|wrong|incorrect|false|at (?:least|most)|(?:more|less|fewer) than"
    r"|plus|minus|divided|half|halves|thirds|(?:four|fif|six|seven|eigh|nin|ten|hundred|thousand)ths|hundred|dozen"
    r"|factorial|maybe|perhaps|between|percent|infinity|undefined"
    r"|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|twenty)\b|^(?:squared|cubed)$"
)


def goes_on(text: str) -> bool:
    r"""Whether a list has dots for elements: 1, 2, \ldots."""
    return bool(DOTS.search(text))


def remarks(text: str) -> set[str]:
    r"""What is said of a value in the text behind it, which math-verify takes for a unit: {or more}, {half}."""
    ending = ENDING.search(text)
    words = " ".join(WORDS.sub(r" \1 ", ending[0]).replace("~", " ").lower().split()) if ending else ""
    return set(REMARKS.findall(words))


INNER_UNIT = re.compile(rf"(?<=[\d}}])({GAP}*\\text\s*\{{[^{{}}]*\}})(?=\s*[,;])")


def without_inner_units(text: str) -> str:
    r"""The text without the words behind all elements but the last: math-verify would drop all that follows them."""
    return INNER_UNIT.sub(lambda unit: unit[0] if REMARKS.search(unit[1]) else "", text)


# --- two values in one: \pm


RELATIONS = re.compile(r"\\(?:neq?|leq?|geq?|leqslant|geqslant|mp)(?![a-zA-Z])|[<>]")


def both_signs(text: str) -> str:
    r"""The text with the two values of each element that has one \pm: 1+a, 1-a of 1 \pm a. Else unchanged."""
    if not re.search(r"\\pm(?![a-zA-Z])", text) or RELATIONS.search(text):
        return text
    values: list[str] = []
    for element in elements(text):
        parts = re.split(r"\\pm(?![a-zA-Z])", element)
        if len(parts) > 2:
            return text
        values += [" + ".join(parts), " - ".join(parts)] if len(parts) == 2 else parts
    return ", ".join(values)
