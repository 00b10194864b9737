"""Seconds worked by hand, laws of scale, and calibration by runs that have finished."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from rlvr.config import cost, workload
from rlvr.config.cost import Finished, calibrated, estimate, seconds
from rlvr.config.memory import Architecture
from rlvr.config.workload import CPU, DEVICES, GPU, Workload, device_of, workload_of
from rlvr.trainer.pack import MAX_SHARED, MIN_SAVED

# Qwen2.5-7B
MODEL = Architecture(28, 3584, 18944, 152064, 28, 4, 128, tied=False, qkv_bias=True)
# lad_math on 8 H100 with vLLM, were all its responses 2000 tokens long.
LAD_MATH = Workload(
    device=DEVICES["h100"],
    reached=GPU,
    devices=8,
    engines=8,
    threads=1,
    steps=1,
    responses=2048,
    rounds=2.0,
    turns=1,
    prompts=256,
    longest=8192,
    mean=2000,
    prompt=150,
    prompt_copies=1,
    kept=1.0,
    epochs=1,
    updates=1,
    batch_passes=1,
    first_pass=False,
    frozen=0.0,
    half=True,
    engine_width=2,
    vllm=True,
    sequences=512,
    cache_gb=32,
    token_budget=16384,
    recomputed=True,
    evaluations=0,
    evaluated=0,
    evaluated_samples=8,
)


def test_a_step_of_seven_billion_parameters_by_hand() -> None:
    """4.096M response and 38k prompt tokens. Training: 6.526e9 parameters in layers, 4 · 2 FLOPs each for 4.134M tokens
    with recomputation, 2.158e17; the head's 0.545e9 for responses, 1.79e16; attention's pairs, 28 layers · 3584 · 4 · 4
    for 4.096M tokens that see 150 + 1887 others (test_lengths.py), 1.34e16: 2.47e17 over 8 · 989e12 · 0.4 = 3.165e15
    FLOP/s are 78.1 s. A forward pass of log-probabilities is a quarter of it."""
    parts = seconds(MODEL, LAD_MATH)
    assert parts["training"] == pytest.approx(78.1, rel=0.01)
    assert parts["log-probabilities"] == pytest.approx(78.1 / 4, rel=0.01)
    # 15.2 GB through main memory at 1.2 GB/s.
    assert parts["weights"] == pytest.approx(12.7, rel=0.01)
    # 512 responses an engine, of 2037 tokens on average while they run, 57 kB each: 294 at once fill the 34.4 GB of
    # cache. A token for these: (15.2 + 34.4) GB / (0.6 · 3.35 TB/s) + 4 ms = 28.7 ms, 2000 of them for each 294; and a
    # tail of 6192 tokens, 11.6 ms each.
    assert parts["sampling"] == pytest.approx(512 / 294 * 2000 * 0.0287 + 6192 * 0.0116, rel=0.01)


def test_seconds_of_each_way_of_transferring_weights_by_hand() -> None:
    """15.23 GB. Eight ranks write 1.9 GB each into main memory at 2 GB/s, 0.95 s, whatever their way. Within the GPU
    they are read and written thrice at 0.6 · 3.35 TB/s, 0.05 s; from main memory each process of vLLM reads them, or
    its half of them, at 3 GB/s, 5.1 or 2.5 s; two other nodes are sent them at once, at 2.5 GB/s: 6.1 s."""
    eight = replace(LAD_MATH, ranks_of_node=8)
    ways = {"within_gpu": True}, {}, {"tensor_parallel": 2}, {"other_nodes": 2}
    taken = [seconds(MODEL, replace(eight, **way))["weights"] for way in ways]
    assert taken == pytest.approx([1.0, 6.03, 3.49, 7.04], rel=0.01)


def test_an_engine_on_two_devices_by_hand() -> None:
    """1024 responses an engine, 58 MB of keys and values each on a device: all 512 places fit. A token: (7.6 + 29.9) GB
    / 2.01 TB/s + 4 ms, and 56 sums of 15 µs and of 3.7 MB at 0.6 · 450 GB/s: 24.3 ms, 4000 of them; a tail of 6192
    tokens of 7.6 GB, 4 ms and 0.84 ms of sums: 8.6 ms. There are four heads of keys: a fifth device holds a copy."""
    two = replace(LAD_MATH, engines=4, tensor_parallel=2)
    assert seconds(MODEL, two)["sampling"] == pytest.approx(4000 * 0.0243 + 6192 * 0.0086, rel=0.01)
    few = {"cache_gb": 8, "engines": 1, "longest": 2000}  # as many at once as fit
    four, eight = (seconds(MODEL, replace(LAD_MATH, tensor_parallel=n, **few))["sampling"] for n in (4, 8))
    assert eight > 0.8 * four


def test_half_of_the_groups_take_half_of_the_training_and_prompts_are_read_once_by_hand() -> None:
    """64 problems an engine of 1500 tokens: 2 · 7.6e9 FLOPs for each of 96,000, 1.46e15 at 0.6 · 989e12, are 2.5 s."""
    usual = seconds(MODEL, LAD_MATH)
    assert seconds(MODEL, replace(LAD_MATH, kept=0.5))["training"] == pytest.approx(usual["training"] / 2)
    none, long = (
        seconds(MODEL, replace(LAD_MATH, prompt=n, sequences=256, cache_gb=64))["sampling"] for n in (0, 1500)
    )
    cached = 2 * 2000 * 256 * 1500 * 57344 / (0.6 * 3.35e12)  # twice 2000 tokens of 256 responses, each reads them
    assert long - none == pytest.approx(2.46 + cached, rel=0.01)


def test_each_round_of_sampling_has_a_tail_by_hand() -> None:
    """Two turns of 256 responses an engine: a token for all of them, (15.2 + 29.9) GB / 2.01 TB/s + 4 ms, is 26.4 ms,
    2000 of them; and each turn waits 6192 tokens of 11.6 ms for its longest response. Prompts: 0.25 s in all."""
    assert seconds(MODEL, replace(LAD_MATH, turns=2))["sampling"] == pytest.approx(2 * (52.8 + 71.8) + 0.25, rel=0.01)


def test_the_tail_is_that_of_the_longest_response() -> None:
    """Of 512 whose lengths are exponential with a mean of 100: 100 · (1 + ln 512) = 724 tokens, not the limit's 8192.
    A token of 512, 2 · 7.6e9 · 512 FLOPs at 0.6 · 989e12 a second and 4 ms, is 17.1 ms; 624 of the tail, 11.6 ms."""
    taken = seconds(MODEL, replace(LAD_MATH, mean=100))["sampling"]
    assert taken == pytest.approx(100 * 0.0171 + 624 * 0.0116 + 0.25, rel=0.01)


def test_seconds_of_the_base_policys_answers_by_hand() -> None:
    """8192 problems, 256 at a time by each of 8 engines: 2048 responses of 2000 tokens, 294 of which take 28.7 ms a
    token, are 400 s; a tail of 71.8 s, and 256 prompts of 150 tokens, 1 s."""
    parts = seconds(MODEL, replace(LAD_MATH, presampled=8192, presampled_samples=8))
    assert parts["presample"] == pytest.approx(4 * (400 + 71.8 + 1), rel=0.01)
    assert seconds(MODEL, LAD_MATH)["presample"] == 0


def test_the_workload_has_the_problems_sampled_before_training() -> None:
    knobs = {"problems": None, "samples": 4}
    endless, of_files = config(), {**config(), "task": {"_target_": "math", "train": "a.jsonl"}}
    assert workload_of(endless).presampled == 0
    workloads = [workload_of({**run, "presample": knobs}) for run in (endless, of_files)]
    assert [(its.presampled, its.presampled_samples) for its in workloads] == [(512, 4), (10_000, 4)]
    assert workload_of({**endless, "presample": {**knobs, "problems": 7}}).presampled == 7


def test_refill_samples_in_several_rounds_and_overdraw_in_one() -> None:
    """Half of the groups are kept: a second round draws the missing ones; finished runs replace this assumption."""
    run = config()
    run["rollout"]["dynamic_sampling"] = "refill"
    assert workload_of(run).turns == 2
    assert workload_of(run, {"rounds": 1.7, "turns": 2.4}).turns == 2.4
    for number, turns in ((1, 2), (2, 1)):  # several steps ahead groups are drawn one after the other
        further = {**run, "rollout": {**run["rollout"], "ahead": number}}
        assert (workload_of(further).turns, workload_of(further).rounds) == (turns, 2)
    run["rollout"]["overdraw"] = 1.1
    assert (workload_of(run).turns, workload_of(run).rounds) == (1, 2)
    assert workload_of(config()).turns == 1


def test_on_a_cpu_each_update_launches_its_kernels_one_by_one() -> None:
    """28 layers of 1 ms, forward and twice as much backward: 84 ms an update, whatever it computes."""
    slow = replace(LAD_MATH, device=DEVICES["cpu"], reached=CPU, recomputed=False)
    taken = [seconds(MODEL, replace(slow, updates=n))["training"] for n in (300, 400)]
    assert taken[1] - taken[0] == pytest.approx(100 * 0.084)
    on_gpu = [seconds(MODEL, replace(LAD_MATH, updates=n))["training"] for n in (1, 8)]
    assert on_gpu[0] == on_gpu[1]


def test_the_workload_has_the_way_in_which_weights_are_transferred() -> None:
    def way(**engine: Any) -> tuple[bool, int, int, int, int]:
        run = config()
        run["rollout"]["engine"] |= {"python": None, **engine}
        run["cluster"] |= {"gpus": 8, "ranks": 8, "nodes": 3, "sampling_nodes": 1}
        its = workload_of(run)
        return its.within_gpu, its.tensor_parallel, its.engines, its.ranks_of_node, its.other_nodes

    assert way() == (True, 1, 8, 4, 1)
    assert way(tensor_parallel=2) == (False, 2, 4, 4, 1)
    assert way(tensor_parallel=2, workers=8) == (False, 2, 8, 4, 1)
    assert not workload_of(config()).within_gpu


def test_which_settings_increase_the_cost() -> None:
    def total(**changes: Any) -> float:
        return sum(seconds(MODEL, replace(LAD_MATH, **changes)).values())

    usual = total()
    assert total(vllm=False) > 1.5 * usual
    assert total(steps=10) == pytest.approx(10 * usual)
    assert total(devices=16, engines=16) < usual < total(device=DEVICES["a100"])
    assert total(longest=16384) > usual  # the tail
    assert total(frozen=1.0) - usual == pytest.approx(78.1 / 4, rel=0.01)


def test_adapters_need_no_gradients_of_weights_by_hand() -> None:
    """Three of the four passes through layers, 1.618e17 FLOPs, and through the head, 1.34e16; all four of attention's
    pairs, 1.34e16: 1.887e17 over 3.165e15 FLOP/s. Without recomputation two of three, and of the head three of four:
    1.079e17 + 1.34e16 + 1.006e16."""
    trained = [seconds(MODEL, replace(LAD_MATH, adapters=True, recomputed=r))["training"] for r in (True, False)]
    assert trained == pytest.approx([1.887e17 / 3.165e15, 1.314e17 / 3.165e15], rel=0.01)
    usual, adapted = (seconds(MODEL, replace(LAD_MATH, adapters=a))["log-probabilities"] for a in (False, True))
    assert adapted == usual


def test_a_critic_costs_a_decoder_but_for_frozen_copies_by_hand() -> None:
    """Layers and attention again, 2.158e17 + 1.34e16 FLOPs, 72.4 s, and a quarter of it for log-probabilities, 18.1 s.
    A frozen copy has no critic and takes 19.5 s as before; with adapters it is the policy itself, with its critic."""
    critic = replace(LAD_MATH, critic=True)
    usual, both = seconds(MODEL, LAD_MATH), seconds(MODEL, critic)
    assert both["training"] - usual["training"] == pytest.approx(72.4, rel=0.01)
    assert both["log-probabilities"] - usual["log-probabilities"] == pytest.approx(18.1, rel=0.01)
    frozen = [
        seconds(MODEL, replace(w, frozen=1.0))["training"] - seconds(MODEL, w)["training"]
        for w in (critic, replace(critic, adapters=True))
    ]
    assert frozen == pytest.approx([19.5, 19.5 + 18.1], rel=0.01)
    slow = replace(critic, device=DEVICES["cpu"], reached=CPU, recomputed=False)
    taken = [seconds(MODEL, replace(slow, updates=n))["training"] for n in (300, 400)]
    assert taken[1] - taken[0] == pytest.approx(100 * 2 * 0.084)  # 28 layers of each


def test_forward_passes_beside_those_of_the_update_by_hand() -> None:
    """19.5 s each: two before the step; and in each of two epochs one before the updates, beside 78.1 s of them."""
    parts = seconds(MODEL, replace(LAD_MATH, batch_passes=2, first_pass=True, epochs=2, frozen=0.5))
    assert parts["log-probabilities"] == pytest.approx(2 * 19.5, rel=0.01)
    assert parts["training"] == pytest.approx(2 * (78.1 + 19.5) + 0.5 * 19.5, rel=0.01)


def test_the_native_engine_allocates_for_the_longest_response_by_hand() -> None:
    """34.4 GB for 57 kB a token and 8192 + 150/8 tokens: 72.97 responses at once, eight batches for 512. A token reads
    (15.2 + 72.97 · 0.109) GB at 2.01 TB/s, less than the launches of 28 layers, 42 ms, and 4 ms: 2000 and the tail's
    6192 of each batch."""
    taken = seconds(MODEL, replace(LAD_MATH, vllm=False))["sampling"]
    assert taken == pytest.approx(8 * 8192 * 0.046 + 0.25, rel=0.01)


def test_prompts_that_are_not_shared_are_trained_on_once_for_each_response_by_hand() -> None:
    """Seven more copies of 256 · 150 tokens: 4 · 2 · 6.526e9 FLOPs for each of 268,800, 1.40e16, are 4.43 s."""
    usual, apart = (seconds(MODEL, replace(LAD_MATH, prompt_copies=n))["training"] for n in (1, 8))
    assert apart - usual == pytest.approx(4.43, rel=0.01)


def test_the_workload_counts_the_problems_of_known_data() -> None:
    """pacs_4b: 500 + 40 + 30 + 30 + 100 = 700; at most 64 of each: 64 + 40 + 30 + 30 + 64 = 228. Others count 500."""

    def evaluated(tests: object, problems: int | None = None) -> int:
        run = {**config(), "task": {"_target_": "math", "train": "a.jsonl", "test": tests}}
        return workload_of({**run, "evaluation": {**run["evaluation"], "problems": problems}}).evaluated

    pacs = dict.fromkeys(("math500", "amc23", "aime24", "aime25", "beyondaime"), "a.jsonl")
    assert (evaluated(pacs), evaluated(pacs, 64)) == (700, 228)
    assert (evaluated({**pacs, "mine": "b.jsonl"}), evaluated({**pacs, "mine": "b.jsonl"}, 64)) == (1200, 292)
    assert (evaluated("mine.jsonl"), evaluated("mine.jsonl", 64), evaluated(["a.jsonl", "b.jsonl"])) == (500, 64, 1000)
    assert workload_of(config()).evaluated == 16


def test_the_workload_counts_validation_problems() -> None:
    """16 test problems of the maze, and 500 of a file. Of GSM8K's 7473 training problems a hundredth is 75."""

    def evaluated(limit: int | None, **task: Any) -> int:
        run = {**config(), "task": {"_target_": "task", **task}}
        return workload_of({**run, "evaluation": {**run["evaluation"], "validation": limit}}).evaluated

    maze = {"test_problems": 16, "validation_problems": None}
    assert [evaluated(limit, **maze) for limit in (None, 4, 64)] == [16, 20, 32]
    assert evaluated(64, **{**maze, "validation_problems": 24}) == 40
    math = {"test": "a.jsonl", "train": "b.jsonl", "validation": 0.01}
    assert evaluated(128, **math) == 500 + 128
    assert evaluated(128, **{**math, "train": "openai/gsm8k/main"}) == 500 + 75
    assert evaluated(128, **{**math, "train": {"a": "openai/gsm8k/main", "b": "b.jsonl"}}) == 500 + 75 + 128
    assert evaluated(128, labelled=None, test="a.jsonl", validation=0.05) == 500 + 128  # of a size that nobody knows


