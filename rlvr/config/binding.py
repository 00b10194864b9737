"""Checks a component's knobs against the parameters of its `_target_`: names, presence, types."""

import difflib
import functools
from collections.abc import Callable, Collection, Mapping
from typing import Any

from omegaconf import MISSING, DictConfig, OmegaConf

from rlvr.config import registry, schema, values
from rlvr.config.imports import PACKAGES
from rlvr.config.signature import signature

# Arguments that the code passes to a component at run time: no YAML file sets them.
PROVIDED = {
    "rollout.engine": {"model", "device", "eos_token_ids", "pad_token_id"},
    "model": {"task", "store"},
    "loss": {"policy", "batch"},
    "hydra.sweeper.sampler": {"asked"},
    "divergence": {"log_ratio", "a"},
    "advantage": {"reward", "group", "mask", "logp_old", "value", "entropy"},
}
CALLED_WITH_DATA = ("loss", "divergence", "advantage")  # called at each step with PROVIDED; others are built once


class UnresolvedConfig:
    """Facts about a composed config before interpolation; the same for all points that differ in values alone."""

    def __init__(self, config: DictConfig) -> None:
        self._raw = schema.as_dict(config)
        self._components: dict[str, tuple[str, ...]] = {}

    def components(self, section: str) -> tuple[str, ...]:
        """The dotted paths of all components under a top-level key."""
        if section not in self._components:
            # One that is inserted by reference (loss.divergence) is a text here, and has a key of its own.
            self._components[section] = tuple(schema.components(self._raw.get(section), section))
        return self._components[section]

    @functools.cached_property
    def shorthands(self) -> tuple[str, ...]:
        """The shorthands (`registry.SHORTHANDS`) that the loss reads."""
        return tuple(name for name in registry.SHORTHANDS if registry.key_reading(name, self._raw["loss"]))

    @functools.cached_property
    def reads_lr(self) -> bool:
        """Whether any component reads the top-level `lr`. A typed `trainer.lr` takes its place."""
        return registry.key_reading("lr", self._raw) is not None


def bind(path: str, node: Mapping[str, Any] | DictConfig, usual: Callable[[str], object] = lambda _: None) -> None:
    """Check a component's knobs against its parameters. Raises ValueError.

    usual: returns the value that the option's file gives a knob, by its dotted key; None if it gives none.
    """
    known = signature(node["_target_"])
    parameters = {p.name: p for p in known.parameters}
    knobs = parameters.keys() - PROVIDED.get(path, set[str]())
    for key in map(str, node):
        if key in {"_target_", "_partial_", "_convert_"}:
            continue
        if key not in knobs and not known.takes_any:
            raise ValueError(
                f"{path}.{key} is unknown: {path} takes {', '.join(sorted(knobs))}.{close_match(key, knobs)}"
            )
        if isinstance(node, DictConfig) and OmegaConf.is_missing(node, key):
            raise ValueError(f"{path}.{key} has no value: pass {path}.{key}=...")
        if key in knobs and node[key] != MISSING:  # a dry run keeps missing values
            _check_type(f"{path}.{key}", parameters[key].kind, node[key], usual)
    unset = [name for name, p in parameters.items() if not p.required and name in knobs and name not in node]
    # A default that we add to a class of ours leaves all as it was: options of its subclasses need not name it.
    if unset := [name for name in unset if parameters[name].module.name.split(".")[0] not in PACKAGES]:
        raise ValueError(
            f"{path}.{unset[0]} is not in the file of the option, and its default in {node['_target_']} is in no run's "
            f"identity. Write `{unset[0]}: VALUE` into the file."
        )
    missing = [name for name, p in parameters.items() if p.required and name in knobs and name not in node]
    if missing:
        raise ValueError(f"{path} needs {', '.join(missing)}: pass {path}.{missing[0]}=...")


def check_partial(path: str, node: Mapping[str, Any]) -> None:
    """Raises ValueError for a component that needs data at each step, but whose YAML lacks `_partial_: true`."""
    if path not in CALLED_WITH_DATA or node.get("_partial_"):
        return
    target = str(node["_target_"])
    if data := [p.name for p in signature(target).parameters if p.required and p.name in PROVIDED[path]]:
        raise ValueError(
            f"{path}: {target} takes {', '.join(data)} at each step, beside its knobs, and its YAML does not state "
            "this. Add `_partial_: true` there."
        )


def _check_type(key: str, kind: Any, value: object, usual: Callable[[str], object]) -> None:
    if kind is not None:
        plain = OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
        values.check(key, plain, kind, usual)


def close_match(key: str, known: Collection[str]) -> str:
    near = difflib.get_close_matches(key, list(known), n=1)
    return f" Did you mean {near[0]}?" if near else ""
