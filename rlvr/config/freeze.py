"""Turns a composed config into what is kept of it: plain values, the identity of the run, a readable name."""

import contextlib
import functools
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationResolutionError, MissingMandatoryValue

from rlvr.config import program, revisions
from rlvr.config.schema import Choices, as_dict, components
from rlvr.config.signature import signature
from rlvr.ledger import gguf
from rlvr.ledger.identity import NOT_IDENTITY, run_id

LONG_NAME = 60  # characters
BEST = "@best"  # suffix of the group of evaluated checkpoints that are each the best of its run
DATA = ("train", "test", "databases")  # knobs of tasks whose values are files or names on the hub


def frozen_config(config: DictConfig, choices: Choices, *, on_paper: bool = False) -> dict[str, Any]:
    """The resolved config as plain data, with the chosen option of every group: the only config that a job reads.

    on_paper: a dry run, in which knobs of the task may lack a value and are then "???". Raises ValueError for any other
    key without a value.
    """
    return frozen(resolved(config, on_paper=on_paper), choices)


def resolved(config: DictConfig, *, on_paper: bool = False) -> dict[str, Any]:
    """A composed config as plain data. on_paper, errors: see `frozen_config`."""
    missing = missing_of_task(config) if on_paper else []
    with resolving():
        return as_dict(config, resolve=True, throw_on_missing=not missing)


@contextlib.contextmanager
def resolving() -> Generator[None, None, None]:
    """Raises ValueError for a reference that cannot be resolved in this context, and for a missing value."""
    try:
        yield
    except InterpolationResolutionError as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"{error.full_key} cannot be resolved: {reason}. Type {error.full_key}=VALUE.") from None
    except MissingMandatoryValue as error:
        raise ValueError(f"{error.full_key} has no value: pass {error.full_key}=...") from None


def frozen(plain: dict[str, Any], choices: Choices) -> dict[str, Any]:
    """A resolved config, frozen. It is changed in place."""
    plain, choices = program.trimmed(plain, choices)
    _check_components(plain)
    if "_target_" not in (plain.get("presample") or {}):
        plain["presample"] = None  # settings of a recipe whose loss draws no samples before training
    _place_paths(plain)
    engine = plain["rollout"]["engine"]
    if "/" in (engine.get("python") or ""):  # absolute(), not resolve(): the python of an environment is a link
        engine["python"] = str(_expanded(engine["python"]).absolute())
    _place_model(plain)
    options = {k: v for k, v in sorted(choices.items()) if v is not None and not k.startswith("hydra/")}
    return {**plain, "choices": options}


def missing_of_task(config: DictConfig) -> list[str]:
    """Dotted keys of the task's knobs without a value. Raises ValueError if other knobs lack a value too."""
    missing = OmegaConf.missing_keys(config)
    of_task = sorted(key for key in missing if key.startswith("task."))
    if of_task and (others := sorted(missing - set(of_task))):
        raise ValueError(f"{others[0]} has no value: pass {others[0]}=...")
    return of_task


def _check_components(plain: Mapping[str, Any]) -> None:
    """Raises ValueError for a component that was dropped or replaced by something else."""
    trained_by = ("program",) if plain.get("program") else ("loss", "advantage", "model", "trainer")
    nodes = {name: plain.get(name) for name in (*trained_by, "task")}
    if not plain.get("program"):
        rollout: Any = plain.get("rollout") or {}
        nodes |= {"rollout.engine": rollout.get("engine")}
    for name, node in nodes.items():
        if node is None and plain.get("policy"):
            continue  # an evaluation trains nothing
        if not isinstance(node, Mapping) or not isinstance(cast("Mapping[str, object]", node).get("_target_"), str):
            raise ValueError(
                f"{name} is no component: choose an option by {name.split('.')[0]}=OPTION, and set its knobs."
            )


def _place_paths(plain: dict[str, Any]) -> None:
    """Make absolute the paths in knobs of all components, and give names of data on the hub their commit."""
    for node in components(plain).values():
        for knob in signature(node["_target_"]).paths & node.keys():
            node[knob] = _mapped(node[knob], _absolute)
    of_program: dict[str, Any] = plain.get("program") or {}
    argv: object = of_program.get("argv")
    if isinstance(argv, list):  # of program=command; absolute(), not resolve(), as for the python of an engine
        words = [(word, Path(str(word))) for word in cast("list[object]", argv)]
        of_program["argv"] = [str(path.absolute()) if path.is_file() else word for word, path in words]
    task = plain["task"]
    for knob in {*DATA} & task.keys():
        task[knob] = _mapped(task[knob], _absolute)
    if "revision" in task:
        of_hub = functools.partial(revisions.pinned, kind="dataset", revision=task["revision"])
        named = {knob: _mapped(task[knob], of_hub) for knob in ("train", "test") if knob in task}
        if task["revision"] is not None and all(named[knob] == task[knob] for knob in named):
            raise ValueError(f"task.revision={task['revision']} has no effect: task.train and task.test name files.")
        plain["task"] = {**task, **named, "revision": None}


