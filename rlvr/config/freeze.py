"""From a composed config to what is kept of it: plain values, the identity of the run, a name for people."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationResolutionError, MissingMandatoryValue

from rlvr.config.schema import Choices, as_dict
from rlvr.config.signature import signature
from rlvr.ledger.identity import NOT_IDENTITY, run_id

LONG_NAME = 60  # characters
BEST = "@best"  # ends the group of evaluated checkpoints that are each the best of its run
DATA = ("train", "test", "databases")  # knobs of tasks that are files or names of a hub


def frozen(config: DictConfig, choices: Choices, *, on_paper: bool = False) -> dict[str, Any]:
    """The resolved config as plain data, with the chosen option of every group: what a job reads, and nothing else.

    on_paper: in a dry run knobs of the task may lack a value, which is "???" then. ValueError names any other key
    without one.
    """
    lacking = missing_of_task(config) if on_paper else []
    try:
        plain = as_dict(config, resolve=True, throw_on_missing=not lacking)
    except InterpolationResolutionError as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"{error.full_key} cannot be resolved: {reason}. Type {error.full_key}=VALUE.") from None
    except MissingMandatoryValue as error:
        raise ValueError(f"{error.full_key} has no value: pass {error.full_key}=...") from None
    _check_components(plain)
    if "_target_" not in (plain.get("presample") or {}):
        plain["presample"] = None  # a recipe's settings, beside a loss that draws no samples before training
    for knob in {*DATA, *_paths(plain["task"]["_target_"])} & plain["task"].keys():
        plain["task"][knob] = _absolute(plain["task"][knob])
    if "/" in ((engine := plain["rollout"]["engine"]).get("python") or ""):  # a link stays one: an environment's
        engine["python"] = str(Path(engine["python"]).absolute())
    readers: list[dict[str, Any]] = [plain.get("model") or {}, plain["task"].get("reader") or {}]
    for node in readers:
        if node.get("path"):
            node["path"] = _directory(node["path"])
    chosen = {k: v for k, v in sorted(choices.items()) if v is not None and not k.startswith("hydra/")}
    return {**plain, "choices": chosen}


def missing_of_task(config: DictConfig) -> list[str]:
    """Knobs of the task without a value, by their dotted keys. ValueError if there are some, and others without one."""
    missing = OmegaConf.missing_keys(config)
    of_task = sorted(key for key in missing if key.startswith("task."))
    if of_task and (others := sorted(missing - set(of_task))):
        raise ValueError(f"{others[0]} has no value: pass {others[0]}=...")
    return of_task


def _check_components(plain: Mapping[str, Any]) -> None:
    """ValueError for a knob that was dropped, or a component that was replaced by something else."""
    nodes = {name: plain.get(name) for name in ("loss", "advantage", "task", "model", "trainer")}
    rollout: Any = plain.get("rollout") or {}
    nodes |= {"rollout.engine": rollout.get("engine")}
    for name, node in nodes.items():
        if node is None and plain.get("policy"):
            continue  # an evaluation trains nothing
        if not isinstance(node, Mapping) or not isinstance(cast("Mapping[str, object]", node).get("_target_"), str):
            raise ValueError(
                f"{name} is no component: choose an option by {name.split('.')[0]}=OPTION, and set its knobs."
            )


def _paths(task: str) -> list[str]:
    """Knobs of a task that are annotated as paths."""
    return [p.name for p in signature(task).parameters if "Path" in re.findall(r"\w+", p.annotation)]


def _absolute(data: object) -> object:
    """Paths of data as seen from anywhere; hub names as they are."""
    if isinstance(data, dict):
        return {k: _absolute(v) for k, v in cast("dict[str, object]", data).items()}
    if isinstance(data, list):
        return [_absolute(v) for v in cast("list[object]", data)]
    return str(Path(data).resolve()) if isinstance(data, str) and Path(data).exists() else data


def _directory(path: str) -> str:
    """A model's directory as seen from anywhere; names of the hub, and absolute paths, as they are."""
    here = Path(path).expanduser()
    return str(here.resolve()) if not Path(path).is_absolute() and here.is_dir() else path


def group_id(config: DictConfig, *, on_paper: bool = False) -> str:
    """The identity without the seed: runs that differ by their seed alone are repetitions of one group."""
    seed = config.seed
    try:
        config.seed = 0
        return group_of(frozen(config, {}, on_paper=on_paper))
    finally:
        config.seed = seed


def group_of(plain: Mapping[str, Any]) -> str:
    """`group_id` of a frozen config with seed 0."""
    if plain.get("policy"):
        policy = {**plain["policy"], "digest": ""}  # of one seed's weights
        if policy["group"].endswith(BEST):
            policy["step"] = 0  # each seed's own
        plain = {**plain, "policy": policy}
    return run_id(plain)


def run_name(plain: Mapping[str, Any], overrides: Sequence[str], swept: Collection[str]) -> str:
    """A readable name such as `lad-js-eta0.5-s0`: that of the run's arm, and its seed."""
    return _with_seed(arm_name(plain, overrides, swept), plain)


def _with_seed(arm: str, plain: Mapping[str, Any]) -> str:
    return f"{arm}-s{plain['seed']}"


def arm_name(plain: Mapping[str, Any], overrides: Sequence[str], swept: Collection[str]) -> str:
    """A readable name such as `lad-js-eta0.5`: a label, not an identity. What is not swept is left out if long."""
    choices: Mapping[str, Any] = plain["choices"]
    loss: Mapping[str, Any] = plain["loss"] or {}
    head = [plain["policy"]["name"]] if plain.get("policy") else [choices["loss"]]
    head += [choices["divergence"]] if choices.get("divergence") else []
    head += [f"{k}{loss[k]:g}" for k in ("eta", "beta") if isinstance(loss.get(k), float | int)]
    told = {"loss", "divergence", "eta", "beta", "seed", "study", "policy"}
    parts = {
        key: ("" if key in choices else key.rsplit(".", 1)[-1]) + value.rsplit("/", 1)[-1]
        for key, value in (o.lstrip("+").split("=", 1) for o in overrides if "=" in o)
        if key not in told and not key.startswith("hydra") and key.split(".")[0] not in NOT_IDENTITY
    }
    for kept in (parts, {k: v for k, v in parts.items() if k in swept}):
        name = "-".join([*head, *kept.values()])
        if len(_with_seed(name, plain)) <= LONG_NAME:
            break
    return name
