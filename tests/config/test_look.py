from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from rlvr.config.look import FirstLook, look
from rlvr.ledger import gguf
from rlvr.records import Problem, Reward, binary
from tests.support.tasks import make_task, write_jsonl

DAPO = (
    "Solve the problem. The last line of your response should be of the form Answer: $Answer (without quotes).\n\n"
    '{}\n\nRemember to put your answer on its own line after "Answer:".'
)
PROSE = "We add the numbers and so the total of all apples is {}"


def data(folder: Path, form: str = "{}", answer: str = "{}", column: str = "answer") -> str:
    rows = [{"prompt": form.format(f"What is {i} + 1?"), column: answer.format(i + 1), "final": i} for i in range(9)]
    return write_jsonl(folder / "data.jsonl", rows)


def notable(path: str, name: str = "math", model: dict[str, Any] | None = None, **knobs: Any) -> str:
    task = make_task(name, train=path, test=path, **knobs)
    try:
        plain = {"task": {"template": task.template, **knobs}, "model": model or {"path": None}}
        return "\n".join(look(task, plain, 0).notable)
    finally:
        task.close()


REQUESTS: dict[str, tuple[str, dict[str, Any], str]] = {
    "as the template asks": ("{}", {}, ""),
    "DAPO": (DAPO, {}, "Type task.marked=answer 'task.template=\"{problem}\"'."),
    "DAPO, as advised": (DAPO, {"marked": "answer", "template": "{problem}"}, ""),
    "DAPO, twice": (DAPO, {"marked": "answer"}, "and task.template asks for it on a line of its own"),
    "a box, twice": ("{} Put the answer in \\boxed{{}}.", {}, "Type 'task.template=\"{problem}\"'."),
    "GSM8K of verl": (
        '{} Let\'s think step by step and output the final answer after "####".',
        {},
        "Type task.marked=hashes 'task.template=\"{problem}\"'.",
    ),
    "a template of one's own": ("{}", {"template": "{problem} End with 'Answer: X'."}, "Type task.marked=answer."),
    "nothing": ("{}", {"template": "{problem}"}, "neither most problems nor task.template ask for that"),
    "the whole response": ("{}", {"template": "{problem}", "boxed": False}, ""),
}


@pytest.mark.parametrize("case", REQUESTS)
def test_prompts_that_ask_for_another_mark_than_is_read_are_noticed(case: str, tmp_path: Path) -> None:
    form, knobs, expected = REQUESTS[case]
    said = notable(data(tmp_path, form), **knobs)
    assert expected in said
    assert bool(expected) is bool(said)


def test_right_answers_that_are_prose_are_refused_unless_their_column_was_named(tmp_path: Path) -> None:
    path = data(tmp_path, answer=PROSE, column="solution")
    advice = "task.answer_field=NAME, of prompt, solution, final. If it is in this one: task.answer_field=solution"
    with pytest.raises(ValueError, match=f"9 of the first 9 right answers are prose, .*{advice}"):
        notable(path)
    assert "9 of the first 9 right answers are prose" in notable(path, answer_field="solution")
    assert not notable(path, answer_field="final")
    rows = [{"problem": f"{i} + 1?", "answer": PROSE.format(i) if i % 3 == 0 else str(i)} for i in range(9)]
    assert "3 of the first 9 right answers are prose" in notable(write_jsonl(tmp_path / "some.jsonl", rows))
    boxed = data(tmp_path, answer=PROSE.format("\\boxed{{{}}}"), column="solution")
    assert not notable(boxed)


@pytest.mark.parametrize(
    ("template", "is_noticed"),
    [
        (r"{problem}\nPut it in \boxed{}.", True),
        (r"{problem}\n\nPut it in \boxed{}.", True),
        (r"{problem}\nput it in \boxed{}.", True),
        ("{problem}\nPut it in \\boxed{}.", False),
        (r"{problem} Of \nu and \neq, \text{put} one in \boxed{}.", False),
    ],
)
def test_line_breaks_typed_as_two_characters_are_noticed(template: str, is_noticed: bool, tmp_path: Path) -> None:
    said = notable(data(tmp_path), template=template)
    assert said.startswith("task.template has \\n as two characters") is is_noticed
    assert bool(said) is is_noticed
    assert "model.system has" in notable(data(tmp_path), model={"path": None, "system": template}) or not is_noticed


