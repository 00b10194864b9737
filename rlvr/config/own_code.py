"""The Python files that make a run's numbers, ours and its user's, and whether they changed since the run used them."""

import ast
import contextlib
import functools
import hashlib
import os
import re
import subprocess
import sys
import traceback
from collections.abc import Collection, Iterator, Mapping, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any, cast

from rlvr.config import imports, targets
from rlvr.config.signature import source_of
from rlvr.ledger.identity import hash_of

# Our packages of which a run uses some modules; and the module that every objective uses.
CHOSEN, AVERAGING = ("rlvr.loss.", "rlvr.objective.", "rlvr.task."), "rlvr.objective.micro_batch"
# Our packages that every run uses, or whose modules other processes import: each counts as one. The others (config,
# ledger, tracker) carry numbers and make none.
PLATFORM = ("rlvr.job", "rlvr.metrics", "rlvr.model", "rlvr.noise", "rlvr.records", "rlvr.rollout", "rlvr.trainer")
VERIFIERS = "rlvr.task.verify"
# Functions that import the module of a given name. The texts of a file that mentions one count as such names.
BY_NAME = ("import_module", "__import__", "find_spec", "resolve_name", "run_module")
MODULE_NAME = re.compile(r"(?P<dots>\.*)(?P<name>[^\W\d]\w*(?:\.[^\W\d]\w*)*)(?::[\w.]*)?")
# Digest of the code of each imported module. A process that trains several runs keeps using the module that it
# imported, even if the file has changed since.
_as_imported: dict[str, str] = {}


def files(config: object, paths: Sequence[str]) -> dict[str, Path]:
    """Module -> file, of every `_target_` in these directories and in our packages of components, and of all modules of
    both places that they import; package -> directory, of those that count as one.

    paths: `import_paths` of the run. Imports are read from source, including those inside functions and those of
    names that are texts in it; nothing is run.
    """
    directories = {Path(path).resolve() for path in paths}
    file_of_module: dict[str, Path] = {}
    for package in PLATFORM:
        if (file := _file(package)) is not None:
            file_of_module[package] = file
    for word in _words(config):
        file_of_module[word] = Path(word)
    waiting = sorted({module for target in targets.targets(config) for module in _prefixes(target)})
    waiting += [AVERAGING] if any(module.startswith(CHOSEN[:2]) for module in waiting) else []
    while waiting:
        module = waiting.pop()
        module = VERIFIERS if module.startswith(VERIFIERS) else module
        package = module.split(".")[0]
        is_own = package not in imports.PACKAGES and imports.directory_of_package(package) in directories
        if module in file_of_module or not (is_own or module.startswith(CHOSEN)):
            continue
        file = _file(module)
        if file is None:
            continue
        file_of_module[module] = file
        spec = imports.find_spec(module)
        waiting += _possible_imports(module, spec) if spec is not None and file.is_file() else []
    return file_of_module


def _words(config: object) -> list[str]:
    """The words of a command (`program=command`) that name files."""
    program = cast("dict[str, Any] | None", dict(cast("Mapping[str, Any]", config)).get("program"))
    words = [str(word) for word in cast("list[object]", (program or {}).get("argv") or [])]
    return [word for word in words if Path(word).is_absolute() and Path(word).is_file()]


def _file(module: str) -> Path | None:
    """The file of a module; the directory of a package that counts as one; None for a module without a file."""
    if module.startswith("/"):  # no module: a word of a command
        return Path(module) if Path(module).is_file() else None
    spec = imports.find_spec(module)
    if spec is None or spec.origin is None or not Path(spec.origin).is_file():
        return None
    is_one = module in (*PLATFORM, VERIFIERS) and spec.submodule_search_locations is not None
    return Path(spec.origin).parent if is_one else Path(spec.origin)


def refuse_missing(config: object, paths: Sequence[str]) -> None:
    """Raises ValueError for a library that a file of the user needs when it is imported, and that is not installed."""
    for module, file in files(config, paths).items() if paths else ():
        ours = module.split(".")[0] in imports.PACKAGES
        for node in ast.parse(file.read_bytes()).body if not ours and file.suffix == ".py" else ():
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = [node.module]
            for name in (name.split(".")[0] for name in names):
                if name not in sys.builtin_module_names and imports.find_spec(name) is None:
                    raise ValueError(f"{file}, line {node.lineno}: no module {name} is installed. pip install it here.")


