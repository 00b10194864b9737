from typing import Any, get_args

import pytest

from rlvr.config.cost import DEVICES, device_of, hours, step_s
from rlvr.config.memory import Architecture
from rlvr.config.schema import Gpu

# Qwen2.5-7B: 7.616e9 parameters, 15.23 GB in half precision
MODEL = Architecture(28, 3584, 18944, 152064, 28, 4, 128, tied=False, qkv_bias=True)
ENGINE = {"dtype": "bfloat16", "max_batch_sequences": 512, "max_cache_gb": 32.0}
TINY = {"prompts": 1, "samples": 1}


def config(**changes: Any) -> dict[str, Any]:
    """One step on 8 H100 with vLLM: 256 prompts, 8 responses each of 8192 tokens at most.

    changes: `section={key: value}`, or a value of the top level."""
    made: dict[str, Any] = {
        "task": {"_target_": "maze", "test_problems": 16, "test": "x"},
        "steps": 1,
        "model": {},
        "rollout": {
            "prompts": 256,
            "samples": 8,
            "max_tokens": 8192,
            "dynamic_sampling": "none",
            "logp_old": "engine",
            "engine": {**ENGINE, "python": None},
        },
        "trainer": {"epochs": 1, "updates": 1, "dtype": "bfloat16", "activation_checkpointing": True},
        "cluster": {"gpus": 8, "gpu": "h100", "ranks": 8, "threads": 1},
        "evaluation": {"problems": None, "samples": 8, "every": 50},
    }
    for key, value in changes.items():
        made[key] = {**made[key], **value} if isinstance(value, dict) and key in made else value
    return made


def step(mean: float = 2000, **changes: Any) -> float:
    """Seconds of a step with responses of `mean` tokens."""
    return step_s(config(**changes), MODEL, mean=mean)


SAMPLING = 2000 * 0.01998 + 6192 * 0.01158


def test_a_step_by_hand() -> None:
    """Sampling: 256 responses an engine, 57,344 bytes of keys and values a token. A token for 256 reads (15.23 + 256 ·
    1150 · 57e-6) GB at 0.6 · 3.35 TB/s, 16 ms, and 4 ms; 2000 of them, and 6192 of 11.6 ms for the longest.

    Training: 256 · (8 · 2000 + 150) = 4.134M tokens · 2 · 7.616e9 FLOPs · 4 passes, at 8 · 989e12 · 0.4 FLOP/s: 79.6 s.
    """
    assert step() == pytest.approx(SAMPLING + 79.6, rel=0.01)
    rows: list[tuple[dict[str, Any], float]] = [  # (changes, passes)
        ({"trainer": {"activation_checkpointing": False}}, 3),
        ({"trainer": {"epochs": 2}}, 8),
        ({"rollout": {"logp_old": "trainer"}}, 5),
        ({"rollout": {"dynamic_sampling": "drop"}}, 2),
    ]
    for changes, passes in rows:
        assert step(**changes) == pytest.approx(SAMPLING + passes * 79.6 / 4, rel=0.01), changes


def test_the_native_engine_waits_for_each_batch_and_launches_its_kernels_by_hand() -> None:
    """8192 + 150 tokens are allocated: 71.8 responses at once, 4 batches for 256. A token takes at least 28 launches
    of 1.5 ms."""
    native = step(rollout={"engine": ENGINE})
    assert native == pytest.approx(256 / 71.8 * 2000 * 0.042 + 4 * 6192 * 0.042 + 79.6, rel=0.01)


def test_two_devices_of_an_engine_read_half_of_the_weights_each_by_hand() -> None:
    """512 responses on an engine; a token: (7.6 + 512 · 1150 · 28.7e-6) GB at 2.01 TB/s + 4 ms = 16.2 ms; 7.8 alone."""
    two = step(rollout={"engine": {**ENGINE, "python": None, "tensor_parallel": 2}})
    assert two == pytest.approx(2000 * 0.0162 + 6192 * 0.00779 + 79.6, rel=0.01)


def test_a_step_that_draws_half_of_its_groups_in_vain_samples_twice_as_many() -> None:
    """512 responses an engine, of which 279 fit in the cache (33.6 GB: 20.7 ms)."""
    refilled = 512 / 279 * 2000 * 0.0207 + 6192 * 0.01158
    assert step(rollout={"dynamic_sampling": "refill"}) == pytest.approx(refilled + 79.6, rel=0.01)


def test_evaluations_are_sampled_like_a_step() -> None:
    """16 problems of 8 responses, at the start and at the end: 16 prompts of a step without its training."""
    one = hours(config(steps=100), MODEL) - hours(config(steps=50), MODEL) - 50 * step_s(config(), MODEL) / 3600
    assert hours(config(steps=50), MODEL) == pytest.approx(50 * step_s(config(), MODEL) / 3600 + 2 * one)
    same = [
        {"evaluation": {"problems": 4, "validation": 12}},
        {"task": {"test": {"a": "a.jsonl", "b": "b.jsonl"}}, "evaluation": {"problems": 8}},
    ]
    for changes in same:
        assert hours(config(**changes), MODEL) == pytest.approx(hours(config(), MODEL)), changes


def test_sampling_ahead_hides_the_shorter_of_sampling_and_training() -> None:
    assert step(rollout={"ahead": 1}) == pytest.approx(max(SAMPLING, 79.6), rel=0.01)


def test_small_models_on_a_cpu_take_what_the_launches_of_kernels_take() -> None:
    """28 layers of 0.5 ms, 4 passes of each update: 3000 more updates are 168 s more."""
    tiny: dict[str, Any] = {"rollout": {**TINY, "engine": ENGINE}, "cluster": {"gpus": 0, "ranks": 1}}
    many, once = (step(1e-3, **tiny, trainer={"updates": updates}) for updates in (6000, 3000))
    assert many - once == pytest.approx(168)


def test_cost_falls_with_devices() -> None:
    assert step(cluster={"ranks": 16}) < step()
    assert step(cluster={"gpu": "a100"}) > step() > step(cluster={"gpu": "b200"})


def test_the_device_is_chosen_by_name_by_memory_or_is_the_cpu() -> None:
    assert {*DEVICES} == {"cpu", *get_args(Gpu)}
    assert device_of({"gpus": 0}) == "cpu"
    assert device_of({"gpus": 8, "gpu": "b200", "gpu_memory_gb": 80}) == "b200"
    by_memory = [device_of({"gpus": 1, "gpu_memory_gb": gb}) for gb in (None, 24, 40, 80, 96, 140)]
    assert by_memory == ["h100", "rtx4090", "l40s", "h100", "h200", "h200"]
