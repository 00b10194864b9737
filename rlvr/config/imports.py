"""Where Python finds this project and the code of its users: here, and in every process that is started from here.

The working directory is never searched in a child process (`-P`), and what a run's components need is on record with
the run (`import_paths` of run.json): a job, a retry and an export find it without anybody's PYTHONPATH.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import sysconfig
from collections.abc import Collection, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]  # of these packages: a checkout, or the site-packages of an installed wheel
PACKAGES = ("rlvr", "sweeps", "slurm", "analysis")


# --- processes


def python(*arguments: str) -> list[str]:
    """Command of this interpreter, which does not search the working directory."""
    return [sys.executable, "-P", *arguments]


def environment() -> dict[str, str]:
    """Of a child process: it finds these very packages first, and its own children leave the working directory out."""
    path = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    if not is_installed(ROOT):  # else every process of this Python finds them; one of another Python must not
        path.insert(0, str(ROOT))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(path)), "PYTHONSAFEPATH": "1"}


def foreign() -> str:
    """Which file takes the place of one of our packages, and what to do, in one line; "" if none does."""
    for name in PACKAGES:
        spec = find(name)
        if spec is not None and spec.origin is not None and Path(spec.origin).resolve().parent != ROOT / name:
            return (
                f"`import {name}` finds {spec.origin}, not {ROOT / name}. Rename that file, or take its directory off "
                "PYTHONPATH; `rlvr run ...` in place of `python -m rlvr.run ...` does not search the working directory."
            )
    return ""


# --- the user's own code


def find(module: str) -> ModuleSpec | None:
    """Where a module is, without importing it or its parents; None if there is none."""
    top, *rest = module.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except ValueError:  # a module without a spec, such as __main__
        return None
    name = top
    for part in rest:
        if spec is None or spec.submodule_search_locations is None:
            return None
        name = f"{name}.{part}"
        spec = PathFinder.find_spec(name, list(spec.submodule_search_locations))
    return spec


def directory(package: str) -> Path | None:
    """The directory in which Python finds a top-level package or module; None for what is built in, or nowhere."""
    spec = find(package)
    if spec is None or spec.origin in (None, "built-in", "frozen"):
        locations = [] if spec is None or spec.submodule_search_locations is None else spec.submodule_search_locations
        return next((Path(each).resolve().parent for each in locations), None)
    file = Path(str(spec.origin)).resolve()
    return file.parents[1] if spec.submodule_search_locations is not None else file.parent


def import_paths(packages: Collection[str]) -> tuple[str, ...]:
    """The entries of sys.path that these top-level packages need beside Python and this project, in their order.

    If one of them comes from an entry of the user's, all of the user's entries are named: the modules that it imports
    itself may lie in any of them. ValueError for a package that is hidden by another of its name.
    """
    mine = [entry for entry in dict.fromkeys(map(_absolute, sys.path)) if not is_common(entry)]
    for package in sorted(packages):
        refuse_hidden(package, mine)
    found = {directory(package) for package in packages} - {None}
    return tuple(map(str, mine)) if any(entry in found for entry in mine) else ()


def extend(paths: Sequence[str]) -> None:
    """Search these directories too, after all others, so that they hide nothing."""
    for path in paths:
        if path not in sys.path:
            sys.path.append(path)
    importlib.invalidate_caches()


def refuse_hidden(package: str, paths: Sequence[Path]) -> None:
    """ValueError if one of these directories has a module of this name and Python finds another."""
    own = next((p for p in paths if (p / f"{package}.py").is_file() or (p / package / "__init__.py").is_file()), None)
    if own is None or package in PACKAGES:
        return
    spec = find(package)
    if spec is not None and directory(package) != own.resolve():
        raise ValueError(
            f"`import {package}` finds {spec.origin}, which hides {package} in {own}. Rename one of them, or take the "
            "directory of the first off PYTHONPATH."
        )


def is_common(entry: Path) -> bool:
    """Does every process of this Python search it, or is it this project's own?"""
    if not entry.is_dir() or entry == ROOT or is_installed(entry):
        return True
    standard = [Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "scripts")]
    return any(entry.is_relative_to(each) for each in standard)


def is_installed(entry: Path) -> bool:
    return any(part in ("site-packages", "dist-packages") for part in entry.parts)


def _absolute(entry: str) -> Path:
    return Path(entry).resolve()