@pytest.mark.parametrize(
    ("task", "presampled"),
    [
        ({"train": "open-r1/DAPO-Math-17k-Processed"}, 17_398),
        ({"train": {"a": "open-r1/DAPO-Math-17k-Processed", "b": "openai/gsm8k/main"}}, 17_398 + 7473),
        ({"train": ["open-r1/DAPO-Math-17k-Processed", "b.jsonl"]}, 10_000),
        ({"train": "open-r1/DAPO-Math-17k-Processed", "train_problems": 64}, 64),
        ({"train_problems": 64}, 64),
    ],
)
def test_the_base_policy_answers_all_problems_of_known_train_splits(task: dict[str, Any], presampled: int) -> None:
    run = {**config(), "task": {"_target_": "math", **task}, "presample": {"problems": None, "samples": 4}}
    assert workload_of(run).presampled == presampled


def test_the_workload_counts_the_passes_of_losses_and_advantages() -> None:
    """(before a step, before an update, of frozen policies)"""

    def passes(loss: str = "grpo.grpo", advantage: str = "grpo", **trainer: Any) -> tuple[int, bool, float]:
        logp_old = trainer.pop("logp_old", "engine")
        run = config()
        run["trainer"] |= trainer
        run["rollout"] |= {"logp_old": logp_old}
        target = f"rlvr.objective.advantage.{advantage}"
        run |= {"loss": {"_target_": f"rlvr.loss.{loss}"}, "advantage": {"_target_": target}}
        its = workload_of(run)
        return its.batch_passes, its.first_pass, its.frozen

    assert passes() == (0, False, 0)
    assert passes(logp_old="trainer") == (1, False, 0)
    assert passes("ppo.ppo", "gae") == (1, False, 0)
    assert passes("ppo.ppo", "gae", logp_old="trainer") == (2, False, 0)
    assert passes(advantage="differential_smoothing") == (0, False, 0)  # it reads what the batch has
    assert passes("cross_entropy.cross_entropy") == (1, False, 0)
    assert passes("kl_cov.kl_cov")[1]
    assert passes("clip_cov.clip_cov")[1]
    assert passes(kl=0.1, epochs=2) == (0, False, 2)
    # KL to the base policy is measured in the first of four updates; the reference is the base policy, until a reset.
    measured = {"base_kl": True, "updates": 4}
    assert passes(epochs=2, **measured) == (0, False, 0.25)
    assert passes(kl=0.1, **measured) == (0, False, 1)
    assert passes(kl=0.1, reference_every=5, **measured) == (0, False, 1.25)
    assert passes("kl_cov.kl_cov", kl=0.1, **measured)[2] == 1.25  # its first pass has computed the reference before


