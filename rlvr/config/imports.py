"""Where Python finds this project and its users' code, in this process and in all child processes.

Child processes never search the working directory (`-P`). The import paths of a run's components are recorded with the
run (`import_paths` of run.json), so that jobs, retries and exports find the code without PYTHONPATH.
"""

import importlib
import importlib.util
import os
import pkgutil
import sys
import sysconfig
from collections.abc import Collection, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]  # the directory of our packages: a checkout, or site-packages
PACKAGES = ("rlvr", "sweeps", "slurm", "analysis")


# --- processes


def python_command(*arguments: str) -> list[str]:
    """Command line of this interpreter that does not search the working directory."""
    return [sys.executable, "-P", *arguments]


def child_environment() -> dict[str, str]:
    """Environment variables of a child process: it finds our packages first and does not search the working directory.

    Its own child processes inherit both.
    """
    path = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    if not is_installed(ROOT):  # site-packages needs no entry, and processes of another Python must not search it
        path.insert(0, str(ROOT))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(path)), "PYTHONSAFEPATH": "1"}


def hidden_package_message() -> str:
    """Which file hides one of our packages, and what to do, in one line; "" if none does."""
    for name in PACKAGES:
        spec = find_spec(name)
        if spec is not None and spec.origin is not None and Path(spec.origin).resolve().parent != ROOT / name:
            return (
                f"`import {name}` finds {spec.origin}, not {ROOT / name}. Rename that file, or take its directory off "
                "PYTHONPATH; `rlvr run ...` in place of `python -m rlvr.run ...` does not search the working directory."
            )
    return ""


# --- the user's own code


def find_spec(module: str) -> ModuleSpec | None:
    """The spec of a module, without importing the module or its parents; None if there is no such module."""
    top, *submodules = module.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except ValueError:  # a module without a spec, such as __main__
        return None
    name = top
    for part in submodules:
        if spec is None or spec.submodule_search_locations is None:
            return None
        name = f"{name}.{part}"
        spec = _submodule(name, list(spec.submodule_search_locations))
    return spec


def _submodule(name: str, locations: Sequence[str]) -> ModuleSpec | None:
    """As importlib's, which for a directory without `__init__.py` needs the parent to be imported."""
    directories: list[str] = []
    for location in locations:
        importer = pkgutil.get_importer(location)
        spec = None if importer is None else importer.find_spec(name)
        if spec is not None and spec.loader is not None:
            return spec
        directories += [] if spec is None else spec.submodule_search_locations or []
    found = ModuleSpec(name, None, is_package=True)
    found.submodule_search_locations = directories
    return found if directories else None


def directory_of_package(package: str) -> Path | None:
    """The directory in which Python finds a top-level package or module; None if it is built in or does not exist."""
    spec = find_spec(package)
    if spec is None or spec.origin in (None, "built-in", "frozen"):
        locations = [] if spec is None or spec.submodule_search_locations is None else spec.submodule_search_locations
        return next((Path(location).resolve().parent for location in locations), None)
    file = Path(str(spec.origin)).resolve()
    return file.parents[1] if spec.submodule_search_locations is not None else file.parent


def import_paths(packages: Collection[str]) -> tuple[str, ...]:
    """The entries of sys.path that these top-level packages need beside Python and this project, in their order.

    If one package comes from an entry of the user, all of the user's entries are returned: the modules that it imports
    may be in any of them. Raises ValueError for a package that is hidden by another of the same name.
    """
    entries = own_entries()
    for package in sorted(packages):
        refuse_hidden(package, entries)
    directories = {directory_of_package(package) for package in packages}
    return tuple(map(str, entries)) if directories.intersection(entries) else ()


def own_entries() -> list[Path]:
    """The entries of sys.path that are the user's own, in their order."""
    entries = dict.fromkeys(Path(entry).resolve() for entry in sys.path)
    return [entry for entry in entries if not is_common(entry)]


def add_import_paths(paths: Sequence[str]) -> None:
    """Append directories to sys.path; as the last entries they hide nothing."""
    for path in paths:
        if path not in sys.path:
            sys.path.append(path)
    importlib.invalidate_caches()


def refuse_hidden(package: str, paths: Sequence[Path]) -> None:
    """Raises ValueError if one of these directories has a module of this name but Python finds another one."""
    holding = (p for p in paths if (p / f"{package}.py").is_file() or (p / package / "__init__.py").is_file())
    expected = next(holding, None)
    if expected is None or package in PACKAGES:
        return
    spec = find_spec(package)
    if spec is not None and directory_of_package(package) != expected.resolve():
        raise ValueError(
            f"`import {package}` finds {spec.origin}, which hides {package} in {expected}. Rename one of them, or take "
            "the directory of the first off PYTHONPATH."
        )


def is_common(entry: Path) -> bool:
    """Whether every process of this Python searches this entry of sys.path, or it is missing or our own."""
    if not entry.is_dir() or entry == ROOT or is_installed(entry):
        return True
    standard = [Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "scripts")]
    return any(entry.is_relative_to(directory) for directory in standard)


def is_installed(entry: Path) -> bool:
    return any(part in ("site-packages", "dist-packages") for part in entry.parts)
