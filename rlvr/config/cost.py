"""Estimates how long a run takes, from its floating-point operations and bytes. No torch.

Each part of a step has a formula with the rates of a device (`DEVICES`) and the share of them that is reached
(`Efficiency`). The formulas are rough; `calibrated` corrects them by runs that have finished on the same devices.
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
from rlvr.config.nodes import ranks_of_node, sampling_nodes
from rlvr.config.signature import declared
from rlvr.ledger.stages import AT_ONCE, ENDLESS

Parts = dict[str, float]  # seconds by part of a run


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
# Assumed where no finished run shows them: mean response over the longest, tokens of a prompt, problems of a benchmark,
# share of groups that dynamic sampling keeps.
MEAN_LENGTH, PROMPT, BENCHMARK, KEPT = 0.3, 150, 500, 0.5
UNKNOWN_LENGTH = 64  # tokens of the longest response, where the config does not state it
TRAIN = 10_000  # problems of a train split in files, which are not read for an estimate


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
    kept: float  # share of the responses of a step that is learned from: dynamic sampling may drop groups
    epochs: int
    updates: int  # optimiser steps per epoch
    own_logp: bool  # the trainer computes the log-probabilities of the samples itself
    frozen: float  # forward passes of frozen copies for each token that is learned from
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
    presampled: int = 0  # problems that the base policy answers before training
    presampled_samples: int = 8  # responses per such problem


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
    """Tokens of the longest response."""
    return config["rollout"]["max_tokens"] or config["task"].get("max_tokens") or UNKNOWN_LENGTH


def workload_of(config: Mapping[str, Any], seen: Mapping[str, float] | None = None) -> Workload:
    """The workload of a run's resolved config. seen: averages of similar runs, with the keys of `Finished.seen`."""
    seen = seen or {}
    rollout, trainer, cluster, evaluation = (config[k] for k in ("rollout", "trainer", "cluster", "evaluation"))
    engine, ranks, name = rollout["engine"], cluster["ranks"], device_of(cluster)
    parallel = engine.get("tensor_parallel", 1)
    refills, overdraw = rollout["dynamic_sampling"] == "refill", rollout.get("overdraw")
    rounds = seen.get("rounds", 1 / KEPT if refills else 1.0)
    turns = seen.get("turns", math.ceil(rounds)) if refills and not overdraw else 1  # each of at most P problems
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
        ranks_of_node=ranks_of_node(cluster),
        other_nodes=sampling_nodes(cluster),
        threads=cluster["threads"] if name == "cpu" else 1,
        steps=config["steps"],
        responses=rollout["prompts"] * rollout["samples"],
        rounds=rounds,  # sampling of surplus groups that overdraw has drawn is stopped
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
    """Seconds of a whole run by part. "presample" is a stage, which all runs on the same samples share."""
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
    """Seconds for sampling `samples` responses to each of `problems` problems on all engines.

    A prompt is processed once for all its responses. Each decoding step reads the weights once and the keys and values
    of every sequence in the batch. When the other responses have ended, a tail is left: the rest of the longest one,
    which is cut at the limit. Each device of an engine holds a part of the weights, and of the key heads as far as
    these can be divided; the devices sum their results twice per layer.
    """
    reached, device, parallel = workload.reached, workload.device, workload.tensor_parallel
    responses = problems * samples / workload.engines  # per engine
    width = workload.engine_width
    # The native engine reads the keys of a prompt once for all its responses.
    context = workload.prompt / (1 if workload.vllm else samples) + workload.mean / 2
    cache = 2 * model.layers * model.key * width * context / min(parallel, model.kv_heads)  # per sequence and device
    at_once = max(1.0, min(responses, workload.sequences, workload.cache_gb * GB / cache))
    flops = (device.half if width == 2 else device.single) * workload.threads * reached.decoding * parallel
    bandwidth = device.bandwidth * reached.decoding
    launches = 0.0 if workload.vllm else model.layers * reached.native_s  # vLLM replays a CUDA graph

    def token_s(sequences: float) -> float:
        read = (width * model.parameters / parallel + sequences * cache) / bandwidth
        computed_s = reached.both(max(read, 2 * model.parameters * sequences / flops), launches)
        return computed_s + sums_s(sequences) + reached.step_s

    def sums_s(sequences: float) -> float:
        sent = 2 * (parallel - 1) / parallel * width * model.hidden * sequences  # bytes per device, in a ring
        return 2 * model.layers * (reached.reduce_s + sent / (device.link * reached.decoding)) * (parallel > 1)

    prompts_s = 2 * model.parameters * workload.prompt * problems / workload.engines / flops
    expected = workload.mean * (1 + math.log(max(1.0, responses)))  # the longest response, of exponential lengths
    tail = max(0.0, min(workload.longest, expected) - workload.mean)
    if workload.vllm:  # continuous batching: the next response starts when one ends
        return prompts_s + responses * workload.mean / at_once * token_s(at_once) + tail * token_s(1)
    batches = math.ceil(responses / at_once)
    return prompts_s + batches * (workload.mean * token_s(at_once) + tail * token_s(at_once / 8))


