import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from rlvr.model.structure import stored_buffers
from rlvr.trainer.sharded_load import load_for_shards
from tests.compatibility.architectures import built
from tests.trainer.losses import with_value
from tests.trainer.tiny import batch, make_trainer, qwen2, weights


def saved(directory: Path, *, tied: bool, dtype: torch.dtype = torch.float32) -> Path:
    model = qwen2(tied=tied)
    model.to(dtype)  # type: ignore[arg-type]
    model.save_pretrained(directory, max_shard_size="4KB")  # several files
    return directory


def one_file(directory: Path, rename: Callable[[str], str]) -> Path:
    """The same tensors in one file, under other names."""
    files = sorted(directory.glob("*.safetensors"))
    tensors = {rename(k): v for file in files for k, v in load_file(file).items()}
    for file in [*files, *directory.glob("*.index.json")]:
        file.unlink()
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    return directory


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_training_from_a_skeleton_is_that_from_the_loaded_model_bit_for_bit(
    tmp_path: Path, tied: bool, dtype: torch.dtype
) -> None:
    knobs: dict[str, Any] = {"kl": 0.1, "base_kl": True, "lr": 0.01, "dtype": "bfloat16"}
    path = saved(tmp_path, tied=tied, dtype=dtype)
    assert len(list(path.glob("*.safetensors"))) > 1
    ordinary = make_trainer(qwen2(tied=tied).to(dtype), **knobs)  # type: ignore[arg-type]
    model = load_for_shards(path)
    assert all(p.is_meta for p in model.parameters())
    trainer = make_trainer(model, **knobs)
    for expected, actual in ((weights(ordinary), weights(trainer)), (ordinary.learn(batch()), trainer.learn(batch()))):
        assert expected.keys() == actual.keys()
        assert all(bool((torch.as_tensor(actual[k]) == torch.as_tensor(v)).all()) for k, v in expected.items())
    assert all(torch.equal(w, weights(trainer)[name]) for name, w in weights(ordinary).items())


def test_a_tied_weight_is_found_under_its_other_name(tmp_path: Path) -> None:
    path = one_file(saved(tmp_path, tied=True), lambda n: "lm_head.weight" if n == "model.embed_tokens.weight" else n)
    actual, expected = weights(make_trainer(load_for_shards(path))), dict(qwen2().named_parameters())
    assert all(torch.equal(actual[name], expected[name]) for name in expected)


def test_files_of_other_names_are_read_whole_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = one_file(saved(tmp_path, tied=True), lambda name: name.removeprefix("model."))
    with caplog.at_level(logging.WARNING):
        model = load_for_shards(path)
    assert "every rank reads the whole model" in caplog.text
    assert all(torch.equal(p, w) for p, w in zip(model.parameters(), qwen2().parameters(), strict=True))


def test_stored_buffers_are_read_for_the_policy_the_reference_and_the_critic(tmp_path: Path) -> None:
    """A layer of Gemma 4 multiplies its output by one."""
    model = built("gemma4_text", {})
    for buffer in stored_buffers(model).values():
        buffer.fill_(0.3)
    model.save_pretrained(tmp_path)
    trainer = make_trainer(load_for_shards(tmp_path), with_value, critic="own", base_kl=True)
    assert trainer.actor.critic is not None
    assert isinstance(trainer.frozen.base, nn.Module)
    for module in (trainer.actor.model, trainer.actor.critic.decoder, trainer.frozen.base):
        assert [buffer.item() for buffer in stored_buffers(module).values()] == pytest.approx([0.3, 0.3])
