"""Notes on runs with different versions of their user's own code, such as two versions of a loss under one name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from rlvr.ledger import inputs, layout

SHOWN = 3  # at most so many runs are named in a line
DIGITS = 7  # of a version's digest


def notes(home: Path, runs: pd.DataFrame) -> list[str]:
    """A line for each module of which these runs used different versions. runs: rows of the frame `runs`."""
    rows_by_module: dict[str, dict[tuple[str, ...], list[int]]] = {}  # by module and versions, rows of `runs`
    for row, run_id in enumerate(runs["run_id"]):
        for module, versions in inputs.recorded_code(layout.run(home, str(run_id))).items():
            rows_by_module.setdefault(module, {}).setdefault(versions, []).append(row)
    return [_line(module, rows_of, runs) for module, rows_of in sorted(rows_by_module.items()) if len(rows_of) > 1]


def _line(module: str, rows_of: Mapping[tuple[str, ...], Sequence[int]], runs: pd.DataFrame) -> str:
    """The line on one module. rows_of: by versions, the rows of the runs that used them."""
    names = runs["name"].astype(str)
    parts = [f"{_version(versions)} in {_shown([names[row] for row in rows])}" for versions, rows in rows_of.items()]
    arms: dict[str, set[str]] = {}
    for versions, rows in rows_of.items():
        for row in rows:
            arms.setdefault(str(runs["group_id"][row]), set()).add(_version(versions))
    of_arm = dict(zip(runs["group_id"].astype(str), runs["arm"].astype(str), strict=True))
    mixed = [of_arm[group] for group, versions in arms.items() if len(versions) > 1]
    line = f"`{module}`, code of your own, was not the same in all runs: {'; '.join(parts)}."
    return f"{line} Seeds with different code stand together in {_shown(mixed)}." if mixed else line


def _version(versions: Sequence[str]) -> str:
    """The version in short; of a run that was resumed after an edit, all versions that it used."""
    return " then ".join(digest[:DIGITS] for digest in versions)


def _shown(names: Sequence[str]) -> str:
    more = [f"{len(names) - SHOWN} more"] if len(names) > SHOWN else []
    return ", ".join([*names[:SHOWN], *more])
