import json
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open
from torch.profiler import ProfilerActivity, profile
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen3Config

from rlvr.config import memory, published
from rlvr.config.memory import GB, Architecture, MemorySetting, architecture, per_gpu
from rlvr.trainer import attention
from rlvr.trainer.fsdp import Trainer
from tests.support.factories import make_batch
from tests.trainer import tiny
from tests.trainer.losses import with_value

QWEN_7B = published.MODELS["Qwen/Qwen2.5-7B"]


def test_a_family_that_is_not_known_has_no_estimate() -> None:
    assert architecture({"model_type": "mamba"}) is None
    assert memory.architecture_of_model({"_target_": "rlvr.model.table.table"}) is None
    assert memory.architecture_of_model({"path": "nobody/has-this-model"}) is None
    assert memory.architecture_of_model({"path": "/nowhere/at/all"}) is None


def test_the_architecture_is_read_from_a_directory(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(QWEN_7B))
    model = memory.architecture_of_model({"path": str(tmp_path)})
    assert model is not None
    assert model.parameters == 7_615_616_512


# h = 4, i = 8, q = 2 heads of 2, k = 1 of 2. A layer: 2·4·4 + 2·4·2 + 3·4·8 + 2·4 = 152; embeddings 2·10·4 = 80.
TINY = Architecture(layers=3, hidden=4, intermediate=8, vocab=10, heads=2, kv_heads=1, head_dim=2, tied=False)
# Activations of a layer: 2·(4·4 + 3·4 + 2·2 + 4·8) + 2·4·4 = 128 + 32 = 160 bytes a token in bfloat16. Beside those of
# all layers, 26·4 = 104 at the head, or 2·2·8 = 32 of gradients in a layer's backward pass.


def test_bytes_on_one_gpu_worked_by_hand() -> None:
    n = 3 * 152 + 80 + 4
    assert TINY.parameters == n == 540
    parts = per_gpu(TINY, MemorySetting(ranks=1, width=2, tokens=5, copies=1, engine_width=4))
    assert parts == {
        "weights": 4 * n,
        "optimiser": 8 * n,
        "frozen copies": 2 * n,
        "engine weights": 4 * n,
        "gradients": 4 * n,
        "gathered weights": 2 * 2 * n,
        "whole gradients": 6 * 40,
        "activations": 5 * (3 * 160 + 104),
        "logits": 12 * 5 * 10,
    }


def test_a_critic_is_a_second_model_in_training_without_a_head() -> None:
    alone = per_gpu(TINY, MemorySetting(ranks=2, width=2, tokens=5))
    parts = per_gpu(TINY, MemorySetting(ranks=2, width=2, tokens=5, critic=True))
    assert parts["critic"] == (4 + 8) * (540 - 40) / 2
    assert parts["gradients"] == alone["gradients"] + 4 * (540 - 40) / 2
    assert parts["gathered weights"] == 2 * alone["gathered weights"]
    assert parts["activations"] == alone["activations"] + 5 * 3 * 160


def test_ranks_share_all_but_activations_and_what_is_gathered() -> None:
    parts = per_gpu(TINY, MemorySetting(ranks=4, width=2, tokens=5))
    assert parts["weights"] == parts["gradients"] == 540
    assert (parts["optimiser"], parts["gathered weights"]) == (2 * 540, 2 * (80 + 2 * 152))
    assert parts["activations"] == 5 * (3 * 160 + 104)


def test_frozen_copies_in_main_memory_take_only_what_is_gathered() -> None:
    here, there = (
        per_gpu(TINY, MemorySetting(ranks=4, tokens=5, copies=1, offload=offload)) for offload in (False, True)
    )
    assert (here["frozen copies"], there) == (270, {**here, "frozen copies": 0})


