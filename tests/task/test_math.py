import contextlib
import gzip
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hydra.utils import instantiate
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf
from pyarrow import parquet

from rlvr.task import read as reading
from rlvr.task.fence import last_boxed
from rlvr.task.math import Math
from rlvr.task.read import read
from tests.bench import golds
from tests.support.tasks import CONF, DATA, make_task, write_jsonl

ROWS = [
    {"id": "a", "problem": "What is 1/2 + 1/4?", "answer": "\\frac{3}{4}"},
    {"id": "b", "problem": "How much is a dozen dozens?", "answer": 144},
    {"id": "c", "problem": "Solve x² = 4.", "answer": "\\{-2, 2\\}"},
]


def make_math(train: Any, test: Any = None, **knobs: Any) -> Math:
    return make_task("math", train=train, test=test or train, **knobs)


def test_an_option_that_there_is_not_is_refused_also_where_a_subclass_passes_it_on(tmp_path: Path) -> None:
    class Own(Math):
        def __init__(self, **knobs: Any) -> None:
            super().__init__(**knobs)

    data = write_jsonl(tmp_path / "x.jsonl", [{"problem": "1 + 1?", "answer": "2"}])
    usual = OmegaConf.merge(OmegaConf.load(CONF / "math.yaml"), {"train": data, "test": data})
    for knob, value, allowed in (("unevaluated", "maybe", "wrong or right"), ("long_prompts", "cut", "refuse or drop")):
        knobs = {str(k): v for k, v in OmegaConf.merge(usual, {knob: value}).items() if k != "_target_"}
        with pytest.raises(ValueError, match=f"task.{knob}={value} must be {allowed}"):
            Own(**knobs)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answer", "outcome"),
    [("3.14", "correct"), ("3.2", "correct"), ("3.0", "correct"), ("3.21", "wrong"), ("\\frac{22}{7}", "correct")],
)
def test_a_number_may_be_as_far_off_as_its_row_says(answer: str, outcome: str, tmp_path: Path) -> None:
    """π is given as 3.1, within a tenth: 3.0 to 3.2; the other row has none, and 3.14 is 1.3 % off 3.1."""
    rows = [{"problem": p, "answer": "3.1", "error": e} for p, e in (("π?", "1e-1"), ("Half of 6.2?", None))]
    task = make_math(write_jsonl(tmp_path / "x.jsonl", rows), tolerance_field="error")
    rewards = task.reward([(task.problem("test", index), f"\\boxed{{{answer}}}") for index in range(2)])
    assert [reward.outcome for reward in rewards] == [outcome, "wrong"]


@pytest.mark.parametrize("error", ["a tenth", -1, "inf"])
def test_a_tolerance_is_a_number(error: object, tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "x.jsonl", [{"problem": "π?", "answer": "3.1", "error": error}])
    with pytest.raises(ValueError, match=r"x.jsonl:1: error is .*, expected a number"):
        make_math(path, tolerance_field="error")
    with pytest.raises(ValueError, match="task.tolerance_field=eror: no row of"):
        make_math(path, tolerance_field="eror")


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Math]:
    yield (task := make_math(write_jsonl(tmp_path_factory.mktemp("data") / "made_up.jsonl", ROWS), timeout_s=2.0))
    task.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("index", "response", "outcome"),
    [
        (0, "So it is \\boxed{\\frac{3}{4}}.", "correct"),
        (0, "So it is \\boxed{0.75}.", "correct"),
        (0, "\\boxed{1/2} no, \\boxed{\\dfrac34}", "correct"),  # the last one counts
        (0, "\\boxed{3/4} no, \\boxed{1/2}", "wrong"),
        (0, "The answer is 3/4.", "unparsable"),  # not in a box
        (0, "<answer>3/4</answer>", "correct"),
        (0, "<answer>1</answer> no, <answer> \\boxed{3/4} </answer>", "correct"),
        (0, "\\boxed{3/4} <answer>1</answer>", "correct"),  # a box comes before a tag
        (0, "<answer>3/4", "unparsable"),
        (0, "\\boxed{\\frac{3}{4}", "unparsable"),  # cut off
        (0, "\\boxed{}", "unparsable"),
        (0, "", "unparsable"),
        (1, "\\boxed{144}", "correct"),
        (1, "\\boxed{12^2}", "unevaluated"),
        (1, "\\boxed{143}", "wrong"),
        (2, "\\boxed{\\{2, -2\\}}", "correct"),
        (2, "\\boxed{\\{2\\}}", "wrong"),
        (1, "\\boxed{9^{9^{9^{9}}}}", "unparsable"),  # not computed: one multiplication would last for hours
    ],
)
def test_outcome_of_a_response(task: Math, index: int, response: str, outcome: str) -> None:
    (reward,) = task.reward([(task.problem("train", index), response)])
    assert (reward.outcome, reward.value) == (outcome, float(outcome == "correct"))


