"""Code in a response: the fenced blocks of Markdown."""

from __future__ import annotations

import re
from collections.abc import Sequence

FENCE = re.compile(r"[ \t]*(?P<ticks>```+|~~~+)[ \t]*(?P<language>[\w+-]*)")


def last_block(text: str, languages: Sequence[str]) -> str | None:
    """The last fenced block of one of these languages ("": none is named) that is closed and not empty."""
    found, opened, lines = None, None, list[str]()
    for line in re.split(r"\r?\n", text):
        fence = FENCE.match(line)
        if opened and line.strip() == opened["ticks"]:
            if opened["language"].lower() in languages and "".join(lines).strip():
                found = "\n".join(lines)
            opened = None
        elif fence and (opened is None or fence["language"]):  # one that was left open ends where the next begins
            opened, lines = fence, []
        else:
            lines.append(line)
    return found
