import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from rlvr.task.math import Math
from tests.support.tasks import make_task, write_jsonl


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model's folder whose tokenizer makes one token of a word and whose context is 12."""
    folder = tmp_path / "model"
    folder.mkdir()
    words = {"[UNK]": 0, **{f"w{i}": i + 1 for i in range(20)}}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps({"max_position_embeddings": 12}))
    return folder


def reader(model: Path, **fields: Any) -> dict[str, Any]:
    """It writes 4 tokens: prompts have 8 at most."""
    return {"path": str(model), "max_tokens": 4, **fields}


def make_math(folder: Path, train: list[int], test: list[int], **knobs: Any) -> Math:
    """Problems of so many tokens each."""
    paths = {}
    for split, lengths in (("train", train), ("test", test)):
        rows = [{"id": f"{split}{n}", "problem": " ".join(["w1"] * n), "answer": "1"} for n in lengths]
        paths[split] = write_jsonl(folder / f"{split}.jsonl", rows)
    return make_task("math", template="{problem}", **paths, **knobs)


def test_prompts_longer_than_the_context_are_refused(tmp_path: Path, model: Path) -> None:
    assert make_math(tmp_path, [3, 8], [8], reader=reader(model)).size("train") == 2
    why = r"\(the model's context of 12 without 4 of a response\)"
    description = f"1 prompts with more than 8 tokens {why}, such as problem train9"
    with pytest.raises(ValueError, match=f"{description} with 9, of task.train"):
        make_math(tmp_path, [3, 9], [8], reader=reader(model))
    with pytest.raises(
        ValueError, match=r"with more than 0 tokens .* of task.test: .* pass rollout.max_tokens=3, take"
    ):
        make_math(tmp_path, [3, 8], [8, 9], reader=reader(model, max_tokens=100))
    with pytest.raises(ValueError, match=r"such as problem test12 with 12, of task.test: the model reads no more"):
        make_math(tmp_path, [3], [12], reader=reader(model), long_prompts="drop")
    with pytest.raises(ValueError, match="no training problem is left of 2"):
        make_math(tmp_path, [3, 4], [1], reader=reader(model), max_prompt_tokens=2, long_prompts="drop")


def test_long_training_prompts_are_dropped_and_counted(
    tmp_path: Path, model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    knobs = {"reader": reader(model), "max_prompt_tokens": 5, "long_prompts": "drop"}
    with caplog.at_level(logging.WARNING, "rlvr"):
        task = make_math(tmp_path, [3, 6, 5, 9], [7], **knobs)
    assert [task.problem("train", i).id for i in range(task.size("train") or 0)] == ["train3", "train5"]
    assert task.size("test") == 1  # over the limit of training, within the context
    assert "2 prompts with more than 5 tokens, such as problem train6 with 6, of task.train: dropped; 2 are left." in (
        caplog.text
    )


def test_a_limit_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"need a model of Hugging Face: pass model=hf model.path=..., or drop them"):
        make_math(tmp_path, [3], [3], max_prompt_tokens=5)
    with pytest.raises(ValueError, match=r"need the tokenizer of nobody/nothing on this machine: type hf download nob"):
        make_math(tmp_path, [3], [3], long_prompts="drop", reader={"path": "nobody/nothing"})
    assert make_math(tmp_path, [300], [3], reader={"path": "nobody/nothing"}).size("train") == 1  # nothing is known


def test_tokens_of_the_chat_template_count(tmp_path: Path, model: Path) -> None:
    """Two words before a turn and one at the end: of 8 tokens a prompt has 5, after a system prompt of two words 1."""
    (model / "chat_template.jinja").write_text("{% for m in messages %}w2 w3 {{ m.content }} {% endfor %}w4")
    for fields, most in (({}, 8), ({"chat": True}, 5), ({"chat": True, "system": "w5 w5"}, 1)):
        knobs = {"reader": reader(model, **fields), "long_prompts": "drop"}
        assert make_math(tmp_path, [most, most + 1], [1], **knobs).size("train") == 1
    with pytest.raises(ValueError, match=r"such as problem test6 with 9, of task.test: the model reads no more"):
        make_math(tmp_path, [1], [6], reader=reader(model, chat=True))


def test_the_begin_token_of_a_text_counts(tmp_path: Path, model: Path) -> None:
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    tokenizer.add_special_tokens(["<s>"])
    begin = tokenizer.token_to_id("<s>")
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", "<s> $A $B", [("<s>", begin)])
    tokenizer.save(str(model / "tokenizer.json"))
    assert make_math(tmp_path, [7, 8], [7], reader=reader(model), long_prompts="drop").size("train") == 1
    with pytest.raises(ValueError, match=r"such as problem test8 with 9, of task.test"):
        make_math(tmp_path, [3], [8], reader=reader(model))


def test_stored_padding_and_truncation_count_nothing(tmp_path: Path, model: Path) -> None:
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    tokenizer.enable_padding()
    tokenizer.enable_truncation(8)
    tokenizer.save(str(model / "tokenizer.json"))
    assert make_math(tmp_path, [8, 5, 9], [8], reader=reader(model), long_prompts="drop").size("train") == 2


def test_the_context_is_read_under_all_of_its_names(tmp_path: Path, model: Path) -> None:
    for config in ({"n_positions": 12}, {"text_config": {"max_position_embeddings": 12}}):
        (model / "config.json").write_text(json.dumps(config))
        with pytest.raises(ValueError, match="with more than 8 tokens"):
            make_math(tmp_path, [3, 9], [8], reader=reader(model))


def test_a_limit_below_the_context_is_the_limit_and_the_tasks_own_length_is_room_for_a_response(
    tmp_path: Path, model: Path
) -> None:
    knobs = {"reader": {"path": str(model), "max_tokens": None}, "max_tokens": 9, "long_prompts": "drop"}
    assert make_math(tmp_path, [3, 4], [3], **knobs).size("train") == 1
    assert make_math(tmp_path, [2, 3], [3], max_prompt_tokens=2, **knobs).size("train") == 1


def test_tokens_are_counted_without_torch(tmp_path: Path, model: Path) -> None:
    code = (
        "import sys\nfrom rlvr.records import Problem\nfrom rlvr.task.prompt_length import PromptLimit\n"
        f"limit = PromptLimit.of(2, 'drop', {{'path': {str(model)!r}}}, 1)\n"
        "print(sorted(limit.too_long([Problem('a', 'w1 w1 w1'), Problem('b', 'w1')])))\n"
        "print(sorted({'torch', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["['a']", "[]"]