def _presample(model: Architecture, workload: Workload) -> float:
    """Seconds in which the engines sample the base policy's answers, AT_ONCE problems per engine at a time."""
    if not workload.presampled:
        return 0.0
    chunks = math.ceil(workload.presampled / (AT_ONCE * workload.engines))
    return chunks * _sampling(model, workload, workload.presampled / chunks, workload.presampled_samples)


def _sync(model: Architecture, workload: Workload) -> float:
    """Seconds to transfer all weights to the engines.

    The native engine copies them. For vLLM they are always written into main memory; from there they are read, unless
    they are broadcast, or transferred within the GPU: into memory that both processes share, and from it to the model.
    """
    num_bytes, reached = workload.engine_width * model.parameters, workload.reached
    once_s = num_bytes / (workload.device.bandwidth * reached.decoding)  # one read or write in the device's memory
    if not workload.vllm:
        return once_s
    written_s = num_bytes / workload.ranks_of_node / reached.write
    if workload.within_gpu:
        return written_s + 6 * once_s
    if workload.other_nodes:
        return written_s + num_bytes / reached.broadcast
    return written_s + num_bytes / workload.tensor_parallel / reached.read


def _passes(model: Architecture, workload: Workload, *, backward: bool) -> float:
    """Seconds in which all ranks process the step's tokens once, with or without the backward pass.

    FLOPs: 2 per weight and token forward, four more backward and two more to compute activations again; attention's
    scores and sums, 4·layers·width per pair of tokens, half of which are masked. The head runs on responses alone.
    """
    response_tokens = workload.kept * workload.responses * workload.mean
    tokens = workload.kept * workload.prompts * workload.prompt + response_tokens
    body = 2.0 * model.layers * model.layer_parameters * tokens
    body += 2.0 * model.layers * model.query * response_tokens * (2 * workload.prompt + workload.mean)
    head = 2.0 * model.vocab * model.hidden * response_tokens
    factor = (4 if workload.recomputed else 3) if backward else 1
    body *= 1 + workload.critic
    work = factor * body + (4 if backward else 1) * head  # the backward pass always computes the logits again
    device, reached = workload.device, workload.reached
    rate = (device.half if workload.half else device.single) * workload.threads * reached.training
    passes = max(workload.updates, math.ceil(tokens / workload.devices / workload.token_budget))
    return reached.both(work / workload.devices / rate, factor * passes * model.layers * reached.layer_s)


@dataclass(frozen=True)
class Finished:
    """Measurements of a finished run: seconds by part and in total, and averages that an estimate needs.

    seen: "length" (mean tokens of a response), "rounds" (responses sampled for each that a step needs), "turns" (rounds
    of sampling per step, one after the other), and where known "prompt" (mean tokens) and "kept" (share of the
    responses of a step that was learned from).
    """

    config: Mapping[str, Any]
    model: Architecture
    parts: Parts
    total_s: float  # without the stages that the run built or waited for
    seen: Mapping[str, float]


@dataclass(frozen=True)
class Estimate:
    """Seconds of a run by part."""

    parts: Parts
    kind: tuple[str, str, str]  # device, engine, precision of training
    finished: Sequence[Finished]  # runs of this kind, by which the estimate is calibrated
    known: bool  # one of them is on the same task

    @property
    def total_s(self) -> float:
        return sum(self.parts.values())

    @functools.cached_property
    def error(self) -> float | None:
        """Median relative error of such estimates on the finished runs (`errors`); None if there are none.

        Slow: it estimates each of them.
        """
        sizes = [abs(error) for error in errors(self.finished, known=self.known).values()]
        return statistics.median(sizes) if sizes else None


