from __future__ import annotations

import json
import re
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from rlvr.config.base_model import context_of
from rlvr.model.tokenizer import word_tokenizer
from rlvr.task.maze import VOCABULARY
from sweeps.session import Session
from tests.support.composed import check, check_with_task
from tests.support.tasks import write_jsonl

pytestmark = pytest.mark.usefixtures("composing")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model as transformers writes one: two layers, tied."""
    directory = tmp_path_factory.mktemp("model")
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(VOCABULARY),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=True,
    )
    Qwen2ForCausalLM(config).save_pretrained(directory)
    word_tokenizer(VOCABULARY, "DONE").save_pretrained(directory)
    return directory


def edit(directory: Path, **changes: object) -> None:
    file = directory / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def header(directory: Path, change: Callable[[dict[str, dict[str, object]]], object]) -> None:
    """Rewrite the header of model.safetensors; the tensors are unchanged."""
    raw = (directory / "model.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    content = json.loads(raw[8 : 8 + length])
    change(content)
    new = json.dumps(content).encode()
    (directory / "model.safetensors").write_bytes(struct.pack("<Q", len(new)) + new + raw[8 + length :])


def renamed(content: dict[str, dict[str, object]]) -> None:
    content["model.layers.1.mlp.up"] = content.pop("model.layers.1.mlp.up_proj.weight")


def cut(directory: Path) -> None:
    raw = (directory / "model.safetensors").read_bytes()
    (directory / "model.safetensors").write_bytes(raw[:-1])


def without_end(directory: Path) -> None:
    for name, key in (("tokenizer_config.json", "eos_token"), ("generation_config.json", "eos_token_id")):
        content = json.loads((directory / name).read_text())
        (directory / name).write_text(json.dumps({k: v for k, v in content.items() if k != key}))


def template(directory: Path, text: str) -> None:
    (directory / "chat_template.jinja").write_text(text)


FAULTS: dict[str, Callable[[Path], object]] = {
    "it has no config.json": lambda d: (d / "config.json").unlink(),
    "config.json is damaged: no JSON object.": lambda d: (d / "config.json").write_text("{"),
    'has model_type "qwen99": no causal language model that transformers knows.': lambda d: edit(
        d, model_type="qwen99"
    ),
    'has model_type "t5": no causal language model': lambda d: edit(d, model_type="t5"),
    'has model_type "llava": no causal language model': lambda d: edit(d, model_type="llava"),
    "has num_key_value_heads=3, which does not divide num_attention_heads=2.": lambda d: edit(d, num_key_value_heads=3),
    "has num_attention_heads=null": lambda d: edit(d, num_attention_heads=None),
    'has hidden_size="wide": a whole number is expected, 1 or more.': lambda d: edit(d, hidden_size="wide"),
    "has num_hidden_layers=1000000000: at most 10000 is expected.": lambda d: edit(d, num_hidden_layers=10**9),
    "config.json is damaged: no JSON object": lambda d: (d / "config.json").write_text(
        '{"a":' * 9999 + "1" + "}" * 9999
    ),
    "safetensors is damaged: cut short, or no safetensors.": lambda d: (d / "model.safetensors").write_bytes(
        struct.pack("<Q", 59995) + b'{"a":' * 9999 + b"1" + b"}" * 9999
    ),
    "safetensors is damaged: cut short, or no": lambda d: header(d, lambda content: content.update(x={"shape": "?"})),
    "safetensors is damaged: cut short": lambda d: header(
        d, lambda content: content.update(x={"data_offsets": ["", "1"]})
    ),
    "config.json is damaged: no JSON": lambda d: (d / "config.json").write_text("[1]"),
    "Its own code (auto_map) is never run.": lambda d: edit(d, model_type="mine", auto_map={"AutoModel": "m.M"}),
    'model_type "gpt_oss", whose attention PyTorch\'s function (sdpa) does not compute.': lambda d: edit(
        d, model_type="gpt_oss"
    ),
    "config.json has logits_soft_cap=30.0: it changes its logits after": lambda d: edit(d, logits_soft_cap=30.0),
    'model_type "roberta", an encoder, without is_decoder: it reads both directions.': lambda d: edit(
        d, model_type="roberta"
    ),
    "config.json has logits_scaling=8.0: it changes its logits after": lambda d: edit(
        d, model_type="granite", logits_scaling=8.0
    ),
    "config.json has final_logit_softcapping=30.0: it changes its logits after": lambda d: edit(
        d, final_logit_softcapping=30.0
    ),
    "has a quantization_config (quant_method=fp8): stored numbers are the weights only": lambda d: edit(
        d, quantization_config={"quant_method": "fp8"}
    ),
    "it has no weights in safetensors. pytorch_model.bin is a pickle, which is code and is not read": lambda d: (
        d / "model.safetensors"
    ).rename(d / "pytorch_model.bin"),
    "model.safetensors is damaged: cut short, or no safetensors.": cut,
    "its weights lack layers.1.mlp.up_proj.weight, which its config.json requires.": lambda d: header(d, renamed),
    "its weights lack layers.2.self_attn.q_proj.weight, ": lambda d: edit(d, num_hidden_layers=3),
    f"its embedding has the shape [{len(VOCABULARY)}, 16], and its config.json requires [99, 16].": lambda d: edit(
        d, vocab_size=99
    ),
    "it has no tokenizer.json: a model has a tokenizer beside its weights.": lambda d: (d / "tokenizer.json").unlink(),
    "it has no token that ends a response: neither its tokenizer nor": lambda d: without_end(d),
    "tokenizer.json is damaged: ": lambda d: (d / "tokenizer.json").write_text('{"version": "1.0"}'),
}


@pytest.mark.parametrize("message", FAULTS)
def test_a_model_that_no_job_could_start_from_is_refused(message: str, model: Path, tmp_path: Path) -> None:
    directory = shutil.copytree(model, tmp_path / "copy")
    check("model=hf", f"model.path={model}")
    FAULTS[message](directory)
    with pytest.raises(ValueError) as refusal:
        check("model=hf", f"model.path={directory}")
    assert str(refusal.value).startswith(f"model.path={directory}: ")
    assert message in str(refusal.value)


def test_the_next_command_of_a_notebook_reads_a_mended_model_again(model: Path, tmp_path: Path) -> None:
    directory = tmp_path / "copy"
    directory.mkdir()
    with Session().entered(), pytest.raises(ValueError, match="it has no config.json"):
        check("model=hf", f"model.path={directory}")
    shutil.copytree(model, directory, dirs_exist_ok=True)
    with Session().entered():
        check("model=hf", f"model.path={directory}")


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("num_attention_heads=3", "model.architecture.num_attention_heads=3: the width"),
        ("num_attention_heads=64", "a head is 1 wide"),
        ("num_key_value_heads=3", "model.architecture.num_key_value_heads=3 does not divide num_attention_heads=2"),
    ],
)
def test_heads_that_no_layer_can_have_are_refused(typed: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check(f"model.architecture.{typed}")


def test_a_chat_template_is_there_and_can_be_read(model: Path, tmp_path: Path) -> None:
    words = ["model=hf", "model.chat=true"]
    with pytest.raises(ValueError, match="no chat template, and model.chat=true needs one"):
        check(*words, f"model.path={model}")
    good = "{% for m in messages %}{{ m.content }}{% endfor %}"
    refusing = "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}" + good
    for name, text in (("good", good), ("refusing", refusing)):
        template(shutil.copytree(model, tmp_path / name), text)
        check(*words, f"model.path={tmp_path / name}")
    with pytest.raises(ValueError, match="its chat template rejects a prompt after model.system: no system role."):
        check(*words, f"model.path={tmp_path / 'refusing'}", "model.system=Hello")
    for name, text, left_out in (
        ("empty", "{% if false %}{{ messages }}{% endif %}", "the prompt: of 'What is 1 + 1?' it makes ''."),
        ("user", "{{ messages[-1].content }}", "model.system: of 'Hello' it makes 'What is 1 + 1?'."),
    ):
        template(shutil.copytree(model, tmp_path / name), text)
        with pytest.raises(ValueError, match=f"its chat template leaves out {re.escape(left_out)}"):
            check(*words, f"model.path={tmp_path / name}", "model.system=Hello")
    template(shutil.copytree(model, tmp_path / "endless"), "{% for i in range(10**9) %}{% endfor %}")
    with pytest.raises(ValueError, match="its chat template rejects a prompt: it computes a power, or 65,536 times"):
        check(*words, f"model.path={tmp_path / 'endless'}")
    template(shutil.copytree(model, tmp_path / "bad"), "{% for")
    with pytest.raises(ValueError, match="its chat template, line 1: "):
        check(*words, f"model.path={tmp_path / 'bad'}")


def test_data_whose_prompts_leave_no_room_for_a_response_are_refused(model: Path, tmp_path: Path) -> None:
    """Of a context of 256 tokens a response has 200: 60 are too many."""
    data = tmp_path / "data.jsonl"
    data.write_text(json.dumps({"problem": f"{VOCABULARY[0]} " * 60, "answer": "1"}))
    words = ["model=hf", f"model.path={model}", "task=math", f"task.train={data}", f"task.test={data}"]
    with pytest.raises(ValueError, match="its tokenizer cannot read a prompt: .*Missing"):
        check_with_task(*words, "rollout.max_tokens=250")
    words += ["task.template='{problem}'"]
    check_with_task(*words, "rollout.max_tokens=100")
    with pytest.raises(
        ValueError, match=r"more than 56 tokens \(the model's context of 256 without 200 of a response\)"
    ):
        check_with_task(*words, "rollout.max_tokens=200")


def test_a_closed_vocabulary_must_have_the_words_of_the_task(model: Path) -> None:
    words = ["model=hf", f"model.path={model}", "loss=reinforce"]
    check_with_task(*words, "task=maze", "task.size=5", "task.test_problems=4")
    with pytest.raises(ValueError, match=r"task=coins has prompts with .* more words, .* does not know: its"):
        check_with_task(*words, "task=coins", "task.test_problems=4")


def test_the_longest_question_that_is_spelled_must_fit_too(tmp_path: Path) -> None:
    """245 characters and 16 of a response do not fit 256 positions, whichever question has them."""
    rows = [{"question": f"{n} + 1?", "answer": str(n + 1)} for n in range(20)]
    train, test = (
        write_jsonl(tmp_path / name, rows[part]) for name, part in (("a.jsonl", slice(15)), ("b.jsonl", slice(15, 20)))
    )
    words = ["task=spelled", "model=spelled_tiny", "loss=reinforce", f"task.train={train}", f"task.test={test}"]
    check_with_task(*words)
    write_jsonl(Path(test), [*rows[15:], {"question": "1 + 1?".ljust(244, "!") + "?", "answer": "2"}])
    with pytest.raises(ValueError, match=r"16 tokens, after a prompt of 245 tokens of task=spelled is over .* 256 tok"):
        check_with_task(*words)


def test_a_name_that_neither_disk_nor_hub_can_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="neither a directory or .gguf file on this machine nor a name of the hub"):
        check("model=hf", f"model.path={tmp_path}/nowhere")
    with pytest.raises(ValueError, match="neither a directory or .gguf file on this machine nor a name of the hub"):
        check("model=hf", "model.path=./nope")


def test_a_system_prompt_needs_the_chat_template() -> None:
    with pytest.raises(ValueError, match=r"Add model.chat=true, or drop model.system"):
        check("model=hf", "model.path=nobody/nothing", "model.system=Think.")


def test_the_context_is_that_of_the_directory_or_of_the_config(model: Path) -> None:
    assert context_of({"path": str(model)}) == 256
    assert context_of({"architecture": {"max_position_embeddings": 1024}}) == 1024
    assert context_of({"path": "nobody/nothing"}) is None


@pytest.mark.parametrize(
    ("changes", "context"),
    [
        ({"rope_scaling": {"type": "su", "long_factor": [1.0]}, "original_max_position_embeddings": 64}, 64),  # Phi-3
        ({"rope_scaling": {"type": "longrope", "original_max_position_embeddings": 32}}, 32),
        ({"rope_parameters": {"rope_type": "longrope", "original_max_position_embeddings": 512}}, 256),
        ({"rope_parameters": {"rope_type": "yarn", "original_max_position_embeddings": 64}}, 256),
        ({"keep_window_size": 32}, 32),  # Doge
        ({"keep_window_size": "32", "text_config": []}, 256),  # what is no number limits nothing
    ],
)
def test_sequences_are_as_long_as_the_short_factors_of_long_rope(
    changes: dict[str, object], context: int, model: Path, tmp_path: Path
) -> None:
    """Beyond, transformers takes other factors for a whole batch: log-probabilities would depend on what is in it."""
    directory = shutil.copytree(model, tmp_path / "copy")
    edit(directory, **{"rope_parameters": None, **changes})
    assert context_of({"path": str(directory)}) == context
    if context < 256:
        with pytest.raises(ValueError, match=rf"{context} tokens \((LongRoPE|keep_window_size): beyond them its "):
            check_with_task("model=hf", f"model.path={directory}", "task=maze", "rollout.max_tokens=100")
