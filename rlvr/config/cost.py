"""Estimates how long a run takes, from its floating-point operations and bytes. No torch.

Each part of a step has a formula with the rates of a device and the share of them that is reached (`Workload`). The
formulas are rough; `calibrated` corrects them by runs that have finished on the same devices.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlvr.config.memory import GB, Architecture
from rlvr.config.workload import Workload, device_of, has_adapters, longest, workload_of
from rlvr.ledger.stages import AT_ONCE

Parts = dict[str, float]  # seconds by part of a run
Kind = tuple[str, str, str, int, bool]  # device, engine, precision of training, rollout.ahead, are adapters trained


def seconds(model: Architecture, workload: Workload) -> Parts:
    """Seconds of a whole run by part, as if one part ran after the other (`hidden_s`). "presample" is a stage, which
    all runs on the same samples share.
    """
    samples, critic = workload.responses / workload.prompts, workload.critic
    forward = _passes(model, workload, critic=critic)
    # A policy with adapters is its own frozen copy, with its critic; a copy has none.
    frozen = _passes(model, workload, critic=critic and workload.adapters)
    update = _passes(model, workload, critic=critic, backward=True) + workload.first_pass * forward
    return {
        "sampling": workload.steps
        * workload.turns
        * _sampling(model, workload, workload.prompts * workload.rounds / workload.turns, samples),
        "weights": workload.steps * _sync(model, workload),
        "log-probabilities": workload.steps * workload.batch_passes * forward,
        "training": workload.steps * (workload.epochs * update + workload.frozen * frozen),
        "evaluation": workload.evaluations * _sampling(model, workload, workload.evaluated, workload.evaluated_samples),
        "presample": _presample(model, workload),
    }


def hidden_s(config: Mapping[str, Any], parts: Parts) -> float:
    """Seconds that sampling and training run at once, with `rollout.ahead`: in all steps but the first, the smaller of
    the two. One step ahead the engine waits for new weights; several ahead it takes them while it samples.
    """
    ahead, steps = ahead_of(config), config["steps"]
    if not ahead:
        return 0.0
    beside = ("log-probabilities", "training", "weights") if ahead > 1 else ("log-probabilities", "training")
    return (steps - 1) / steps * min(parts.get("sampling", 0.0), sum(parts.get(name, 0.0) for name in beside))


def ahead_of(config: Mapping[str, Any]) -> int:
    return config["rollout"].get("ahead") or 0


def _sampling(model: Architecture, workload: Workload, problems: float, samples: float) -> float:
    """Seconds for sampling `samples` responses to each of `problems` problems on all engines.

    A prompt is processed once for all its responses. Each decoding step reads the weights once and the keys and values
    of every sequence in the batch. When the other responses have ended, a tail is left: the rest of the longest one.
    Each device of an engine holds a part of the weights, and of the key heads as far as these can be divided; the
    devices sum their results twice per layer.
    """
    reached, device, parallel = workload.reached, workload.device, workload.tensor_parallel
    responses = problems * samples / workload.engines  # per engine
    width = workload.engine_width
    # The native engine reads the keys of a prompt once for all its responses, and allocates for the longest response.
    prompt, position = workload.prompt / (1 if workload.vllm else samples), workload.lengths.position
    allocated = position if workload.vllm else workload.longest
    of_token = 2 * model.layers * model.key * width / min(parallel, model.kv_heads)  # bytes per device
    cache = of_token * (prompt + position)  # per sequence and device
    fitting = workload.cache_gb * GB / (of_token * (prompt + allocated))
    at_once = max(1.0, min(responses, workload.sequences, fitting))
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
    tail = workload.lengths.largest(responses) - workload.mean
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


def _passes(model: Architecture, workload: Workload, *, critic: bool, backward: bool = False) -> float:
    """Seconds in which all ranks process the step's tokens once, with or without the backward pass.

    FLOPs forward: 2 per weight and token; attention's scores and sums, 4·layers·width per pair of a response token with
    one before it. The head runs on responses alone. Backward: as many for the gradients of inputs, as many for those of
    weights, and to compute activations again. critic: a second decoder, without a head, all of whose weights are
    trained.
    """
    response_tokens = workload.kept * workload.responses * workload.mean
    tokens = workload.kept * workload.prompts * workload.prompt_copies * workload.prompt + response_tokens
    layers = 2.0 * model.layers * model.layer_parameters * tokens
    before = workload.prompt + workload.lengths.position
    decoder = layers + 4.0 * model.layers * model.query * response_tokens * before
    head = 2.0 * model.vocab * model.hidden * response_tokens
    factor = (4 if workload.recomputed else 3) if backward else 1
    work = factor * (1 + critic) * decoder + (4 if backward else 1) * head  # backward always computes the logits again
    if backward and workload.adapters:
        work -= layers + head  # the gradients of the policy's weights
    device, reached = workload.device, workload.reached
    rate = (device.half if workload.half else device.single) * workload.threads * reached.training
    passes = max(workload.updates, math.ceil(tokens / workload.devices / workload.token_budget))
    launched_s = factor * (1 + critic) * passes * model.layers * reached.layer_s
    return reached.both(work / workload.devices / rate, launched_s)


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
    kind: Kind
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

    "start and checkpoints" is the median time of these runs that belongs to no part. "overlap" is negative: the time in
    which two parts run at once. Speed, lengths, prompts and rounds are those of the finished runs on the same task, if
    there are any, else of all.
    """
    parts = seconds(model, workload_of(config, _seen_before(config, finished)))
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
    if finished:
        parts["start and checkpoints"] = statistics.median(_remainder_s(run) for run in finished)
    hidden = hidden_s(config, parts)
    return {**parts, "overlap": -hidden} if hidden else parts


def _remainder_s(run: Finished) -> float:
    """Seconds of a finished run that belong to no part."""
    return max(0.0, run.total_s - sum(run.parts.values()) + hidden_s(run.config, run.parts))


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


def _kind(config: Mapping[str, Any]) -> Kind:
    """What must be alike for a finished run to predict the speed of another."""
    engine, dtype = config["rollout"]["engine"]["_target_"], config["trainer"]["dtype"]
    return device_of(config["cluster"]), engine, dtype, ahead_of(config), has_adapters(config)