@pytest.mark.slow
def test_prompt_and_judge_follow_the_way_an_answer_is_marked(tmp_path: Path) -> None:
    data = write_jsonl(tmp_path / "x.jsonl", [{"problem": "How much is a dozen dozens?", "answer": 144}])
    rows = [  # the marking, what the prompt says, right responses, those without an answer
        ("box", r"within \boxed{}", [r"\boxed{144}"], ["144", "<answer>144</answer>"]),
        ("tag", "between <answer> and </answer>", ["<answer>144</answer>"], [r"\boxed{144}", "144"]),
        (
            "answer",
            'on a line of its own after "Answer:"',
            ["So.\nAnswer: $144$.", "**Answer:** 144", r"Answer: \boxed{144}", "Answer: 3\nNo.\nanswer: \\(144\\)"],
            [r"\boxed{144}", "144"],
        ),
        ("hashes", 'after "####"', ["#### One\n#### $144$", "####144", "#### **144**\nBye"], ["144", "####\n144"]),
        ("last_number", "as the last number of your response", ["12 times 12 is 144."], ["a gross"]),
        ("whole", "as your whole response", ["144", r"\boxed{144}"], [""]),
    ]
    for marking, asked, right, none in rows:
        task = make_math(data, marked=marking, timeout_s=60.0)
        problem = task.problem("test", 0)
        assert f"put your final answer {asked}." in problem.prompt
        outcomes = [reward.outcome for reward in task.reward([(problem, text) for text in right + none])]
        assert outcomes == ["correct"] * len(right) + ["unparsable"] * len(none), marking
        assert task.answer(problem, right[0]) == "144"
    with pytest.raises(ValueError, match="task.boxed=false has no effect with task.marked=tag"):
        make_math(data, marked="tag", boxed=False)


def test_without_boxes_the_whole_response_is_searched(tmp_path: Path) -> None:
    task = make_math(write_jsonl(tmp_path / "x.jsonl", ROWS), boxed=False)
    rewards = task.reward([(task.problem("test", 1), a) for a in ("The answer is 144.", "I do not know.")])
    assert [r.outcome for r in rewards] == ["correct", "unparsable"]


@pytest.mark.parametrize("answer", ["\\boxed{}", "???", "\\frac{1}{2", "\\frac{1}", "x^", "\\begin{pmatrix} 1"])
def test_a_right_answer_that_nothing_can_equal_is_refused_with_its_line(tmp_path: Path, answer: str) -> None:
    rows = [{"problem": "?", "answer": "1"}, {"problem": "?", "answer": answer}]
    with pytest.raises(ValueError, match=r"x.jsonl:2: answer is .*, expected mathematics or a sentence: this has "):
        make_math(write_jsonl(tmp_path / "x.jsonl", rows))