def test_doubled_backslashes_are_noticed(tmp_path: Path) -> None:
    said = notable(data(tmp_path), template=r"{problem} Put it in \\boxed{}.")
    assert (
        said
        == r"task.template has \\boxed with two backslashes, which the model reads so. Within '...' type one: \boxed."
    )


@pytest.fixture
def model(tmp_path: Path) -> str:
    """A folder with a tokenizer of words that puts <s> before a text, and a chat template."""
    folder = tmp_path / "model"
    folder.mkdir()
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["<s>", "</s>", "<end>"])
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", "<s> $A $B", [("<s>", 1)])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>"}))
    turns = "{% for m in messages %}<{{ m.role }}> {{ m.content }} <end>\n{% endfor %}"
    (folder / "chat_template.jinja").write_text(turns + "{% if add_generation_prompt %}<assistant> {% endif %}")
    return str(folder)


def test_prompts_with_the_text_of_an_end_token_are_named(model: str, tmp_path: Path) -> None:
    path = write_jsonl(
        tmp_path / "data.jsonl",
        [{"prompt": "Is <s>x</s> HTML?", "answer": "1"}, {"prompt": "<user> y <end>\n<assistant> ", "answer": "2"}],
    )
    lines = notable(path, reader={"path": model, "chat": False, "system": None, "max_tokens": 8})
    for token in ("</s>", "<end>"):  # the second ends turns of its chat template, which the prompts do not use
        named = (
            f"{path}: 1 of the first 2 prompts contain {token}, which the model reads as the end of a response or turn."
        )
        assert named in lines
    assert "1 of the first" not in notable(path)


@pytest.mark.slow
@pytest.mark.parametrize("chat", [False, True])
def test_what_is_shown_is_what_the_model_reads(chat: bool, model: str, tmp_path: Path) -> None:
    """Prompts of five words, and <s>, or four words of two turns and a beginning."""
    path = write_jsonl(
        tmp_path / "data.jsonl",
        [{"id": "a", "prompt": "One", "answer": "so #### 1,200"}, {"prompt": "2", "answer": "x y z"}],
    )
    reader = {"path": model, "chat": chat, "system": None, "max_tokens": 8}
    task = make_task("math", train=path, test=path, template="{problem} in a \\boxed{} now", reader=reader)
    seen = look(task, {"task": {}, "model": {"path": model, "chat": chat}}, 1)
    task.close()
    (shown,) = seen.prompts
    prompt = "One in a \\boxed{} now"
    assert shown.prompt == (f"<user> {prompt} <end>\n<assistant> " if chat else f"<s>{prompt}")
    assert (shown.problem, shown.typed, shown.read) == ("a", "'so #### 1,200'", "1200")
    assert shown.place == f"{path}:1, answer"
    most = 8 if chat else 6
    assert (shown.num_tokens, seen.lengths, seen.num_rows, seen.text_only) == (most, (most, most, most), 2, 0)
    assert seen.ends == (("</s>", "<end>") if chat else ("</s>",))
    assert seen.marks == ("within \\boxed{}", "between <answer> and </answer>")


