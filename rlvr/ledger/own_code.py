"""Which versions of their user's own Python files a run was made with: an id names a config, not the code behind it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import cast

from rlvr.ledger import layout
from rlvr.ledger.files import read_json, write_json
from rlvr.ledger.inputs import has_begun


def recorded(run_dir: Path) -> dict[str, tuple[str, ...]]:
    """{module: SHA-256 of each version of its file that the run used, in order}; {} of a run that has none."""
    content = read_json(layout.own_code(run_dir)) or {}
    return {
        module: tuple(map(str, cast("list[object]", versions)))
        for module, versions in content.items()
        if isinstance(versions, list)
    }


def record(run_dir: Path, now: Mapping[str, str]) -> list[str]:
    """Keep with a run which files it uses, {module: SHA-256}. Returns the modules that it began with other versions of:
    it goes on, and both are on record.
    """
    before = recorded(run_dir) if has_begun(run_dir) else {}
    after = {module: list(before.get(module, ())) for module in sorted({*before, *now})}
    for module, digest in now.items():
        after[module] += [digest] if after[module][-1:] != [digest] else []
    if {module: tuple(versions) for module, versions in after.items()} != recorded(run_dir):
        write_json(layout.own_code(run_dir), after)
    return [module for module, digest in now.items() if before.get(module, (digest,))[-1] != digest]