@pytest.mark.slow
def test_a_right_answer_that_is_no_mathematics_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    row = {"id": "a", "problem": "?", "answer": "R=\\infty, I=(-\\infty, \\infty)"}
    task = make_math(write_jsonl(tmp_path / "x.jsonl", [row]))
    problem = task.problem("test", 0)
    with caplog.at_level("WARNING", "rlvr"):
        rewards = task.reward([(problem, f"\\boxed{{{row['answer']}}}"), (problem, "\\boxed{1}")])
        task.reward([(problem, "\\boxed{2}")])
    assert [r.outcome for r in rewards] == ["correct", "wrong"]
    (record,) = [record for record in caplog.records if record.module == "math"]
    assert record.getMessage().startswith("The right answer of problem a, 'R=")
    assert "cannot be read as mathematics: only the same text is right" in record.getMessage()


@pytest.mark.parametrize(("knob", "value"), [("wrong", 0.0), ("right", 1.0)])
def test_restated_problems_are_wrong_unless_they_are_said_to_be_right(tmp_path: Path, knob: str, value: float) -> None:
    data = write_jsonl(tmp_path / "x.jsonl", [{"problem": "1 + ... + 100?", "answer": "5050"}])
    task = make_math(data, unevaluated=knob, timeout_s=60.0)
    (reward,) = task.reward([(task.problem("test", 0), "\\boxed{\\sum_{k=1}^{100} k}")])
    assert (reward.outcome, reward.value) == ("correct" if value else "unevaluated", value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a \\boxed{1} b \\boxed{2} c", "\\boxed{2}"),
        ("\\boxed{\\frac{1}{2}}.", "\\boxed{\\frac{1}{2}}"),
        ("\\boxed{\\{1, 2\\}}", "\\boxed{\\{1, 2\\}}"),
        ("\\boxed{1} \\boxed{2", "\\boxed{1}"),
        ("\\boxed{\\boxed{3}}", "\\boxed{3}"),
        ("} \\boxed{4} }", "\\boxed{4}"),
        ("x = 3 \\\\boxed{5}", "\\boxed{5}"),  # a backslash too many
        ("\\boxed {12}", "\\boxed{12}"),
        ("\\fbox{12}", "\\boxed{12}"),
        ("\\boxed 5", "\\boxed{5}"),
        ("\\boxed{12} in \\boxed{}", "\\boxed{12}"),  # an empty one says nothing
        ("\\boxed{ }", "\\boxed{ }"),
        ("{6}", None),
    ],
)
def test_last_boxed(text: str, expected: str | None) -> None:
    assert last_boxed(text) == expected


@given(st.recursive(st.text("ab1\n "), lambda inner: st.builds("{{{}}}".format, inner)), st.text("ab} \n"))
def test_last_boxed_finds_balanced_content(content: str, before: str) -> None:
    assert last_boxed(f"{before}\\boxed{{{content}}}") == f"\\boxed{{{content}}}"


def test_a_degenerate_response_is_read_in_one_pass() -> None:
    start = time.monotonic()
    assert last_boxed("\\boxed{" * 200_000) is None
    assert time.monotonic() - start < 5  # quadratic: minutes


@pytest.mark.parametrize(
    ("ways", "vote"),
    [
        (["1,000", "1000", "1{,}000", "1\\,000"], "1000"),
        (["\\dfrac{5}{2}", "\\frac52", "\\frac{5}{2}"], "\\frac{5}{2}"),
        (["(1,200)"], "(1,200)"),
    ],
)
def test_one_answer_written_in_several_ways_is_one_vote(task: Math, ways: list[str], vote: str) -> None:
    assert {task.answer(task.problem("train", 0), f"\\boxed{{{way}}}") for way in ways} == {vote}


def test_the_answer_of_a_degenerate_list_is_read_in_one_pass(task: Math) -> None:
    """The trainer's own process reads it for maj@k, without a time limit."""
    numbers = "1," * 40_000
    start = time.monotonic()
    assert task.answer(task.problem("train", 0), f"\\boxed{{{numbers}}}") == numbers.rstrip(",")
    assert time.monotonic() - start < 5  # quadratic: minutes