def test_prompts_are_shared_as_the_trainer_shares_them() -> None:
    """auto, 8 responses: (100 + 8 · 20) tokens are 27 % of 8 · 120, (100 + 8 · 2000) are 96 % of 8 · 2100."""
    assert (workload.MIN_SAVED, workload.MAX_SHARED) == (MIN_SAVED, MAX_SHARED)

    def copies(response: float, *, gpus: int = 0, max_tokens: int = 32, **trainer: Any) -> int | None:
        run = config()
        run["trainer"] |= trainer
        run["rollout"]["max_tokens"] = max_tokens
        run["cluster"] |= {"gpus": gpus}
        return workload.prompt_copies(run, 100, response)

    assert (copies(20), copies(2000), copies(20, shared_prompt="never")) == (1, 8, 8)
    assert (copies(20, packing=False), copies(2000, shared_prompt="always")) == (8, 1)
    assert copies(20, max_tokens=1949) is None  # up to 2048 tokens in all, unless attention takes any lengths
    assert copies(20, max_tokens=1949, gpus=1) is None
    assert copies(20, max_tokens=1949, gpus=1, dtype="bfloat16") == 1


def test_the_device_is_chosen_by_name_by_memory_or_is_the_cpu() -> None:
    assert device_of({"gpus": 0}) == "cpu"
    assert device_of({"gpus": 8, "gpu": "b200", "gpu_memory_gb": 80}) == "b200"
    assert [device_of({"gpus": 1, "gpu_memory_gb": gb}) for gb in (None, 24, 40, 80, 96, 140)] == [
        "h100",
        "rtx4090",
        "l40s",
        "h100",
        "h200",
        "h200",
    ]


