"""docs/compatibility.md says what happens here today."""

from pathlib import Path

import pytest

from tests.compatibility import rendered, tables, written

NAMES = [
    pytest.param(name, marks=pytest.mark.slow) if name in ("architectures", "notations") else name for name in tables()
]


@pytest.mark.parametrize("name", NAMES)
def test_the_page_shows_what_happens(name: str, tmp_path: Path) -> None:
    """`python -m tests.compatibility --write` writes it."""
    table = tables()[name](tmp_path)
    assert table.splitlines() == written(name).splitlines()
    assert "WRONG" not in table


def test_a_bar_in_a_cell_does_not_end_it() -> None:
    assert rendered(["a"], [["b|c"]]) == "| a |\n| --- |\n| b\\|c |"