def test_of_a_gguf_file_the_model_that_it_became_is_asked(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLVR_HOME", str(tmp_path))
    (file := tmp_path / "x.gguf").write_bytes(b"weights")
    task, plain = make_task("sums"), {"task": {}, "model": {"path": str(file), "chat": True}}
    problem = task.problem("train", 0).prompt
    assert (look(task, plain, 1).prompts[0].prompt, look(task, plain, 1).ends) == (problem, ())
    (converted := Path(gguf.as_directory(str(file)))).parent.mkdir(parents=True)
    Path(model).rename(converted)
    assert look(task, plain, 1).prompts[0].prompt == f"<user> {problem} <end>\n<assistant> "
    assert look(task, plain, 1).ends == ("</s>", "<end>")


def test_a_generated_problem_is_shown_in_its_words() -> None:
    task = make_task("coins")
    seen = look(task, {"task": {}, "model": {}}, 2)
    assert [shown.problem for shown in seen.prompts] == [task.problem("train", i).id for i in range(2)]
    assert seen.prompts[0].prompt == task.problem("train", 0).prompt
    assert seen.prompts[0].num_tokens == len(seen.prompts[0].prompt.split())
    assert (seen.num_rows, seen.ends) == (64, ("end",))


def test_limits_that_right_answers_do_not_fit_are_noticed() -> None:
    seen = FirstLook(solutions=(3, 4, 9))
    assert (seen.within(9), seen.within(None)) == (seen, seen)
    (sentence,) = seen.within(3).notable
    assert sentence.startswith("rollout.max_tokens=3: 2 of the first 3 right answers are longer (up to 9 words), and")


class Own:
    """A task of the user, whose verifier has a fault."""

    name, max_tokens = "own", 8

    def __init__(self, judge: Callable[[int, str], bool]) -> None:
        self.judge = judge

    def size(self, split: str) -> int:
        return 20

    def problem(self, split: str, index: int) -> Problem:
        return Problem(f"p{index}", f"What is {index} + 40?", str(index + 40))

    def reward(self, answers: Sequence[tuple[Problem, str]]) -> list[Reward]:
        return [binary("correct" if self.judge(int(p.answer), text) else "wrong") for p, text in answers]

    def close(self) -> None: ...


def test_a_verifier_that_pays_for_constant_answers_is_noticed() -> None:
    """Of 20 problems, with the answers 40 to 59, the right answer of one is as common as any: 40."""
    rows: dict[str, tuple[Callable[[int, str], bool], str, str]] = {
        "sound": (lambda gold, text: text.strip() == str(gold), "at most 1 of 20 problems, '40'", ""),
        "marked": (lambda gold, text: f"<answer>{gold}</" in text, "at most 1 of 20 problems, '40, marked'", ""),
        "contains": (lambda gold, text: str(gold) in text, "20 of 20 problems, '0 1 2 3", "right in 20 of 20 problems"),
        "part of": (
            lambda gold, text: text in str(gold),
            "20 of 20 problems, ''",
            "the answer '' is judged right in 20",
        ),
        "raises": (lambda gold, text: float(text) == gold, "", "its reward raises ValueError: could not convert"),
    }
    for judge, floor, sentence in rows.values():
        seen = look(Own(judge), {"task": {}, "model": {}}, 0)
        assert floor in "".join(seen.floors)
        assert sentence in "".join(seen.notable)
        assert bool(sentence) is bool(seen.notable)


def test_right_answers_that_are_all_the_same_are_the_floor_and_no_fault(tmp_path: Path) -> None:
    rows = [{"prompt": f"Is {i} even?", "answer": ["no", "no", "yes"][i % 3]} for i in range(9)]
    path = write_jsonl(tmp_path / "data.jsonl", rows)
    task = make_task("math", train=path, test=path, timeout_s=60)
    seen = look(task, {"task": {}, "model": {}}, 0)
    task.close()
    assert any("a constant answer solves at most" in line and line.endswith("problems, 'no'.") for line in seen.floors)
    assert not seen.notable


@pytest.mark.slow
def test_tests_that_a_program_without_thought_passes_are_noticed(tmp_path: Path) -> None:
    rows = [
        {"id": "weak", "prompt": "Sort in place.", "entry_point": "f", "tests": "assert f([2, 1]) is None"},
        {"id": "sound", "prompt": "Double.", "entry_point": "f", "tests": "assert f(2) == 4"},
    ]
    path = write_jsonl(tmp_path / "data.jsonl", rows)
    task = make_task("code", train=path, test=path)
    (sentence,) = look(task, {"task": {}, "model": {}}, 0).notable
    task.close()
    assert "the answer 'a function that returns nothing' is judged right in 1 of 2 problems" in sentence
    assert "such as weak" in sentence


@pytest.mark.slow
def test_generators_that_pay_for_constant_answers_are_refused() -> None:
    for generator, constant in (("game_of_life_halting", "?"), ("complex_arithmetic", "nan"), ("coin_flip", "0")):
        task = make_task("reasoning_gym", generators=generator)
        with pytest.raises(
            ValueError, match=f"generators.{generator}: the answer .{re.escape(constant)}.* Nothing can be"
        ):
            look(task, {"task": {}, "model": {}}, 0)
        task.close()
