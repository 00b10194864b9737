"""Marked parts of a response: the fenced code blocks of Markdown, \\boxed{...}, and the <answer> tag."""

import re
from collections.abc import Sequence
from typing import Literal

Marking = Literal["box", "tag", "answer", "hashes", "last_number", "whole"]
# How a prompt asks for each, and how an answer is given.
ASKED: dict[Marking, tuple[str, str]] = {
    "box": ("within \\boxed{}", "\\boxed{%s}"),
    "tag": ("between <answer> and </answer>", "<answer>%s</answer>"),
    "answer": ('on a line of its own after "Answer:"', "Answer: %s"),
    "hashes": ('after "####"', "#### %s"),  # as GSM8K
    "last_number": ("as the last number of your response", "%s"),
    "whole": ("as your whole response", "%s"),
}
# A minus sign belongs to a number unless a number or a bracket stands before it: 12-5 and 12 -5 end in 5. No numbers:
# 5%, 5th, and the parts of 1/30.
NUMBER = re.compile(
    r"(?<!/)(?<!/[ −-])(?:(?<![\w)])(?<![\d)] )[-−])?(?<![\w.])(?>(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|\.\d+)"
    r"(?![\w%]|\.\d| ?/ ?\d)",
    re.ASCII,
)
UNBRACED = re.compile(r"\\boxed[ ]+(-?\d[\d.,]*(?<![.,])|[a-zA-Z](?![a-zA-Z]))")
TAGGED, END = re.compile(r"<answer>(.*?)</answer>", re.DOTALL), "</answer>"
ANSWER = re.compile(r"\banswer[ \t*]*:(?:[\s*]|(?:\\\[|\$\$)[ \t]*\n)*([^\n]+)", re.IGNORECASE)  # **Answer:** 12
HASHES = re.compile(r"####([^\n]*)")
FENCE = re.compile(r"(?P<indent>[ \t]*)(?P<ticks>```+|~~~+)[ \t]*(?P<language>[\w+-]*)")


def marked(response: str, marking: Marking) -> str | None:
    """The answer of a response that is marked in this way; None if there is none."""
    if marking == "whole":
        return response.strip() or None
    if marking == "last_number":
        numbers = NUMBER.findall(response)
        return numbers[-1] if numbers else None
    if marking == "tag":
        return last_tagged(response)
    if marking == "answer":
        answers = ANSWER.findall(response)
        return (marked(answers[-1], "box") or answers[-1].strip(" \t\r*")) if answers else None
    if marking == "hashes":
        return next(filter(None, (text.strip(" \t\r*") for text in reversed(HASHES.findall(response)))), None)
    boxed = last_boxed(response)
    return None if boxed is None else boxed[len("\\boxed{") : -1]


def asking(template: str, marking: Marking | None) -> str:
    """The template with the words for this marking in place of those for another. None: unchanged."""
    if marking is None:
        return template
    for asked, _ in ASKED.values():
        template = template.replace(asked, ASKED[marking][0])
    return template


# How texts of other data and templates ask for an answer.
REQUESTS: dict[Marking, str] = {
    "box": r"\\f?box\w*\b",
    "tag": r"<answer>",
    "answer": r"(?i)\b(?:form|format|after|behind|with|as|like|write)\W{1,12}answer[ *]*:",
    "hashes": r"(?i)\b(?:after|as|behind|form|format|like|use|with|write)\W{1,12}####",
    "last_number": re.escape(ASKED["last_number"][0]),
    "whole": re.escape(ASKED["whole"][0]),
}


def requests(text: str) -> set[Marking]:
    """The markings that a prompt, or a part of it, asks for."""
    return {mark for mark in ASKED if re.search(REQUESTS[mark], text)}


# One pass over the text, however many braces a degenerate response opens. \{ and \} are text, \\ is a line break.
BRACES = re.compile(r"\\(?:boxed|fbox)\s*\{|\\\\(?!(?:boxed|fbox)\s*\{)|\\[{}]|[{}]")


def last_boxed(text: str) -> str | None:
    r"""Of the complete boxes (balanced braces) of a response that hold a text the one that starts last, else an empty
    one; None if there is none.

    \fbox{...}, \boxed {...} and \boxed 5 are returned as \boxed{...}.
    """
    text = UNBRACED.sub(r"\\boxed{\1}", text)
    open_at: list[int | None] = []  # a stack: where the content of a box starts, None for another brace
    last: tuple[bool, int, int] | None = None  # whether a box has content, and its start and end
    for brace in BRACES.finditer(text):
        if brace[0].endswith("{") and "box" in brace[0]:
            open_at.append(brace.end())
        elif brace[0] == "{":
            open_at.append(None)
        elif brace[0] == "}" and open_at:
            start = open_at.pop()
            filled = start is not None and bool(text[start : brace.start()].strip())
            if start is not None and (last is None or (filled, start) > last[:2]):
                last = (filled, start, brace.start())
    return f"\\boxed{{{text[last[1] : last[2]]}}}" if last else None


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
        if opened and fence and len(fence["indent"].expandtabs(4)) > len(opened["indent"].expandtabs(4)) + 3:
            fence = None  # part of the block, as in Markdown: an example in a docstring
        if opened and fence and _closes(line.strip(), opened["ticks"]):
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