SEEN = {"length": 9.0, "rounds": 1.0, "prompt": 7.0, "kept": 0.5}


def finished(
    config: dict[str, Any], factor: float = 1.0, beside: float = 0.0, seen: dict[str, float] = SEEN
) -> Finished:
    """A run that took `factor` times the modelled seconds, and some more beside its parts."""
    parts = {name: factor * s for name, s in seconds(MODEL, workload_of(config, seen)).items()}
    return Finished(config, MODEL, parts, sum(parts.values()) + beside, seen)


def config(**changes: Any) -> dict[str, Any]:
    return {
        "loss": {"_target_": "rlvr.loss.grpo.grpo"},
        "task": {"_target_": "maze", "test_problems": 16},
        "steps": 100,
        "rollout": {
            "prompts": changes.get("prompts", 8),
            "samples": 8,
            "max_tokens": 32,
            "dynamic_sampling": "none",
            "logp_old": "engine",
            "engine": {"_target_": "native", "dtype": "float32", "max_batch_sequences": 512, "max_cache_gb": 8.0},
        },
        "trainer": {
            "kl": 0.0,
            "base_kl": False,
            "epochs": 1,
            "updates": 1,
            "dtype": "float32",
            "token_budget": 8192,
            "activation_checkpointing": False,
        },
        "cluster": {"gpus": 0, "ranks": 1, "threads": 1},
        "evaluation": {"problems": None, "samples": 8, "every": 50},
    }


