"""docs/troubleshooting.md quotes what the sources say, and its links and commands exist."""

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8")
FIRST_CELLS = [line.split(" | ")[0].removeprefix("| ") for line in PAGE.splitlines() if line.startswith("| ")]
QUOTED = [quote for cell in FIRST_CELLS for quote in re.findall(r"`([^`]+)`", cell)]


@functools.cache
def said() -> tuple[str, ...]:
    """Every text of the sources, with a NUL where a value is filled in."""
    files = [path for room in ("rlvr", "sweeps", "slurm", "analysis") for path in (ROOT / room).rglob("*.py")]
    return tuple(text for path in files for text in texts(ast.parse(path.read_text(encoding="utf-8"))))


def texts(tree: ast.AST) -> Iterator[str]:
    described = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings
    for node in ast.walk(tree):
        if id(node) in described:
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else "\0" for part in node.values]
            yield "".join(map(str, parts))


@pytest.mark.slow
@pytest.mark.parametrize("quote", QUOTED)
def test_every_message_is_one_of_the_sources(quote: str) -> None:
    parts = [re.escape(part.strip()) for part in quote.split("…") if part.strip()]
    pattern = re.compile(".{0,200}".join(parts), re.DOTALL)
    assert any(pattern.search(text) for text in said()), quote


def test_there_are_messages_of_every_chapter() -> None:
    assert len(QUOTED) > 40
    assert len(re.findall(r"^## ", PAGE, re.M)) == PAGE.count("\n| message |")
