"""Finds where a name is defined by reading source: imports are followed, nothing is executed.

Planning must not import torch, and most losses are in modules that do. If the source is ambiguous, nothing is guessed:
`Unclear` is raised, and the module has to be imported.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rlvr.config.imports import find_spec

MOST_REEXPORTS = 20  # that are followed for one name


class Unclear(Exception):
    """Raised if the source alone does not determine what a name refers to."""


@dataclass(frozen=True, eq=False)
class Module:
    """The names that the top-level statements of a module bind."""

    name: str
    bindings: dict[str, ast.stmt]  # name -> the statement, other than an import, that binds it
    origins: dict[str, str]  # imported name -> the dotted name that it refers to
    is_plain: bool  # no name is bound in another way: by `*`, `__getattr__` or globals()

    def dotted(self, node: ast.expr) -> str | None:
        """The dotted name that a name or attribute refers to; None for other nodes and for names not bound here."""
        if isinstance(node, ast.Attribute):
            value = self.dotted(node.value)
            return None if value is None else f"{value}.{node.attr}"
        if not isinstance(node, ast.Name):
            return None
        if node.id in self.origins:
            return self.origins[node.id]
        return f"{self.name}.{node.id}" if node.id in self.bindings else None


@dataclass(frozen=True, eq=False)
class Definition:
    """A function, a class, or an assignment at the top level of a module."""

    module: Module
    node: ast.FunctionDef | ast.ClassDef | ast.Assign | ast.AnnAssign


def definition(target: str) -> Definition:
    """The definition of a dotted name. Raises ValueError if there is no such module or name, or Unclear."""
    requested = target
    for _ in range(MOST_REEXPORTS):
        name, attribute = _module_and_name(target, requested)
        module = read(name)
        if attribute in module.origins:
            target = module.origins[attribute]
            continue
        node = module.bindings.get(attribute)
        if node is None and module.is_plain:
            raise ValueError(f"_target_: {requested}: {name} defines no {attribute}")
        if not isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Assign | ast.AnnAssign):
            raise Unclear
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None and module.dotted(node.value):
            target = str(module.dotted(node.value))  # `mine = other`
            continue
        return Definition(module, node)
    raise Unclear


def _module_and_name(target: str, requested: str) -> tuple[str, str]:
    """(module, name in it). Unclear if the name is an attribute of an object in a module, such as a class's method."""
    module, _, name = target.rpartition(".")
    if module and find_spec(module) is not None:
        return module, name
    outer = module.rpartition(".")[0]
    while outer and find_spec(outer) is None:
        outer = outer.rpartition(".")[0]
    known = read(outer) if outer else None
    inner = module.removeprefix(f"{outer}.").split(".")[0]
    if known is None or not (inner in known.bindings or inner in known.origins):
        raise ValueError(f"_target_: {requested}: no module {module}")
    raise Unclear


@functools.cache
def read(module: str) -> Module:
    """The bindings of a module. Raises Unclear if it has no Python source, ValueError for a syntax error."""
    spec = find_spec(module)
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        raise Unclear
    text = Path(spec.origin).read_text(encoding="utf-8")
    is_package = spec.submodule_search_locations is not None
    bindings: dict[str, ast.stmt] = {}
    origins: dict[str, str] = {}
    is_plain = "globals(" not in text
    for statement in _parsed(text, spec.origin):
        if isinstance(statement, ast.Import | ast.ImportFrom):
            is_plain &= all(alias.name != "*" for alias in statement.names)
            origins |= dict(_imported(statement, module, is_package=is_package))
            continue
        for name in names_bound(statement):
            origins.pop(name, None)
            bindings[name] = statement
    return Module(module, bindings, origins, is_plain and "__getattr__" not in bindings)


def _parsed(text: str, file: str) -> list[ast.stmt]:
    try:
        return ast.parse(text).body
    except SyntaxError as error:
        raise ValueError(f"{file}, line {error.lineno}: {error.msg}.") from None


def _imported(statement: ast.Import | ast.ImportFrom, module: str, *, is_package: bool) -> Iterator[tuple[str, str]]:
    """(name, dotted name that it refers to) of each name that an import binds."""
    if isinstance(statement, ast.Import):
        for alias in statement.names:
            top = alias.name.split(".")[0]
            yield (alias.asname, alias.name) if alias.asname else (top, top)
        return
    source = statement.module or ""
    if statement.level:
        package = module.split(".") if is_package else module.split(".")[:-1]
        package = package[: len(package) - statement.level + 1]
        source = ".".join([*package, *([source] if source else [])])
    for alias in statement.names:
        yield alias.asname or alias.name, f"{source}.{alias.name}"


def names_bound(statement: ast.stmt) -> Iterator[str]:
    """Names that a statement other than an import binds, including those bound in its branches."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield statement.name
        return
    for node in ast.walk(statement):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.alias):
            yield node.asname or node.name.split(".")[0]