def versions(config: object, paths: Sequence[str]) -> dict[str, str]:
    """Module -> SHA-256 of the code that this process uses of it, for all `files` of a run."""
    return {module: _used_version(module, file) for module, file in files(config, paths).items()}


def edited_meanwhile(code: Mapping[str, str], not_imported: Collection[str]) -> dict[str, str]:
    """Module -> SHA-256 of another version that is there now, of modules that were not imported when `versions` was
    asked, and are by now: this process may use either."""
    now = {module: _file(module) for module in not_imported if module in sys.modules}
    digests = {module: _digest(file) for module, file in now.items() if file is not None}
    return {module: digest for module, digest in digests.items() if digest != code[module]}


def in_short(code: Mapping[str, str]) -> str:
    """12 hexadecimal digits that stand for `versions`: the same for two seeds only if they use the same code."""
    return hash_of(code, 12)


def changed(recorded: Mapping[str, tuple[str, ...]]) -> list[str]:
    """The files, as Python finds them now, of which a run used another version, or several. recorded: by the run."""
    used = {module: (_file(module), digests) for module, digests in recorded.items()}
    return [str(file) for file, digests in used.values() if file is not None and digests != (_digest(file),)]


def git(*arguments: str) -> str:
    """Output of git in the checkout that this package runs from; "" elsewhere, and without git."""
    if not (imports.ROOT / ".git").exists():
        return ""
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    with contextlib.suppress(OSError):  # a node may lack git
        process = subprocess.run(
            ["git", *arguments], cwd=imports.ROOT, capture_output=True, text=True, env=environment, check=False
        )
        return process.stdout.strip()
    return ""


def _used_version(module: str, file: Path) -> str:
    if module not in sys.modules:
        _as_imported.pop(module, None)
    return _as_imported.setdefault(module, _digest(file))


def _digest(file: Path) -> str:
    if file.is_dir():
        return _digest_of_package(file)
    status = file.stat()
    return _cached_digest(file, status.st_size, status.st_mtime_ns)


@functools.cache  # of our packages, which a process does not see change
def _digest_of_package(directory: Path) -> str:
    parts = [f"{path.relative_to(directory)} {_digest(path)}" for path in sorted(directory.rglob("*.py"))]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


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
    """All dotted names that a module's import statements contain, and those of its texts if it imports modules by name;
    not every one is a module.
    """
    file = str(spec.origin)
    try:
        tree = ast.parse(Path(file).read_bytes()) if file.endswith(".py") else None
    except SyntaxError:
        tree = None
    package = module if spec.submodule_search_locations is not None else module.rpartition(".")[0]
    nodes = list(ast.walk(tree)) if tree else []
    by_name = any(_imports_by_name(node) for node in nodes)
    for node in nodes:
        names = list[str]()
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{source_of(node, package)}.{alias.name}" for alias in node.names]
        elif by_name and isinstance(node, ast.Constant) and isinstance(node.value, str):
            names = _named(node.value, package)
        for name in names:
            yield from _prefixes(name)


def _imports_by_name(node: ast.AST) -> bool:
    """Whether a piece of code mentions a function that imports the module of a given name."""
    names = {node.attr} if isinstance(node, ast.Attribute) else {node.id} if isinstance(node, ast.Name) else set[str]()
    names |= {alias.name for alias in node.names} if isinstance(node, ast.ImportFrom) else set()
    return not names.isdisjoint(BY_NAME)


def _named(text: str, package: str) -> list[str]:
    """The module that a text may name in a module of this package: `a.b`, `.b`, or the entry point `a.b:function`."""
    match = MODULE_NAME.fullmatch(text)
    if match is None:
        return []
    relative = ast.ImportFrom(match["name"], [], len(match["dots"]))
    return [source_of(relative, package)]


def _prefixes(dotted: str) -> list[str]:
    """`a.b.c` -> a, a.b, a.b.c: importing the last one imports the others too."""
    parts = dotted.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts) + 1)]


def line_of(error: BaseException) -> str:
    """` (FILE, line N)` of the innermost call in code that is neither a library's nor ours; "" if there is none."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = Path(frame.filename).resolve()
        ours = any(file.is_relative_to(imports.ROOT / package) for package in imports.PACKAGES)
        if file.is_file() and not ours and not imports.is_common(file.parent):
            return f" ({file}, line {frame.lineno})"
    return ""
