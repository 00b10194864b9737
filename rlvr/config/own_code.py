"""The Python files of its user that a run's components come from, and whether they are what finished runs used."""

from __future__ import annotations

import ast
import hashlib
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from weakref import WeakKeyDictionary

from rlvr.config import imports, targets
from rlvr.ledger import own_code

# A process that trains run after run goes on with what it imported, whatever became of the file since.
_as_imported: WeakKeyDictionary[ModuleType, str] = WeakKeyDictionary()


def files(config: object, paths: Sequence[str]) -> dict[str, Path]:
    """{module: its file} of every `_target_` that lies in one of these directories, and of what it imports from them.

    paths: `import_paths` of the run. Imports are read from source, those inside functions too; nothing is run.
    """
    mine = {Path(path).resolve() for path in paths}
    found: dict[str, Path] = {}
    waiting = sorted({module for target in targets.targets(config) for module in _prefixes(target)}) if mine else []
    while waiting:
        module = waiting.pop()
        package = module.split(".")[0]
        if module in found or package in imports.PACKAGES or imports.directory(package) not in mine:
            continue
        spec = imports.find(module)
        if spec is None or spec.origin is None or not Path(spec.origin).is_file():
            continue
        found[module] = Path(spec.origin)
        waiting += _imported(module, spec)
    return found


def record(run_dir: Path, config: object, paths: Sequence[str]) -> list[str]:
    """Keep with a run which versions it uses, once they are imported. Returns files that it began with others of."""
    used = files(config, paths)
    changed = own_code.record(run_dir, {module: _used_version(module, file) for module, file in used.items()})
    return [str(used[module]) for module in changed]


def changed(run_dir: Path) -> list[str]:
    """The files, as Python finds them now, of which the run used another version, or several."""
    found: list[str] = []
    for module, versions in own_code.recorded(run_dir).items():
        spec = imports.find(module)
        if spec is not None and spec.origin is not None and Path(spec.origin).is_file():
            found += [spec.origin] if versions != (_digest(Path(spec.origin)),) else []
    return found


def _used_version(module: str, file: Path) -> str:
    loaded = sys.modules.get(module)
    return _digest(file) if loaded is None else _as_imported.setdefault(loaded, _digest(file))


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _imported(module: str, spec: ModuleSpec) -> Iterator[str]:
    """What may be modules among the names that a module imports."""
    file = str(spec.origin)
    try:
        tree = ast.parse(Path(file).read_bytes()) if file.endswith(".py") else None
    except SyntaxError:
        tree = None
    for node in ast.walk(tree) if tree else ():
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            inside = module if spec.submodule_search_locations is not None else module.rpartition(".")[0]
            above = inside.split(".")[: len(inside.split(".")) - max(0, node.level - 1)] if node.level else []
            source = ".".join(filter(None, [*above, node.module or ""]))
            names = [f"{source}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            yield from _prefixes(name)


def _prefixes(dotted: str) -> list[str]:
    """`a.b.c` -> a, a.b, a.b.c: importing one imports those before it."""
    parts = dotted.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts) + 1)]