def test_prompt_is_the_template_around_the_problem(task: Math) -> None:
    assert task.problem("train", 1).prompt == (
        "How much is a dozen dozens?\nPlease reason step by step, and put your final answer within \\boxed{}."
    )
    assert (task.problem("train", 1).answer, task.problem("train", 1).id) == ("144", "b")
    assert (task.size("train"), task.size("test")) == (3, 3)


def test_configuration_makes_the_task_and_lacks_only_the_data(tmp_path: Path) -> None:
    config = OmegaConf.load(CONF / "math.yaml")
    assert OmegaConf.missing_keys(config) == {"train", "test"}
    where = write_jsonl(tmp_path / "x.jsonl", ROWS)
    task = instantiate(config, train=where, test={"made_up": where})
    assert (task.size("train"), task.problem("test", 0).source) == (3, "made_up")


def test_formats_agree(tmp_path: Path) -> None:
    plain = write_jsonl(tmp_path / "x.jsonl", ROWS[:2])
    zipped = tmp_path / "x.jsonl.gz"
    zipped.write_bytes(gzip.compress(Path(plain).read_bytes()))
    table = pa.Table.from_pylist([{**row, "answer": str(row["answer"])} for row in ROWS[:2]])
    parquet.write_table(table, tmp_path / "x.parquet")
    tasks = [make_math(where) for where in (plain, str(zipped), str(tmp_path / "x.parquet"))]
    problems = [[t.problem("train", i) for i in range(2)] for t in tasks]
    assert problems[0] == problems[1] == problems[2]


@pytest.mark.parametrize(
    ("row", "answer"),
    [
        ({"question": "?", "answer": "She has 6*7 apples.\n#### 1,042"}, "1042"),  # GSM8K
        ({"question": "?", "answer": "#### $-1,234,567.50"}, "$-1234567.50"),
        ({"question": "?", "answer": "#### (1,200)"}, "(1,200)"),
        ({"question": "?", "answer": "#### (1,2)"}, "(1,2)"),
        ({"question": "?", "answer": "#### 3, 5"}, "3, 5"),
        ({"question": "?", "answer": "#### 3,5,100"}, "3,5,100"),
        ({"problem": "?", "solution": "Hence \\boxed{\\frac{1}{2}}.", "level": 3}, "\\boxed{\\frac{1}{2}}"),  # MATH
        ({"problem": "?", "solution": "long", "answer": "7"}, "7"),
        ({"question": "?", "final_answer": ["2"]}, "2"),  # OlympiadBench
        ({"prompt": [{"role": "user", "content": "?"}], "reward_model": {"ground_truth": "34"}}, "34"),  # DAPO
        ({"prompt": "?", "answer": 0}, "0"),
    ],
)
def test_usual_columns_are_found(tmp_path: Path, row: dict[str, Any], answer: str) -> None:
    problem = make_math(write_jsonl(tmp_path / "x.jsonl", [row]), template="{problem}").problem("test", 0)
    assert (problem.prompt, problem.answer) == ("?", answer)


def test_columns_can_be_named(tmp_path: Path) -> None:
    where = write_jsonl(tmp_path / "x.jsonl", [{"text": "?", "meta": {"gold": "5"}, "answer": "no"}])
    problem = make_math(where, prompt_field="text", answer_field="meta.gold").problem("test", 0)
    assert problem.answer == "5"


def test_benchmarks_are_named_by_mapping_column_file_or_folder(tmp_path: Path) -> None:
    by_column = write_jsonl(tmp_path / "x.jsonl", [{"problem": "?", "answer": "1", "source": "gsm8k/test"}])
    by_file = write_jsonl(tmp_path / "aime.jsonl", [{"problem": "?", "answer": "1"}])
    by_folder = write_jsonl(tmp_path / "amc" / "test.jsonl", [{"problem": "?", "answer": "1"}])
    task = make_math(by_file, [by_column, by_file, by_folder])
    problems = [task.problem("test", i) for i in range(3)]
    assert [p.source for p in problems] == ["gsm8k-test-9a2bcbda", "aime", "amc"]  # a slash would split metrics' names
    assert [p.id for p in problems] == ["x-0", "aime-0", "amc-0"]
    task = make_math(by_file, {2024: by_column, "second": by_folder})  # a name that is typed as a number
    assert [task.problem("test", i).source for i in range(2)] == ["2024", "second"]


