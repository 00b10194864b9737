"""Who asked the final split what: counted once, refused beyond the budget, and never forgotten."""

from functools import partial
from pathlib import Path

import pytest

from rlvr.ledger import layout
from rlvr.ledger.final import query, split_id
from rlvr.records import Problem


def test_a_query_is_counted_once_and_those_beyond_the_budget_are_refused(tmp_path: Path) -> None:
    ask = partial(query, tmp_path, "s", command="evaluate --final eta", write=True)
    assert query(tmp_path, "s", ["a"], 1, "dry", write=False) == "1-of-1"
    assert not layout.final_queries(tmp_path).exists()
    assert ask(["a", "b"], 1) == "1-of-1"
    assert (ask(["b", "a"], 1), ask(["a"], 3)) == ("1-of-1", "1-of-1")  # nothing new
    with pytest.raises(ValueError, match=r"asked 1 of 1 times, the last time by .* on .* UTC: evaluate --final eta\."):
        ask(["a", "c"], 1)
    assert ask(["a", "c"], 2) == "2-of-2"
    assert query(tmp_path, "other", ["c"], 1, "", write=True) == "1-of-1"
    layout.final_queries(tmp_path).write_text("{")
    with pytest.raises(ValueError, match="Put it back"):
        ask(["a"], 1)


def test_a_split_is_its_problems_in_any_order_and_template() -> None:
    one, two = Problem("x-0", "What is 1 + 1?", 2), Problem("x-1", "What is 2 + 2?", 4)
    assert split_id([one, two]) == split_id([two, Problem("x-0", "1 + 1 = ?", 2)])
    assert split_id([one]) != split_id([Problem("x-0", "What is 1 + 1?", 3)])
