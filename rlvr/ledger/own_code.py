"""Which versions of the user's own Python files a run was made with: its id identifies the config, not that code."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import cast

from rlvr.ledger import layout
from rlvr.ledger.files import read_json, write_json
from rlvr.ledger.inputs import has_begun


def recorded(run_dir: Path) -> dict[str, tuple[str, ...]]:
    """{module: SHA-256 of each version of its file that the run used, in order}; {} if there is no record."""
    content = read_json(layout.own_code(run_dir)) or {}
    return {
        module: tuple(map(str, cast("list[object]", versions)))
        for module, versions in content.items()
        if isinstance(versions, list)
    }


def record(run_dir: Path, now: Mapping[str, str]) -> list[str]:
    """Record with a run which files it uses, {module: SHA-256}. Returns the modules whose version has changed since.

    A run that has begun then continues, and both versions are recorded.
    """
    before = recorded(run_dir) if has_begun(run_dir) else {}
    after = {module: list(before.get(module, ())) for module in sorted({*before, *now})}
    for module, digest in now.items():
        if after[module][-1:] != [digest]:
            after[module].append(digest)
    if {module: tuple(versions) for module, versions in after.items()} != recorded(run_dir):
        write_json(layout.own_code(run_dir), after)
    return [module for module, digest in now.items() if before.get(module, (digest,))[-1] != digest]
