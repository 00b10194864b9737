"""Estimates how long a run takes before one like it has finished: one roofline of FLOPs and bytes. No torch.

An order of size: once a run of the kind has finished, its pace takes the place of the estimate (`sweeps.past`). Left
out: prompts in the cache of other prompts, passes of frozen copies and of a critic, answers of the base policy before
training, the sum of gradients over ranks, and the transfer of weights to engines.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlvr.config import memory
from rlvr.config.memory import Architecture


@dataclass(frozen=True)
class Device:
    """Rates of one GPU, from its data sheet, or of one CPU core. FLOP/s are without sparsity."""

    half: float  # FLOP/s in half precision, sums in float32
    single: float  # FLOP/s in float32
    bandwidth: float  # bytes/s of its memory
    memory_gb: float
    layer_s: float = 0.0015  # to launch the kernels of one layer one by one: what a small model's pass takes at least


# GPUs: NVIDIA's data sheets (SXM where there are several). CPU: a core with AVX-512, measured with square products.
DEVICES: Mapping[str, Device] = {
    "rtx4090": Device(165e12, 82.6e12, 1.01e12, 24),
    "l40s": Device(362e12, 91.6e12, 0.86e12, 48),
    "a100": Device(312e12, 19.5e12, 2.04e12, 80),
    "h100": Device(989e12, 67e12, 3.35e12, 80),
    "h200": Device(989e12, 67e12, 4.8e12, 141),
    "b200": Device(2250e12, 75e12, 8.0e12, 180),
    "cpu": Device(400e9, 100e9, 20e9, 4, layer_s=0.0005),
}
TRAINING, DECODING = 0.4, 0.6  # shares of the rates that are reached
VLLM_S = 0.004  # one token for all sequences of vLLM, which replays a CUDA graph, beside its bytes and FLOPs
# Assumptions: mean response over the longest, tokens of a prompt, share of groups that dynamic sampling keeps.
MEAN_LENGTH, PROMPT, KEPT = 0.3, 150, 0.5
UNKNOWN_LENGTH = 64  # tokens of the longest response, where the config does not state it
UNKNOWN_PROBLEMS = 250  # of a benchmark: files are not read for an estimate


def device_of(cluster: Mapping[str, Any]) -> str:
    """Name of the devices of a run with this `cluster` section: `gpu` if set, else by `gpu_memory_gb`, else h100."""
    if not cluster["gpus"]:
        return "cpu"
    if cluster.get("gpu"):
        return str(cluster["gpu"])
    gpu_gb = cluster.get("gpu_memory_gb") or 80
    fitting = [name for name, device in DEVICES.items() if name != "cpu" and device.memory_gb >= gpu_gb]
    return "h100" if gpu_gb == 80 else min(fitting or ["b200"], key=lambda name: DEVICES[name].memory_gb)


def hours(config: Mapping[str, Any], model: Architecture) -> float:
    """Hours of a whole run. config: resolved, with a trainer."""
    evaluation, tests = config["evaluation"], config["task"].get("test")
    num_sets = 1 if tests is None or isinstance(tests, str) else len(tests)
    problems = num_sets * (evaluation["problems"] or config["task"].get("test_problems") or UNKNOWN_PROBLEMS)
    problems += evaluation.get("validation") or 0
    of_evaluation = _sampling_s(config, model, problems * evaluation["samples"], _mean(config))
    num_evaluations = 1 + math.ceil(config["steps"] / evaluation["every"])
    return (config["steps"] * step_s(config, model) + num_evaluations * of_evaluation) / 3600


def step_s(config: Mapping[str, Any], model: Architecture, *, mean: float | None = None) -> float:
    """Seconds of a step. mean: tokens of a response on average; None: MEAN_LENGTH of the longest."""
    rollout, mean = config["rollout"], mean or _mean(config)
    drawn = rollout["prompts"] * rollout["samples"] / (KEPT if rollout["dynamic_sampling"] == "refill" else 1)
    sampling, training = _sampling_s(config, model, drawn, mean), _training_s(config, model, mean)
    return max(sampling, training) if rollout.get("ahead") else sampling + training


def _longest(config: Mapping[str, Any]) -> int:
    return memory.longest_response(config) or UNKNOWN_LENGTH


def _mean(config: Mapping[str, Any]) -> float:
    return max(1.0, MEAN_LENGTH * _longest(config))


def _sampling_s(config: Mapping[str, Any], model: Architecture, responses: float, mean: float) -> float:
    """Seconds in which all engines sample so many responses.

    A token for all sequences of a batch reads the weights and each sequence's keys and values once. When most responses
    have ended, the longest is left. vLLM begins a response when another ends; the native engine waits for the batch.
    """
    cluster, engine, longest = config["cluster"], config["rollout"]["engine"], max(mean, _longest(config))
    width, is_vllm, parallel = memory.width(engine["dtype"]), "python" in engine, engine.get("tensor_parallel", 1)
    device, flops = DEVICES[device_of(cluster)], _flops(cluster, engine["dtype"]) * DECODING * parallel
    of_token = 2 * model.layers * model.key * width  # bytes of keys and values
    cache_gb = memory.cache_gb(config, device.memory_gb if cluster["gpus"] else None)
    fitting = parallel * cache_gb * memory.GB / (of_token * (PROMPT + (mean if is_vllm else longest)))
    of_engine = responses / (engine.get("workers") or max(1, cluster["ranks"] // parallel))
    at_once = max(1.0, min(of_engine, engine["max_batch_sequences"], fitting))

    def token_s(sequences: float) -> float:
        read = width * model.parameters + sequences * of_token * (PROMPT + mean / 2)
        read_s = read / (parallel * device.bandwidth * DECODING)
        least_s = max(read_s, 2 * model.parameters * sequences / flops)
        return least_s + VLLM_S if is_vllm else max(least_s, model.layers * device.layer_s)

    tails = 1 if is_vllm else math.ceil(of_engine / at_once)
    return of_engine / at_once * mean * token_s(at_once) + tails * (longest - mean) * token_s(1)


def _training_s(config: Mapping[str, Any], model: Architecture, mean: float) -> float:
    """Seconds of all forward and backward passes of a step: 2 FLOPs per parameter and token forward.

    Backward: as many for the gradients of inputs, for those of weights, and to compute activations again. Each update
    takes at least the launches of its kernels.
    """
    rollout, trainer, cluster = config["rollout"], config["trainer"], config["cluster"]
    kept = KEPT if rollout["dynamic_sampling"] == "drop" else 1.0
    tokens = kept * rollout["prompts"] * (rollout["samples"] * mean + PROMPT)  # responses share the prompt
    passes = trainer["epochs"] * (3 + trainer["activation_checkpointing"]) + (rollout["logp_old"] == "trainer")
    flops = _flops(cluster, trainer["dtype"]) * TRAINING * cluster["ranks"]
    launches_s = trainer["updates"] * model.layers * DEVICES[device_of(cluster)].layer_s
    return passes * max(2 * model.parameters * tokens / flops, launches_s)


def _flops(cluster: Mapping[str, Any], dtype: str) -> float:
    """FLOP/s of a GPU, or of the CPU cores of a rank."""
    device = DEVICES[device_of(cluster)]
    rate = device.single if dtype == "float32" else device.half
    return rate if cluster["gpus"] else rate * cluster["threads"]
