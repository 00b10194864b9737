"""Checks of the sampling engine: installed, able to load the model, enough GPUs, and correct ratios. No torch."""

import importlib.util
import shutil
from collections.abc import Mapping
from typing import Any

from rlvr.config import memory
from rlvr.config.nodes import ranks_of_node, training_nodes
from rlvr.config.schema import Choices, Knobs
from rlvr.config.signature import declared, has_terms_per_response
from rlvr.records import NotAvailable


def check(config: Knobs, choices: Choices) -> None:
    """Raises ValueError for settings of sampling that would fail or be ignored. The engine itself: `check_engine`."""
    _check_mismatch(config, choices)
    _check_temperature(config)
    _check_truncation(config.rollout, choices, learns_samples="solution" not in declared(config.loss["_target_"]))
    _check_ahead(config, choices)


def check_engine(config: Knobs, choices: Choices) -> None:
    """Raises ValueError if the engine cannot load the model or lacks GPUs, NotAvailable if it is not installed."""
    engine, rollout = config.rollout.engine, choices.get("rollout")
    if config.cluster.sampling_nodes and "workers" not in engine:
        raise ValueError(
            f"cluster.sampling_nodes={config.cluster.sampling_nodes} have workers of rollout=ray alone, and "
            f"rollout={rollout} has none. Pass rollout=ray, or cluster.sampling_nodes=0."
        )
    if "python" not in engine:  # it runs in our own process, is always installed and loads every model
        return
    if "native_only" in declared(config.model["_target_"]):
        raise ValueError(
            f"rollout={rollout} loads architectures of Hugging Face and model={choices.get('model')} is none. "
            "Pass rollout=native."
        )
    python = engine.python
    if python is not None and shutil.which(python) is None:
        raise ValueError(f"rollout.engine.python={python} is no program. Pass the python of an environment with vLLM.")
    if config.cluster.gpus and config.cluster.pack > 1 and "workers" not in engine:
        raise ValueError(
            f"rollout={rollout} and training take turns with the memory of a GPU, which the other runs of "
            f"cluster.pack={config.cluster.pack} would take in between. Pass cluster.pack=1, rollout=ray or "
            "rollout=native."
        )
    _check_tensor_parallel(config)
    if "workers" in engine:
        _check_workers(config, rollout)
    if python is None and importlib.util.find_spec("vllm") is None:
        raise NotAvailable(
            f"rollout={rollout} needs vLLM, which this environment lacks: pip install 'rlvr[vllm]', or pass "
            "rollout.engine.python=/path/to/python of one that has it, or rollout=native."
        )


