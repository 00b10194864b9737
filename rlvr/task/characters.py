"""Texts as words of one character each: a closed vocabulary, for policies that are trained from scratch."""

from collections.abc import Sequence

BLANKS = {" ": "SPACE", "\n": "NEWLINE"}
CHARACTERS = (*BLANKS.values(), *(chr(code) for code in range(33, 127)))
END_WORD = "end"
VOCABULARY = ("PAD", END_WORD, *CHARACTERS)


def spell(text: str, remedy: str = "Pass task.spelled=false.") -> str:
    """A text as words of one character each. ValueError, with `remedy`, for characters outside the vocabulary."""
    words = [BLANKS.get(character, character) for character in text]
    if unknown := sorted(set(words) - set(CHARACTERS)):
        raise ValueError(f"Only ASCII is spelled in characters, and {text[:60]!r} has {unknown}. {remedy}")
    return " ".join(words)


def read(words: Sequence[str]) -> str:
    """The text that `spell` turned into these words."""
    blanks = {word: blank for blank, word in BLANKS.items()}
    return "".join(blanks.get(word, word) for word in words)


def read_response(response: str) -> str | None:
    """The text of a spelled response; None if it lacks the end word or has words outside the vocabulary."""
    *words, end = response.split() or [""]
    return read(words) if end == END_WORD and set(words) <= set(CHARACTERS) else None
