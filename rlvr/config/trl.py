"""Our words as arguments of TRL's GRPOConfig or RLOOConfig (`program=trl`, docs/programs.md), checked before launch.

Versions read: TRL 1.16. Its dataclasses are read from source (`rlvr.config.signature`): planning imports no torch.
"""

from collections.abc import Mapping
from typing import Any

from rlvr.config import values
from rlvr.config.binding import close_match
from rlvr.config.imports import find_spec
from rlvr.config.signature import signature
from rlvr.records import NotAvailable

GRPO, RLOO = "trl.GRPOConfig", "trl.RLOOConfig"
# TRL's `loss_type`, by our loss and `trainer.aggregation`; None: any, for terms of whole responses.
LOSS_TYPES: Mapping[str, Mapping[str | None, str]] = {
    "rlvr.loss.grpo.grpo": {"token-mean": "dapo", "seq-mean-token-mean": "grpo", "seq-mean-token-sum-norm": "dr_grpo"},
    "rlvr.loss.gspo.gspo": {None: "grpo"},
    "rlvr.loss.cispo.cispo": {"token-mean": "cispo"},
    "rlvr.loss.sapo.sapo": {"seq-mean-token-mean": "sapo"},
}
SCALES = {"rlvr.objective.advantage.grpo": "group", "rlvr.objective.advantage.dr_grpo": "none"}
EPSILON = 1e-4  # that TRL adds to a group's deviation
SCHEDULES = ("constant", "linear", "cosine")
# What the run determines beside our words: problems, record, checkpoints, devices.
OF_RUN = ("output_dir", "seed", "report_to", "save_strategy", "eval_strategy", "use_cpu", "max_completion_length")


def check(plain: Mapping[str, Any]) -> None:
    """Raises ValueError for a frozen config that TRL cannot carry out, NotAvailable if TRL is not installed."""
    program: Mapping[str, Any] = plain["program"]
    ours, typed, config = arguments(plain), program["args"], config_class(plain)
    if (gpus := plain["cluster"]["gpus"]) > 1:
        raise ValueError(f"cluster.gpus={gpus}: program=trl trains on one GPU. Pass cluster.gpus=1.")
    for package in ("trl", *(["peft"] if program["lora_rank"] else [])):
        if find_spec(package) is None:
            raise NotAvailable(f"program=trl needs {package}, which this environment lacks: pip install 'rlvr[trl]'.")
    known = {parameter.name: parameter for parameter in signature(config).parameters}
    for name, value in typed.items():
        key = f"program.args.{name}"
        if name in ours or name in OF_RUN:
            raise ValueError(f"{key} has no effect: the run's own words determine it (docs/programs.md). Drop it.")
        if name not in known:
            raise ValueError(f"{key} is no argument of {config}.{close_match(name, known)}")
        if known[name].kind is not None:
            values.check(key, value, known[name].kind)
    if missing := sorted(ours.keys() - known):
        raise ValueError(f"{config} of this TRL has no {', '.join(missing)}: pip install 'rlvr[trl]'.")


def config_class(plain: Mapping[str, Any]) -> str:
    """The configuration of the trainer that has the advantage of a frozen config."""
    return RLOO if plain["advantage"]["_target_"] == "rlvr.objective.advantage.rloo" else GRPO


