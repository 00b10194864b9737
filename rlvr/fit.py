"""Do the chosen loss, advantage, task and rollout, and processes and places, fit? Asked before launch. No torch."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Collection, Mapping

from omegaconf import DictConfig

from rlvr.signature import declared


def check(config: DictConfig, choices: Mapping[str, str | None], without_advantage: Collection[str]) -> None:
    """Raises ValueError for a combination that could only fail, or ignore a choice, once it runs.

    without_advantage: losses that read no advantage.
    """
    _check_advantage(config, choices, without_advantage)
    _check_group_size(config)
    _check_places(config.cluster)
    loss, advantage, task = (declared(config[group]["_target_"]) for group in ("loss", "advantage", "task"))
    _check_overlong(config.rollout, choices, loss)
    for group, marks in (("loss", loss), ("advantage", advantage)):
        if "binary_rewards" in marks and config.rollout.get("overlong_buffer") is not None:
            raise ValueError(
                f"rollout.overlong_buffer={config.rollout.overlong_buffer} makes rewards other than 0 and 1, which "
                f"{group}={choices.get(group)} takes alone. Drop it, or pass loss=grpo advantage=grpo."
            )
        if "binary_rewards" in marks and "graded" in task and not config.task.get("binary"):
            other = "task.binary=true" if "binary" in config.task else "a task of right and wrong, such as task=maze"
            raise ValueError(
                f"{group}={choices.get(group)} takes rewards 0 and 1 only and task={choices.get('task')} gives others. "
                f"Pass loss=grpo advantage=grpo, or {other}."
            )
    if "one_token_responses" in loss and "max_tokens = 1" not in task and config.rollout.max_tokens != 1:
        raise ValueError(
            f"loss={choices.get('loss')} takes responses of one token and task={choices.get('task')} has longer ones. "
            "Pass task=bandit model=table, task=digits, or another loss."
        )
    if "solution" in loss:
        _check_solution(config, choices, task)
    _check_trainer(config.trainer, loss)
    _check_engine(config, choices)
    _check_mismatch(config.rollout, choices, loss)
    _check_ahead(config, choices, loss)


def _check_advantage(config: DictConfig, choices: Mapping[str, str | None], without: Collection[str]) -> None:
    loss, advantage = choices.get("loss"), choices.get("advantage")
    if loss in without and advantage not in (None, "none"):
        raise ValueError(f"advantage={advantage} has no effect with loss={loss}, which reads none. Drop it.")
    if loss not in without and advantage == "none":
        raise ValueError(
            f"advantage=none leaves loss={loss} nothing to learn from. Pass advantage=grpo, or one of the losses that "
            f"read none: {', '.join(sorted(without))}."
        )
    if "value" in declared(config.advantage["_target_"]) - declared(config.loss["_target_"]):
        raise ValueError(
            f"advantage={advantage} needs a value head and loss={loss} trains none. Pass loss=ppo, or advantage=grpo."
        )
    if "returns" in declared(config.loss["_target_"]) and "value" not in declared(config.advantage["_target_"]):
        raise ValueError(
            f"loss={loss} trains a value head on returns, which advantage={advantage} does not give. "
            "Pass advantage=gae, or drop it: this loss chooses it by itself."
        )


def _check_trainer(trainer: DictConfig, loss: Collection[str]) -> None:
    every, head_lr = trainer.get("reference_every"), trainer.get("head_lr")
    if every is not None and "reference" not in loss and not trainer.kl > 0:
        raise ValueError(
            f"trainer.reference_every={every} has no effect: nothing reads a reference. Drop it or set trainer.kl."
        )
    if every is not None and every < 1:
        raise ValueError(f"trainer.reference_every={every} must be 1 or more, or null for a reference that stays.")
    if trainer.get("reference_resets_optimiser") and every is None:
        raise ValueError("trainer.reference_resets_optimiser needs resets: pass trainer.reference_every=STEPS.")
    _check_schedule(trainer)
    _check_lora(trainer, every)
    if trainer.get("reference_offload") and not (trainer.base_kl or trainer.kl > 0 or "reference" in loss):
        raise ValueError(
            "trainer.reference_offload=true has no effect: nothing reads a frozen copy of the policy. Drop it."
        )
    if head_lr is not None and not {"value", "log_z"} & set(loss):
        raise ValueError(
            f"trainer.head_lr={head_lr} has no effect: the loss trains no head beside the model, as ppo and flowrl do. "
            "Drop trainer.head_lr."
        )
    if head_lr is not None and not head_lr > 0:
        raise ValueError(f"trainer.head_lr={head_lr} must be greater than 0, or null for the model's own rate.")


def _check_lora(trainer: DictConfig, every: int | None) -> None:
    rank, alpha = trainer.get("lora_rank"), trainer.get("lora_alpha", 32.0)
    if rank is None and alpha != 32.0:
        raise ValueError(f"trainer.lora_alpha={alpha} has no effect without trainer.lora_rank=RANK. Add it or drop it.")
    if rank is not None and (rank < 1 or alpha <= 0):
        raise ValueError(f"trainer.lora_rank={rank} must be 1 or more and trainer.lora_alpha={alpha} greater than 0.")
    if rank is not None and (every is not None or trainer.get("reference_offload")):
        raise ValueError(
            f"trainer.lora_rank={rank} makes no copy of the policy: the reference is the policy without its adapters. "
            "Drop trainer.reference_every and trainer.reference_offload, or trainer.lora_rank."
        )


def _check_overlong(rollout: DictConfig, choices: Mapping[str, str | None], loss: Collection[str]) -> None:
    buffer, factor = rollout.get("overlong_buffer"), rollout.get("overlong_penalty", 1.0)
    if buffer is None and factor != 1.0:
        raise ValueError(
            f"rollout.overlong_penalty={factor} has no effect without rollout.overlong_buffer=TOKENS. "
            "Add it or drop it."
        )
    if buffer is not None and rollout.max_tokens is not None and buffer > rollout.max_tokens:
        raise ValueError(
            f"rollout.overlong_buffer={buffer} is more than rollout.max_tokens={rollout.max_tokens}: every response "
            "would be penalised. Pass a smaller buffer."
        )
    if "solution" in loss and (buffer is not None or rollout.get("overlong_filter")):
        raise ValueError(
            f"rollout.overlong_buffer and rollout.overlong_filter have no effect with loss={choices.get('loss')}, "
            "which learns known answers, not samples. Drop them."
        )


def _check_schedule(trainer: DictConfig) -> None:
    schedule, decay, final = trainer.get("schedule"), trainer.get("decay_steps"), trainer.get("final_lr", 0.0)
    if decay is not None and schedule != "wsd":
        raise ValueError(
            f"trainer.decay_steps={decay} has no effect with trainer.schedule={schedule}. "
            "Pass trainer.schedule=wsd or drop it."
        )
    if decay is not None and decay < 1:
        raise ValueError(f"trainer.decay_steps={decay} must be 1 or more, or null for a tenth of all.")
    if final and schedule == "constant":
        raise ValueError(
            f"trainer.final_lr={final} has no effect with trainer.schedule=constant. "
            "Pass trainer.schedule=cosine, linear or wsd, or drop it."
        )
    if not 0 <= final <= 1:
        raise ValueError(f"trainer.final_lr={final} must be a share of lr, 0 to 1.")


def _check_mismatch(rollout: DictConfig, choices: Mapping[str, str | None], loss: Collection[str]) -> None:
    logp_old, importance, cap = rollout.get("logp_old"), rollout.get("importance"), rollout.get("importance_cap")
    for key, value, allowed in (
        ("logp_old", logp_old, ("engine", "trainer")), ("importance", importance, ("none", "truncate", "mask")),
    ):  # fmt: skip
        if value not in (None, *allowed):
            raise ValueError(f"rollout.{key}={value} must be {' or '.join(allowed)}.")
    weighs = importance not in (None, "none")
    if cap is not None and (not cap > 1 or (cap != 2.0 and not weighs)):
        raise ValueError(f"rollout.importance_cap={cap} is more than 1 and needs rollout.importance=truncate or mask.")
    asked = f"rollout.importance={importance}" if weighs else f"rollout.max_mismatch={rollout.get('max_mismatch')}"
    if not weighs and rollout.get("max_mismatch") is None:
        return
    if logp_old != "trainer":
        raise ValueError(
            f"{asked} compares the engine's log-probabilities with the trainer's own. Pass rollout.logp_old=trainer."
        )
    if rollout.top_p < 1:
        raise ValueError(
            f"{asked} with rollout.top_p={rollout.top_p}: an engine knows what it truncated, not the policy. "
            "Pass rollout.top_p=1."
        )
    if "solution" in loss:
        raise ValueError(f"{asked} has no effect with loss={choices.get('loss')}: no engine samples what it learns.")
    if weighs and "per_response" in loss:
        raise ValueError(
            f"{asked} weighs tokens and loss={choices.get('loss')} has one term per response. "
            "Pass rollout.importance=none."
        )


def _check_ahead(config: DictConfig, choices: Mapping[str, str | None], loss: Collection[str]) -> None:
    rollout, ahead = config.rollout, config.rollout.get("ahead", 0)
    if ahead not in (0, 1):
        raise ValueError(
            f"rollout.ahead={ahead} must be 0, or 1: responses are at most one step older than the policy."
        )
    if not ahead:
        return
    if "solution" in loss:
        raise ValueError(
            f"rollout.ahead=1 has no effect with loss={choices.get('loss')}, which learns known answers. Drop it."
        )
    if config.cluster.gpus and "workers" not in rollout.engine:
        raise ValueError(
            f"rollout.ahead=1 samples while the policy is trained, and rollout={choices.get('rollout')} needs the GPUs "
            "that train it. Pass rollout=ray, which has GPUs of its own, or rollout.ahead=0."
        )
    if rollout.get("logp_old") == "trainer" and rollout.get("importance") == "none":
        raise ValueError(
            "rollout.ahead=1 with rollout.logp_old=trainer would take responses of the policy one step before for its "
            "own. Pass rollout.importance=truncate, which weighs them, or rollout.logp_old=engine: the loss then "
            "compares with the policy that sampled."
        )


def _check_engine(config: DictConfig, choices: Mapping[str, str | None]) -> None:
    engine, rollout = config.rollout.engine, choices.get("rollout")
    if "python" not in engine:  # it has no interpreter of its own: nothing to find, nothing it cannot load
        return
    if "native_only" in declared(config.model["_target_"]):
        raise ValueError(
            f"rollout={rollout} loads architectures of Hugging Face and model={choices.get('model')} is none. "
            "Pass rollout=native."
        )
    python = engine.python
    if python is not None and shutil.which(python) is None:
        raise ValueError(f"rollout.engine.python={python} is no program. Pass the python of an environment with vLLM.")
    if python is None and importlib.util.find_spec("vllm") is None:
        raise ValueError(
            f"rollout={rollout} needs vLLM, which this environment lacks: pip install 'rlvr[vllm]', or pass "
            "rollout.engine.python=/path/to/python of one that has it, or rollout=native."
        )
    if "workers" in engine:
        _check_workers(config, rollout, choices.get("loss"))


def _check_workers(config: DictConfig, rollout: str | None, loss: str | None) -> None:
    workers, cluster = config.rollout.engine.workers, config.cluster
    ranks, gpus = cluster.ranks, cluster.gpus
    if workers < 1 or workers % ranks:
        raise ValueError(
            f"rollout.engine.workers={workers} are shared by cluster.ranks={ranks} in equal parts. "
            f"Pass rollout.engine.workers={ranks} or a multiple."
        )
    if 0 < gpus < (needed := (ranks + workers) // cluster.nodes * cluster.pack):
        packed = f", for each of cluster.pack={cluster.pack} runs" if cluster.pack > 1 else ""
        spread = f", spread over cluster.nodes={cluster.nodes}" if cluster.nodes > 1 else ""
        where = " on each" if cluster.nodes > 1 else ""
        raise ValueError(
            f"rollout={rollout} takes a GPU for each of cluster.ranks={ranks} and rollout.engine.workers={workers}"
            f"{packed}{spread}, and cluster.gpus={gpus}{where}. Pass cluster.gpus={needed}, or fewer workers."
        )
    if gpus and config.get("presample") is not None:
        raise ValueError(
            f"The base policy's answers that loss={loss} learns from are sampled by a job with one GPU, which leaves "
            f"rollout={rollout} none. Pass rollout=vllm."
        )
    if importlib.util.find_spec("ray") is None:
        raise ValueError(f"rollout={rollout} needs Ray, which this environment lacks: pip install 'rlvr[ray]'.")


def _check_group_size(config: DictConfig) -> None:
    G, advantage = config.rollout.samples, config.advantage
    if advantage.get("k") is not None:  # pass@k
        form, k = advantage.get("form"), advantage.k
        least, most = (2 if form == "sloo_minus_one" else 1), (G - 1 if form == "sloo" else G)
        if not least <= k <= most:
            raise ValueError(
                f"advantage.k={k} with advantage.form={form} and rollout.samples={G}: k is {least} to {most}. "
                f"Pass rollout.samples={max(k, least) + (form == 'sloo')} or more, or another advantage.k."
            )
    order = advantage.get("order")
    if order is not None and not 1 <= order < G:
        raise ValueError(
            f"advantage.order={order} with rollout.samples={G}: orders are 1 to rollout.samples - 1. "
            f"Pass rollout.samples={max(order, 1) + 1}, another advantage.order, or null for the highest."
        )
    score = config.loss.get("score")
    if G < 2 and score not in (None, "naive"):
        raise ValueError(
            f"rollout.samples={G} makes loss.score={score} zero for every response: it compares the responses of a "
            "group. Pass rollout.samples=2 or more, or loss.score=naive."
        )


def _check_solution(config: DictConfig, choices: Mapping[str, str | None], task: Collection[str]) -> None:
    loss = choices.get("loss")
    if "solution" not in task:
        raise ValueError(
            f"loss={loss} learns known answers and task={choices.get('task')} gives none. "
            "Pass a task with a `solution`, such as task=digits or task=maze, or another loss."
        )
    for key, value in (("dynamic_sampling", config.rollout.dynamic_sampling), ("filter", config.rollout.filter)):
        if value != "none":
            raise ValueError(
                f"rollout.{key}={value} would choose problems by answers that loss={loss} does not learn from. "
                f"Pass rollout.{key}=none; rollout.samples=1 saves time."
            )


def _check_places(cluster: DictConfig) -> None:
    """Do the processes of a run divide over its nodes, and has each a GPU where there are some?"""
    if cluster.ranks % cluster.nodes:
        raise ValueError(
            f"cluster.ranks={cluster.ranks} processes do not divide over cluster.nodes={cluster.nodes} nodes. Pass "
            f"cluster.ranks={cluster.nodes * max(1, cluster.ranks // cluster.nodes)}: ranks counts those of all nodes."
        )
    if cluster.nodes > 1 and cluster.pack > 1:
        raise ValueError("cluster.pack puts several runs on one node, cluster.nodes one run on several: pass one.")
    needed = cluster.ranks // cluster.nodes * cluster.pack
    if cluster.ranks > 1 and 0 < cluster.gpus < needed:
        packed = f" of cluster.pack={cluster.pack} runs" if cluster.pack > 1 else ""
        where = " on each node" if cluster.nodes > 1 else ""
        raise ValueError(
            f"cluster.ranks={cluster.ranks} processes{packed}, each with a GPU of its own, and cluster.gpus="
            f"{cluster.gpus}{where}. Pass cluster.gpus={needed}, or fewer ranks."
        )