def test_adapters_leave_no_gradients_no_optimiser_and_half_the_weights() -> None:
    whole, adapted = (per_gpu(TINY, MemorySetting(ranks=4, width=2, tokens=5, adapters=a)) for a in (False, True))
    assert adapted["weights"] == whole["weights"] / 2
    assert adapted["optimiser"] == adapted["gradients"] == adapted["whole gradients"] == 0
    assert adapted["activations"] == whole["activations"]


def test_gradients_of_the_embeddings_are_whole_when_activations_are_gone() -> None:
    """Embedding and head of 8000 numbers, in float32 and once more to be summed; on one rank a third time."""
    wide = replace(TINY, vocab=1000)
    parts = per_gpu(wide, MemorySetting(ranks=4, width=4, tokens=1))
    assert parts["whole gradients"] == (4 + 4) * 2 * 1000 * 4
    alone = per_gpu(wide, MemorySetting(ranks=1, width=4, tokens=1))
    assert alone["whole gradients"] == 12 * 2 * 1000 * 4
    assert "activations" not in parts


def test_checkpointing_keeps_a_residual_of_each_layer_and_one_layer_whole() -> None:
    parts = per_gpu(TINY, MemorySetting(tokens=5, checkpointing=True))
    assert (parts["activations"], parts["whole gradients"]) == (5 * (3 * 2 * 4 + 160 + 32), 6 * 40 + 6 * 152)
    assert "logits" not in parts


