"""Who asked the final split what: counted once, refused beyond the budget, and never forgotten."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from rlvr.ledger import layout
from rlvr.ledger.final import Query, asked, final_split
from rlvr.task.sums import Sums


def query(policies: Sequence[str], texts: Sequence[str] = ("1 + 1", "2 + 2"), budget: int = 1) -> Query:
    return Query(texts, policies, budget, "evaluate --final eta")


def ask(home: Path, asked: Query) -> str:
    number = asked.number(home)
    asked.record(home, number)
    return number


def test_a_query_is_counted_once_and_those_beyond_the_budget_are_refused(tmp_path: Path) -> None:
    assert query(["a"]).number(tmp_path) == "1-of-1"
    assert not layout.final_queries(tmp_path).exists()
    assert ask(tmp_path, query(["a", "b"])) == "1-of-1"
    assert ask(tmp_path, query(["b", "a"])) == ask(tmp_path, query(["a"], budget=3)) == "1-of-1"  # nothing new
    with pytest.raises(ValueError, match=r"asked 1 of 1 times, the last time by .* on .* UTC: evaluate --final eta\."):
        ask(tmp_path, query(["a", "c"]))
    assert ask(tmp_path, query(["a", "c"], budget=2)) == "2-of-2"
    assert ask(tmp_path, query(["c"], ["3 + 3"])) == "1-of-1"
    assert len(layout.final_queries(tmp_path).read_text().splitlines()) == 3


def test_problems_that_were_asked_count_in_whatever_part_of_a_file_they_come_back(tmp_path: Path) -> None:
    ask(tmp_path, query(["a"], ["x", "y", "z"]))
    assert query(["a"], ["z", "y"]).number(tmp_path) == "1-of-1"  # a part, of the same policy: nothing new
    for policy, texts in (("b", ["z", "y", "x"]), ("b", ["x"]), ("b", ["x", "new"]), ("a", ["x", "y", "z", "new"])):
        with pytest.raises(ValueError, match="was asked 1 of 1 times"):
            query([policy], texts).number(tmp_path)
    assert query(["b"], ["new"]).number(tmp_path) == "1-of-1"


def test_of_two_commands_at_once_one_is_granted_and_one_that_is_undone_leaves_no_trace(tmp_path: Path) -> None:
    first, second = query(["a"]), query(["b"])
    number, undo = second.number(tmp_path), first.record(tmp_path, first.number(tmp_path))
    with pytest.raises(ValueError, match="was asked 1 of 1 times"):
        second.record(tmp_path, number)
    with pytest.raises(ValueError, match="another command has asked the final split meanwhile"):
        query(["b"], budget=2).record(tmp_path, "1-of-2")
    query(["a"]).record(tmp_path, "1-of-1")()  # nothing new: nothing to undo
    assert query(["a"]).number(tmp_path) == "1-of-1"
    undo()
    assert second.number(tmp_path) == "1-of-1"


def test_a_line_that_lacks_something_is_refused_and_one_of_an_earlier_version_too(tmp_path: Path) -> None:
    ask(tmp_path, query(["a"]))
    path = layout.final_queries(tmp_path)
    whole = json.loads(path.read_text())
    lines = [{**whole, "policies": None}, {**whole, "problems": [[1]]}, {**whole, "time": "now"}]
    lines += [{k: v for k, v in whole.items() if k != key} for key in whole]
    for text in ("{", "[]", *map(json.dumps, lines)):
        path.write_text(text + "\n")
        with pytest.raises(ValueError, match=r"final.jsonl: .*line .*: (put it back|it is of an earlier)"):
            query(["a"]).number(tmp_path)
        assert asked(tmp_path, ["x"]) == []  # ordinary evaluations go on


def test_sums_have_no_final_problems() -> None:
    sums = Sums(level=1, test_levels=None, template="{problem}", max_tokens=8, test_problems=4, seed=0)
    assert (final_split(sums), sums.size("final")) == ("test", 0)
