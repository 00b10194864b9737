"""What the commands of this room share: their words, points of a grid, errors in one line, files of a report.

They measure and write tables; `analysis` draws these, in a process of its own.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from omegaconf import DictConfig

from rlvr.config import imports, overrides
from rlvr.config.explain import BAD_INPUT, explain
from rlvr.config.registry import Registry
from rlvr.ledger.files import write_text

CONFIG_DIR = ("--config-dir", "-cd")


@dataclass(frozen=True)
class Arm:
    """One objective: a composed config that says all of it."""

    name: str
    config: DictConfig


def command(
    main: Callable[[Sequence[str]], None], name: str, usage: str | None, arguments: Sequence[str] | None = None
) -> int:
    """`python -m NAME ...`. Exit codes: 0 done, 2 bad input (one line on standard error)."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if {"-h", "--help"} & set(given):
        print(usage)
        return 0
    try:
        main(given)
    except BAD_INPUT as error:
        print(f"{name}: {explain(error, given, Registry.of(given))}", file=sys.stderr)
        return 2
    return 0


def split(arguments: Sequence[str]) -> tuple[list[str], Registry]:
    """(the overrides among the arguments, what they can choose from): `--config-dir DIR` is understood as by a run."""
    registry, words = Registry.of(arguments), list(arguments)
    imports.extend(registry.directories)
    for place in [place for place, word in enumerate(words) if word in CONFIG_DIR]:
        del words[place : place + 2]
    return [word for word in words if not word.startswith("--config-dir=")], registry


def points(words: Sequence[str]) -> list[list[str]]:
    """Every combination of overrides such as `advantage=rloo,maxrl`."""
    odd = [word for word in words if "=" not in word or word.startswith("-")]
    if odd:
        raise ValueError(f"{odd[0]} is no knob: type for example advantage=rloo,maxrl rollout.samples=8,64.")
    return [list(point.values()) for point in overrides.cross(overrides.alternatives(overrides.parse(words)))]


def write(folder: Path, tables: Mapping[str, pd.DataFrame], name: str) -> list[Path]:
    """Each table as CSV, and what `analysis` draws of them, NAME.png and NAME.pdf; returns the files.

    Raises RuntimeError, with its last words, if it cannot draw: the tables are written then.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for table, rows in tables.items():
        write_text(folder / f"{table}.csv", rows.to_csv(index=False))
    draw = imports.python("-m", "analysis.diagnostics", name, str(folder))
    done = subprocess.run(draw, env=imports.environment(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{folder} has the tables and no figure: {done.stderr.strip()}")
    return [*(folder / f"{table}.csv" for table in tables), folder / f"{name}.png", folder / f"{name}.pdf"]