def test_finished_runs_calibrate_the_estimate_and_measure_its_error() -> None:
    """All ran at a third of the modelled speed: so will a new one. Each is predicted by the others."""
    past = [finished(config(prompts=p), 3.0, beside=7.0) for p in (4, 8, 32)]
    new = config(prompts=16)
    expected = 3 * sum(seconds(MODEL, workload_of(new, SEEN)).values()) + 7
    guess = estimate(new, MODEL, past)
    assert guess.total_s == pytest.approx(expected)
    assert guess.error == pytest.approx(0, abs=1e-9)
    assert len(guess.finished) == 3
    on_a_gpu = {**new, "cluster": {**new["cluster"], "gpus": 1, "gpu_memory_gb": 80}}
    assert estimate(on_a_gpu, MODEL, past).finished == []  # they say nothing of other devices
    slow = [*past, finished(config(prompts=64), 6.0, beside=7.0)]
    assert estimate(new, MODEL, slow).error == pytest.approx(0, abs=1e-9)  # the median
    assert calibrated(new, MODEL, [])["training"] == seconds(MODEL, workload_of(new))["training"]


def test_a_finished_run_is_predicted_without_its_own_measurements() -> None:
    """Responses of 9 tokens and of 18 of at most 32, on one task: each is predicted with the other's. On another task,
    32 of at most 64: half of the longest, 16 of 32."""

    def total(config: Mapping[str, Any], length: float) -> float:
        return sum(seconds(MODEL, workload_of(config, {**SEEN, "length": length})).values())

    short, long = (finished(config(prompts=p), seen={**SEEN, "length": n}) for p, n in ((8, 9), (16, 18)))
    expected = {at: total(run.config, other) / run.total_s - 1 for at, run, other in ((0, short, 18), (1, long, 9))}
    assert cost.errors([short, long], known=True) == pytest.approx(expected)
    assert cost.errors([short, long], known=False) == {}
    elsewhere = {**config(), "task": {"_target_": "coins", "max_tokens": 64}}
    elsewhere["rollout"] |= {"max_tokens": None}
    other = finished(elsewhere, seen={**SEEN, "length": 32})
    assert cost.errors([short, other], known=True) == {}
    assert cost.errors([short, other], known=False)[0] == pytest.approx(total(short.config, 16) / short.total_s - 1)
    assert estimate(config(), MODEL, [short, long]).known
    assert not estimate(elsewhere, MODEL, [short, long]).known