def estimate(config: Mapping[str, Any], model: Architecture, finished: Sequence[Finished] = ()) -> Estimate:
    """The estimate for a run's resolved config. finished: runs on any devices; those of the same kind calibrate it."""
    kind = _kind(config)
    same = [run for run in finished if _kind(run.config) == kind]
    known = any(run.config["task"] == config["task"] for run in same)
    return Estimate(calibrated(config, model, same), kind, same, known)


def errors(finished: Sequence[Finished], *, known: bool) -> dict[int, float]:
    """Predicted over measured seconds, less 1, by index of the finished run, each predicted from other runs.

    known: predict from all others, if one of them is on its task; else from runs on other tasks alone, if there are
    any. Runs without such others are left out. Stages are not counted, as `Finished.total_s` does not contain them.
    """
    relative_errors = dict[int, float]()
    for index, run in enumerate(finished):
        others = [other for i, other in enumerate(finished) if i != index]
        on_other_tasks = [other for other in others if other.config["task"] != run.config["task"]]
        usable = len(on_other_tasks) < len(others) if known else bool(on_other_tasks)
        if usable:
            parts = calibrated(run.config, run.model, others if known else on_other_tasks)
            predicted_s = sum(part_s for name, part_s in parts.items() if name != "presample")
            relative_errors[index] = predicted_s / run.total_s - 1
    return relative_errors


def calibrated(config: Mapping[str, Any], model: Architecture, finished: Sequence[Finished]) -> Parts:
    """Seconds by part, each times the finished runs' median of measured over modelled seconds.

    "start and checkpoints" is the median time of these runs that belongs to no part. Speed, lengths, prompts and rounds
    are those of the finished runs on the same task, if there are any, else of all.
    """
    parts = seconds(model, workload_of(config, _seen_before(config, finished)))
    if not finished:
        return parts
    finished = [run for run in finished if run.config["task"] == config["task"]] or finished
    modelled = [seconds(run.model, workload_of(run.config, run.seen)) for run in finished]
    for name in parts:
        measured_as = "sampling" if name == "presample" else name  # the time of a stage is in no run's time
        ratios = [
            run.parts[measured_as] / model_s[measured_as]
            for run, model_s in zip(finished, modelled, strict=True)
            if run.parts.get(measured_as, 0) > 0 and model_s[measured_as] > 0
        ]
        parts[name] *= statistics.median(ratios) if ratios else 1.0
    remainder_s = statistics.median(max(0.0, run.total_s - sum(run.parts.values())) for run in finished)
    return {**parts, "start and checkpoints": remainder_s}


def _seen_before(config: Mapping[str, Any], finished: Sequence[Finished]) -> dict[str, float]:
    """Medians of `Finished.seen` over runs on the same task, or over all runs if there are none on it.

    In the latter case lengths are scaled by the longest response. "rounds", "turns" and "kept" come only from runs with
    the same dynamic sampling.
    """
    same = [run for run in finished if run.config["task"] == config["task"]]
    similar = same or finished
    same_sampling = [run for run in similar if _dynamic_sampling(run.config) == _dynamic_sampling(config)]
    scales = [1 if same else longest(config) / longest(run.config) for run in similar]
    values = {"length": [run.seen["length"] * scale for run, scale in zip(similar, scales, strict=True)]}
    values["prompt"] = [run.seen["prompt"] for run in similar if "prompt" in run.seen]
    for name in ("rounds", "turns", "kept"):
        values[name] = [run.seen[name] for run in same_sampling if name in run.seen]
    return {name: statistics.median(numbers) for name, numbers in values.items() if numbers}


def _dynamic_sampling(config: Mapping[str, Any]) -> str:
    return config["rollout"]["dynamic_sampling"]


def _kind(config: Mapping[str, Any]) -> tuple[str, str, str]:
    """Device, engine and precision: a finished run predicts the speed of runs of the same kind."""
    return device_of(config["cluster"]), config["rollout"]["engine"]["_target_"], config["trainer"]["dtype"]
