"""Seconds of the roofline worked by hand, and what changes them."""

from __future__ import annotations

from typing import Any

import pytest

from rlvr.config.cost import device_of, seconds
from rlvr.config.memory import Architecture

# Qwen2.5-7B: 7.616e9 parameters, 15.23 GB in half precision
MODEL = Architecture(28, 3584, 18944, 152064, 28, 4, 128, tied=False, qkv_bias=True)


def parts(mean: float = 2000, **changes: Any) -> dict[str, float]:
    """Of one step on 8 H100 with vLLM: 256 prompts, 8 responses each of 2000 tokens, 8192 at most.

    changes: `section={key: value}`, or a value of the top level.
    """
    config: dict[str, Any] = {
        "loss": {"_target_": "rlvr.loss.grpo.grpo"},
        "task": {"_target_": "maze", "test_problems": 16, "test": "x"},
        "steps": 1,
        "model": {},
        "rollout": {
            "prompts": 256,
            "samples": 8,
            "max_tokens": 8192,
            "dynamic_sampling": "none",
            "logp_old": "engine",
            "engine": {"dtype": "bfloat16", "max_batch_sequences": 512, "max_cache_gb": 32.0, "python": None},
        },
        "trainer": {"kl": 0.0, "epochs": 1, "updates": 1, "dtype": "bfloat16", "activation_checkpointing": True},
        "cluster": {"gpus": 8, "gpu": "h100", "ranks": 8, "threads": 1},
        "evaluation": {"problems": None, "samples": 8, "every": 50},
    }
    for key, value in changes.items():
        config[key] = {**config[key], **value} if isinstance(value, dict) and key in config else value
    return seconds(config, MODEL, mean=mean)


ENGINE = {"dtype": "bfloat16", "max_batch_sequences": 512, "max_cache_gb": 32.0}


def test_a_step_of_training_by_hand() -> None:
    """256 · (8 · 2000 + 150) = 4.134M tokens · 2 · 7.616e9 FLOPs · 4 passes, over 8 · 989e12 · 0.4 FLOP/s: 79.6 s."""
    usual = parts()["training"]
    assert usual == pytest.approx(79.6, rel=0.01)
    one_pass = usual / 4
    rows: list[tuple[dict[str, Any], float]] = [  # (changes, passes)
        ({"activation_checkpointing": False}, 3),
        ({"lora_rank": 8}, 3),  # no gradients of weights
        ({"critic": {}}, 8),
        ({"kl": 0.1}, 5),
        ({"epochs": 2, "kl": 0.1}, 10),
    ]
    for changes, passes in rows:
        assert parts(trainer=changes)["training"] == pytest.approx(passes * one_pass), changes
    assert parts(rollout={"logp_old": "trainer"})["training"] == pytest.approx(5 * one_pass)
    assert parts(rollout={"dynamic_sampling": "drop"})["training"] == pytest.approx(usual / 2)
    assert parts(loss={"_target_": "rlvr.loss.kl_cov.kl_cov"})["training"] == pytest.approx(5 * one_pass)


def test_a_step_of_sampling_by_hand() -> None:
    """256 responses an engine, 57,344 bytes of keys and values a token: 279 fit in the cache. A token for 256 reads
    (15.23 + 256 · 1150 · 57e-6) GB at 0.6 · 3.35 TB/s, 16 ms, and 4 ms; 2000 of them, and 6192 of 11.6 ms for the
    longest. Half of the groups are kept by refill: 512 responses, 279 at once (33.6 GB: 20.7 ms), twice."""
    assert parts()["sampling"] == pytest.approx(2000 * 0.01998 + 6192 * 0.01158, rel=0.01)
    refilled = parts(rollout={"dynamic_sampling": "refill"})["sampling"]
    assert refilled == pytest.approx(512 / 279 * 2000 * 0.0207 + 6192 * 0.01158, rel=0.01)


def test_the_native_engine_waits_for_each_batch_and_launches_its_kernels_by_hand() -> None:
    """8192 + 150 tokens are allocated: 71.8 responses at once, 4 batches for 256. A token takes at least 28 launches
    of 1.5 ms."""
    native = parts(rollout={"engine": ENGINE})["sampling"]
    assert native == pytest.approx(256 / 71.8 * 2000 * 0.042 + 4 * 6192 * 0.042, rel=0.01)


def test_two_devices_of_an_engine_read_half_of_the_weights_each_by_hand() -> None:
    """512 responses on an engine; a token: (7.6 + 512 · 1150 · 28.7e-6) GB at 2.01 TB/s + 4 ms = 16.2 ms; 7.8 alone."""
    two = parts(rollout={"engine": {**ENGINE, "python": None, "tensor_parallel": 2}})["sampling"]
    assert two == pytest.approx(2000 * 0.0162 + 6192 * 0.00779, rel=0.01)


def test_evaluations_and_the_base_policys_answers_are_sampled_like_a_step() -> None:
    """16 problems of 8 responses, at the start and at the end; 256 problems of 8 responses before training."""
    one = parts(rollout={"prompts": 16})["sampling"]
    assert parts(steps=1)["evaluation"] == pytest.approx(2 * one)
    assert parts(steps=100)["evaluation"] == pytest.approx(3 * one)
    assert parts(evaluation={"problems": 4, "validation": 12})["evaluation"] == pytest.approx(2 * one)
    known = {"test_problems": None, "test": {"math500": "a.jsonl", "mine": "b.jsonl"}}
    few = {"problems": 64, "samples": 1}
    assert parts(task=known, evaluation=few)["evaluation"] == pytest.approx(2 * one)  # 64 of each
    presample = {"problems": 256, "samples": 8}
    assert parts(presample=presample)["presample"] == pytest.approx(parts()["sampling"])
    of_task = {**presample, "problems": None}
    assert parts(presample=of_task, task={"train_problems": 256}) == parts(presample=presample)
    assert "presample" not in parts()


def test_sampling_ahead_hides_the_shorter_of_sampling_and_training() -> None:
    usual, ahead = parts(), parts(rollout={"ahead": 1})
    assert ahead == {**usual, "overlap": -min(usual["sampling"], usual["training"])}


def test_small_models_on_a_cpu_take_what_the_launches_of_kernels_take() -> None:
    """28 layers of 0.5 ms, 4 passes of each update: 3000 updates are 168 s."""
    tiny = {"prompts": 1, "samples": 1, "engine": ENGINE}
    cpu = {"gpus": 0, "ranks": 1}
    many = parts(mean=1e-3, rollout=tiny, cluster=cpu, trainer={"updates": 3000})
    assert many["training"] == pytest.approx(168)


def test_cost_grows_with_steps_and_falls_with_devices() -> None:
    usual = parts()
    assert parts(steps=10)["training"] == pytest.approx(10 * usual["training"])
    assert parts(cluster={"ranks": 16})["training"] == pytest.approx(usual["training"] / 2)
    assert (
        sum(parts(cluster={"gpu": "a100"}).values())
        > sum(usual.values())
        > sum(parts(cluster={"gpu": "b200"}).values())
    )


def test_the_device_is_chosen_by_name_by_memory_or_is_the_cpu() -> None:
    assert device_of({"gpus": 0}) == "cpu"
    assert device_of({"gpus": 8, "gpu": "b200", "gpu_memory_gb": 80}) == "b200"
    by_memory = [device_of({"gpus": 1, "gpu_memory_gb": gb}) for gb in (None, 24, 40, 80, 96, 140)]
    assert by_memory == ["h100", "rtx4090", "l40s", "h100", "h200", "h200"]
