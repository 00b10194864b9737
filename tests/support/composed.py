"""Composed configs of conf/, and their checks, for tests inside `composing()`."""

from __future__ import annotations

from typing import Any

from hydra import compose
from omegaconf import DictConfig, OmegaConf, open_dict

from rlvr.config.checks import Checker
from rlvr.config.freeze import frozen_config
from rlvr.config.registry import Registry
from rlvr.ledger.identity import run_id

REGISTRY = Registry()


def composed(*overrides: str) -> tuple[DictConfig, dict[str, Any]]:
    """(config, option of each group)."""
    config = compose("run", list(overrides), return_hydra_config=True)
    choices = OmegaConf.to_container(config.hydra.runtime.choices)
    assert isinstance(choices, dict)
    with open_dict(config):
        del config["hydra"]
    return config, {str(k): v for k, v in choices.items()}


def check(*overrides: str) -> None:
    """All checks that do not build the task."""
    Checker(REGISTRY).check(*composed(*overrides))


def check_with_task(*overrides: str) -> None:
    """All checks before a launch."""
    checker, run = Checker(REGISTRY), composed(*overrides)
    checker.check(*run)
    checker.check_task(*run)


def identity(*overrides: str) -> str:
    return run_id(frozen_config(*composed(*overrides)))
