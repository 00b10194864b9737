"""What a run takes in time, from its floating-point operations and bytes. No torch.

Each part of a step has a formula with the rates of a device (`DEVICES`) and the share of them that is reached
(`Reached`). Formulas are rough; runs that have finished on the same devices say by how much (`calibrated`).
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from rlvr.config import memory
from rlvr.config.memory import GB, Architecture
from rlvr.config.signature import declared
from rlvr.ledger.stages import AT_ONCE, ENDLESS

Parts = dict[str, float]  # seconds by part of a run


@dataclass(frozen=True)
class Device:
    """What a data sheet says of one GPU, or of a core of a CPU. FLOP/s without sparsity."""

    half: float  # FLOP/s in half precision, sums in float32
    single: float  # FLOP/s in float32
    bandwidth: float  # bytes/s of its memory
    memory_gb: float
    link: float  # bytes/s to another of the node, in one direction


# NVIDIA's data sheets (SXM where there are several), and a core with AVX-512 as measured with square products.
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
class Reached:
    """Shares of a device's rates, and what is paid whatever the size."""

    training: float = 0.4  # of FLOP/s
    decoding: float = 0.6  # of bandwidth and of FLOP/s
    queued: bool = True  # kernels wait in a queue: to launch them takes no time beside theirs
    step_s: float = 0.004  # of one token for all sequences, beside its bytes and FLOPs: vLLM
    layer_s: float = 0.0025  # of a layer whose kernels are launched one by one, forward, or
    native_s: float = 0.0015  # of one token of all sequences in the native engine
    reduce_s: float = 15e-6  # of a sum over the devices of an engine, beside its bytes
    write: float = 2e9  # bytes/s of weights that a rank writes into main memory,
    read: float = 3e9  # that a process of vLLM reads from there,
    broadcast: float = 2.5e9  # and that the first rank sends to other nodes, all at once

    def both(self, computed_s: float, launched_s: float) -> float:
        """Seconds of kernels that take so long, and to be launched so long."""
        return max(computed_s, launched_s) if self.queued else computed_s + launched_s


GPU = Reached()
CPU = Reached(training=0.5, decoding=0.4, queued=False, step_s=0.001, layer_s=0.001, native_s=0.0005, read=2e9)
# Assumed where no finished run says: mean response over the longest, tokens of a prompt, problems of a benchmark, share
# of groups that dynamic sampling keeps.
MEAN_LENGTH, PROMPT, BENCHMARK, KEPT = 0.3, 150, 500, 0.5
UNKNOWN_LENGTH = 64  # tokens of the longest response, where only the task knows
TRAIN = 10_000  # problems of a train split on files, where only they know


@dataclass(frozen=True)
class Workload:
    """What, beside the model, decides how long a run takes."""

    device: Device
    reached: Reached
    devices: int  # that train
    engines: int  # that sample
    threads: int  # of a rank: cores of a CPU; 1 on a GPU
    steps: int
    responses: int  # of a step, kept
    rounds: float  # sampled for each that is kept
    turns: float  # of sampling, one after the other
    prompts: int
    longest: int  # tokens of a response
    mean: float  # tokens of a response
    prompt: float  # tokens
    kept: float  # share of the responses of a step that is learned from: dynamic sampling may drop groups
    epochs: int
    updates: int  # optimiser steps of an epoch
    own_logp: bool  # the trainer's own log-probabilities of the samples
    frozen: float  # forward passes of frozen copies for each token that is learned from
    half: bool  # trained in half precision
    engine_width: int  # bytes of an engine's number
    vllm: bool
    sequences: int
    cache_gb: float
    token_budget: int
    recomputed: bool
    evaluations: int
    evaluated: int  # problems of one evaluation,
    evaluated_samples: int  # with so many responses each
    tensor_parallel: int = 1  # devices of an engine
    within_gpu: bool = False  # weights go to vLLM by CUDA IPC
    ranks_of_node: int = 1  # that write them into its main memory, each a part
    other_nodes: int = 0  # with engines: weights are broadcast to them
    critic: bool = False  # a second decoder learns from each token
    presampled: int = 0  # problems that the base policy answers before training,
    presampled_samples: int = 8  # with so many responses each


def device_of(cluster: Mapping[str, Any]) -> str:
    """Name of the devices that a run of this `cluster` has: as it says, else by the memory that it says, h100."""
    if not cluster["gpus"]:
        return "cpu"
    if cluster.get("gpu"):
        return str(cluster["gpu"])
    gpu_gb = cluster.get("gpu_memory_gb") or 80
    fitting = [name for name, device in DEVICES.items() if name != "cpu" and device.memory_gb >= gpu_gb]
    return "h100" if gpu_gb == 80 else min(fitting or ["b200"], key=lambda name: DEVICES[name].memory_gb)


