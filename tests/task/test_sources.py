import logging
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rlvr.ledger.journal import check_name
from rlvr.records import name_part
from rlvr.task.math import Math
from tests.support.tasks import DATA, make_task, write_jsonl

ROWS = [{"problem": f"What is {i} + 1?", "answer": i + 1} for i in range(600)]
TEST = [{"problem": f"What is {i} + 1?", "answer": i + 1} for i in range(550, 700)]


def make_math(folder: Path, rows: list[Any] = ROWS, **knobs: Any) -> Math:
    train, test = write_jsonl(folder / "train.jsonl", rows), write_jsonl(folder / "test.jsonl", TEST)
    return make_task("math", train=train, test=test, **knobs)


def prompts(task: Math, split: Any) -> list[str]:
    return [task.problem(split, i).prompt.partition("\n")[0] for i in range(task.size(split) or 0)]


def test_the_splits_have_nothing_in_common_and_lose_nothing(tmp_path: Path) -> None:
    task = make_math(tmp_path, validation=0.2)
    train, validation, test = (prompts(task, split) for split in ("train", "validation", "test"))
    assert sorted(train + validation) == sorted(row["problem"] for row in ROWS)
    assert not set(validation) & (set(train) | set(test))  # 50 training problems are test problems as well
    assert abs(len(validation) - 0.2 * 550) < 4 * 9.4  # binomial(550, 0.2)


def test_training_problems_that_are_test_problems_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "rlvr"):
        make_math(tmp_path, ROWS[:550])
        assert not caplog.text
        make_math(tmp_path)
    assert "50 of 600 training problems are in task.test, too" in caplog.text


def test_two_files_are_not_one_benchmark_by_accident(tmp_path: Path) -> None:
    train = write_jsonl(tmp_path / "train.jsonl", ROWS)
    first, second = (write_jsonl(tmp_path / name / "hard.jsonl", TEST[:3]) for name in ("a", "b"))
    with pytest.raises(ValueError, match=f"{first} and {second} would both be the benchmark hard. Name them"):
        make_task("math", train=train, test=[first, second])
    named = make_task("math", train=train, test={"old": first, "new": second})
    assert {named.problem("test", i).source for i in range(6)} == {"old", "new"}
    write_jsonl(tmp_path / "b" / "hard.jsonl", [{**row, "source": "mine"} for row in TEST[:3]])
    by_rows = make_task("math", train=train, test=[first, second])
    assert {by_rows.problem("test", i).source for i in range(6)} == {"hard", "mine"}
    assert make_task("math", train=[first, second], test=train).size("train") == 6


def test_a_problem_is_on_one_side_in_every_file_order_and_template(tmp_path: Path) -> None:
    held = set(prompts(make_math(tmp_path, validation=0.2), "validation"))
    spaced = [{**row, "problem": row["problem"].replace(" ", "  \n")} for row in ROWS[::-1][:300]]
    other = make_math(tmp_path, spaced + spaced[:7], validation=0.2, template="Think.\n{problem}")
    texts = [" ".join(other.problem("validation", i).prompt.split()[1:]) for i in range(other.size("validation") or 0)]
    assert set(texts) == held & {row["problem"] for row in ROWS[300:]}
    assert set(prompts(make_math(tmp_path, validation=0.1), "validation")) < held


@pytest.mark.parametrize("keys", [("role", "content"), ("content", "role")])
def test_a_text_and_its_chat_are_one_problem(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, keys: tuple[str, str]
) -> None:
    """The test data are texts: all 50 training problems that are among them are found, and none is held out."""
    turns = [({"role": "user", "content": row["problem"]}, row["answer"]) for row in ROWS]
    chats = [{"prompt": [{key: turn[key] for key in keys}], "answer": answer} for turn, answer in turns]
    knobs: dict[str, Any] = {"validation": 0.2, "train_problems": 256}
    texts = make_math(tmp_path, **knobs)
    caplog.clear()
    with caplog.at_level(logging.WARNING, "rlvr"):
        task = make_math(tmp_path, chats, **knobs)
    assert "50 of " in caplog.text
    assert not set(prompts(task, "validation")) & {row["problem"] for row in TEST}
    assert [prompts(task, s) for s in ("train", "validation")] == [prompts(texts, s) for s in ("train", "validation")]


def test_a_small_training_set_is_part_of_a_larger_one(tmp_path: Path) -> None:
    shuffled = random.Random(0).sample(ROWS, 600)
    small = prompts(make_math(tmp_path, train_problems=64), "train")
    large = prompts(make_math(tmp_path, shuffled, train_problems=256), "train")
    assert (len(small), len(large)) == (64, 256)
    assert set(small) < set(large)
    assert small == sorted(small, key=lambda text: int(text.split()[2]))  # in the order of the file
    held = prompts(make_math(tmp_path, train_problems=400, validation=0.2), "validation")
    assert not set(held) & set(prompts(make_math(tmp_path, train_problems=400, validation=0.2), "train"))