def _place_model(plain: dict[str, Any]) -> None:
    """Make absolute the directory of the model, for its reader too, or give its name on the hub its commit."""
    model: dict[str, Any] = plain.get("model") or {}
    revision = model.get("revision")
    reader: dict[str, Any] = plain["task"].get("reader") or {}
    for node in (model, reader):
        if typed := node.get("path"):
            node["path"] = _directory(typed)
            if "revision" in model:
                node["path"] = revisions.pinned(node["path"], "model", revision)
    if reader.get("path"):
        reader["path"] = gguf.as_directory(reader["path"])
    if revision is not None:
        if Path(model["path"]).exists():
            raise ValueError(f"model.revision={revision} has no effect: model.path={model['path']} is no hub name.")
        model["revision"] = None


def _mapped(data: object, of_text: Callable[[str], str]) -> object:
    """Data with `of_text` in place of every text."""
    if isinstance(data, dict):
        return {k: _mapped(v, of_text) for k, v in cast("dict[str, object]", data).items()}
    if isinstance(data, list):
        return [_mapped(v, of_text) for v in cast("list[object]", data)]
    return of_text(data) if isinstance(data, str) else data


def _absolute(text: str) -> str:
    """The absolute path of what exists at a path; any other text, such as a name on the hub, as it is."""
    path = _expanded(text)
    return str(path.resolve()) if path.exists() else text


def _expanded(path: str) -> Path:
    """The path with the home directory in place of ~, unless its user does not exist."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def _directory(path: str) -> str:
    """The absolute path of a model's directory or GGUF file; names on the hub and absolute paths are unchanged."""
    place = _expanded(path)
    is_here = place.is_dir() or (place.suffix == gguf.SUFFIX and place.is_file())
    return str(place.resolve()) if not Path(path).is_absolute() and is_here else path


def group_of(plain: Mapping[str, Any]) -> str:
    """The identity of a frozen config with seed 0: runs that differ only in their seed are repetitions of one group."""
    if plain.get("policy"):
        policy = {**plain["policy"], "digest": ""}  # the digest differs between seeds
        if policy["group"].endswith(BEST):
            policy["step"] = 0  # the best step differs between seeds
        plain = {**plain, "policy": policy}
    return run_id(plain)


def run_name(arm: str, plain: Mapping[str, Any]) -> str:
    """A readable name such as `lad-js-eta0.5-s0`: the name of the run's arm, and the seed."""
    return f"{arm}-s{plain['seed']}"


def arm_name(plain: Mapping[str, Any], overrides: Sequence[str], swept: Collection[str]) -> str:
    """A readable name such as `lad-js-eta0.5`: a label, not an identity.

    If the name is too long, overrides that are not swept are left out.
    """
    choices: Mapping[str, Any] = plain["choices"]
    loss: Mapping[str, Any] = plain["loss"] or {}
    head = [plain["policy"]["name"]] if plain.get("policy") else []
    head += [choices[group] for group in ("program", "loss") if group in choices]
    head += [choices["divergence"]] if choices.get("divergence") else []
    head += [f"{k}{loss[k]:g}" for k in ("eta", "beta") if isinstance(loss.get(k), float | int)]
    in_head = {"program", "loss", "divergence", "eta", "beta", "seed", "study", "policy"}
    parts: dict[str, str] = {}
    for override in overrides:
        key, is_assignment, value = override.lstrip("+").partition("=")
        if not is_assignment or key in in_head or key.startswith("hydra") or key.split(".")[0] in NOT_IDENTITY:
            continue
        named = key if key.endswith(".seed") else key.rsplit(".", 1)[-1]  # another seed than the run's own
        parts[key] = ("" if key in choices else named) + value.rsplit("/", 1)[-1]
    swept_parts = {key: part for key, part in parts.items() if key in swept}
    for shown in (parts, swept_parts):
        name = "-".join([*head, *shown.values()])
        if len(run_name(name, plain)) <= LONG_NAME:
            break
    return name
