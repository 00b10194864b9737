"""Shared by the commands of this package: parsing of arguments, grids, errors in one line, the files of a report.

The commands measure and write tables; `analysis` draws figures of them in a process of its own.
"""

import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pandas as pd
from omegaconf import DictConfig

from rlvr.config import imports, overrides
from rlvr.config.explain import BAD_INPUT, explain
from rlvr.config.registry import Registry
from rlvr.ledger.files import write_text

T = TypeVar("T")
CONFIG_DIR = ("--config-dir", "-cd")


@dataclass(frozen=True)
class ReplayArm:
    """One objective, as a complete composed config."""

    name: str
    config: DictConfig


def command(
    main: Callable[[Sequence[str], Registry], None],
    name: str,
    usage: str | None,
    arguments: Sequence[str] | None = None,
) -> int:
    """Run `main(overrides, registry)` as a command. Exit codes: 0 done, 2 bad input (one line on standard error).

    name: of the command, for errors. `--config-dir DIR` works as for a run.
    """
    typed = list(sys.argv[1:] if arguments is None else arguments)
    if {"-h", "--help"} & set(typed):
        print(str(usage).rstrip())
        return 0
    registry = Registry()
    try:
        words, registry = _split(typed)
        main(words, registry)
    except BAD_INPUT as error:
        print(f"{name}: {explain(error, typed, registry)}", file=sys.stderr)
        return 2
    return 0


def _split(arguments: Sequence[str]) -> tuple[list[str], Registry]:
    """(the overrides among the arguments, the registry of their options)."""
    words = list(arguments)
    for index in reversed([index for index, word in enumerate(words) if word in CONFIG_DIR]):
        del words[index : index + 2]
    words = [word for word in words if not word.startswith("--config-dir=")]
    if options := [word for word in words if word.startswith("-")]:
        raise ValueError(f"there is no option {options[0]}: arguments are KEY=VALUE, --config-dir DIR and --help.")
    registry = Registry.of(arguments)
    imports.add_import_paths(registry.directories)
    return words, registry


def points(words: Sequence[str]) -> list[list[str]]:
    """Every combination of overrides such as `advantage=rloo,maxrl`."""
    no_knobs = [word for word in words if "=" not in word]
    if no_knobs:
        raise ValueError(f"{no_knobs[0]} is no knob: type for example advantage=rloo,maxrl rollout.samples=8,64.")
    return [list(point.values()) for point in overrides.combinations(overrides.alternatives(overrides.parse(words)))]


def with_progress(points: Sequence[T]) -> Iterable[T]:
    """The points one by one, with a bar of how many are done and how long the rest takes, if a terminal is there."""
    from rich.console import Console
    from rich.progress import track

    return track(points, "measured", console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty())


def write(folder: Path, tables: Mapping[str, pd.DataFrame], name: str) -> list[Path]:
    """Write each table as CSV, and let `analysis` draw NAME.png and NAME.pdf of them. Returns the files.

    Raises RuntimeError with the output of `analysis` if it fails; the tables are written by then.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for table, rows in tables.items():
        write_text(folder / f"{table}.csv", rows.to_csv(index=False))
    command_line = imports.python_command("-m", "analysis.diagnostics", name, str(folder))
    drawing = subprocess.run(command_line, env=imports.child_environment(), capture_output=True, text=True, check=False)
    if drawing.returncode:
        raise RuntimeError(f"{folder} has the tables and no figure: {drawing.stderr.strip()}")
    return [*(folder / f"{table}.csv" for table in tables), folder / f"{name}.png", folder / f"{name}.pdf"]