@pytest.mark.slow
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize(
    ("kind", "dtype", "vocab", "temperature"),
    [
        *(("qwen2", "bfloat16", 32, 1.0), ("qwen2", "float32", 32, 1.0), ("qwen3", "bfloat16", 32, 1.0)),
        *(("qwen2", "float32", 4096, 1.0), ("qwen2", "float32", 4096, 0.8)),
    ],
)
def test_one_more_token_takes_what_it_takes_in_a_step(
    kind: str,
    dtype: str,
    vocab: int,
    temperature: float,
    checkpointing: bool,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Peak of all tensors in a training step, per token of a micro-batch: within 6 %."""
    monkeypatch.setattr(attention, "to_float32_on_cpu", lambda *tensors: tensors)  # as on a GPU
    numbers = {
        "vocab_size": vocab,
        "hidden_size": 128,
        "intermediate_size": 512,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "num_hidden_layers": 3,
        "tie_word_embeddings": True,
    }
    config = {"qwen2": Qwen2Config, "qwen3": Qwen3Config}[kind]
    trainer = tiny.make_trainer(
        AutoModelForCausalLM.from_config(config(max_position_embeddings=4096, **numbers)),
        dtype=dtype,
        activation_checkpointing=checkpointing,
        shared_prompt="never",
        temperature=temperature,
    )
    (low, few), (high, many) = (peak_bytes(trainer, length, tmp_path / "trace.json") for length in (200, 400))
    model = architecture({"model_type": kind, **numbers})
    assert model is not None
    width = 4 if dtype == "float32" else 2
    setting = MemorySetting(width=width, tempered=temperature != 1, checkpointing=checkpointing)
    less, more = (sum(per_gpu(model, replace(setting, tokens=tokens)).values()) for tokens in (10_000, 20_000))
    assert (more - less) / 10_000 == pytest.approx((high - low) / (many - few), rel=0.06)


def peak_bytes(trainer: Trainer, length: int, trace: Path) -> tuple[int, int]:
    """(bytes above those before it, tokens) of a step on one micro-batch of four responses of this length."""
    batch = make_batch(num_groups=2, num_samples=2, num_tokens=length, lengths=[length] * 4)
    (micro,) = trainer._split(batch)
    trainer.learn(batch)  # the first step allocates what stays
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        trainer.learn(batch)
    profiled.export_chrome_trace(str(trace))
    events = [event for event in json.loads(trace.read_text())["traceEvents"] if event.get("name") == "[memory]"]
    changes = [event["args"]["Bytes"] for event in sorted(events, key=lambda event: event["ts"])]
    return max(accumulate(changes)), micro.layout.num_tokens


def test_logits_stop_growing_at_one_chunk() -> None:
    large = architecture(QWEN_7B)
    assert large is not None
    assert per_gpu(large, MemorySetting(tokens=100_000))["logits"] == 1.5 * GB  # 2^27 numbers, three times, in float32


def test_seven_billion_parameters_on_eight_gpus() -> None:
    """GB of 2^30 bytes. A rank's 0.952 billion parameters, 4 bytes each: 3.55. Embedding and head 1.09 billion and two
    layers of 0.233: 1.556 billion in bfloat16, 2.90. A token keeps 28 residuals of 7,168 bytes, one layer's 232,448 and
    gradients of 2 x 37,888: 16,384 of them 7.77. Head and a layer: 6·(0.545 + 0.233) = 4.67 billion bytes of whole
    gradients, 4.35."""
    model = architecture(QWEN_7B)
    assert model is not None
    parts = per_gpu(model, MemorySetting(ranks=8, checkpointing=True, engine_width=2))
    expected = {
        "weights": 3.55,
        "optimiser": 7.09,
        "frozen copies": 0,
        "engine weights": 14.19,
        "gradients": 3.55,
        "gathered weights": 2.90,
        "whole gradients": 4.35,
        "activations": 7.77,
    }
    assert {k: v / GB for k, v in parts.items()} == pytest.approx(expected, abs=0.005)


def test_an_engine_that_sleeps_leaves_its_weights_memory_to_training() -> None:
    awake, asleep = (per_gpu(TINY, MemorySetting(tokens=5, engine_width=2, engine_sleeps=s)) for s in (False, True))
    assert awake["engine weights"] == 2 * 540
    assert asleep == {k: v for k, v in awake.items() if k != "engine weights"}
    parts = per_gpu(TINY, MemorySetting(tokens=5, engine_width=2, engine_sleeps=True, cache_gb=8))
    assert (parts["engine weights"], parts["engine cache"]) == (2 * 540, 8 * GB)


def test_gpus_that_share_an_engine_hold_a_part_of_its_weights_each() -> None:
    """Qwen2.5-7B's 14.19 GB on four GPUs: 3.55 each, and 10.64 more for keys and values than with one engine each."""
    config = run(gpus=8)
    config["rollout"]["engine"] = {**ENGINE, "_target_": "rlvr.rollout.vllm.VllmEngine", "max_cache_gb": None}
    alone = memory.cache_gb(config, 80)
    config["rollout"]["engine"]["tensor_parallel"] = 4
    assert memory.cache_gb(config, 80) - alone == pytest.approx(14.19 * 3 / 4, abs=0.01)
    parts = per_gpu(TINY, MemorySetting(tokens=5, engine_width=2, engine_gpus=4))
    assert parts["engine weights"] == 2 * 540 / 4


ENGINE = {
    "_target_": "rlvr.rollout.native.NativeEngine",
    "dtype": "bfloat16",
    "max_cache_gb": 8.0,
    "max_batch_sequences": 512,
}


def run(**cluster: Any) -> dict[str, Any]:
    return {
        "model": {"architecture": QWEN_7B},
        "cluster": {"ranks": 8, "gpu_memory_gb": 80, **cluster},
        "rollout": {"samples": 8, "temperature": 1.0, "max_tokens": 1024, "engine": ENGINE},
        "trainer": {
            "dtype": "bfloat16",
            "token_budget": 8192,
            "activation_checkpointing": True,
            "base_kl": False,
            "kl": 0.0,
            "reference_every": None,
        },
        "loss": {"_target_": "rlvr.loss.grpo.grpo"},
    }


def test_an_engine_on_gpus_of_its_own_takes_nothing_from_training() -> None:
    config = run()
    config["rollout"]["engine"] = {**ENGINE, "workers": 8}
    there = memory.setting_of(config)
    assert (there.engine_width, there.cache_gb) == (0, 0)


def test_a_copy_on_each_node_is_shared_by_the_ranks_of_a_node() -> None:
    """Eight ranks on two nodes that train, beside one that samples."""
    nodes = {"nodes": 3, "sampling_nodes": 1}
    assert memory.setting_of(run(**nodes, shard_over="job")).ranks == 8
    assert memory.setting_of(run(**nodes, shard_over="node")).ranks == 4


def test_the_longest_response_is_that_of_the_task_where_the_rollout_names_none() -> None:
    """8192 tokens are more than the budget of 4096; a loss that reads whole groups holds eight of them."""
    config = run(gpu_memory_gb=24)
    config["rollout"], config["task"] = {**config["rollout"], "max_tokens": None}, {"max_tokens": 8192}
    config["trainer"] = {**config["trainer"], "token_budget": 4096}
    assert memory.setting_of(config).tokens == 8192
    config["loss"] = {"_target_": "rlvr.loss.pacs.pacs"}
    assert memory.setting_of(config).tokens == 65536
    with pytest.raises(ValueError, match=r"Pass .*a smaller rollout.max_tokens"):  # a smaller budget would not help
        memory.check(config)
    config["task"] = {}
    assert memory.setting_of(config).tokens == 4096


def test_the_cache_takes_by_default_what_a_gpu_has_left_while_responses_are_sampled() -> None:
    """Qwen2.5-7B on eight GPUs of 80 GB, of which 76 are filled. At rest 3.55 of weights, 7.09 of averages and 5 that
    no tensor accounts for; the engine's weights 14.19, and 2.5 at work, beside 12 bytes for each of 512 sequences and
    152064 tokens, 0.87. A forward pass of the canary gathers embedding, head (2 · 152064 · 3584) and two layers
    (2 · 233,057,792) in 2 bytes, 2.90: 39.9 are left. On GPUs of its own 3 at rest. 2048 sequences take 2.61 more."""
    config = run(gpus=8)
    vllm = {**ENGINE, "_target_": "rlvr.rollout.vllm.VllmEngine", "max_cache_gb": None}
    config["rollout"]["engine"] = vllm
    assert memory.cache_gb(config, 80) == pytest.approx(76 - 3.55 - 7.09 - 5 - 14.19 - 3.37 - 2.90, abs=0.02)
    assert memory.cache_gb(config, 24) == 1  # the least
    config["rollout"]["engine"] = {**vllm, "workers": 8}
    assert memory.cache_gb(config, 80) == pytest.approx(76 - 3 - 14.19 - 3.37, abs=0.01)
    config["rollout"]["engine"] = {**vllm, "workers": 8, "max_batch_sequences": 2048}
    assert memory.cache_gb(config, 80) == pytest.approx(76 - 3 - 14.19 - 3.37 - 2.61, abs=0.01)
    config["rollout"]["engine"] = {**vllm, "workers": 8}
    assert memory.cache_gb(config, None) == 8
    config["rollout"]["engine"] = ENGINE
    assert memory.cache_gb(config, 80) == 8  # as asked for
    config["rollout"]["engine"], config["model"] = vllm, {"path": "nobody/has-this-model"}
    assert memory.cache_gb(config, 80) == 8  # of a size that nobody knows


def test_the_default_cache_counts_one_gigabyte_before_launch() -> None:
    config = run(gpus=8)
    config["rollout"]["engine"] = {**ENGINE, "max_cache_gb": None}
    assert memory.setting_of(config).cache_gb == 1


def test_a_gpu_holds_more_than_tensors() -> None:
    """CUDA's context, NCCL's buffers and fragments: 3 GB; a vLLM that sleeps beside the rank: 2 GB more."""
    vllm = {**ENGINE, "_target_": "rlvr.rollout.vllm.VllmEngine"}
    for engine, gigabytes in ((ENGINE, 3), (vllm, 5)):
        config = run(gpus=8)
        config["rollout"]["engine"] = engine
        assert per_gpu(TINY, memory.setting_of(config))["contexts and fragments"] == gigabytes * GB
    assert "contexts and fragments" not in per_gpu(TINY, memory.setting_of(run(gpus=0)))


def test_a_vllm_at_work_holds_more_than_weights_and_cache() -> None:
    """What the default cache leaves free for it counts before launch, too: 2.5 GB, and 12 bytes for each of 512
    sequences and 152064 tokens, 0.87. Without a GPU nothing is counted."""
    config = run(gpus=8)
    config["rollout"]["engine"] = {**ENGINE, "_target_": "rlvr.rollout.vllm.VllmEngine", "max_cache_gb": None}
    model = memory.architecture_of_model(config["model"])
    assert model is not None
    config["rollout"]["engine"]["max_cache_gb"] = memory.cache_gb(config, 80)
    parts = per_gpu(model, memory.setting_of(config))
    assert parts["engine at work"] / GB == pytest.approx(3.37, abs=0.01)
    assert sum(parts.values()) / GB == pytest.approx(0.95 * 80)  # the cache fills what the rest leaves
    config["cluster"]["gpus"] = 0
    assert "engine at work" not in per_gpu(model, memory.setting_of(config))


def test_a_run_that_needs_too_much_memory_is_refused_with_its_largest_parts() -> None:
    """7.6 billion parameters: 12 bytes each are 85 GB for one GPU, 11 for each of eight."""
    memory.check(run())
    memory.check(run(ranks=1, gpu_memory_gb=None))
    with pytest.raises(ValueError, match=r"gpu_memory_gb=80, and a GPU .* optimiser 56\.7, .* larger cluster\.ranks"):
        memory.check(run(ranks=1))


def test_a_vllm_that_does_not_fit_on_a_gpu_of_its_own_is_refused() -> None:
    """7.6 billion weights of two bytes are 14.2 GB; with 3.0 of contexts and 3.4 at work, 20.5 and a cache."""
    config = run(ranks=16, gpus=8, gpu_memory_gb=24)
    config["rollout"]["engine"] = {**ENGINE, "workers": 4, "tensor_parallel": 1, "max_cache_gb": 3.0}
    config["trainer"]["token_budget"] = 1024
    memory.check(config)
    config["rollout"]["engine"]["max_cache_gb"] = 4.0
    with pytest.raises(ValueError, match=r"^cluster\.gpu_memory_gb=24, and a GPU of a vLLM .* larger rollout"):
        memory.check(config)
    config["rollout"]["engine"]["tensor_parallel"] = 2
    memory.check(config)


@pytest.mark.parametrize(
    "knobs", [{}, {"lora_rank": 2}, {"critic": "own"}, {"kl": 0.1, "reference_every": 3}], ids=lambda k: str(k)
)
def test_a_checkpoint_has_the_predicted_size(knobs: dict[str, Any], tmp_path: Path) -> None:
    """But for a value head of 17 numbers, and the headers of the file."""
    loss = with_value if "critic" in knobs else tiny.surrogate
    trainer = tiny.make_trainer(tiny.qwen2(tied=False), loss, **knobs)
    trainer.save(tmp_path / "saved", {})
    with safe_open(tmp_path / "saved" / "shard-0.safetensors", framework="pt") as file:
        saved = {name: file.get_tensor(name) for name in file.keys() if not name.startswith("random")}  # noqa: SIM118
    of_head = sum(tensor.nbytes for name, tensor in saved.items() if ".value.value." in name)
    model = architecture(trainer.actor.model.config.to_dict())
    assert model is not None
    predicted = memory.checkpoint_bytes(model, vars(trainer.knobs))
    assert sum(tensor.nbytes for tensor in saved.values()) - of_head == predicted