def test_repeated_ids_are_told_apart(tmp_path: Path) -> None:
    rows = [{"id": i, "problem": "?", "answer": "1"} for i in (0, 0, "0#2", 0)]
    task = make_math(write_jsonl(tmp_path / "x.jsonl", rows))
    assert [task.problem("train", i).id for i in range(4)] == ["0", "0#2", "0#2#2", "0#3"]


GOOD = '{"problem": "?", "answer": "1"}\n'


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (GOOD + '{"problem": "?", "ans', r'x\.jsonl:2: a JSON object is expected, not \{"problem": .*: character 18\)'),
        (GOOD + "\n" + '["?", "1"]\n', r"x\.jsonl:3: a JSON object is expected, not \[\"\?\", \"1\"\]"),
        (GOOD + '{"problem": "?"}\n', r"x\.jsonl:2: answer is None, expected a text or a number"),
        ('{"problem": "?", "answer": null}\n' + GOOD, r"x\.jsonl:1: answer is None, expected a text or a number"),
        (GOOD + '{"problem": " ", "answer": 1}\n', r"x\.jsonl:2: problem is ' ', expected a text or one chat message"),
        (GOOD + '{"problem": "?", "answer": NaN}\n', r"x\.jsonl:2: answer is nan, expected a finite number"),
        (GOOD + '{"problem": "?", "answer": ["1", "2"]}\n', r"x\.jsonl:2: answer is \['1', '2'\]"),
        ("", r"x\.jsonl has no rows"),
        ('{"ask": "?", "answer": "1"}\n', r"no column any of prompt, problem, question. It has: ask, answer\."),
        ('{"problem": "?", "reply": "1"}\n', r"It has: problem, reply\. Pass task.answer_field="),
    ],
)
def test_broken_files_are_named_with_the_line(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "x.jsonl").write_text(content)
    with pytest.raises(ValueError, match=message):
        make_math(str(tmp_path / "x.jsonl"))


def test_other_encodings_are_named_with_what_converts_them(tmp_path: Path) -> None:
    line = '{"problem": "größer?", "answer": "1"}\n'
    for content, message in (
        (line.encode("utf-16"), r":1: .*\(byte \d+ of the .* if the file is UTF-16: iconv -f UTF-16 -t UTF-8\)"),
        (line.encode("latin-1"), r":1: .*\(byte 16 .* if the file is ISO-8859-1: iconv -f ISO-8859-1"),
        (GOOD.encode() + b'{"problem": "\xff", "answer": "1"}\n', ":2: .*byte 14 of the line is not UTF-8"),
    ):
        (tmp_path / "x.jsonl").write_bytes(content)
        with pytest.raises(ValueError, match=rf"x\.jsonl{message}"):
            make_math(str(tmp_path / "x.jsonl"))


def test_dead_links_and_other_files_are_no_names_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/x.jsonl").write_text(GOOD)
    (tmp_path / "data/loop.jsonl").symlink_to("loop.jsonl")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"data/loop.jsonl is a symbolic link to loop.jsonl, which ends in a loop"):
        make_math("data/loop.jsonl")
    with pytest.raises(ValueError, match=r"data/x.json does not exist. Did you mean .*/data/x.jsonl\?"):
        make_math("data/x.json")


