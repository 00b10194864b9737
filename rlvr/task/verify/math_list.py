r"""Reads from the text of a mathematical answer its elements: letters, words, named values, and what is said of them.

An element is a part of a list, or one side of an equation in it. math-verify takes a word for a product of its letters,
in any order. Texts are those of `rlvr.task.verify.math_text`. Does not import sympy.
"""

import re
from itertools import takewhile

from rlvr.task.verify.math_notation import GAP, WORDS
from rlvr.task.verify.math_text import spelled, split, squeezed
from rlvr.task.verify.math_unit import UNITS, unit

WORD = re.compile(r"[a-zA-Z]{3,}|[A-Z]{2}|[nN][oO]|[oO][nN]")
PRODUCT = re.compile(r"(?:a(?=b))?[b-df-hj-np-tv-z]+")
JOINED = re.compile(r"\\(?:text|mathrm|mbox)\s*\{\s*(?:and|or)\s*\}")


def elements(text: str) -> list[str]:
    r"""The elements of a list, not of one in brackets: a and b of `a, b`, `a; b` and `a \text{ and } b`."""
    return [part for part in split(JOINED.sub(",", text), ",;") if part.strip()]


def names(text: str) -> list[str] | None:
    r"""The words and single letters that a text lists, sorted, in lower case: a, c of `\text{(A)}, C`.

    Letters behind F, which are no choices, keep their case. None if there is anything else in it, or a letter in both
    cases.
    """
    listed = [re.sub(r"^\(?(.)\)$", r"\1", spelled(part)) for part in elements(text)]
    letters = {name for name in listed if len(name) == 1}
    if len({letter.lower() for letter in letters}) < len(letters) or not all(_name(name) for name in listed):
        return None
    return sorted(name.lower() if len(name) > 1 or name in "ABCDEF" else name for name in listed)


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

DOTS = re.compile(
    rf"(?:[,;]|(?<![\d.])\d+|[a-zA-Z)}}]){GAP}*(?:\\[lcd]?dots[cb]?(?![a-zA-Z])|…|\.\.\.)\s*(?:$|[,;\\)}}\]])"
)
# The texts at the end: \text{ or more} of 5\text{ or more}
ENDING = re.compile(rf"(?:\\(?:text|textrm|mathrm|mbox|textbf)\s*\{{[^{{}}]*\}}{GAP}*)+[.)]*$")
# Words that make another statement of a value, and those that make another value of it.
REMARKS = re.compile(
    r"or|and|nor|not?|never|cannot|neither|none|is|are|was|were|be|been|being|ha[sd]|have|do(?:es)?|did|can|could|may"
    r"|might|must|should|will|would|\w+n't|wrong|incorrect|false|impossible|if|unless|except|but|than|least|most|less"
    r"|fewer|plus|minus|negative|below|above|under|over|maybe|perhaps|about|approximately|roughly|between|equals"
    r"|exceeds|fails|its?|this|that|these|those|s?he|they|which|what|undefined|unknown|infinity|half|as|always"
    r"|sometimes|besides|towards|thus|percent"
)
FACTORS = re.compile(
    r"(?:one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|twenty|thirty|forty|fifty|sixty|ninety)(?:s|ths?)?"
    r"|(?:hundred|thousand|million|billion|trillion)(?:s|ths?)?|hal(?:f|ves)|thirds?|quarters?|(?:fif|eigh|nin)ths?"
    r"|dozens?|scores?|gross|pairs?|couples?|squared|cubed|factorial|doubled?|doubles|tripled?|triples|twice|thrice|\w*fold|percent"
)
BEHIND = re.compile("old|tall|long|wide|high|deep|away|apart|each|total|altogether|remaining|left")
RELATED = re.compile("an?|at|for|in|of|on|per|the|to|with|from|by")
PLURAL = re.compile(
    r"\w+(?<![su])(?<!i)s|\w+buses|people|children|(?:wo)?men|feet|teeth|mice|geese|fish|sheep|dice|money|student|mod"
    r"|[ap]m|[cf]"
)


def ending(text: str) -> list[str]:
    r"""The words in the texts behind a value, in lower case: or, more of 5\text{ or more}. Empty without a value."""
    match = ENDING.search(text)
    if not match or not re.search(r"[\w)}]", text[: match.start()]):
        return []
    said = WORDS.sub(r" \1 ", match[0]).replace("~", " ").lower()
    return re.findall(r"[a-z][a-z'.]*", said.replace(". ", " ").rstrip("."))


def other_ending(gold: str, answer: str) -> bool:
    r"""Whether the words behind a value say something else than those of the right answer, if it has any.

    Words behind a value are its unit, or what is counted, in the plural (red marbles, boxes of pens): with both, the
    answer may have the more adjectives. Remarks (is impossible) and factors (dozen) are part of the value.
    """
    golds, answers = ending(gold), ending(answer)
    changed = {word for word in set(golds) ^ set(answers) if FACTORS.fullmatch(word)}
    if unit(gold) is not None and unit(gold) == unit(answer):
        return False  # meters per second squared
    if changed or {word for word in set(answers) - set(golds) if REMARKS.fullmatch(word)}:
        return True
    if not answers or set(answers) <= set(golds) or unit(answer) is not None:
        return bool(answers and golds) and not set(answers) & set(golds) and unit(gold) is None
    if golds:
        return not set(golds) <= set(answers) or (unit(gold) is not None and _heads(golds) != _heads(answers))
    return not _counted(answers, bool(re.match(r"\D*1(?![\d.])", answer)))


def _heads(words: list[str]) -> list[str]:
    """The words before the first preposition: red marbles of red marbles in each box."""
    heads = list(takewhile(lambda word: not RELATED.fullmatch(word), words))
    while heads and BEHIND.fullmatch(heads[-1]):
        heads.pop()
    return heads


def _counted(words: list[str], one: bool) -> bool:
    """Whether words name what is counted, with an article or preposition behind it at most: boxes of pens."""
    heads = _heads(words)
    return bool(heads) and (one or PLURAL.fullmatch(heads[-1]) is not None or heads[-1] in UNITS)


def goes_on(text: str) -> bool:
    r"""Whether a list has dots for elements: 1, 2, \ldots."""
    return bool(DOTS.search(text))


INNER_UNIT = re.compile(rf"(?<=[\d}}])({GAP}*\\text\s*\{{[^{{}}]*\}})(?=\s*[,;])")


def without_inner_units(text: str) -> str:
    r"""The text without the words behind all elements but the last: math-verify would drop all that follows them."""
    return INNER_UNIT.sub(lambda unit: unit[0] if any(map(REMARKS.fullmatch, ending(f"1{unit[1]}"))) else "", text)


# --- two values in one: \pm


ALL_HOLD = re.compile(r"\\(?:text|mathrm|mbox)\s*\{\s*and\s*\}")  # x > 1 \text{ and } x < 3
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
