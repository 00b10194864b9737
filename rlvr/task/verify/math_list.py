r"""Reads from the text of a mathematical answer what its elements are: letters, words.

An element is a part of a list, or one side of an equation in it. math-verify takes a word for a product of its letters,
in any order. Texts are those of `rlvr.task.verify.math_text`. Does not import sympy.
"""

from __future__ import annotations

import re

from rlvr.task.verify.math_text import spelled, split

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
