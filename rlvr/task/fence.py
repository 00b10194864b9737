"""What marks a part of a response: the fenced blocks of Markdown, and the tag of an answer."""

from __future__ import annotations

import re
from collections.abc import Sequence

TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
FENCE = re.compile(r"(?P<indent>[ \t]*)(?P<ticks>```+|~~~+)[ \t]*(?P<language>[\w+-]*)")


def last_block(text: str, languages: Sequence[str]) -> str | None:
    """The last fenced block of one of these languages that is closed and not empty, indented from its fence.

    "" among the languages: where there is no such block, the last one that names no language (with such a block beside
    it, that is sample output).
    """
    tagged, untagged, opened, lines = None, None, None, list[str]()
    for line in re.split(r"\r?\n", text):
        fence = FENCE.match(line)
        if opened and _closes(line.strip(), opened["ticks"]):
            block, language = _dedented(lines, opened["indent"]), opened["language"].lower()
            if language in languages and block.strip():
                tagged, untagged = (block, untagged) if language else (tagged, block)
            opened = None
        elif fence and (opened is None or fence["language"]):  # one that was left open ends where the next begins
            opened, lines = fence, []
        else:
            lines.append(line)
    return untagged if tagged is None else tagged


def _closes(line: str, ticks: str) -> bool:
    return line.startswith(ticks) and not line.strip(ticks[0])


def _dedented(lines: Sequence[str], indent: str) -> str:
    """Of a block in an item of a list; code that is less indented than its fence stays as it is."""
    if all(line.startswith(indent) or not line.strip() for line in lines):
        lines = [line.removeprefix(indent) for line in lines]
    return "\n".join(lines)
