"""`python -m rlvr.diagnostics.replay`: compares the effects of objectives on the same stored rollouts, offline.

Composing and checking import no torch: a misspelt knob fails in seconds, before a model is loaded.
"""

import itertools
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from rlvr.config import targets
from rlvr.config.checks import Checker
from rlvr.config.overrides import parse
from rlvr.config.registry import SHORTHANDS, Registry
from rlvr.config.schema import HUB
from rlvr.config.signature import signature
from rlvr.diagnostics import measurement
from rlvr.diagnostics.measurement import ReplayArm
from rlvr.ledger import layout
from rlvr.ledger.runs import check_owner, read_config, read_info

HELP = """\
Evaluate objectives on the same stored rollouts, before a GPU is spent on training with them.

  python -m rlvr.diagnostics.replay rollouts=runs/<run_id>/rollouts/step-00000001.parquet loss=grpo,lad eta=0.25,1
  python -m rlvr.diagnostics.replay loss=grpo,reinforce advantage=grpo,rloo,maxrl      sampled now, from the base policy
  python -m rlvr.diagnostics.replay rollouts=... policy=runs/<run_id>/checkpoints/step-00000040 loss=grpo,dapo,lad

Arguments of this command:
  rollouts=FILE   rollouts of a run with keep_rollouts=N. Default: one step is sampled and kept in the report's folder
  policy=DIR      the policy to differentiate: a checkpoint of a run, or a model directory. Default: the base policy,
                  which sampled step 1 (its ratio is 1: nothing is clipped); another policy has other ratios
  out=DIR         directory of the report. Default: reports/replay/<run_id>-step-<n>

All other arguments are those of `python -m rlvr.run`; commas make a grid. A knob that only some of the losses read
(eta, beta, divergence, loss.clip_high=...) is passed to those only; a knob that none reads is an error. Other values
are those of the run that the rollouts come from, or the defaults.

The report, in the terminal and as objectives.csv, cosines.csv, weights.csv, prompts.csv, replay.png and replay.pdf:
  loss, gradient  value, and norm of the gradient over all parameters, unclipped; the batch is one mini-batch
  clipped         share of tokens (gspo: responses) beyond the clipping bounds: without gradient, but for cispo
  |log ratio|     mean over tokens of |log policy - log policy that sampled|: 0 if they are the same policy
  weight          -d loss / d log p, summed over a response's tokens: by how much the step raises the response
  prompt          norm of the gradient on each prompt by itself, against its pass rate (MaxRL, Figures 6 and 8)
  cosine          between the gradients of two objectives: 1, same direction; 0, unrelated; -1, opposite

The optimiser has no part in this: AdamW ignores the length of the gradient, not its direction.
"""
OWN_ARGUMENTS = ("rollouts", "policy", "out")
# Of the trainer: one update over the whole batch, unclipped. The schedule of a run has more optimiser steps than that.
ONE_UPDATE: Mapping[str, Any] = {
    **{"updates": 1, "epochs": 1, "clip_norm": 0.0, "base_kl": False, "weight_decay": 0.0},
    **{"schedule": "constant", "warmup_steps": 0, "decay_steps": None, "final_lr": 0.0},
}
# Knobs of what a replay does not do: train for some time, sample again, evaluate.
WITHOUT_EFFECT = (
    *("steps", "lr", "min_entropy", "max_kl", "keep_rollouts", "checkpoint", "evaluation", "tracker"),
    *(f"trainer.{name}" for name in (*ONE_UPDATE, "steps", "lr", "betas", "eps")),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit codes: 0 done, 2 bad input (one line on standard error)."""
    typed = list(sys.argv[1:] if arguments is None else arguments)
    return measurement.command(_replay, "replay", HELP, typed or ["--help"])


def _replay(words: Sequence[str], registry: Registry) -> None:
    own, overrides = split(words)
    source, like = Path(own["rollouts"]) if own["rollouts"] else None, None
    if source is not None and layout.config(run_dir := layout.run_of(source)).is_file():
        check_owner(run_dir)
        info, plain = read_info(run_dir), read_config(run_dir)
        if info.config_dirs:  # from which the run was launched
            registry = Registry([*registry.folders, *info.config_dirs])
        targets.make_importable(info.import_paths, plain)
        like = OmegaConf.create(plain)
    objectives = arms(overrides, like, own["policy"], registry)
    if source is not None and not source.is_file():
        raise ValueError(f"rollouts={source} is no file. A run keeps them with keep_rollouts=1.")
    from rlvr.diagnostics import replay_report  # imports torch

    replay_report.screen(objectives, source, _checkpoint(own["policy"]), Path(own["out"]) if own["out"] else None)


def split(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """(this command's own arguments, "" if not typed; Hydra overrides)."""
    own, overrides = dict[str, str](), list[str]()
    for word in words:
        key, is_pair, value = word.partition("=")
        if not is_pair:
            raise ValueError(
                f"{word} is not understood: arguments are key=value. See `python -m rlvr.diagnostics.replay --help`."
            )
        if key in own:
            raise ValueError(f"{key} is typed twice: a replay has one. Drop {key}={value}.")
        if key in OWN_ARGUMENTS:
            own[key] = value
        else:
            overrides.append(word)
    return {key: own.get(key, "") for key in OWN_ARGUMENTS}, overrides


def _checkpoint(policy: str) -> Path | None:
    """`policy`, if it is a checkpoint of the trainer."""
    if not policy:
        return None
    path = Path(policy)
    if layout.trainer_state(path).is_file():
        return path
    if (path / "config.json").is_file():
        return None  # a model directory: it becomes the base policy of every arm (`_compose`)
    raise ValueError(
        f"policy={policy} is neither a checkpoint of a run (runs/<run_id>/checkpoints/step-...) nor a model directory "
        "with config.json."
    )


# --- the objectives ---


def arms(
    overrides: Sequence[str], like: DictConfig | None, policy: str = "", registry: Registry | None = None
) -> list[ReplayArm]:
    """One arm for each point of the grid, with each knob passed to the losses that read it.

    like: the config of the run that the rollouts come from. registry: None: conf/ only. Raises ValueError for a knob
    that no loss reads.
    """
    registry = registry or Registry()
    axes = dict(map(_axis, overrides))
    for key in axes:
        if key in WITHOUT_EFFECT or key.split(".")[0] in WITHOUT_EFFECT:
            raise ValueError(f"{key} has no effect on a replay: nothing is trained, one gradient is measured. Drop it.")
    losses = axes.pop("loss", ["grpo", "lad"])
    # What each loss brings. Raises for a name that does not exist, before all other checks.
    defaults = {loss: registry.compose([f"loss={loss}"])[0] for loss in losses}
    of_run = None if like is None else like.choices.get("loss")
    if of_run in registry.options("loss") and of_run not in defaults:  # one of the user's: its file may be gone
        defaults[of_run] = registry.compose([f"loss={of_run}"])[0]
    keys_of = {loss: [key for key in axes if _reads(loss, key, registry)] for loss in losses}
    for key in axes:
        if not any(key in keys for keys in keys_of.values()):
            raise ValueError(_unread(key, axes[key], losses, registry))
    points = [
        (loss, dict(zip(keys_of[loss], values, strict=True)))
        for loss in losses
        for values in itertools.product(*(axes[key] for key in keys_of[loss]))
    ]
    swept = [key for key, values in axes.items() if len(values) > 1]
    checker = Checker(registry)
    return [
        ReplayArm(_name(loss, knobs, swept), _compose(loss, knobs, like, policy, checker, defaults))
        for loss, knobs in points
    ]


def _axis(override: str) -> tuple[str, list[str]]:
    """(key, values) of an override."""
    (parsed,) = parse([override])
    if parsed.is_discrete_sweep():
        return parsed.get_key_element(), list(parsed.sweep_string_iterator())
    return parsed.get_key_element(), [parsed.get_value_element_as_str()]


def _reads(loss: str, key: str, registry: Registry) -> bool:
    if key in SHORTHANDS:
        return loss in registry.losses_reading(key)
    if key == "divergence":
        return bool(_brought(loss, key, registry))
    if key.partition(".")[0] == "advantage":
        return "none" not in _brought(loss, "advantage", registry)
    if key.startswith("loss."):
        target = str(registry.node("loss", loss)["_target_"])
        return key.split(".")[1] in {p.name for p in signature(target).parameters}
    return True


def _brought(loss: str, group: str, registry: Registry) -> list[str]:
    """The option of a group that a loss selects itself, if it does."""
    return [option.option for option in registry.brought("loss", loss) if option.group == group]


def _unread(key: str, values: Sequence[str], losses: Sequence[str], registry: Registry) -> str:
    """The message for a knob that none of the losses reads."""
    readers = [loss for loss in registry.readable("loss") if _reads(loss, key, registry)]
    advice = f"Drop it or add loss={readers[0]}." if readers else "Drop it."
    return (
        f"{key}={','.join(values)} has no effect with loss={','.join(losses)}. Losses that read {key}: "
        f"{', '.join(readers) or 'none'}. {advice}"
    )


def _name(loss: str, knobs: Mapping[str, str], swept: Sequence[str]) -> str:
    """The loss, and those of its knobs that differ between arms, such as `lad-js eta=1`."""
    varied = {key: value for key, value in knobs.items() if key in swept}
    divergence = varied.pop("divergence", None)
    first = loss if divergence is None else f"{loss}-{divergence}"
    return " ".join([first, *(f"{key}={value}" for key, value in varied.items())])


def _compose(
    loss: str,
    knobs: Mapping[str, str],
    like: DictConfig | None,
    policy: str,
    checker: Checker,
    defaults: Mapping[str, DictConfig],
) -> DictConfig:
    """The config of one objective: one update over the whole batch, unclipped; all else as in the run `like`.

    defaults: by loss, the config of a run with it.
    """
    composed, choices = checker.registry.compose([f"loss={loss}", *(f"{k}={v}" for k, v in knobs.items())])
    config = OmegaConf.create(OmegaConf.to_container(composed))  # without types: a frozen run has none
    assert isinstance(config, DictConfig)
    if like is not None:
        _inherit(config, choices, like, knobs, checker.registry, defaults)
    if policy and _checkpoint(policy) is None:
        prompted = {"chat": config.model.get("chat", False), "system": config.model.get("system")}
        config.model = {"_target_": HUB, "path": policy, **prompted}
    config.trainer.update({**ONE_UPDATE, "steps": config.steps})
    config.lr = config.trainer.get("lr", config.lr)  # of the run
    checker.check(config, choices)
    checker.check_task(config, choices)
    return config


def _inherit(
    config: DictConfig,
    choices: dict[str, Any],
    like: DictConfig,
    knobs: Mapping[str, str],
    registry: Registry,
    defaults: Mapping[str, DictConfig],
) -> None:
    """Take from a run's frozen config what no knob sets: problems, policy, advantage, sampling, trainer, seed.

    What the run has only because its own loss brings it stays with that loss: an advantage, an overlong penalty.
    """
    typed = {key: OmegaConf.select(config, key) for key in knobs if "." in key and not key.startswith("loss.")}
    task = like.choices.get("task")
    if task is not None and knobs.get("task", task) != task:
        raise ValueError(f"task={knobs['task']}: these rollouts are answers to problems of task={task}. Drop it.")
    loss, of_run = choices["loss"], like.choices.get("loss")
    for group in ("task", "model", "advantage"):
        option = like.choices.get(group, choices.get(group))
        own = _brought(loss, group, registry) or (of_run in defaults and option in _brought(of_run, group, registry))
        if group not in knobs and option != "none" and not own:
            config[group] = like[group]
            choices[group] = option
    of_loss, of_runs_loss = defaults[loss], defaults.get(of_run, defaults[loss])
    for group in ("rollout", "trainer"):
        brought = {
            key: value
            for key, value in of_loss[group].items()
            if value != of_runs_loss[group].get(key) == like[group].get(key)
        }
        config[group] = {**like[group], **brought}
    for key, value in typed.items():
        OmegaConf.update(config, key, value)
    if "seed" not in knobs:
        config.seed = like.seed


if __name__ == "__main__":
    sys.exit(main())