def longest(config: Mapping[str, Any]) -> int:
    """Tokens of the longest response."""
    return config["rollout"]["max_tokens"] or config["task"].get("max_tokens") or UNKNOWN_LENGTH


def workload_of(config: Mapping[str, Any], seen: Mapping[str, float] | None = None) -> Workload:
    """Of a run's resolved config. seen: what runs like it had on average, by the names of `Finished.seen`."""
    seen = seen or {}
    rollout, trainer, cluster, evaluation = (config[k] for k in ("rollout", "trainer", "cluster", "evaluation"))
    engine, ranks, name = rollout["engine"], cluster["ranks"], device_of(cluster)
    parallel, nodes, apart = engine.get("tensor_parallel", 1), cluster.get("nodes", 1), cluster.get("sampling_nodes", 0)
    refills, overdraw = rollout["dynamic_sampling"] == "refill", rollout.get("overdraw")
    rounds = seen.get("rounds", 1 / KEPT if refills else 1.0)
    turns = seen.get("turns", math.ceil(rounds)) if refills and not overdraw else 1  # of at most P problems each
    presample: Mapping[str, Any] = config.get("presample") or {}
    loss = declared(config["loss"]["_target_"])
    reference = trainer["kl"] > 0 or "reference" in loss
    tests: object = config["task"].get("test")
    benchmarks = len(cast("Mapping[str, str]", tests)) if isinstance(tests, Mapping) else 1
    problems = evaluation["problems"] or config["task"].get("test_problems") or BENCHMARK
    return Workload(
        device=DEVICES[name],
        reached=CPU if name == "cpu" else GPU,
        devices=ranks,
        engines=engine.get("workers") or max(1, ranks // parallel),
        tensor_parallel=parallel,
        within_gpu="python" in engine and "workers" not in engine and name != "cpu" and parallel == 1,
        ranks_of_node=max(1, ranks // max(1, nodes - apart)),
        other_nodes=apart,
        threads=cluster["threads"] if name == "cpu" else 1,
        steps=config["steps"],
        responses=rollout["prompts"] * rollout["samples"],
        rounds=rounds,  # what overdraw draws beyond is stopped
        turns=turns,
        prompts=rollout["prompts"],
        longest=longest(config),
        mean=seen.get("length", max(1.0, MEAN_LENGTH * longest(config))),
        prompt=seen.get("prompt", PROMPT),
        kept=seen.get("kept", KEPT if rollout["dynamic_sampling"] == "drop" else 1.0),
        epochs=trainer["epochs"],
        updates=trainer["updates"],
        own_logp=rollout["logp_old"] == "trainer",
        frozen=max(float(reference), bool(trainer["base_kl"]) / trainer["updates"]),
        critic=trainer.get("critic") is not None,
        half=trainer["dtype"] != "float32",
        engine_width=4 if engine["dtype"] == "float32" else 2,
        vllm="python" in engine,
        sequences=engine["max_batch_sequences"],
        cache_gb=memory.cache_gb(config, None if name == "cpu" else DEVICES[name].memory_gb),
        token_budget=trainer["token_budget"],
        recomputed=trainer["activation_checkpointing"],
        evaluations=1 + -(-config["steps"] // evaluation["every"]),
        evaluated=benchmarks * problems,
        evaluated_samples=evaluation["samples"],
        presampled=(presample["problems"] or (TRAIN if "train" in config["task"] else ENDLESS)) if presample else 0,
        presampled_samples=presample.get("samples", 8),
    )


def seconds(model: Architecture, workload: Workload) -> Parts:
    """Seconds of a whole run by part. "presample" is of a stage, which all runs on the same samples share."""
    forward, samples = _passes(model, workload, backward=False), workload.responses / workload.prompts
    return {
        "sampling": workload.steps
        * workload.turns
        * _sampling(model, workload, workload.prompts * workload.rounds / workload.turns, samples),
        "weights": workload.steps * _sync(model, workload),
        "log-probabilities": workload.steps * workload.own_logp * forward,
        "training": workload.steps
        * workload.epochs
        * (_passes(model, workload, backward=True) + workload.frozen * forward),
        "evaluation": workload.evaluations * _sampling(model, workload, workload.evaluated, workload.evaluated_samples),
        "presample": _presample(model, workload),
    }


def _sampling(model: Architecture, workload: Workload, problems: float, samples: float) -> float:
    """Seconds of so many problems with so many responses each on all engines.

    A prompt is read once for all its responses. Every token of the sequences at work reads the weights once and the
    keys and values of each. A tail is left when the others have ended: that of the longest response, which is cut at
    the limit. The devices of an engine each have a part of the weights, and of the heads of keys as long as there are
    some, and sum what they have computed twice a layer.
    """
    reached, device, parallel = workload.reached, workload.device, workload.tensor_parallel
    own = problems * samples / workload.engines
    width = workload.engine_width
    # The native engine reads a prompt's keys once for all its responses.
    context = workload.prompt / (1 if workload.vllm else samples) + workload.mean / 2
    cache = 2 * model.layers * model.key * width * context / min(parallel, model.kv_heads)  # of a sequence on a device
    at_once = max(1.0, min(own, workload.sequences, workload.cache_gb * GB / cache))
    flops = (device.half if width == 2 else device.single) * workload.threads * reached.decoding * parallel
    bandwidth = device.bandwidth * reached.decoding
    launches = 0.0 if workload.vllm else model.layers * reached.native_s  # vLLM replays a graph of them

    def token_s(sequences: float) -> float:
        read = (width * model.parameters / parallel + sequences * cache) / bandwidth
        computed_s = reached.both(max(read, 2 * model.parameters * sequences / flops), launches)
        return computed_s + sums_s(sequences) + reached.step_s

    def sums_s(sequences: float) -> float:
        passed = 2 * (parallel - 1) / parallel * width * model.hidden * sequences  # bytes of a device, in a ring
        return 2 * model.layers * (reached.reduce_s + passed / (device.link * reached.decoding)) * (parallel > 1)

    prompts_s = 2 * model.parameters * workload.prompt * problems / workload.engines / flops
    expected = workload.mean * (1 + math.log(max(1.0, own)))  # the longest of so many whose lengths are exponential
    tail = max(0.0, min(workload.longest, expected) - workload.mean)
    if workload.vllm:  # a place that is free is taken at once
        return prompts_s + own * workload.mean / at_once * token_s(at_once) + tail * token_s(1)
    batches = math.ceil(own / at_once)
    return prompts_s + batches * (workload.mean * token_s(at_once) + tail * token_s(at_once / 8))


def _presample(model: Architecture, workload: Workload) -> float:
    """Seconds in which the engines sample what the base policy answers, AT_ONCE problems each at a time."""
    if not workload.presampled:
        return 0.0
    chunks = math.ceil(workload.presampled / (AT_ONCE * workload.engines))
    return chunks * _sampling(model, workload, workload.presampled / chunks, workload.presampled_samples)


def _sync(model: Architecture, workload: Workload) -> float:
    """Seconds to hand all weights to the engines.

    The native engine copies them. Those of vLLM are written into main memory in any case, and read from there unless
    they are broadcast, or go within the GPU: copied into memory that both see, out of it and into the model.
    """
    num_bytes, reached = workload.engine_width * model.parameters, workload.reached
    once_s = num_bytes / (workload.device.bandwidth * reached.decoding)  # to read or to write them in a device's memory
    if not workload.vllm:
        return once_s
    written_s = num_bytes / workload.ranks_of_node / reached.write
    if workload.within_gpu:
        return written_s + 6 * once_s
    if workload.other_nodes:
        return written_s + num_bytes / reached.broadcast
    return written_s + num_bytes / workload.tensor_parallel / reached.read


def _passes(model: Architecture, workload: Workload, *, backward: bool) -> float:
    """Seconds in which all ranks read the step's tokens once, with the backward pass or without.

    2 FLOPs for each weight and token, four more backward and two to compute activations anew; attention's scores and
    sums, 4·layers·width for each pair of tokens, half of which are masked. The head is for responses alone.
    """
    answered = workload.kept * workload.responses * workload.mean
    read = workload.kept * workload.prompts * workload.prompt + answered
    body = 2.0 * model.layers * model.layer_parameters * read
    body += 2.0 * model.layers * model.query * answered * (2 * workload.prompt + workload.mean)
    head = 2.0 * model.vocab * model.hidden * answered
    factor = (4 if workload.recomputed else 3) if backward else 1
    body *= 1 + workload.critic
    work = factor * body + (4 if backward else 1) * head  # the head's logits are always computed anew
    device, reached = workload.device, workload.reached
    rate = (device.half if workload.half else device.single) * workload.threads * reached.training
    passes = max(workload.updates, math.ceil(read / workload.devices / workload.token_budget))
    return reached.both(work / workload.devices / rate, factor * passes * model.layers * reached.layer_s)


@dataclass(frozen=True)
class Finished:
    """What a finished run took: seconds by part, in all, and what it saw.

    seen: "length" (mean tokens of a response), "rounds" (responses sampled for each that a step asks for), "turns" (in
    which a step sampled them, one after the other), and where it is known "prompt" (mean tokens) and "kept" (share of
    the responses of a step that was learned from).
    """

    config: Mapping[str, Any]
    model: Architecture
    parts: Parts
    total_s: float  # without the stages that it built, or waited for
    seen: Mapping[str, float]


@dataclass(frozen=True)
class Estimate:
    """Seconds of a run by part."""

    parts: Parts
    kind: tuple[str, str, str]
    finished: Sequence[Finished]  # of this kind: they calibrate it
    known: bool  # one of them is of the same task

    @property
    def total_s(self) -> float:
        return sum(self.parts.values())

    @functools.cached_property
    def error(self) -> float | None:
        """Median relative error of such estimates (`errors`) on the finished runs; None without any. Slow: it estimates
        each of them.
        """
        off = [abs(error) for error in errors(self.finished, known=self.known).values()]
        return statistics.median(off) if off else None


def estimate(config: Mapping[str, Any], model: Architecture, finished: Sequence[Finished] = ()) -> Estimate:
    """Of a run's resolved config. finished: runs on any devices; those of the same kind calibrate it."""
    kind = _kind(config)
    same = [run for run in finished if _kind(run.config) == kind]
    known = any(run.config["task"] == config["task"] for run in same)
    return Estimate(calibrated(config, model, same), kind, same, known)


def errors(finished: Sequence[Finished], *, known: bool) -> dict[int, float]:
    """Predicted over taken, less 1, of finished runs by their place, each predicted by what was known before it ran.

    known: from all others, where one of them is on its task; else from those on other tasks alone, where there are any.
    Stages are left out, as they are of what a run took.
    """
    off = dict[int, float]()
    for place, run in enumerate(finished):
        others = [other for at, other in enumerate(finished) if at != place]
        apart = [other for other in others if other.config["task"] != run.config["task"]]
        usable = len(apart) < len(others) if known else bool(apart)
        if usable:
            parts = calibrated(run.config, run.model, others if known else apart)
            off[place] = sum(s for name, s in parts.items() if name != "presample") / run.total_s - 1
    return off


def calibrated(config: Mapping[str, Any], model: Architecture, finished: Sequence[Finished]) -> Parts:
    """Seconds by part, each times the median of measured over modelled of the finished runs, and what they took beside.

    Pace, lengths, prompts and rounds are those of the finished runs on the same task, where there are any, else of all.
    """
    parts = seconds(model, workload_of(config, _seen_before(config, finished)))
    if not finished:
        return parts
    finished = [run for run in finished if run.config["task"] == config["task"]] or finished
    modelled = [seconds(run.model, workload_of(run.config, run.seen)) for run in finished]
    for name in parts:
        like = "sampling" if name == "presample" else name  # a stage is in no run's time
        ratios = [
            run.parts[like] / its[like]
            for run, its in zip(finished, modelled, strict=True)
            if run.parts.get(like, 0) > 0 and its[like] > 0
        ]
        parts[name] *= statistics.median(ratios) if ratios else 1.0
    beside = statistics.median(max(0.0, run.total_s - sum(run.parts.values())) for run in finished)
    return {**parts, "start and checkpoints": beside}


def _seen_before(config: Mapping[str, Any], finished: Sequence[Finished]) -> dict[str, float]:
    """What runs on the same task saw; where there are none, on any, with lengths as shares of the longest. What dynamic
    sampling drew and kept: of those that have the same alone.
    """
    same = [run for run in finished if run.config["task"] == config["task"]]
    alike = same or finished
    filtered = [run for run in alike if _dynamic(run.config) == _dynamic(config)]
    found = {"length": [run.seen["length"] * (1 if same else longest(config) / longest(run.config)) for run in alike]}
    for name, runs in (("prompt", alike), ("rounds", filtered), ("turns", filtered), ("kept", filtered)):
        found[name] = [run.seen[name] for run in runs if name in run.seen]
    return {name: statistics.median(values) for name, values in found.items() if values}


def _dynamic(config: Mapping[str, Any]) -> str:
    return config["rollout"]["dynamic_sampling"]


def _kind(config: Mapping[str, Any]) -> tuple[str, str, str]:
    """Of devices and engine: what a finished run must have in common with another to say something of its pace."""
    return device_of(config["cluster"]), config["rollout"]["engine"]["_target_"], config["trainer"]["dtype"]
