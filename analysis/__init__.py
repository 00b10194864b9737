"""Tables and figures rebuilt from what runs left behind, the ledger on disk or MLflow; `analysis.load` reads it."""

from __future__ import annotations

import importlib
from typing import Any


def __getattr__(name: str) -> Any:
    """`load`, when it is asked for: with it comes pandas, which the commands import later."""
    if name != "load":
        raise AttributeError(name)
    return importlib.import_module("analysis.frames.load").load  # by name: the package depends on none of its modules