def arguments(plain: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of TRL's configuration that our words determine. Raises ValueError for what TRL has not."""
    program, rollout = plain["program"], plain["rollout"]
    samples, updates, epochs = rollout["samples"], program["updates"], program["epochs"]
    rows, left_over = divmod(rollout["prompts"] * samples, updates)
    if samples < 2 or left_over:
        raise ValueError(
            f"rollout.prompts={rollout['prompts']} rollout.samples={samples} trainer.updates={updates}: TRL's updates "
            "have equal numbers of responses, and its groups two or more."
        )
    if rollout["overlong_buffer"] is not None:
        raise ValueError(
            f"rollout.overlong_buffer={rollout['overlong_buffer']}: TRL has no such penalty. "
            "Pass rollout.overlong_buffer=null."
        )
    per_pass = max(size for size in range(1, min(rows, program["micro_batch"]) + 1) if rows % size == 0)
    return {
        **(_leave_one_out(plain) if config_class(plain) == RLOO else _objective(plain)),
        **_optimiser(program),
        "learning_rate": plain["lr"],
        "num_generations": samples,
        "temperature": rollout["temperature"],
        "top_p": rollout["top_p"],
        "max_steps": plain["steps"] * updates * epochs,
        "per_device_train_batch_size": per_pass,
        "gradient_accumulation_steps": rows // per_pass,
        "steps_per_generation": updates * rows // per_pass,
        "num_iterations": epochs,
        "shuffle_dataset": False,
        "logging_steps": updates * epochs,
    }


def _leave_one_out(plain: Mapping[str, Any]) -> dict[str, Any]:
    """Loss and advantage of RLOOTrainer: its ratios and bounds are of whole responses, and its penalty is a reward."""
    program, loss = plain["program"], plain["loss"]
    required = {"aggregation": "seq-mean-token-sum", "updates": 1, "epochs": 1, "kl": 0, "entropy": 0}
    different = {knob: value for knob, value in required.items() if program[knob] != value}
    if different or loss["_target_"] != "rlvr.loss.grpo.grpo" or loss["dual_clip"] is not None:
        now = " ".join(f"trainer.{knob}={program[knob]}" for knob in different)
        same = " ".join(f"trainer.{knob}={value}" for knob, value in required.items())
        raise ValueError(
            f"loss={plain['choices']['loss']} advantage=rloo{' ' * bool(now)}{now}: TRL's RLOOTrainer is our loss=rloo "
            f"only with {same}. Pass these."
        )
    return {"epsilon": loss["clip_low"], "epsilon_high": loss["clip_high"], "beta": 0.0, "normalize_advantages": False}


def _objective(plain: Mapping[str, Any]) -> dict[str, Any]:
    """Loss, advantage and penalties."""
    program, loss, advantage = plain["program"], plain["loss"], plain["advantage"]
    name, aggregation = plain["choices"]["loss"], program["aggregation"]
    loss_types = LOSS_TYPES.get(loss["_target_"])
    if loss_types is None:
        known = "grpo, dapo, dr_grpo, gspo, cispo, sapo, rloo"
        raise ValueError(f"loss={name}: TRL has no such loss. Pass one of {known}.")
    if (loss_type := loss_types.get(None) or loss_types.get(aggregation)) is None:
        allowed = " or ".join(str(mode) for mode in loss_types)
        raise ValueError(f"trainer.aggregation={aggregation}: with loss={name} TRL averages as {allowed}.")
    scale = SCALES.get(advantage["_target_"])
    if scale is None or advantage.get("population") or advantage.get("epsilon") not in (None, EPSILON):
        raise ValueError(
            f"advantage={plain['choices']['advantage']}: TRL has grpo, with advantage.population=false "
            f"and advantage.epsilon={EPSILON:g}, dr_grpo, and for loss=rloo rloo."
        )
    if program["kl"] and program["kl_estimator"] not in ("k3", "k3_ratio"):
        raise ValueError(f"trainer.kl_estimator={program['kl_estimator']}: TRL has k3 and k3_ratio.")
    return {
        "loss_type": loss_type,
        "scale_rewards": scale,
        "beta": program["kl"],
        "use_bias_correction_kl": program["kl_estimator"] == "k3_ratio",
        "entropy_coef": program["entropy"],
        **_bounds(loss),
    }


def _bounds(loss: Mapping[str, Any]) -> dict[str, Any]:
    if "tau_pos" in loss:
        return {"sapo_temperature_pos": loss["tau_pos"], "sapo_temperature_neg": loss["tau_neg"]}
    if loss["_target_"] == "rlvr.loss.cispo.cispo":
        if loss["clip_low"] != 1:
            raise ValueError(f"loss.clip_low={loss['clip_low']}: TRL's cispo has no lower bound. Pass loss.clip_low=1.")
        return {"epsilon_high": 1 + loss["clip_high"]}
    level = "sequence" if loss["_target_"] == "rlvr.loss.gspo.gspo" else "token"
    bounds = {"epsilon": loss["clip_low"], "epsilon_high": loss["clip_high"], "delta": loss.get("dual_clip")}
    return {**bounds, "importance_sampling_level": level}


def _optimiser(program: Mapping[str, Any]) -> dict[str, Any]:
    schedule, warmup = program["schedule"], program["warmup_steps"]
    if schedule not in SCHEDULES:
        raise ValueError(f"trainer.schedule={schedule}: program=trl takes {', '.join(SCHEDULES)}.")
    return {
        "lr_scheduler_type": "constant_with_warmup" if schedule == "constant" and warmup else schedule,
        "warmup_steps": warmup,
        "max_grad_norm": program["clip_norm"],
        "adam_beta1": program["betas"][0],
        "adam_beta2": program["betas"][1],
        "adam_epsilon": program["eps"],
        "weight_decay": program["weight_decay"],
        "bf16": program["dtype"] == "bfloat16",
        "fp16": program["dtype"] == "float16",
        "gradient_checkpointing": program["activation_checkpointing"],
    }
