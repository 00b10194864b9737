"""Runs whose numbers are made with different versions of the same code (a loss) or the same file (a benchmark)."""

from collections.abc import Collection, Sequence
from pathlib import Path

import pandas as pd

from rlvr.ledger import inputs, layout

OBJECTIVE = ("rlvr.loss.", "rlvr.objective.")
SHOWN = 3  # at most so many names are in a line
DIGITS = 7  # of a version's digest


# Of the frame `runs`: `module=SHA-256,SHA-256 @task.train=digest ...`, the versions in order; "" in older bundles.
COLUMN = "code"
INPUT = "@"  # before the knob of a file or a model


def with_code(home: Path, runs: pd.DataFrame) -> pd.DataFrame:
    """The frame `runs` with the code and files that each run used, by its home; a bundle of it then has them too."""
    texts: list[str] = []
    for run_dir in (layout.run(home, str(run_id)) for run_id in runs["run_id"]):
        used = {module: ",".join(versions) for module, versions in inputs.recorded_code(run_dir).items()}
        used |= {f"{INPUT}{knob}": digest for knob, digest in inputs.recorded(run_dir).items()}
        texts.append(" ".join(f"{what}={versions}" for what, versions in used.items()))
    return runs.assign(**{COLUMN: pd.Series(texts, index=runs.index, dtype=str)})


def notes(runs: pd.DataFrame) -> list[str]:
    """A line for each module of which these runs used different versions. runs: rows of the frame `runs`."""
    return [_line(module, rows_of, runs) for module, rows_of in _differing(runs).items()]


def refuse_mixed(runs: pd.DataFrame) -> None:
    """Raises LookupError if runs of one arm, whose mean would be shown, used different versions of a module."""
    for module, rows_of in _differing(runs).items():
        if _mixed_arms(rows_of, runs):
            raise LookupError(
                f"{_line(module, rows_of, runs)} A mean of both belongs to neither: train one of them anew "
                "(`rm -r runs/RUN`, and the same launch), or pass --mixed-code to average them all the same "
                "(rlvr.load: mixed_code=True)."
            )


RowsOf = dict[tuple[str, ...], list[int]]  # by versions of a module, the rows of the runs that used them


def _differing(runs: pd.DataFrame) -> dict[str, RowsOf]:
    """{module of which runs, or attempts of a run, used different versions: by versions, their rows}."""
    rows_by_module: dict[str, RowsOf] = {}
    for row, text in enumerate(runs.get(COLUMN, ())):  # a frame without runs has no columns
        for used in str(text).split():
            module, _, versions = used.partition("=")
            if module.startswith(INPUT):  # of two paths the content may differ
                path_of_row = runs.get(f"config.{module.removeprefix(INPUT).removesuffix(inputs.CLOSELY)}", {})
                module += f"={path_of_row.get(row, '')}"
            rows_by_module.setdefault(module, {}).setdefault(tuple(versions.split(",")), []).append(row)
    return {module: rows_of for module, rows_of in sorted(rows_by_module.items()) if _is_mixed(rows_of)}


def _is_mixed(versions: Collection[tuple[str, ...]]) -> bool:
    """Whether these are several versions of a module: of several runs, or of the attempts of one."""
    return len(versions) > 1 or any(len(of_run) > 1 for of_run in versions)


def _mixed_arms(rows_of: RowsOf, runs: pd.DataFrame) -> list[str]:
    """The arms with runs of several versions, also of one run."""
    arms: dict[str, set[tuple[str, ...]]] = {}
    for versions, rows in rows_of.items():
        for row in rows:
            arms.setdefault(str(runs["group_id"][row]), set()).add(versions)
    of_arm = dict(zip(runs["group_id"].astype(str), runs["arm"].astype(str), strict=True))
    return [of_arm[group] for group, versions in arms.items() if _is_mixed(versions)]


def _line(module: str, rows_of: RowsOf, runs: pd.DataFrame) -> str:
    names = runs["name"].astype(str)
    parts = [f"{_version(versions)} in {first_few([names[row] for row in rows])}" for versions, rows in rows_of.items()]
    whose = "code of the objective" if module.startswith(OBJECTIVE) else "our code"
    whose = whose if module.startswith("rlvr.") else "code of your own"
    whose = "content that runs read" if module.startswith(INPUT) else whose
    line = f"`{module.removeprefix(INPUT)}`, {whose}, was not the same in all runs: {'; '.join(parts)}."
    mixed = _mixed_arms(rows_of, runs)
    return f"{line} Not of one version: {first_few(mixed)}." if mixed else line


def _version(versions: Sequence[str]) -> str:
    """The version in short; of a run that was resumed after an edit, all versions that it used."""
    return " then ".join(digest[:DIGITS] for digest in versions)


def first_few(names: Sequence[str]) -> str:
    """`a, b, c, 2 more`"""
    more = [f"{len(names) - SHOWN} more"] if len(names) > SHOWN else []
    return ", ".join([*names[:SHOWN], *more])