def test_a_fixed_training_set_holds_different_problems(tmp_path: Path) -> None:
    task = make_math(tmp_path, ROWS[:100] * 3, train_problems=100)
    assert max(Counter(prompts(task, "train")).values()) == 1
    assert make_math(tmp_path, ROWS[:100] * 3).size("train") == 300
    with pytest.raises(ValueError, match=r"task.train_problems=601, and 600 different training problems are left"):
        make_math(tmp_path, train_problems=601)
    with pytest.raises(ValueError, match=r"task.validation=1e-09 of 600 training problems is 0, and both parts need"):
        make_math(tmp_path, validation=1e-9)


@pytest.mark.skipif(not DATA.is_dir(), reason=f"no real data at {DATA}")
def test_repeated_problems_of_real_data_stay_together() -> None:
    train, test = (str(DATA / name) for name in ("dapo_math_17k/train.jsonl.gz", "math500/test.jsonl.gz"))
    task = make_task("math", train=train, test=test, validation=0.05, template="{problem}")
    sides = {
        split: {" ".join(task.problem(split, i).prompt.split()) for i in range(task.size(split))}
        for split in ("train", "validation", "test")
    }
    assert not sides["validation"] & (sides["train"] | sides["test"])
    assert (task.size("train") or 0) + (task.size("validation") or 0) == 17917
    # 16,921 texts (the data set's own account), 5 % of them with deviation 28
    assert abs(len(sides["validation"]) - 846) < 4 * 28


def test_benchmarks_of_other_names_stay_others(tmp_path: Path) -> None:
    train = write_jsonl(tmp_path / "train.jsonl", ROWS)
    rows = [{**row, "source": name} for row, name in zip(TEST[:4], ("C++", "C#", "français", "n" * 280), strict=True)]
    task = make_task("math", train=train, test=write_jsonl(tmp_path / "test.jsonl", rows))
    sources = [task.problem("test", index).source for index in range(4)]
    assert len({*sources}) == 4
    assert sources[0].startswith("C-")
    for source in sources:
        check_name(f"evaluation/{source}/avg_at_8")


def test_no_two_names_become_one_part_of_a_metric() -> None:
    names = ["C++", "C#", "C-", "C", "français", "fran-ais", "a b", "a-b", "n" * 280, "n" * 281, "..", ".", "", "./a"]
    names += ["Average", "average", "Averages"]  # of which tables print means of all benchmarks
    parts = [name_part(name) for name in names]
    assert len({*parts}) == len(names)
    for part in parts:
        check_name(f"validation/{part}/distinct_correct_at_1024")
        assert "/" not in part
        assert not part.startswith("Average")
    usual = ["aime24", "AMC_23", "MATH-500", "v1.5"]
    assert [name_part(name) for name in usual] == usual


def test_rows_that_repeat_a_question_are_counted_and_named(tmp_path: Path) -> None:
    """The third row is the first one again, the fourth has another answer; in the test data another benchmark counts
    apart."""
    rows = [{"problem": "1?", "answer": 1}, {"problem": "2?", "answer": 2}, {"problem": "1?", "answer": 1}]
    test = [{"problem": "9?", "answer": 9, "source": name} for name in ("a", "b", "a")]
    train = write_jsonl(tmp_path / "train.jsonl", [*rows, {"problem": "1?", "answer": "3"}])
    task = make_task("math", train=train, test=write_jsonl(tmp_path / "test.jsonl", test))
    assert task.rows.repeated == [
        "task.train: 2 of 4 rows ask what a row before them asks, 1 with another right answer, such as "
        f"{train}:1 (1) and {train}:4 ('3').",
        "task.test: 1 of 3 rows ask what a row before them asks and count again in its averages, none with another "
        f"right answer, such as {tmp_path}/test.jsonl:1 (9) and {tmp_path}/test.jsonl:3 (9).",
    ]
    task = make_task("math", train=write_jsonl(tmp_path / "t.jsonl", rows[:2]), test=train)
    assert task.rows.repeated[0].startswith("task.test: 2 of 4")


def test_the_same_question_with_other_choices_is_no_repetition(tmp_path: Path) -> None:
    rows = [{"question": "Which?", "choices": choices, "answer": "A"} for choices in (["a", "b"], ["c", "d"])]
    data = write_jsonl(tmp_path / "data.jsonl", rows)
    assert make_task("choice", train=data, test=data).rows.repeated == []
