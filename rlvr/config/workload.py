"""What decides how long a run takes: its devices, and a `Workload` from its resolved config. No torch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from rlvr.config import memory
from rlvr.config.lengths import Lengths
from rlvr.config.nodes import ranks_of_node, sampling_nodes
from rlvr.config.published import BENCHMARKS, TRAIN
from rlvr.config.signature import declared
from rlvr.ledger.stages import ENDLESS


@dataclass(frozen=True)
class Device:
    """Rates of one GPU, from its data sheet, or of one CPU core. FLOP/s are without sparsity."""

    half: float  # FLOP/s in half precision, sums in float32
    single: float  # FLOP/s in float32
    bandwidth: float  # bytes/s of its memory
    memory_gb: float
    link: float  # bytes/s to another device of the node, in one direction


# GPUs: NVIDIA's data sheets (SXM where there are several). CPU: a core with AVX-512, measured with square products.
DEVICES: Mapping[str, Device] = {
    "rtx4090": Device(165e12, 82.6e12, 1.01e12, 24, 32e9),
    "l40s": Device(362e12, 91.6e12, 0.86e12, 48, 32e9),
    "a100": Device(312e12, 19.5e12, 2.04e12, 80, 300e9),
    "h100": Device(989e12, 67e12, 3.35e12, 80, 450e9),
    "h200": Device(989e12, 67e12, 4.8e12, 141, 450e9),
    "b200": Device(2250e12, 75e12, 8.0e12, 180, 900e9),
    "cpu": Device(400e9, 100e9, 20e9, 4, 10e9),
}


@dataclass(frozen=True)
class Efficiency:
    """Shares of a device's rates that are reached, and costs that do not depend on the size of the work."""

    training: float = 0.4  # of FLOP/s
    decoding: float = 0.6  # of bandwidth and of FLOP/s
    queued: bool = True  # kernels wait in a queue: launching them overlaps with running them
    step_s: float = 0.004  # fixed cost of one token for all sequences, beside its bytes and FLOPs: vLLM's
    layer_s: float = 0.0025  # launching the kernels of one layer one by one: of a forward pass in training,
    native_s: float = 0.0015  # of one token for all sequences in the native engine
    reduce_s: float = 15e-6  # fixed cost of a sum over the devices of an engine, beside its bytes
    write: float = 2e9  # bytes/s at which a rank writes weights into main memory,
    read: float = 3e9  # at which a vLLM process reads them from there,
    broadcast: float = 2.5e9  # and at which the first rank sends them to all other nodes at once

    def both(self, computed_s: float, launched_s: float) -> float:
        """Seconds for kernels that take `computed_s` to run and `launched_s` to launch."""
        return max(computed_s, launched_s) if self.queued else computed_s + launched_s


GPU = Efficiency()
CPU = Efficiency(training=0.5, decoding=0.4, queued=False, step_s=0.001, layer_s=0.001, native_s=0.0005, read=2e9)
# Assumed where no finished run shows them: mean response over the longest, tokens of a prompt, share of groups that
# dynamic sampling keeps.
MEAN_LENGTH, PROMPT, KEPT = 0.3, 150, 0.5
UNKNOWN_LENGTH = 64  # tokens of the longest response, where the config does not state it
# Problems of a benchmark and of a train split of unknown size: files are not read for an estimate.
UNKNOWN_BENCHMARK, UNKNOWN_TRAIN = 500, 10_000
# rlvr/trainer/pack.py: shared_prompt=auto shares prompts if that saves at least this share of all tokens; without the
# kernel for sequences of any lengths, only up to so many tokens.
MIN_SAVED, MAX_SHARED = 0.1, 2048


