"""Composed configs of conf/, and their checks."""

import functools
import pickle
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from omegaconf import DictConfig

from rlvr.config.checks import Checker
from rlvr.config.freeze import frozen_config
from rlvr.config.overrides import key_of, parse
from rlvr.config.program import check_words
from rlvr.config.registry import Registry
from rlvr.ledger.identity import run_id

REGISTRY = Registry()


def composed(*overrides: str) -> tuple[DictConfig, dict[str, Any]]:
    """(config, option of each group). Composed once for each choice of options; the other overrides are then applied,
    as for the points of a sweep (tests/config/test_compose.py)."""
    options = tuple(word for word in overrides if _chooses_option(word))
    config, choices = pickle.loads(_with_options(options))  # noqa: S301 - bytes that were pickled below
    others = parse([word for word in overrides if word not in options])
    ConfigLoaderImpl._apply_overrides_to_config(others, config)
    return config, choices


@functools.cache
def _with_options(options: tuple[str, ...]) -> bytes:
    return pickle.dumps(REGISTRY.compose(options))


def _chooses_option(word: str) -> bool:
    key = key_of(word).partition("@")[0]
    return (key in REGISTRY.groups() or key.startswith("hydra")) and "={" not in word


def checked(registry: Registry, *typed: str) -> dict[str, Any]:
    """The frozen config of a run of a program, checked as before a launch."""
    config, choices = registry.compose(typed)
    plain = frozen_config(config, choices)
    check_words(typed, plain, registry)
    Checker(registry).check(config, choices, plain)
    return plain


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