def test_runs_on_the_same_task_calibrate_before_others() -> None:
    """They took three times what is modelled, one on another task six times."""
    other = finished({**config(), "task": {"_target_": "coins", "max_tokens": 32}}, 6.0)
    past = [finished(config(prompts=8), 3.0), finished(config(prompts=16), 3.0), other, other, other]
    modelled = sum(seconds(MODEL, workload_of(config(), SEEN)).values())
    assert estimate(config(), MODEL, past).total_s == pytest.approx(3 * modelled)
    assert estimate(config(), MODEL, past[2:]).total_s == pytest.approx(6 * modelled)


# --- sampling ahead


def ahead(number: int, **changes: Any) -> dict[str, Any]:
    run = config(**changes)
    run["rollout"]["ahead"] = number
    return run


def test_sampling_and_training_overlap_in_all_steps_but_the_first_by_hand() -> None:
    """Ten steps. Sampling takes 50 s, log-probabilities and training 40 s, weights 20 s: nine tenths of 40 s are
    hidden, and several steps ahead, when weights are transferred beside sampling too, nine tenths of 50 s."""
    parts = {"sampling": 50.0, "weights": 20.0, "log-probabilities": 10.0, "training": 30.0, "evaluation": 7.0}
    runs = [{**ahead(number), "steps": 10} for number in (0, 1, 4)]
    assert [cost.hidden_s(run, parts) for run in runs] == pytest.approx([0, 36, 45])
    assert cost.hidden_s(runs[1], {**parts, "sampling": 5.0}) == pytest.approx(4.5)
    assert cost.hidden_s({**runs[1], "steps": 1}, parts) == 0


