"""Tables and figures rebuilt from the results of runs, in the ledger on disk or in MLflow (`analysis.load`)."""

from __future__ import annotations

import importlib
from typing import Any


def __getattr__(name: str) -> Any:
    """Import `load` on first access: it imports pandas, which the commands import only once they need it."""
    if name != "load":
        raise AttributeError(name)
    return importlib.import_module("analysis.frames.load").load  # by name: the package depends on none of its modules
