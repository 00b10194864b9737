"""Errors of Hydra and OmegaConf in one line of our own: what came, what is allowed, what to type."""

from __future__ import annotations

import errno
import re
from collections.abc import Sequence

import yaml
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rlvr.config.binding import close_match
from rlvr.config.registry import Registry
from rlvr.ledger.files import denied
from rlvr.ledger.layout import home

# What a command reports in one line and with exit code 2; anything else is a fault of ours, with its traceback.
BAD_INPUT = (HydraException, OmegaConfBaseException, yaml.YAMLError, ValueError, OSError)


def explain(error: BaseException, arguments: Sequence[str], registry: Registry) -> str:
    """One line for an error of Hydra, OmegaConf or our own: what came, what is allowed, what to type.

    arguments: those of the command. registry: of its search path.
    """
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"no space left for {home()}. Free some; the same command then goes on from the newest checkpoints."
    if said := denied(error):
        return said
    error = _innermost(error)
    text = str(error)
    keys = dict(a.lstrip("+~").split("=", 1) for a in arguments if "=" in a)
    losses = keys.get("loss", "lad")
    if "divergence" in keys and "'divergence'" in text and "No match in the defaults list" in text:
        return _idle(f"divergence={keys['divergence']}", "divergence", keys.get("loss", "?"), registry)
    if unknown := re.search(r"Could not find '([\w./]+)/([^'/]+)'", text):
        group, option = unknown.groups()
        known = registry.options(group)
        return f"{group}={option} does not exist. {group} takes: {', '.join(known)}.{close_match(option, known)}"
    if unknown := re.search(r"Could not override '([^']+)'", text) or re.search(r"Key '([^']+)' (?:is )?not in", text):
        key = unknown.group(1)
        if idle := _idle(key, key.split(".")[0], losses, registry):
            return idle
        return f"{key} is not a knob.{_near(key, registry)} `python -m rlvr.run --cfg job` lists all."
    if mixed := re.search(r"Error merging override \+*([\w.]+)=", text):
        key = mixed.group(1)
        return (
            f"{key}: a list cannot take the place of a mapping, nor a mapping that of a list. Type {key}=VALUE for one "
            f"value, {key}={{name: value}} to set entries of a mapping, ~{key}.name to drop one."
        )
    if missing := re.search(r"Missing mandatory value: ([\w.]+)", text):
        return f"{missing.group(1)} has no value: pass {missing.group(1)}=..."
    return " ".join(line.strip() for line in text.splitlines() if line.strip() and not line.startswith("    ref"))


def _innermost(error: BaseException) -> BaseException:
    """The cause of an error that only repeats it."""
    while isinstance(error, HydraException) and isinstance(error.__cause__, OmegaConfBaseException | HydraException):
        if str(error.__cause__).split("\n")[0] not in str(error):
            break
        error = error.__cause__
    return error


def _idle(said: str, group: str, losses: str, registry: Registry) -> str:
    """`divergence=js has no effect with loss=grpo. …` of a group that other losses bring along; else ""."""
    bringing = registry.losses_with(group)
    if not bringing or set(losses.split(",")) <= set(bringing):
        return ""
    return (
        f"{said} has no effect with loss={losses}. Losses that take a {group}: {', '.join(bringing)}. "
        f"Drop {said.partition('=')[0]} or pass loss={bringing[0]}."
    )


def _near(key: str, registry: Registry) -> str:
    """Did you mean ...? over every knob and group of the default config."""
    default, _ = registry.compose()
    known = [*_paths("", OmegaConf.to_container(default)), *registry.groups()]
    match = close_match(key, known)
    if not match and "." in key:  # a knob under the wrong group
        match = close_match(key.rsplit(".", 1)[1], [k.rsplit(".", 1)[-1] for k in known])
    return match


def _paths(prefix: str, node: object) -> list[str]:
    if not isinstance(node, dict):
        return [prefix]
    return [p for k, v in node.items() for p in _paths(f"{prefix}.{k}" if prefix else str(k), v)]