@dataclass(frozen=True)
class Workload:
    """What, beside the model, decides how long a run takes."""

    device: Device
    reached: Efficiency
    devices: int  # number of devices that train
    engines: int  # number of engines that sample
    threads: int  # per rank: CPU cores; 1 on a GPU
    steps: int
    responses: int  # per step, those that dynamic sampling keeps
    rounds: float  # responses sampled for each that is kept
    turns: float  # rounds of sampling in a step, one after the other
    prompts: int  # per step
    longest: int  # tokens of the longest response
    mean: float  # mean tokens of a response
    prompt: float  # mean tokens of a prompt
    prompt_copies: int  # copies of its prompt that the trainer reads for a group
    kept: float  # share of the responses of a step that is learned from: dynamic sampling may drop groups
    epochs: int
    updates: int  # optimiser steps per epoch
    batch_passes: int  # forward passes of the policy before a step: for log-probabilities, and for what advantages read
    first_pass: bool  # the loss needs a forward pass before each update
    frozen: float  # forward passes of frozen policies over the tokens of a step
    half: bool  # training in half precision
    engine_width: int  # bytes per number in the engine
    vllm: bool
    sequences: int  # at most, in one batch of an engine
    cache_gb: float  # keys and values of an engine
    token_budget: int  # tokens per micro-batch and rank
    recomputed: bool  # activations are computed again in the backward pass
    evaluations: int
    evaluated: int  # problems per evaluation
    evaluated_samples: int  # responses per evaluated problem
    tensor_parallel: int = 1  # devices per engine
    within_gpu: bool = False  # weights go to vLLM by CUDA IPC
    ranks_of_node: int = 1  # ranks per node, which each write their part of the weights into its main memory
    other_nodes: int = 0  # nodes with engines but without ranks, to which weights are broadcast
    critic: bool = False  # a second decoder learns from each token
    adapters: bool = False  # only adapters are trained: the weights of the policy have no gradients
    presampled: int = 0  # problems that the base policy answers before training
    presampled_samples: int = 8  # responses per such problem

    @property
    def lengths(self) -> Lengths:
        return Lengths(self.mean, self.longest)


def device_of(cluster: Mapping[str, Any]) -> str:
    """Name of the devices of a run with this `cluster` section: `gpu` if set, else by `gpu_memory_gb`, else h100."""
    if not cluster["gpus"]:
        return "cpu"
    if cluster.get("gpu"):
        return str(cluster["gpu"])
    gpu_gb = cluster.get("gpu_memory_gb") or 80
    fitting = [name for name, device in DEVICES.items() if name != "cpu" and device.memory_gb >= gpu_gb]
    return "h100" if gpu_gb == 80 else min(fitting or ["b200"], key=lambda name: DEVICES[name].memory_gb)


def longest(config: Mapping[str, Any]) -> int:
    """Tokens of the longest response, or a guess."""
    return memory.longest_response(config) or UNKNOWN_LENGTH


