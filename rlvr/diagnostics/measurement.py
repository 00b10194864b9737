"""What the commands of this room share: points of a grid, errors in one line, files of a report."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from hydra.errors import HydraException
from matplotlib.figure import Figure
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from analysis.report.style import encode
from rlvr.config import overrides
from rlvr.config.explain import explain
from rlvr.ledger.files import write_text


@dataclass(frozen=True)
class Arm:
    """One objective: a composed config that says all of it."""

    name: str
    config: DictConfig


def command(main: Callable[[Sequence[str]], None], name: str, usage: str | None) -> int:
    """`python -m NAME ...`. Exit codes: 0 done, 2 bad input (one line on standard error)."""
    given = sys.argv[1:]
    if {"-h", "--help"} & set(given):
        print(usage)
        return 0
    try:
        main(given)
    except (ValueError, HydraException, OmegaConfBaseException) as error:
        print(f"{name}: {explain(error, given)}", file=sys.stderr)
        return 2
    return 0


def points(arguments: Sequence[str]) -> list[list[str]]:
    """Every combination of overrides such as `advantage=rloo,maxrl`."""
    odd = [a for a in arguments if "=" not in a or a.startswith("-")]
    if odd:
        raise ValueError(f"{odd[0]} is no knob: type for example advantage=rloo,maxrl rollout.samples=8,64.")
    return [list(point.values()) for point in overrides.cross(overrides.alternatives(overrides.parse(arguments)))]


def write(folder: Path, tables: Mapping[str, pd.DataFrame], name: str, figure: Figure) -> list[Path]:
    """Each table as CSV, and the figure as NAME.png and NAME.pdf; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    for table, rows in tables.items():
        write_text(folder / f"{table}.csv", rows.to_csv(index=False))
    for kind in ("png", "pdf"):
        (folder / f"{name}.{kind}").write_bytes(encode(figure, kind))
    return [*(folder / f"{table}.csv" for table in tables), folder / f"{name}.png", folder / f"{name}.pdf"]