def test_the_overlap_is_a_part_that_shortens_the_run() -> None:
    alone, overlapping = estimate(config(), MODEL), estimate(ahead(1), MODEL)
    hidden = 0.99 * min(alone.parts["sampling"], alone.parts["log-probabilities"] + alone.parts["training"])
    assert overlapping.parts == {**alone.parts, "overlap": pytest.approx(-hidden)}
    assert overlapping.total_s == pytest.approx(alone.total_s - hidden)
    assert "overlap" not in alone.parts


def test_a_finished_run_ahead_predicts_itself() -> None:
    """It sampled for 300 s and trained for 200 s, 198 s of them at once, was evaluated for 50 s and started for 8 s."""
    run = ahead(1)
    took = Finished(run, MODEL, {"sampling": 300.0, "training": 200.0, "evaluation": 50.0}, 360.0, SEEN)
    parts = calibrated(run, MODEL, [took])
    assert (parts["sampling"], parts["training"]) == (pytest.approx(300), pytest.approx(200))
    assert parts["overlap"] == pytest.approx(-198)
    assert parts["start and checkpoints"] == pytest.approx(8)
    modelled = seconds(MODEL, workload_of(run, SEEN))
    assert sum(parts.values()) == pytest.approx(360 + modelled["weights"] + modelled["log-probabilities"])


def test_runs_calibrate_only_those_that_overlap_and_adapt_alike() -> None:
    adapted = config()
    adapted["trainer"]["lora_rank"] = 8
    runs = [config(), ahead(1), ahead(2), adapted]
    past = [finished(run) for run in runs]
    assert [estimate(run, MODEL, past).finished for run in runs] == [[one] for one in past]
    explicit = config()
    explicit["rollout"]["ahead"], explicit["trainer"]["lora_rank"] = 0, None
    assert estimate(explicit, MODEL, past).finished == [past[0]]
