"""Estimates how long a run takes before one like it has finished: a roofline of its FLOPs and bytes. No torch.

An order of size. Left out: prompts in the cache of other prompts, the sum of gradients over ranks, and the transfer of
weights to engines. Once a run of the kind has finished, its pace takes the place of the estimate (`sweeps.past`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from rlvr.config import memory
from rlvr.config.memory import GB, Architecture
from rlvr.config.published import BENCHMARKS
from rlvr.config.signature import declared

Parts = dict[str, float]  # seconds by part of a run


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
UNKNOWN_BENCHMARK, UNKNOWN_TRAIN = 500, 10_000  # problems: files are not read for an estimate


def device_of(cluster: Mapping[str, Any]) -> str:
    """Name of the devices of a run with this `cluster` section: `gpu` if set, else by `gpu_memory_gb`, else h100."""
    if not cluster["gpus"]:
        return "cpu"
    if cluster.get("gpu"):
        return str(cluster["gpu"])
    gpu_gb = cluster.get("gpu_memory_gb") or 80
    fitting = [name for name, device in DEVICES.items() if name != "cpu" and device.memory_gb >= gpu_gb]
    return "h100" if gpu_gb == 80 else min(fitting or ["b200"], key=lambda name: DEVICES[name].memory_gb)


def seconds(config: Mapping[str, Any], model: Architecture, *, mean: float | None = None) -> Parts:
    """Seconds of a whole run by part. Runs on the same base policy's samples share the part "presample".

    config: resolved, with a trainer. mean: tokens of a response on average; None: MEAN_LENGTH of the longest.
    "overlap" is negative: with `rollout.ahead` sampling and training run at once.
    """
    rollout, evaluation = config["rollout"], config["evaluation"]
    mean = mean or max(1.0, MEAN_LENGTH * _longest(config))
    drawn = rollout["prompts"] * rollout["samples"] / (KEPT if rollout["dynamic_sampling"] == "refill" else 1)
    evaluations = 1 + math.ceil(config["steps"] / evaluation["every"])
    evaluated = _evaluated(config) * evaluation["samples"]
    parts = {
        "sampling": config["steps"] * _sampling(config, model, drawn, mean),
        "training": config["steps"] * _training(config, model, mean),
        "evaluation": evaluations * _sampling(config, model, evaluated, mean),
    }
    if presample := config.get("presample"):
        problems = presample["problems"] or config["task"].get("train_problems") or UNKNOWN_TRAIN
        parts["presample"] = _sampling(config, model, problems * presample["samples"], mean)
    if rollout.get("ahead"):
        parts["overlap"] = -min(parts["sampling"], parts["training"])
    return parts


def _longest(config: Mapping[str, Any]) -> int:
    return memory.longest_response(config) or UNKNOWN_LENGTH


def _sampling(config: Mapping[str, Any], model: Architecture, responses: float, mean: float) -> float:
    """Seconds in which all engines sample so many responses.

    A token for all sequences of a batch reads the weights and each sequence's keys and values once. When most responses
    have ended, the longest is left. vLLM begins a response when another ends; the native engine waits for the batch.
    """
    cluster, engine, name = config["cluster"], config["rollout"]["engine"], device_of(config["cluster"])
    device, width, is_vllm = DEVICES[name], 4 if engine["dtype"] == "float32" else 2, "python" in engine
    parallel = engine.get("tensor_parallel", 1)
    flops = _flops(name, cluster, half=width == 2) * DECODING * parallel
    longest = max(mean, _longest(config))
    of_token = 2 * model.layers * model.key * width / parallel  # bytes of keys and values
    cache_bytes = memory.cache_gb(config, None if name == "cpu" else device.memory_gb) * GB
    fitting = cache_bytes / (of_token * (PROMPT + (mean if is_vllm else longest)))
    of_engine = responses / (engine.get("workers") or max(1, cluster["ranks"] // parallel))
    at_once = max(1.0, min(of_engine, engine["max_batch_sequences"], fitting))

    def token_s(sequences: float) -> float:
        read = width * model.parameters / parallel + sequences * of_token * (PROMPT + mean / 2)
        read_s, computed_s = read / (device.bandwidth * DECODING), 2 * model.parameters * sequences / flops
        return max(read_s, computed_s) + VLLM_S if is_vllm else max(read_s, computed_s, model.layers * device.layer_s)

    tails = 1 if is_vllm else math.ceil(of_engine / at_once)
    return of_engine / at_once * mean * token_s(at_once) + tails * (longest - mean) * token_s(1)


def _training(config: Mapping[str, Any], model: Architecture, mean: float) -> float:
    """Seconds of all forward and backward passes of a step: 2 FLOPs per parameter and token forward.

    Backward: as many for the gradients of inputs, for those of weights, and to compute activations again. Each update
    takes at least the launches of its kernels.
    """
    rollout, trainer, cluster = config["rollout"], config["trainer"], config["cluster"]
    kept = KEPT if rollout["dynamic_sampling"] == "drop" else 1.0
    tokens = kept * rollout["prompts"] * (rollout["samples"] * mean + PROMPT)  # responses share the prompt
    of_loss = declared(config["loss"]["_target_"])
    frozen = (trainer["kl"] > 0 or "reference" in of_loss) + ("first_pass" in of_loss)
    update = 3 + trainer["activation_checkpointing"] - (trainer.get("lora_rank") is not None)
    decoders = 1 + (trainer.get("critic") is not None)
    passes = trainer["epochs"] * (update * decoders + frozen) + (rollout["logp_old"] == "trainer")
    name = device_of(cluster)
    flops = _flops(name, cluster, half=trainer["dtype"] != "float32") * TRAINING * cluster["ranks"]
    launches_s = trainer["updates"] * model.layers * DEVICES[name].layer_s
    return passes * max(2 * model.parameters * tokens / flops, launches_s)


def _flops(name: str, cluster: Mapping[str, Any], *, half: bool) -> float:
    """FLOP/s of a GPU, or of the CPU cores of a rank."""
    device = DEVICES[name]
    return (device.half if half else device.single) * (cluster["threads"] if name == "cpu" else 1)


def _evaluated(config: Mapping[str, Any]) -> int:
    """Problems of one evaluation: at most `evaluation.problems` of each benchmark, and of validation problems."""
    task, limit = config["task"], config["evaluation"]["problems"]
    tests = task.get("test") or ""
    names = [tests] if isinstance(tests, str) else list(cast("Sequence[str] | Mapping[str, str]", tests))
    sizes = [task.get("test_problems") or BENCHMARKS.get(name, UNKNOWN_BENCHMARK) for name in names]
    return sum(min(limit or size, size) for size in sizes) + (config["evaluation"].get("validation") or 0)
