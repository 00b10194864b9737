"""Tables and figures rebuilt from what runs left behind, the ledger on disk or MLflow; `analysis.load` reads it."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    """`load`, when it is asked for: with it comes pandas, which the commands import later."""
    if name != "load":
        raise AttributeError(name)
    from analysis.frames.load import load

    return load
