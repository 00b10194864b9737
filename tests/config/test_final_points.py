"""Which problems a final split has, and that none of them was read."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf

from rlvr.config import final_points
from rlvr.config.compose import Composed
from rlvr.config.final_points import FinalQuery, final_problems, ordinary_points, refuse_read
from rlvr.config.schema import CONF
from rlvr.ledger import layout
from rlvr.ledger.runs import to_yaml, write_run
from rlvr.task.styles import Styles
from tests.support.tasks import write_jsonl

FIELDS = dict.fromkeys(("question_field", "choices_field", "answer_field"))
CHOICE = {"_target_": "rlvr.task.choice.Choice", "template": "{problem}\n{choices}", "shuffle": False, **FIELDS}
CHOICE |= {"max_tokens": 8, "train": None}
STYLES = {"_target_": "rlvr.task.styles.Styles", "shortest": 3, "longest": 3, "seed": 0, "test_problems": 16}


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLVR_HOME", str(tmp_path))


def data(path: Path, questions: Sequence[str]) -> str:
    rows = [{"id": f"{path.stem} {i}", "question": questions[i], "choices": ["a", "b"]} for i in range(len(questions))]
    return write_jsonl(path, [{**row, "answer": 0} for row in rows])


def recorded(home: Path, name: str, task: Mapping[str, Any], *, attempts: int = 1, **config: Any) -> None:
    run_dir = layout.run(home, name)
    run_dir.mkdir(parents=True)
    for number in range(1, attempts + 1):
        layout.attempt(run_dir, number).mkdir(parents=True)
    write_run(run_dir, to_yaml({"task": task, **config}), {"name": name})


def unread(task: Mapping[str, Any], typed: Sequence[str] = (), trained: Mapping[str, Any] | None = None) -> int:
    """Number of problems of the final split, if none of them was read."""
    problems = final_problems(task, typed, trained)
    refuse_read(problems, [task], [trained] if trained else [])
    return len(problems)


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
        return unread({**CHOICE, "test": file}, ["task.test"], trained)

    assert ask("new 1", "new 2", "new 7") == 3
    assert "--final: not compared with what gone read: " in capsys.readouterr().err
    with pytest.raises(ValueError, match=r"1 of 3 problems, such as asked 1, are among those that its own run was"):
        ask("new 1", "train  2", "new 2")
    with pytest.raises(ValueError, match=r"2 of 2 problems, such as asked 0, are among those that ordinary was"):
        ask("read 3", "read 1")
    recorded(tmp_path, "short", {**CHOICE, "test": data(tmp_path / "short.jsonl", ["s 1"]), "max_prompt_tokens": 100})
    with pytest.raises(ValueError, match=r"1 of 1 problems, such as asked 0, are among those that short was"):
        ask("s 1")  # whatever the prompt's length, for which this machine lacks the tokenizer


def test_generated_problems_that_another_run_has_read_are_refused(tmp_path: Path) -> None:
    ask = partial(unread, STYLES, [], {"task": STYLES})
    recorded(tmp_path, "larger", {**STYLES, "test_problems": 60})  # of about 125 strings that are held out
    recorded(tmp_path, "planned", {**STYLES, "seed": 1, "test_problems": 60}, attempts=0)
    assert ask() == 16
    recorded(tmp_path, "other", {**STYLES, "seed": 1, "test_problems": 60})
    with pytest.raises(ValueError, match=r"of 16 problems, such as styles-final-\d+, are among those that other was"):
        ask()


def test_knobs_that_pose_other_problems_may_pose_some_of_the_same(tmp_path: Path) -> None:
    longer = {**STYLES, "longest": 4, "test_problems": 60}
    final, tested = (Styles(**{k: v for k, v in knobs.items() if k != "_target_"}) for knobs in (STYLES, longer))
    texts = {tested.problem(split, i).prompt for split in ("test", "validation") for i in range(60)}
    num_shared = sum(final.problem("final", i).prompt in texts for i in range(16))
    assert num_shared > 0
    recorded(tmp_path, "longer", longer)
    with pytest.raises(ValueError, match=rf"{num_shared} of 16 problems, .* that longer was"):
        unread(STYLES, [], {"task": STYLES})
    coins = {k: v for k, v in yaml.safe_load((CONF / "task/coins.yaml").read_text()).items() if k != "defaults"}
    recorded(tmp_path, "one more sum", {**coins, "largest": coins["largest"] + 1})
    with pytest.raises(ValueError, match=r"37 of 44 problems, .* that one more sum was"):
        unread(coins, [], {"task": coins})


def test_what_is_not_compared_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded(tmp_path, "refused", {**STYLES, "longest": 40})
    recorded(tmp_path, "slow", {**STYLES, "seed": 1, "test_problems": 60})
    with pytest.raises(ValueError, match="are among those that slow was"):
        unread(STYLES)
    assert "--final: not compared with what refused read: task.shortest=3, task.longest=40" in capsys.readouterr().err
    monkeypatch.setattr(final_points, "COMPARING_S", -1.0)
    assert unread(STYLES) == 16
    assert "not compared with what slow read: building the tasks of runs before it took" in capsys.readouterr().err


def test_a_query_can_be_repeated_and_its_problems_are_asked_with_final_alone(tmp_path: Path) -> None:
    asked, other = ({**CHOICE, "test": data(tmp_path / f"{q}.jsonl", [f"{q} 1", f"{q} 2"])} for q in "pq")

    def point(task: Mapping[str, Any], policy: str, *words: str) -> list[Composed]:
        return [([*words], OmegaConf.create({"task": task, "policy": {"digest": policy}}), {})]

    def query(policy: str, budget: int) -> str:
        asking = FinalQuery({policy: None}, budget, "evaluate --final")
        ((_, config, _),) = asking.points(list, point(asked, policy, "task.test=FILE"))
        asking.record()
        return config.policy.query

    missing = {"_target_": "no.such.Task"}
    assert (
        len(ordinary_points(list, point(missing, "a", "task=missing"))) == 1
    )  # where no query was asked, nothing is built
    assert query("a", 1) == "1-of-1"
    with pytest.raises(ValueError, match=r"2 of 2 problems, such as p 0, are of a final split, .* Add --final"):
        ordinary_points(list, [*point(other, "b", "task.test=FILE"), *point(asked, "b", "task.test=FILE")])
    assert len(ordinary_points(list, point(other, "b", "task.test=FILE"))) == 1
    assert len(ordinary_points(list, point(asked, "b"))) == 1  # training has evaluated on them
    recorded(tmp_path, "a look", asked)
    assert query("a", 1) == "1-of-1"
    with pytest.raises(ValueError, match=r"2 of 2 problems, .* that a look was trained or evaluated on"):
        query("b", 2)


def test_a_task_without_final_problems_says_what_to_do(tmp_path: Path) -> None:
    digits = {"_target_": "rlvr.task.sums.Sums", "level": 1, "test_levels": None, "template": "{problem}"}
    with pytest.raises(ValueError, match=r"task=sums has no problems .* Name some .* by task.test=FILE, where"):
        final_problems({**digits, "max_tokens": 8, "test_problems": 4, "seed": 0}, [], None)
    with pytest.raises(ValueError, match=r"task.seed would ask other problems than those that training left out"):
        final_problems(STYLES, ["task.seed"], {"task": STYLES})