def ranks_per_engine(engine: Mapping[str, Any], ranks: int) -> int:
    """Number of ranks that share one vLLM, on their own GPUs or as a worker of Ray.

    engine: `rollout.engine` of a config. ranks: number of ranks of the run.
    """
    return max(1, ranks // engine["workers"]) if "workers" in engine else engine.get("tensor_parallel", 1)


def gpus_of_workers(engine: Mapping[str, Any]) -> int:
    """Number of GPUs of the workers of rollout=ray, which no rank uses; on a CPU: number of their processes."""
    return engine.get("workers", 0) * engine.get("tensor_parallel", 1)


def _check_tensor_parallel(config: Knobs) -> None:
    engine, cluster = config.rollout.engine, config.cluster
    size = engine.get("tensor_parallel", 1)
    if size == 1:
        return
    typed_size = f"rollout.engine.tensor_parallel={size}"
    ranks = ranks_of_node(cluster)
    # With one rank on a CPU there are no GPUs to share: its vLLM may have any number of processes.
    if "workers" not in engine and (cluster.gpus or ranks > 1) and ranks % size:
        divisors = ", ".join(str(divisor) for divisor in range(1, ranks + 1) if ranks % divisor == 0)
        raise ValueError(
            f"{typed_size}: so many of the {ranks} ranks of a node share a vLLM on their GPUs. Pass one of {divisors}, "
            "another cluster.ranks, or rollout=ray, whose vLLMs have GPUs of their own."
        )
    if "workers" not in engine and ranks > 1 and config.rollout.get("ahead", 0) > 1:
        raise ValueError(
            f"{typed_size}: ranks that share a vLLM take turns with it, which rollout.ahead={config.rollout.ahead} "
            "does not allow. Pass rollout=ray, or rollout.ahead=1."
        )
    model = memory.architecture_of_model(config.get("model"))
    if model is not None and (model.heads % size or (model.kv_heads % size and size % model.kv_heads)):
        raise ValueError(
            f"{typed_size} cuts the model's {model.heads} attention heads, or {model.kv_heads} key heads, into unequal "
            "parts. Pass a divisor of both."
        )


def _check_workers(config: Knobs, rollout: str | None) -> None:
    engine, cluster = config.rollout.engine, config.cluster
    ranks, workers = cluster.ranks, engine.workers
    if workers < 1 or (workers % ranks and ranks % workers):
        raise ValueError(
            f"rollout.engine.workers={workers} are shared by cluster.ranks={ranks} in equal parts. "
            f"Pass rollout.engine.workers={ranks}, a multiple or a divisor."
        )
    needed = _gpus_of_node(engine, cluster) * cluster.pack
    if 0 < cluster.gpus < needed:
        parallel = engine.get("tensor_parallel", 1)
        packed = f", for each of cluster.pack={cluster.pack} runs" if cluster.pack > 1 else ""
        spread = f", spread over cluster.nodes={cluster.nodes}" if cluster.nodes > 1 else ""
        where = " on each" if cluster.nodes > 1 else ""
        per_worker = f", rollout.engine.tensor_parallel={parallel} for each worker" if parallel > 1 else ""
        raise ValueError(
            f"rollout={rollout} takes a GPU for each of cluster.ranks={ranks} and rollout.engine.workers={workers}"
            f"{per_worker}{packed}{spread}, and cluster.gpus={cluster.gpus}{where}. Pass cluster.gpus={needed}, or "
            "fewer workers."
        )
    if importlib.util.find_spec("ray") is None:
        raise NotAvailable(f"rollout={rollout} needs Ray, which this environment lacks: pip install 'rlvr[ray]'.")


def _gpus_of_node(engine: Knobs, cluster: Knobs) -> int:
    """Number of GPUs that each node must have.

    Ranks are on the nodes that train; a worker is on any node where enough GPUs for it are left.
    """
    per_worker = engine.get("tensor_parallel", 1)
    num_training, num_sampling = training_nodes(cluster), cluster.sampling_nodes
    gpus = ranks = ranks_of_node(cluster)
    while True:
        workers = num_training * ((gpus - ranks) // per_worker) + num_sampling * (gpus // per_worker)
        if workers >= engine.workers:
            return gpus
        gpus += 1


def _check_temperature(config: Knobs) -> None:
    sampling, training = config.rollout.temperature, config.trainer.temperature
    is_weighted = config.rollout.logp_old == "trainer" and config.rollout.importance != "none"
    if sampling != training and not is_weighted:
        raise ValueError(
            f"trainer.temperature={training} is not rollout.temperature={sampling}: samples would be another policy's. "
            "Drop trainer.temperature, or weigh them: rollout.logp_old=trainer rollout.importance=truncate."
        )


def _check_mismatch(config: Knobs, choices: Choices) -> None:
    rollout, importance, level = config.rollout, config.rollout.importance, config.rollout.importance_level
    is_weighted = importance != "none"
    if not is_weighted and rollout.max_mismatch is None:
        return
    typed = f"rollout.importance={importance}" if is_weighted else f"rollout.max_mismatch={rollout.max_mismatch}"
    if rollout.logp_old != "trainer":
        raise ValueError(
            f"{typed} compares the engine's log-probabilities with the trainer's own. Pass rollout.logp_old=trainer."
        )
    if rollout.top_p < 1:
        raise ValueError(
            f"{typed} with rollout.top_p={rollout.top_p}: the trainer does not know which tokens the engine truncated. "
            "Pass rollout.top_p=1."
        )
    if is_weighted and level in (None, "token") and has_terms_per_response(config.loss):
        raise ValueError(
            f"{typed} weighs tokens and loss={choices.get('loss')} has one term per response. "
            "Pass rollout.importance=none, or rollout.importance_level=sequence or geometric."
        )


def _check_truncation(rollout: Knobs, choices: Choices, *, learns_samples: bool) -> None:
    """With top_p < 1 samples are not the policy's own: `rollout.truncation` must allow it."""
    top_p = rollout.top_p
    if top_p == 1 or not learns_samples:
        return
    if rollout.truncation is None:
        raise ValueError(
            f"rollout.top_p={top_p:g} samples from the truncated policy, and training computes log-probabilities and "
            "ratios of the whole one, most of whose tokens are then never sampled: its gradient is biased. Pass "
            "rollout.top_p=1, or rollout.truncation=ignored to train so nevertheless (docs/engines.md)."
        )
    if "python" in rollout.engine and rollout.logp_old == "engine":
        remedy = "rollout.top_p=1" if rollout.ahead else "rollout.logp_old=trainer"
        raise ValueError(
            f"rollout.logp_old=engine with rollout.top_p={top_p:g}: rollout={choices.get('rollout')} gives the "
            f"log-probabilities of the truncated policy alone. Pass {remedy}."
        )


def _check_ahead(config: Knobs, choices: Choices) -> None:
    rollout, ahead = config.rollout, config.rollout.ahead
    if not ahead:
        return
    if config.cluster.gpus and "workers" not in rollout.engine:
        raise samples_beside_training(ahead, choices.get("rollout"))
    if "no_ratio" in declared(config.loss["_target_"]) and rollout.importance == "none":
        raise ValueError(
            f"rollout.ahead={ahead} with loss={choices.get('loss')}: no ratio corrects for the policy that sampled. "
            "Pass rollout.logp_old=trainer rollout.importance=truncate, which weighs responses, or rollout.ahead=0."
        )
    if rollout.logp_old == "trainer" and rollout.importance == "none":
        before = "one step before" if ahead == 1 else f"up to {ahead} steps before"
        raise ValueError(
            f"rollout.ahead={ahead} with rollout.logp_old=trainer would take responses of the policy {before} for "
            "its own. Pass rollout.importance=truncate, which weighs them, or rollout.logp_old=engine: the loss then "
            "compares with the policy that sampled."
        )
    if ahead > 1:
        _check_in_flight(rollout, choices)


def samples_beside_training(ahead: int, rollout: str | None) -> ValueError:
    """The error for sampling ahead with an engine that has no GPUs of its own."""
    return ValueError(
        f"rollout.ahead={ahead} samples while the policy is trained, and rollout={rollout} needs the GPUs that train "
        "it. Pass rollout=ray, which has GPUs of its own, or rollout.ahead=0."
    )


def _check_in_flight(rollout: Knobs, choices: Choices) -> None:
    """Several steps ahead need an engine that takes new weights while it samples, and groups drawn without rounds."""
    if rollout.engine["_target_"].endswith("NativeEngine"):  # of a user's own engine the start of the run knows
        raise ValueError(
            f"rollout.ahead={rollout.ahead} gives the engine new weights while it samples, which "
            f"rollout={choices.get('rollout')} cannot take. Pass rollout=ray, or rollout.ahead=1."
        )
    if rollout.filter != "none":
        raise ValueError(
            f"rollout.filter={rollout.filter} samples a problem twice, one after the other, and rollout.ahead="
            f"{rollout.ahead} does not. Pass rollout.filter=none, or rollout.ahead=1."
        )