def workload_of(config: Mapping[str, Any], seen: Mapping[str, float] | None = None) -> Workload:
    """The workload of a run's resolved config. seen: averages of similar runs, with the keys of `Finished.seen`."""
    seen = seen or {}
    rollout, trainer, cluster, evaluation = (config[k] for k in ("rollout", "trainer", "cluster", "evaluation"))
    engine, ranks, name = rollout["engine"], cluster["ranks"], device_of(cluster)
    parallel = engine.get("tensor_parallel", 1)
    refills, overdraw = rollout["dynamic_sampling"] == "refill", rollout.get("overdraw")
    rounds = seen.get("rounds", 1 / KEPT if refills else 1.0)
    # Several steps ahead, groups are drawn one after the other (rlvr/rollout/in_flight.py).
    in_rounds = refills and not overdraw and (rollout.get("ahead") or 0) < 2
    turns = seen.get("turns", math.ceil(rounds)) if in_rounds else 1  # each of at most P problems
    presample: Mapping[str, Any] = config.get("presample") or {}
    mean = seen.get("length", max(1.0, MEAN_LENGTH * longest(config)))
    prompt = seen.get("prompt", PROMPT)
    return Workload(
        device=DEVICES[name],
        reached=CPU if name == "cpu" else GPU,
        devices=ranks,
        engines=engine.get("workers") or max(1, ranks // parallel),
        tensor_parallel=parallel,
        within_gpu="python" in engine and "workers" not in engine and name != "cpu" and parallel == 1,
        ranks_of_node=ranks_of_node(cluster),
        other_nodes=sampling_nodes(cluster),
        threads=cluster["threads"] if name == "cpu" else 1,
        steps=config["steps"],
        responses=rollout["prompts"] * rollout["samples"],
        rounds=rounds,  # sampling of surplus groups that overdraw has drawn is stopped
        turns=turns,
        prompts=rollout["prompts"],
        longest=longest(config),
        mean=mean,
        prompt=prompt,
        prompt_copies=prompt_copies(config, prompt, mean) or rollout["samples"],
        kept=seen.get("kept", KEPT if rollout["dynamic_sampling"] == "drop" else 1.0),
        epochs=trainer["epochs"],
        updates=trainer["updates"],
        batch_passes=_batch_passes(config),
        first_pass="first_pass" in declared(config["loss"]["_target_"]),
        frozen=_frozen_passes(config),
        critic=trainer.get("critic") is not None,
        adapters=has_adapters(config),
        half=trainer["dtype"] != "float32",
        engine_width=4 if engine["dtype"] == "float32" else 2,
        vllm="python" in engine,
        sequences=engine["max_batch_sequences"],
        cache_gb=memory.cache_gb(config, None if name == "cpu" else DEVICES[name].memory_gb),
        token_budget=trainer["token_budget"],
        recomputed=trainer["activation_checkpointing"],
        evaluations=1 + -(-config["steps"] // evaluation["every"]),
        evaluated=_evaluated(config) + _validated(config),
        evaluated_samples=evaluation["samples"],
        presampled=_presampled(presample, config["task"]) if presample else 0,
        presampled_samples=presample.get("samples", 8),
    )


def has_adapters(config: Mapping[str, Any]) -> bool:
    """Whether a run trains adapters in place of the weights."""
    return config["trainer"].get("lora_rank") is not None


def prompt_copies(config: Mapping[str, Any], prompt: float, response: float) -> int | None:
    """Copies of its prompt that the trainer reads for a group: one if all responses share it, else one for each.

    prompt, response: mean tokens, by which shared_prompt=auto decides. None: it decides by the longest sequence, which
    is not known.
    """
    trainer, samples = config["trainer"], config["rollout"]["samples"]
    sharing = trainer.get("shared_prompt", "auto") if trainer.get("packing", True) else "never"
    if sharing != "auto":
        return samples if sharing == "never" else 1
    if prompt + samples * response > (1 - MIN_SAVED) * samples * (prompt + response):
        return samples
    any_length = device_of(config["cluster"]) != "cpu" and trainer["dtype"] != "float32"
    return 1 if any_length or prompt + longest(config) <= MAX_SHARED else None


def _batch_passes(config: Mapping[str, Any]) -> int:
    """Forward passes of the policy over a step's batch (rlvr/trainer/collate.py): one for log-probabilities that the
    engine does not provide, one for values or entropies that the advantage reads.
    """
    computes_logp = config["rollout"]["logp_old"] == "trainer" or "solution" in declared(config["loss"]["_target_"])
    read = declared(config["advantage"]["_target_"]) if config.get("advantage") else frozenset[str]()
    return computes_logp + bool(read & {"value", "entropy"})


def _frozen_passes(config: Mapping[str, Any]) -> float:
    """Forward passes of frozen policies over a step's batch: of the reference in each epoch; and of the base policy in
    the first update, unless the reference is the base policy and is computed at the same time.
    """
    trainer, loss = config["trainer"], declared(config["loss"]["_target_"])
    reference = float(trainer["epochs"] if trainer["kl"] > 0 or "reference" in loss else 0)
    base = bool(trainer["base_kl"]) / trainer["updates"]
    one_serves_both = trainer.get("reference_every") is None and "first_pass" not in loss
    return max(reference, base) if one_serves_both else reference + base


def _evaluated(config: Mapping[str, Any]) -> int:
    """Problems of all benchmarks, at most `evaluation.problems` of each."""
    task, limit = config["task"], config["evaluation"]["problems"]
    tests = task.get("test") or ""
    names = [tests] if isinstance(tests, str) else list(cast("Sequence[str] | Mapping[str, str]", tests))
    sizes = [task.get("test_problems") or BENCHMARKS.get(name) for name in names]
    return sum(min(limit or size, size) if size else limit or UNKNOWN_BENCHMARK for size in sizes)


def _validated(config: Mapping[str, Any]) -> int:
    """Validation problems of an evaluation: at most `evaluation.validation` of each source of training problems."""
    task, limit = config["task"], config["evaluation"].get("validation")
    if limit is None:
        return 0
    if "validation_problems" in task:  # null: as many as of the test split
        return min(limit, task["validation_problems"] or task.get("test_problems") or limit)
    known = [TRAIN.get(source) for source in _train_sources(task.get("train"))]
    return sum(min(limit, round(task.get("validation", 1) * size)) if size else limit for size in known)


def _presampled(presample: Mapping[str, Any], task: Mapping[str, Any]) -> int:
    """Training problems that the base policy answers before training."""
    of_task = task.get("train_problems") or (_train_problems(task["train"]) if "train" in task else ENDLESS)
    return presample["problems"] or of_task


def _train_problems(train: object) -> int:
    """Problems of `task.train`: a path or hub name, or several."""
    sizes = [TRAIN.get(source) for source in _train_sources(train)]
    return sum(size for size in sizes if size) if all(sizes) else UNKNOWN_TRAIN


def _train_sources(train: object) -> list[str]:
    """The paths or hub names of `task.train`."""
    if isinstance(train, Mapping):
        train = list(cast("Mapping[str, str]", train).values())
    sources = cast("Sequence[str]", train) if isinstance(train, Sequence) and not isinstance(train, str) else [train]
    return [str(source) for source in sources]
