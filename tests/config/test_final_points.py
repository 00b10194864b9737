"""Which problems a final split has, and that none of them was read."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rlvr.config.final_points import final_problems
from rlvr.ledger import layout
from rlvr.ledger.runs import to_yaml, write_run
from tests.support.tasks import write_jsonl

FIELDS = dict.fromkeys(("question_field", "choices_field", "answer_field"))
CHOICE = {"_target_": "rlvr.task.choice.Choice", "template": "{problem}\n{choices}", "shuffle": False, **FIELDS}
CHOICE |= {"max_tokens": 8, "train": None}


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLVR_HOME", str(tmp_path))


def data(path: Path, questions: Sequence[str]) -> str:
    rows = [{"id": f"{path.stem} {i}", "question": questions[i], "choices": ["a", "b"]} for i in range(len(questions))]
    return write_jsonl(path, [{**row, "answer": 0} for row in rows])


def recorded(home: Path, name: str, task: Mapping[str, Any], **config: Any) -> None:
    run_dir = layout.run(home, name)
    run_dir.mkdir(parents=True)
    write_run(run_dir, to_yaml({"task": task, **config}), {"name": name})


def test_the_same_questions_are_the_same_problems_whatever_their_file_order_ids_and_template(tmp_path: Path) -> None:
    first, copy = data(tmp_path / "first.jsonl", ["p", "q  r"]), data(tmp_path / "copy.jsonl", ["q r", "p"])
    other = {"template": "Question: {problem}\n\nChoices:\n{choices}\nAnswer:", "shuffle": True}
    asked = final_problems({**CHOICE, "test": first}, ["task.test"], None)
    assert len(asked) == 2
    assert asked.keys() == final_problems({**CHOICE, "test": copy, **other}, ["task.test"], None).keys()


def test_data_that_training_or_an_ordinary_evaluation_has_read_is_no_final_split(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ("train", "test", "new", "read")
    files = {name: data(tmp_path / f"{name}.jsonl", [f"{name} {i}" for i in range(4)]) for name in names}
    trained = {"task": {**CHOICE, "template": "{problem}:\n{choices}", "train": files["train"], "test": files["test"]}}
    recorded(tmp_path, "query", {**CHOICE, "test": files["new"]}, policy={"query": "1-of-1"})  # counted, and no look
    recorded(tmp_path, "gone", {**CHOICE, "test": str(tmp_path / "gone.jsonl")})
    recorded(tmp_path, "ordinary", {**CHOICE, "test": files["read"]}, policy={"query": None})

    def ask(*questions: str) -> int:
        file = data(tmp_path / "asked.jsonl", questions)
        return len(final_problems({**CHOICE, "test": file}, ["task.test"], trained))

    assert ask("new 1", "new 2", "new 7") == 3
    assert "--final: not compared with what gone read: " in capsys.readouterr().err
    with pytest.raises(ValueError, match=r"1 of 3 problems, such as asked 1, are among those that its own run was"):
        ask("new 1", "train  2", "new 2")
    with pytest.raises(ValueError, match=r"2 of 2 problems, such as asked 0, are among those that ordinary was"):
        ask("read 3", "read 1")


def test_generated_problems_that_another_run_has_read_are_refused(tmp_path: Path) -> None:
    task = {"_target_": "rlvr.task.styles.Styles", "shortest": 3, "longest": 3, "seed": 0, "test_problems": 16}
    ask = partial(final_problems, task, [], {"task": task})
    assert len(ask()) == 16
    recorded(tmp_path, "larger", {**task, "test_problems": 60})  # of about 125 strings that are held out
    recorded(tmp_path, "longer", {**task, "longest": 4, "seed": 1})  # other problems, nearly all
    assert len(ask()) == 16
    recorded(tmp_path, "other", {**task, "seed": 1, "test_problems": 60})
    with pytest.raises(ValueError, match=r"of 16 problems, such as styles-final-\d+, are among those that other was"):
        ask()


def test_a_task_without_final_problems_says_what_to_do(tmp_path: Path) -> None:
    digits = {"_target_": "rlvr.task.sums.Sums", "level": 1, "test_levels": None, "template": "{problem}"}
    with pytest.raises(ValueError, match=r"task=sums has no problems .* Name some .* by task.test=FILE, where"):
        final_problems({**digits, "max_tokens": 8, "test_problems": 4, "seed": 0}, [], None)
    sized = {"_target_": "rlvr.task.styles.Styles", "shortest": 3, "longest": 3, "seed": 0, "test_problems": 16}
    with pytest.raises(ValueError, match=r"task.seed would ask other problems than those that training left out"):
        final_problems(sized, ["task.seed"], {"task": sized})
