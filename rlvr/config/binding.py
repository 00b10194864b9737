"""The knobs of a component, checked against the parameters of its `_target_`: names, presence, types."""

from __future__ import annotations

import difflib
import functools
import typing
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from rlvr.config.signature import signature

# Arguments that rlvr/job/loop.py passes: no YAML gives them.
PROVIDED = {
    "rollout.engine": {"model", "device", "eos_token_ids", "pad_token_id"},
    "model": {"task", "store"},
    "loss": {"policy", "batch"},
    "hydra.sweeper.sampler": {"asked"},
    "divergence": {"log_ratio", "a"},
    "advantage": {"reward", "group", "mask", "logp_old", "value", "entropy"},
}


def components(config: DictConfig, section: str) -> Iterator[tuple[str, DictConfig]]:
    """(dotted path, node) of every node of a top-level key that has a `_target_`."""

    def walk(path: str, node: object) -> Iterator[tuple[str, DictConfig]]:
        if isinstance(node, DictConfig):
            if node.get("_target_"):
                yield path, node
            for key in node:
                # A component given by interpolation (loss.divergence) is checked where it stands.
                if not OmegaConf.is_missing(node, key) and not OmegaConf.is_interpolation(node, str(key)):
                    yield from walk(f"{path}.{key}", node[key])

    if OmegaConf.is_missing(config, section) or OmegaConf.is_interpolation(config, section):
        return iter(())
    return walk(section, config[section])


def bind(path: str, node: DictConfig) -> None:
    """Check a component's knobs against its parameters. Raises ValueError."""
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
        if OmegaConf.is_missing(node, key):
            raise ValueError(f"{path}.{key} has no value: pass {path}.{key}=...")
        if key in knobs:
            _check_type(f"{path}.{key}", parameters[key].annotation, node[key])
    missing = [name for name, p in parameters.items() if p.required and name in knobs and name not in node]
    if missing:
        raise ValueError(f"{path} needs {', '.join(missing)}: pass {path}.{missing[0]}=...")


# What annotations of knobs are written in; one with any other name is of a type that is not checked here.
_TYPES: dict[str, object] = {
    "Any": Any,
    "Literal": typing.Literal,
    "Optional": typing.Optional,
    "Union": typing.Union,
    "Path": Path,
    "Sequence": Sequence,
    "Mapping": Mapping,
}


@functools.cache
def _wanted(annotation: str) -> Any:
    """What validates values of an annotation; None for a type of the component's own, built from a nested component."""
    from pydantic import PydanticUserError, TypeAdapter

    try:
        return TypeAdapter(eval(annotation, dict(_TYPES)))  # of the component's source, which is run anyway
    except (NameError, AttributeError, TypeError, PydanticUserError):
        return None


def _check_type(key: str, annotation: str, value: object) -> None:
    from pydantic import ValidationError

    wanted = _wanted(annotation)
    if wanted is None:
        return
    plain = OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
    try:
        wanted.validate_python(plain)
    except ValidationError as error:
        raise ValueError(f"{key}={plain}: {error.errors()[0]['msg']}; {annotation} is expected.") from None


def close_match(key: str, known: Collection[str]) -> str:
    near = difflib.get_close_matches(key, list(known), n=1)
    return f" Did you mean {near[0]}?" if near else ""
