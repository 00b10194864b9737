"""`python -m rlvr.diagnostics.replay`: every objective on the same rollouts, offline: what would each of them do?

Composing and checking import no torch: a misspelt knob fails in seconds, before a model is loaded.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from rlvr.config import targets
from rlvr.config.checks import Checker
from rlvr.config.explain import BAD_INPUT, explain
from rlvr.config.overrides import parse
from rlvr.config.registry import SHORTHANDS, Registry, reads
from rlvr.config.signature import signature
from rlvr.diagnostics import measurement
from rlvr.diagnostics.measurement import Arm
from rlvr.ledger import layout
from rlvr.ledger.runs import check_owner, read_config, read_info

HELP = """\
Evaluate objectives on the same stored rollouts, before a GPU is spent on training with them.

  python -m rlvr.diagnostics.replay rollouts=runs/<run_id>/rollouts/step-00000001.parquet loss=grpo,lad eta=0.25,1
  python -m rlvr.diagnostics.replay loss=grpo,reinforce advantage=grpo,rloo,maxrl      drawn now, from the base policy
  python -m rlvr.diagnostics.replay rollouts=... policy=runs/<run_id>/checkpoints/step-00000040 loss=grpo,dapo,lad

Arguments of its own:
  rollouts=FILE   rollouts of a run that had keep_rollouts=N. None: one step is drawn and kept in the report's folder
  policy=DIR      the policy to differentiate: a checkpoint of a run, or a model directory. None: the base policy, which
                  is the one that sampled step 1 (ratio 1: nothing is clipped). Another moves away from it
  out=DIR         where the report goes. None: reports/replay/<run_id>-step-<n>

Everything else is said as to `python -m rlvr.run`; commas make a grid. A knob that only some of the losses read (eta,
beta, divergence, loss.clip_high=...) reaches those alone; one that none reads is an error. What is not said is as in
the run that the rollouts come from, or as by default.

The report, in the terminal and as objectives.csv, cosines.csv, weights.csv, prompts.csv, replay.png and replay.pdf:
  loss, gradient  value, and norm of the gradient over all parameters, unclipped; the batch is one mini-batch
  clipped         share of response tokens whose gradient the objective cut off, where it clips
  |log ratio|     mean over tokens of |log policy - log policy that sampled|: 0 if they are one
  weight          -d loss / d log p, summed over a response's tokens: how hard the step pulls the response up
  prompt          norm of the gradient on each prompt by itself, against its pass rate (MaxRL, Figures 6 and 8)
  cosine          between the gradients of two objectives: 1, same direction; 0, unrelated; -1, opposite

