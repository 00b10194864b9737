import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlvr.records import TaughtTask
from tests.support.sandboxed import need_sandbox
from tests.support.tasks import CONF, make_task, write_jsonl

MADE = {
    "coins": {"test_problems": 40},
    "digits": {"images": 2, "validation": 0.2},
    "maze": {"test_problems": 40},
    "maze_walk": {"test_problems": 40},
    "skills": {"test_problems": 10},
    "styles": {"shortest": 3, "longest": 3, "test_problems": 30},  # of 1000 strings: many would meet
    "sums": {"level": 2, "test_problems": 40},
}
ROWS: dict[str, Callable[[int], dict[str, Any]]] = {
    "choice": lambda i: {"question": f"Number {i}?", "choices": ["a", "b"], "answer": i % 2},
    "code": lambda i: {"prompt": f"Add {i}.", "test_list": [f"assert add(1) == {1 + i}"]},
    "math": lambda i: {"problem": f"What is {i} + 1?", "answer": i + 1},
    "spelled": lambda i: {"question": f"{i} + 1", "answer": i + 1},
    "sql": lambda i: {"question": f"Number {i}?", "db_id": "one", "gold_sql": f"SELECT {i}"},
}
ONE_POLICY = {"bandit", "classes"}  # they learn a policy over a few contexts: nothing is held out


def test_no_task_is_missing_here() -> None:
    assert {p.stem for p in CONF.glob("*.yaml")} == {*MADE, *ROWS, *ONE_POLICY, "reasoning_gym", "verifiers"}


def disjoint(task: Any, *, shown: int = 600) -> dict[str, int]:
    """Sizes of the splits, none of which meets another; of an endless one so many problems are looked at."""
    sizes = {split: task.size(split) for split in ("train", "validation", "test")}
    problems = {
        split: [task.problem(split, i) for i in range(shown if size is None else size)] for split, size in sizes.items()
    }
    prompts = {split: {p.prompt for p in part} for split, part in problems.items()}
    assert not prompts["validation"] & prompts["test"]
    assert not prompts["validation"] & prompts["train"]
    assert not prompts["train"] & prompts["test"]
    if isinstance(task, TaughtTask):
        shown_too = {task.demonstration(i)[0] for i in range(shown)}
        assert not shown_too & (prompts["validation"] | prompts["test"])
    ids = [p.id for part in problems.values() for p in part]
    assert len(set(ids)) == len(ids)
    return sizes


@pytest.mark.parametrize("name", MADE)
def test_problems_that_are_made(name: str) -> None:
    task = make_task(name, **MADE[name])
    sizes = disjoint(task)
    assert sizes["validation"] == sizes["test"] > 0
    assert sizes["train"] is None
    assert make_task(name, **MADE[name]).problem("validation", 3) == task.problem("validation", 3)
    with pytest.raises(IndexError):
        task.problem("validation", sizes["validation"])
    fixed = make_task(name, **MADE[name], train_problems=64)
    assert disjoint(fixed)["train"] == 64


@pytest.mark.parametrize("name", ROWS)
def test_problems_that_are_read(name: str, tmp_path: Path) -> None:
    need_sandbox()
    paths = {}
    for split, numbers in (("train", range(300)), ("test", range(1000, 1050))):
        rows = [{"id": f"{split}-{i}", **ROWS[name](i)} for i in numbers]
        paths[split] = write_jsonl(tmp_path / f"{split}.jsonl", rows)
    sqlite3.connect(tmp_path / "one.sqlite").close()
    knobs = {**paths, **({"databases": str(tmp_path)} if name == "sql" else {})}
    assert disjoint(make_task(name, **knobs)) == {"train": 300, "validation": 0, "test": 50}
    sizes = disjoint(make_task(name, **knobs, validation=0.2))
    assert sizes["train"] + sizes["validation"] == 300
    assert abs(sizes["validation"] - 60) < 4 * 6.9  # binomial(300, 0.2)
    assert disjoint(make_task(name, **knobs, validation=0.2, train_problems=64))["train"] == 64


def test_tasks_of_one_policy_train_on_what_they_test_and_contexts_choose_no_run() -> None:
    for name in ONE_POLICY:
        task = make_task(name)
        assert (task.size("train"), task.problem("train", 0)) == (task.size("test"), task.problem("test", 0))
    assert make_task("classes").size("validation") == 0
