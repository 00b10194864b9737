"""Sweeps of experiments in reinforcement learning with verifiable rewards.

From Python `rlvr.compose`, `rlvr.run`, `rlvr.sweep` and `rlvr.load` do what the command line does (docs/python.md).
Nothing else is imported before one of them is used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlvr.run import compose, load, run, sweep

__all__ = ["compose", "load", "run", "sweep"]
__version__ = "0.2.0"


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module rlvr has no attribute {name}")
    module = importlib.import_module("rlvr.run")
    return module if name == "run" else getattr(module, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
