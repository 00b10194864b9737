"""The Python files of a run's components and objective, and whether they changed since the run used them."""

from __future__ import annotations

import ast
import functools
import hashlib
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from weakref import WeakKeyDictionary

from rlvr.config import imports, targets
from rlvr.config.signature import source_of
from rlvr.ledger import inputs

# Our packages whose code decides the gradient; and the module that every objective uses.
OBJECTIVE, AVERAGING = ("rlvr.loss.", "rlvr.objective."), "rlvr.objective.micro_batch"
# Digest of the file of each imported module. A process that trains several runs keeps using the module that it
# imported, even if the file has changed since.
_as_imported: WeakKeyDictionary[ModuleType, str] = WeakKeyDictionary()


def files(config: object, paths: Sequence[str]) -> dict[str, Path]:
    """Module -> file, of every `_target_` in these directories, of the objective's, and of all modules of both places
    that they import.

    paths: `import_paths` of the run. Imports are read from source, including those inside functions; nothing is run.
    """
    directories = {Path(path).resolve() for path in paths}
    file_of_module: dict[str, Path] = {}
    waiting = sorted({module for target in targets.targets(config) for module in _prefixes(target)})
    waiting += [AVERAGING] if any(module.startswith(OBJECTIVE) for module in waiting) else []
    while waiting:
        module = waiting.pop()
        package = module.split(".")[0]
        is_own = package not in imports.PACKAGES and imports.directory_of_package(package) in directories
        if module in file_of_module or not (is_own or module.startswith(OBJECTIVE)):
            continue
        spec = imports.find_spec(module)
        if spec is None or spec.origin is None or not Path(spec.origin).is_file():
            continue
        file_of_module[module] = Path(spec.origin)
        waiting += _possible_imports(module, spec)
    return file_of_module


def record(run_dir: Path, config: object, paths: Sequence[str]) -> list[str]:
    """Record with a run the versions of the files that it uses; to be called once they are imported.

    Returns the files of which the run used other versions before.
    """
    used = files(config, paths)
    changed = inputs.record_code(run_dir, {module: _used_version(module, file) for module, file in used.items()})
    return [str(used[module]) for module in changed]


def changed(run_dir: Path) -> list[str]:
    """The files, as Python finds them now, of which the run used another version, or several."""
    changed_files: list[str] = []
    for module, versions in inputs.recorded_code(run_dir).items():
        spec = imports.find_spec(module)
        if spec is None or spec.origin is None or not Path(spec.origin).is_file():
            continue
        if versions != (_digest(Path(spec.origin)),):
            changed_files.append(spec.origin)
    return changed_files


def _used_version(module: str, file: Path) -> str:
    loaded = sys.modules.get(module)
    return _digest(file) if loaded is None else _as_imported.setdefault(loaded, _digest(file))


def _digest(file: Path) -> str:
    status = file.stat()
    return _cached_digest(file, status.st_size, status.st_mtime_ns)


@functools.lru_cache(4096)  # the runs of a sweep use the same files
def _cached_digest(file: Path, _size: int, _time_ns: int) -> str:
    """SHA-256 of a file; of Python source without comments and docstrings, which change no number."""
    source = file.read_bytes()
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):  # ValueError: a compiled module
        return hashlib.sha256(source).hexdigest()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(
            node
        ):
            node.body = node.body[1:] or [ast.Pass()]
    return hashlib.sha256(ast.unparse(tree).encode()).hexdigest()


def _possible_imports(module: str, spec: ModuleSpec) -> Iterator[str]:
    """All dotted names that a module's import statements contain; not every one is a module."""
    file = str(spec.origin)
    try:
        tree = ast.parse(Path(file).read_bytes()) if file.endswith(".py") else None
    except SyntaxError:
        tree = None
    for node in ast.walk(tree) if tree else ():
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            package = module if spec.submodule_search_locations is not None else module.rpartition(".")[0]
            names = [f"{source_of(node, package)}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            yield from _prefixes(name)


def _prefixes(dotted: str) -> list[str]:
    """`a.b.c` -> a, a.b, a.b.c: importing the last one imports the others too."""
    parts = dotted.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts) + 1)]
