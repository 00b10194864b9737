"""docs/compatibility.md: its tables are what was tried here. `python -m tests.compatibility --write [TABLE ...]`.

A table is a head and a function that tries each of its rows; tests/test_compatibility.py compares it with the page.
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "compatibility.md"

Rows = Iterable[Sequence[str]]


def rendered(head: Sequence[str], rows: Rows) -> str:
    """A table of Markdown. Bars in cells are escaped; other characters are shown as they are."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def written(name: str) -> str:
    """The table of the page that has this name."""
    return _parts(name)[1]


def write(name: str, table: str) -> None:
    before, _, after = _parts(name)
    DOCUMENT.write_text(f"{before}\n{table}\n{after}", encoding="utf-8")


def _parts(name: str) -> tuple[str, str, str]:
    """What stands before a table of the page, the table, and what stands behind it, with the marks of its ends."""
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    before, _, rest = DOCUMENT.read_text(encoding="utf-8").partition(begin)
    table, found, after = rest.partition(end)
    assert found, f"{DOCUMENT} has no table {name}"
    return before + begin, table.strip(), end + after


def code(text: str) -> str:
    """Text in the type of a computer, on one line."""
    shown = text.replace("\n", "↵")
    return f"`` {shown} ``" if "`" in shown else f"`{shown}`"


def tables() -> dict[str, Callable[[Path], str]]:
    """By name, the function that makes a table. It is given an empty folder."""
    from tests.compatibility import architectures, contradictions, data, notations, others, texts

    return {
        "architectures": lambda folder: rendered(architectures.HEAD, architectures.rows(folder)),
        "tokenizers": lambda folder: rendered(texts.HEAD_OF_TOKENIZERS, texts.tokenizers(folder)),
        "templates": lambda folder: rendered(texts.HEAD_OF_TEMPLATES, texts.templates(folder)),
        "data": lambda folder: rendered(data.HEAD, data.rows(folder)),
        "contradictions": lambda folder: rendered(contradictions.HEAD, contradictions.rows(folder)),
        "notations": lambda folder: rendered(notations.HEAD, notations.rows()),
        "others": lambda folder: rendered(others.HEAD, others.rows()),
    }