def test_damaged_binary_files_are_named(tmp_path: Path) -> None:
    """Cut, or with wrong bytes in the middle: zlib's own error; pyarrow's is an OSError."""
    zipped = gzip.compress(GOOD.encode() * 1000)
    parquet.write_table(pa.table({"problem": ["?"] * 1000}), tmp_path / "x.parquet")
    table = (tmp_path / "x.parquet").read_bytes()
    wrong = {"x.jsonl.gz": zipped[:10] + b"\xff" + zipped[11:], "x.parquet": table[:4] + b"\xff" * 36 + table[40:]}
    for name, content in wrong.items():
        for damaged in (zipped[:40], content):
            (tmp_path / name).write_bytes(damaged)
            with pytest.raises(ValueError, match=name.replace(".", r"\.")):
                make_math(str(tmp_path / name))


def test_files_that_hold_far_more_than_their_size_are_refused_before_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "LONGEST_ROW", 1 << 20)
    monkeypatch.setattr(reading, "MOST_INFLATED", 1 << 20)
    (tmp_path / "x.jsonl.gz").write_bytes(gzip.compress(b" " * (1 << 21)))
    table = pa.table({"problem": pa.array(["?" * 9999] * 1000).dictionary_encode(), "answer": ["1"] * 1000})
    parquet.write_table(table, tmp_path / "x.parquet")
    for name, message in (("x.jsonl.gz", "x.jsonl.gz:1: a row of 1 MiB or more"), ("x.parquet", "200 times as large")):
        with pytest.raises(ValueError, match=message):
            make_math(str(tmp_path / name))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ('{"problem": "\\ud83d", "answer": "1"}', "surrogates not allowed"),
        ('{"problem": "\\ud83d\\ude00 of \\\\ud800", "answer": "1"}', ""),  # a whole character, and an escape in words
        ('{"problem": ' + "[" * 100_000, "nested without end"),
    ],
)
def test_json_that_no_text_can_hold_is_named(row: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text(f"{row}\n")
    with pytest.raises(ValueError, match=rf"x\.jsonl:1: .*{message}") if message else contextlib.nullcontext():
        make_math(str(tmp_path / "x.jsonl")).close()


def test_missing_data_says_what_is_near(tmp_path: Path) -> None:
    where = write_jsonl(tmp_path / "gsm8k" / "train.jsonl", ROWS)
    cases = {
        str(tmp_path / "gsm8k" / "trian.jsonl"): r"trian.jsonl does not exist\. Did you mean .*train\.jsonl\?",
        str(tmp_path / "gsm8k" / "zzz"): r"does not exist\. .*gsm8k has: train\.jsonl\.",
        str(tmp_path / "gsm8k"): r"not a data file: pass a \.jsonl, \.jsonl\.gz, \.parquet file, such as train\.jsonl",
        "": "task.test is empty: pass task.test=PATH",
    }
    for test, message in cases.items():
        with pytest.raises(ValueError, match=message):
            make_math(where, [test])
    with pytest.raises(ValueError, match="appears twice"):
        make_math(where, [where, where])
    with pytest.raises(ValueError, match="must contain {problem}"):
        make_math(where, template="Solve this.")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", 'problem,answer,A,B\n"1, 2",03,None,\nx,7,NA,nan\n'),
        ("b.tsv", "problem\tanswer\tA\tB\n1, 2\t03\tNone\t\nx\t7\tNA\tnan\n"),
        ("c.json", '[{"problem": "1, 2", "answer": "03", "A": "None", "B": null},\n '
         '{"problem": "x", "answer": "7", "A": "NA", "B": "nan"}]'),
    ],
)  # fmt: skip
def test_a_table_in_another_format_is_converted_by_the_line_that_is_given(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    assert [row for _, row in _converted(tmp_path / name)] == [
        {"problem": "1, 2", "answer": "03", "A": "None", "B": None},
        {"problem": "x", "answer": "7", "A": "NA", "B": "nan"},
    ]


def test_a_number_of_a_json_file_keeps_its_digits(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('[{"problem": "x", "answer": 0.12345678901234567}]')
    assert _converted(tmp_path / "a.json")[0][1]["answer"] == 0.12345678901234567


def test_json_lines_by_the_name_of_json_are_to_be_renamed(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"problem": "x", "answer": 1}\n{"problem": "y", "answer": 2}\n')
    with pytest.raises(ValueError, match=r"JSON object on each line: rename it to a\.jsonl\.$"):
        read(str(tmp_path / "a.json"), "train")


def _converted(file: Path) -> list[tuple[str, dict[str, Any]]]:
    """The rows of a file after the conversion that the message on it proposes."""
    with pytest.raises(ValueError, match=r"pass a \.jsonl, .* file\. Convert it: python -c") as error:
        read(str(file), "train")
    command = shlex.split(str(error.value).partition("Convert it: ")[2].removesuffix("."))
    subprocess.run([sys.executable, *command[1:]], check=True)
    return read(str(file.with_suffix(".jsonl")), "train").rows


def test_a_directory_proposes_what_can_be_read_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.csv").touch()
    with pytest.raises(ValueError, match="file, of which this directory holds none"):
        read(str(tmp_path), "train")
    write_jsonl(tmp_path / "train.jsonl", ROWS)
    with pytest.raises(ValueError, match=r"file, such as train\.jsonl\.$"):
        read(str(tmp_path), "train")


def test_hub_names_without_the_extra_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)  # not to be had
    with pytest.raises(ValueError, match=r"openai/gsm8k/main:test is not a file here\..*pip install 'rlvr\[hub\]'"):
        read("openai/gsm8k/main:test", "train")


@pytest.mark.slow
@pytest.mark.skipif(not DATA.is_dir(), reason=f"no real data at {DATA}")
def test_every_real_problem_loads_and_its_right_answer_is_right_and_another_number_is_not() -> None:
    """A hundredth part or a hundred of each file is judged; all of them, and the exceptions: docs/right_answers.csv."""
    judged: list[golds.Judged] = []
    with golds.verifier() as pool:
        for file in golds.FILES:
            problems = golds.problems(file)
            assert len(problems) == len(gzip.decompress((DATA / f"{file}.jsonl.gz").read_bytes()).splitlines()), file
            sample = list(enumerate(problems, start=1))[:: max(1, len(problems) // 100)]
            mine = golds.judge(sample, pool)
            assert sum(verdict.outcome == "correct" for verdict in mine) >= 0.995 * len(mine), file
            numbers = [p.answer for _, p in sample if p.answer.lstrip("-").isdigit()]
            replies = pool.ask([{"gold": n, "answer": f"\\boxed{{{int(n) + 1}}}"} for n in numbers])
            assert {reply["outcome"] for reply in replies} <= {"wrong"}, file
            judged += mine
    # Of College Math, a solutions manual, one in eight has its text alone: `-1<x \leqslant 1:(-1,1]`.
    manual = [verdict for verdict in judged if verdict.problem.source.startswith("college_math")]
    others = [verdict for verdict in judged if verdict not in manual]
    assert sum(verdict.fine for verdict in others) >= 0.995 * len(others)
    assert sum(verdict.fine for verdict in manual) >= 0.8 * len(manual)


@pytest.mark.slow
@pytest.mark.skipif(not DATA.is_dir(), reason=f"no real data at {DATA}")
def test_real_training_sets_are_read_whole() -> None:
    train = [str(DATA / name / "train.jsonl.gz") for name in ("gsm8k", "dapo_math_17k")]
    task = make_math(train, str(DATA / "aime24" / "test.jsonl.gz"))
    assert (task.size("train"), task.size("test")) == (7473 + 17917, 30)
    problems = [task.problem("train", i) for i in range(7473 + 17917)]
    assert len({p.id for p in problems}) == len(problems)
    rewards = task.reward([(p, f"\\boxed{{{p.answer}}}") for p in problems[::250]])
    assert {r.outcome for r in rewards} == {"correct"}
