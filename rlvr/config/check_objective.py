"""Do the chosen loss, advantage, task and rollout, and processes and places, fit? Asked before launch. No torch."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from omegaconf import DictConfig

from rlvr.config import check_engine as fit_engine
from rlvr.config.signature import declared


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
                f"rollout.overlong_buffer={config.rollout.overlong_buffer:g} makes rewards other than 0 and 1, which "
                f"{group}={choices.get(group)} takes alone. Pass rollout.overlong_buffer=null, or loss=grpo "
                "advantage=grpo."
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
    fit_engine.check(config, choices, loss)


def _check_advantage(config: DictConfig, choices: Mapping[str, str | None], without: Collection[str]) -> None:
    loss, advantage = choices.get("loss"), choices.get("advantage")
    if loss in without and advantage not in (None, "none"):
        raise ValueError(f"advantage={advantage} has no effect with loss={loss}, which reads none. Drop it.")
    if loss not in without and advantage == "none":
        raise ValueError(
            f"advantage=none leaves loss={loss} nothing to learn from. Pass advantage=grpo, or one of the losses that "
            f"read none: {', '.join(sorted(without))}."
        )
    if advantage == "maxrl_control_variate" and config.rollout.dynamic_sampling != "none":
        raise ValueError(
            f"advantage={advantage} differs from advantage=maxrl in groups without success alone, which "
            f"rollout.dynamic_sampling={config.rollout.dynamic_sampling} leaves out. Pass "
            "rollout.dynamic_sampling=none."
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
            "Add it, or pass rollout.overlong_penalty=1.0."
        )
    if buffer is not None and rollout.max_tokens is not None and buffer > rollout.max_tokens:
        raise ValueError(
            f"rollout.overlong_buffer={buffer:g} is more than rollout.max_tokens={rollout.max_tokens}: every response "
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
