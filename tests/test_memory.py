"""Parameters of published models, and bytes worked by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlvr import memory
from rlvr.memory import GB, Architecture, Setting, architecture, per_gpu

# config.json of the hub, and the number of parameters that its safetensors hold.
PUBLISHED = {
    "Qwen2.5-7B": (
        {"model_type": "qwen2", "num_hidden_layers": 28, "hidden_size": 3584, "intermediate_size": 18944,
         "vocab_size": 152064, "num_attention_heads": 28, "num_key_value_heads": 4, "tie_word_embeddings": False},
        7_615_616_512,
    ),
    "Qwen2.5-1.5B": (
        {"model_type": "qwen2", "num_hidden_layers": 28, "hidden_size": 1536, "intermediate_size": 8960,
         "vocab_size": 151936, "num_attention_heads": 12, "num_key_value_heads": 2, "tie_word_embeddings": True},
        1_543_714_304,
    ),
    "Qwen3-8B": (
        {"model_type": "qwen3", "num_hidden_layers": 36, "hidden_size": 4096, "intermediate_size": 12288,
         "vocab_size": 151936, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
         "tie_word_embeddings": False},
        8_190_735_360,
    ),
    "Llama-3.1-8B": (
        {"model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, "intermediate_size": 14336,
         "vocab_size": 128256, "num_attention_heads": 32, "num_key_value_heads": 8, "tie_word_embeddings": False},
        8_030_261_248,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_of_published_models(name: str) -> None:
    config, expected = PUBLISHED[name]
    model = architecture(config)
    assert model is not None
    assert model.parameters == expected


def test_a_family_that_is_not_known_has_no_estimate() -> None:
    assert architecture({"model_type": "mamba"}) is None
    assert memory.of_model({"_target_": "rlvr.base.table"}) is None
    assert memory.of_model({"path": "nobody/has-this-model"}) is None
    assert memory.of_model({"path": "/nowhere/at/all"}) is None


def test_a_directory_tells_its_size(tmp_path: Path) -> None:
    config, expected = PUBLISHED["Qwen2.5-1.5B"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = memory.of_model({"path": str(tmp_path)})
    assert model is not None
    assert model.parameters == expected


# h = 4, i = 8, q = 2 heads of 2, k = 1 of 2. A layer: 2·4·4 + 2·4·2 + 3·4·8 + 2·4 = 152; embeddings 2·10·4 = 80.
TINY = Architecture(layers=3, hidden=4, intermediate=8, vocab=10, heads=2, kv_heads=1, head_dim=2, tied=False)
# Activations of a layer: 2·(4·4 + 3·4 + 3·2 + 4·8) + 2·2·4·4 = 132 + 64 = 196 bytes a token in bfloat16.


def test_bytes_on_one_gpu_worked_by_hand() -> None:
    n = 3 * 152 + 80 + 4
    assert TINY.parameters == n == 540
    parts = per_gpu(TINY, Setting(ranks=1, width=2, tokens=5, copies=1, engine_width=4))
    assert parts == {
        "weights": 4 * n, "optimiser": 8 * n, "frozen copies": 2 * n, "engine weights": 4 * n,
        "gradients": 4 * n, "gathered weights": 2 * n,
        "activations": 5 * 3 * 196, "logits": 16 * 5 * 10,
    }  # fmt: skip


def test_ranks_share_all_but_activations_and_what_is_gathered() -> None:
    parts = per_gpu(TINY, Setting(ranks=4, width=2, tokens=5))
    assert parts["weights"] == parts["gradients"] == 540
    assert parts["optimiser"] == 2 * 540
    assert parts["gathered weights"] == 2 * (80 + 2 * 152)
    assert parts["activations"] == 5 * 3 * 196


def test_checkpointing_keeps_a_residual_of_each_layer_and_one_layer_whole() -> None:
    assert per_gpu(TINY, Setting(tokens=5, checkpointing=True))["activations"] == 5 * (3 * 2 * 4 + 196)


def test_logits_stop_growing_at_one_chunk() -> None:
    large = architecture(PUBLISHED["Qwen2.5-7B"][0])
    assert large is not None
    assert per_gpu(large, Setting(tokens=100_000))["logits"] == GB  # 2^26 numbers, four times, in float32


def test_training_and_sampling_take_turns() -> None:
    parts = per_gpu(TINY, Setting(cache_gb=8))
    assert parts["engine cache"] == 8 * GB
    assert "activations" not in parts


def run(**cluster: Any) -> dict[str, Any]:
    return {
        "model": {"architecture": PUBLISHED["Qwen2.5-7B"][0]}, "cluster": {"ranks": 8, "gpu_memory_gb": 80, **cluster},
        "rollout": {"samples": 8, "max_tokens": 1024, "engine": {"dtype": "bfloat16", "max_cache_gb": 8.0}},
        "trainer": {"dtype": "bfloat16", "token_budget": 8192, "activation_checkpointing": True, "base_kl": False,
                    "kl": 0.0, "reference_every": None},
    }  # fmt: skip


def test_what_does_not_fit_is_refused_with_what_takes_the_room() -> None:
    """7.6 billion parameters: 12 bytes each are 85 GB for one GPU, 11 for each of eight."""
    memory.check(run())
    memory.check(run(ranks=1, gpu_memory_gb=None))
    with pytest.raises(ValueError, match=r"gpu_memory_gb=80, and a GPU .* optimiser 56\.7, .* larger cluster\.ranks"):
        memory.check(run(ranks=1))
