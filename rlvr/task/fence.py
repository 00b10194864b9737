"""Marked parts of a response: the fenced code blocks of Markdown, and the <answer> tag."""

from __future__ import annotations

import re
from collections.abc import Sequence

TAGGED, END = re.compile(r"<answer>(.*?)</answer>", re.DOTALL), "</answer>"
FENCE = re.compile(r"(?P<indent>[ \t]*)(?P<ticks>```+|~~~+)[ \t]*(?P<language>[\w+-]*)")


def last_tagged(text: str) -> str | None:
    """The content of the last <answer>...</answer>; None if there is none.

    Tags that are opened behind the last END are not searched: a degenerate response opens thousands, and each would be
    searched to the end of the text.
    """
    tagged = TAGGED.findall(text, 0, text.rfind(END) + len(END)) if END in text else []
    return tagged[-1] if tagged else None


def last_block(text: str, languages: Sequence[str]) -> str | None:
    """The last closed, non-empty fenced block in one of `languages`, without the indentation of its fence; else None.

    With "" among the languages: if there is no block in the others, the last block that names no language. (Next to a
    block with a language, one without is sample output.)
    """
    tagged, untagged, opened, lines = None, None, None, list[str]()
    for line in re.split(r"\r?\n", text):
        fence = FENCE.match(line)
        if opened and _closes(line.strip(), opened["ticks"]):
            block, language = _dedented(lines, opened["indent"]), opened["language"].lower()
            if language in languages and block.strip():
                tagged, untagged = (block, untagged) if language else (tagged, block)
            opened = None
        elif fence and (opened is None or fence["language"]):  # a block that was left open ends where the next begins
            opened, lines = fence, []
        else:
            lines.append(line)
    return untagged if tagged is None else tagged


def _closes(line: str, ticks: str) -> bool:
    return line.startswith(ticks) and not line.strip(ticks[0])


def _dedented(lines: Sequence[str], indent: str) -> str:
    """The block without the indentation of its fence, as in a list item. Lines with less indentation: unchanged."""
    if all(line.startswith(indent) or not line.strip() for line in lines):
        lines = [line.removeprefix(indent) for line in lines]
    return "\n".join(lines)