The optimiser is no part of it: AdamW forgets the gradient's length, not its direction.
"""
OWN = ("rollouts", "policy", "out")


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit codes: 0 done, 2 bad input (one line on standard error)."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or {"-h", "--help"} & set(given):
        print(HELP, end="")
        return 0
    debug, given = "--debug" in given, [a for a in given if a != "--debug"]
    words, registry = measurement.split(given)
    try:
        own, overrides = split(words)
        run_dir = _run_of(own["rollouts"])
        registry = _with_those_of(run_dir, registry)
        _replay(own, overrides, run_dir, registry)
    except BAD_INPUT as error:
        if debug:
            raise
        print(f"replay: {explain(error, given, registry)}", file=sys.stderr)
        return 2
    return 0


def _replay(own: Mapping[str, str], overrides: Sequence[str], run_dir: Path | None, registry: Registry) -> None:
    source = Path(own["rollouts"]) if own["rollouts"] else None
    found = arms(overrides, _config(run_dir), own["policy"], registry)
    if source is not None and not source.is_file():
        raise ValueError(f"rollouts={source} is no file. A run keeps them with keep_rollouts=1.")
    from rlvr.diagnostics import screen  # torch from here on

    screen.screen(found, source, _checkpoint(own["policy"]), Path(own["out"]) if own["out"] else None)


def split(given: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """(this command's own arguments, Hydra overrides)."""
    odd = [a for a in given if "=" not in a]
    if odd:
        raise ValueError(
            f"{odd[0]} is not understood: arguments are key=value. See `python -m rlvr.diagnostics.replay --help`."
        )
    pairs = [a.split("=", 1) for a in given]
    return {key: next((v for k, v in pairs if k == key), "") for key in OWN}, [
        "=".join(p) for p in pairs if p[0] not in OWN
    ]


def _run_of(rollouts: str) -> Path | None:
    """The directory of the run that left these rollouts; None if they lie elsewhere."""
    run_dir = layout.run_of_rollouts(Path(rollouts)) if rollouts else None
    return run_dir if run_dir is not None and layout.config(run_dir).is_file() else None


def _config(run_dir: Path | None) -> DictConfig | None:
    """Of a run, as it was frozen. What its components are made of can be imported from here on."""
    if run_dir is None:
        return None
    check_owner(run_dir)
    plain = read_config(run_dir)
    targets.restore(read_info(run_dir).import_paths, plain)
    return OmegaConf.create(plain)


def _with_those_of(run_dir: Path | None, registry: Registry) -> Registry:
    """The registry, with the config directories in which the launch of the run found its options."""
    recorded = read_info(run_dir).config_dirs if run_dir is not None else []
    return Registry([*registry.folders, *recorded]) if recorded else registry


def _checkpoint(policy: str) -> Path | None:
    """`policy`, if it is a checkpoint of the trainer."""
    if not policy:
        return None
    path = Path(policy)
    if layout.trainer_state(path).is_file():
        return path
    if (path / "config.json").is_file():
        return None  # the base policy of every arm
    raise ValueError(
        f"policy={policy} is neither a checkpoint of a run (runs/<run_id>/checkpoints/step-...) nor a model directory "
        "with config.json."
    )


# --- which objectives ---


def arms(
    overrides: Sequence[str], like: DictConfig | None, policy: str = "", registry: Registry | None = None
) -> list[Arm]:
    """Every point of the grid, each knob given to the losses that read it. ValueError for one that none reads.

    like: the config of the run that the rollouts come from. registry: None: conf/ alone.
    """
    registry = registry or Registry()
    axes = dict(map(_axis, overrides))
    losses = axes.pop("loss", ["grpo", "lad"])
    for loss in losses:
        registry.compose([f"loss={loss}"])  # a name that does not exist is told before anything else
    read = {loss: [key for key in axes if _reads(loss, key, registry)] for loss in losses}
    for key in axes:
        if not any(key in keys for keys in read.values()):
            raise ValueError(_unread(key, axes[key], losses, registry))
    points = [
        (loss, dict(zip(read[loss], values, strict=True)))
        for loss in losses
        for values in itertools.product(*(axes[key] for key in read[loss]))
    ]
    swept = [key for key, values in axes.items() if len(values) > 1]
    checker = Checker(registry)
    return [Arm(_name(loss, knobs, swept), _compose(loss, knobs, like, policy, checker)) for loss, knobs in points]


def _axis(override: str) -> tuple[str, list[str]]:
    (parsed,) = parse([override])
    if parsed.is_discrete_sweep():
        return parsed.get_key_element(), list(parsed.sweep_string_iterator())
    return parsed.get_key_element(), [parsed.get_value_element_as_str()]


def _reads(loss: str, key: str, registry: Registry) -> bool:
    if key in SHORTHANDS:
        return reads(registry.node("loss", loss), key)
    if key == "divergence":
        return _brings(loss, key, registry)
    if key.startswith("loss."):
        target = str(registry.node("loss", loss)["_target_"])
        return key.split(".")[1] in {p.name for p in signature(target).parameters}
    return True


def _brings(loss: str, group: str, registry: Registry) -> bool:
    """Does a loss choose the option of a group itself?"""
    return any(each.group == group for each in registry.brought("loss", loss))


def _unread(key: str, values: Sequence[str], losses: Sequence[str], registry: Registry) -> str:
    known = [loss for loss in registry.readable("loss") if _reads(loss, key, registry)]
    advice = f"Drop it or add loss={known[0]}." if known else "Drop it."
    return (
        f"{key}={','.join(values)} has no effect with loss={','.join(losses)}. Losses that read {key}: "
        f"{', '.join(known) or 'none'}. {advice}"
    )


def _name(loss: str, knobs: Mapping[str, str], swept: Sequence[str]) -> str:
    """The loss, and what tells it from its neighbours."""
    told = {k: v for k, v in knobs.items() if k in swept}
    plain = [v for k, v in told.items() if k == "divergence"]
    return " ".join(["-".join([loss, *plain]), *(f"{k}={v}" for k, v in told.items() if k != "divergence")])


def _compose(loss: str, knobs: Mapping[str, str], like: DictConfig | None, policy: str, checker: Checker) -> DictConfig:
    """The config of one objective: one update over everything, unclipped, with the rest as in the run `like`."""
    composed, choices = checker.registry.compose([f"loss={loss}", *(f"{k}={v}" for k, v in knobs.items())])
    config = OmegaConf.create(OmegaConf.to_container(composed))  # without types: a frozen run has none
    assert isinstance(config, DictConfig)
    if like is not None:
        _inherit(config, choices, like, knobs, checker.registry)
    if policy and _checkpoint(policy) is None:
        config.model = {"_target_": "rlvr.model.hub.hub", "path": policy, "chat": config.model.get("chat", False)}
    config.trainer.update({"updates": 1, "epochs": 1, "clip_norm": 0.0, "base_kl": False, "weight_decay": 0.0})
    checker.check(config, choices)
    checker.check_task(config, choices)
    return config


def _inherit(
    config: DictConfig, choices: dict[str, Any], like: DictConfig, knobs: Mapping[str, str], registry: Registry
) -> None:
    """Take from a run's frozen config what was not said: problems, policy, advantage, sampling, trainer, seed."""
    said = {key: OmegaConf.select(config, key) for key in knobs if "." in key and not key.startswith("loss.")}
    for group in ("task", "model", "advantage"):
        option = like.choices.get(group, choices.get(group))
        if group not in knobs and option != "none" and not _brings(choices["loss"], group, registry):
            config[group] = like[group]
            choices[group] = option
    for group in ("rollout", "trainer"):
        config[group] = like[group]
    for key, value in said.items():
        OmegaConf.update(config, key, value)
    if "seed" not in knobs:
        config.seed = like.seed


if __name__ == "__main__":
    sys.exit(main())
