"""What a component takes and declares, read from the source of its `_target_`: imports are followed, nothing is run.

Planning must not import torch, and most losses are in modules that do. What source does not tell is not checked before
launch: such a component takes any knob (`takes_any`), and the start of its run names one that it does not have.
"""

import ast
import functools
import importlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rlvr.config import values
from rlvr.config.imports import find_spec, own_entries, refuse_hidden
from rlvr.ledger import terminal

MOST_REEXPORTS = 20  # that are followed for one name
MARKING = ("rlvr.objective.batch", "rlvr.model")  # modules whose decorators only mark a function, with their own name
NEEDS, FIRST_PASS = "rlvr.objective.batch.needs", "rlvr.objective.batch.first_pass"
DATACLASS, FIELD, PARTIAL = "dataclasses.dataclass", "dataclasses.field", "functools.partial"
LIBRARIES_OF_TYPES = ("typing", "collections", "pathlib", "pydantic", "annotated_types")
WITHOUT_INIT = ("typing.Protocol", "typing.Generic", "abc.ABC")


# --- where a name is defined


@dataclass(frozen=True, eq=False)
class Module:
    """The names that the top-level statements of a module bind, in branches of `if` and `try` too."""

    name: str
    bindings: Mapping[str, ast.stmt]  # name -> the statement, other than an import, that binds it
    origins: Mapping[str, str]  # imported name -> the dotted name that it refers to
    starred: Sequence[str]  # modules all of whose names are imported
    is_open: bool  # it may have other names: by `*`, `__getattr__` or globals()

    def dotted(self, node: ast.expr) -> str | None:
        """The dotted name that a name or attribute refers to; None for other nodes and for names not bound here."""
        if isinstance(node, ast.Attribute):
            value = self.dotted(node.value)
            return None if value is None else f"{value}.{node.attr}"
        if not isinstance(node, ast.Name):
            return None
        return f"{self.name}.{node.id}" if node.id in self.bindings else self.origins.get(node.id)


@dataclass(frozen=True, eq=False)
class Definition:
    """A function, a class, or an assignment at the top level of a module."""

    module: Module
    node: ast.FunctionDef | ast.ClassDef | ast.Assign | ast.AnnAssign


def definition(target: str) -> Definition | None:
    """The definition of a dotted name; None if source does not tell it. ValueError if there is no such module or name.

    A method, `module.Class.method`, is none of these.
    """
    dotted = target
    for _ in range(MOST_REEXPORTS):
        name, _, attribute = dotted.rpartition(".")
        if not name or find_spec(name) is None:
            _refuse_module(name, target)
            return None
        if (module := read(name)) is None:
            return None
        node = module.bindings.get(attribute)
        alias = module.dotted(node.value) if isinstance(node, ast.Assign | ast.AnnAssign) and node.value else None
        alias = alias or module.origins.get(attribute)
        if alias is None and isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Assign | ast.AnnAssign):
            return Definition(module, node)
        alias = alias or next((f"{star}.{attribute}" for star in module.starred if _binds(star, attribute)), None)
        if alias is None and node is None and not module.is_open:
            near = terminal.near(attribute, module.bindings)
            near = near if attribute.isidentifier() else " Write MODULE.FUNCTION."
            raise ValueError(f"_target_: {target}: {name} defines no {attribute}.{near}")
        if alias is None:
            return None
        dotted = alias
    return None


def _refuse_module(name: str, target: str) -> None:
    """Raises ValueError unless `name` is a class, or another object, in a module."""
    outer, inner = name, ""
    while outer and find_spec(outer) is None:
        outer, _, inner = outer.rpartition(".")
    known = read(outer) if outer else None
    if not outer or (known is not None and not known.is_open and not _binds(outer, inner)):
        raise ValueError(f"_target_: {target}: no module {name or target}. Write MODULE.FUNCTION.")


def _binds(module: str, name: str) -> bool:
    known = read(module)
    return known is not None and (name in known.bindings or name in known.origins)


@functools.cache
def read(module: str) -> Module | None:
    """The bindings of a module; None if it has no Python source. Raises ValueError for a syntax error."""
    spec = find_spec(module)
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return None
    text = Path(spec.origin).read_text(encoding="utf-8")
    try:
        statements = ast.parse(text).body
    except SyntaxError as error:
        raise ValueError(f"{spec.origin}, line {error.lineno}: {error.msg}.") from None
    package = module if spec.submodule_search_locations is not None else module.rpartition(".")[0]
    bindings: dict[str, ast.stmt] = {}
    origins: dict[str, str] = {}
    for statement in _unnested(statements):
        for name, origin in _bound(statement, package):
            bindings.pop(name, None)
            origins.pop(name, None)
            if origin is None:
                bindings[name] = statement
            else:
                origins[name] = origin
    starred = [origin.removesuffix(".*") for origin in origins.values() if origin.endswith(".*")]
    is_open = bool(starred) or "globals(" in text or "__getattr__" in bindings
    return Module(module, bindings, origins, starred, is_open)


def _unnested(statements: Sequence[ast.stmt | ast.ExceptHandler]) -> Iterator[ast.stmt]:
    """Statements, and in place of one with branches the statements of its branches."""
    for statement in statements:
        if isinstance(statement, ast.If | ast.For | ast.While | ast.With | ast.Try | ast.ExceptHandler):
            for name in ("body", "handlers", "orelse", "finalbody"):
                yield from _unnested(getattr(statement, name, []))
        else:
            yield statement


def _bound(statement: ast.stmt, package: str) -> Iterator[tuple[str, str | None]]:
    """(name, dotted name that it refers to, or None if it is defined here) of each name that a statement binds."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield statement.name, None
    elif isinstance(statement, ast.Import):
        for alias in statement.names:
            top = alias.name.split(".")[0]
            yield (alias.asname, alias.name) if alias.asname else (top, top)
    elif isinstance(statement, ast.ImportFrom):
        for alias in statement.names:
            name = f"{source_of(statement, package)}.{alias.name}"
            yield (name if alias.name == "*" else alias.asname or alias.name), name
    else:
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                yield node.id, None


def source_of(statement: ast.ImportFrom, package: str) -> str:
    """The module from which a statement of a module in this package imports."""
    parts = package.split(".")
    parts = parts[: len(parts) - statement.level + 1] if statement.level else []
    return ".".join([*parts, *([statement.module] if statement.module else [])])


# --- what a component takes


@dataclass(frozen=True, eq=False)
class Parameter:
    name: str
    annotation: str  # as written
    required: bool
    module: Module

    @functools.cached_property
    def kind(self) -> Any:
        """The type of the annotation; None for a class of the component's own, which a nested component builds."""
        return values.checkable(functools.partial(_evaluated, self.annotation, self.module))


@dataclass(frozen=True)
class Signature:
    """Parameters of a function or class, and what it declares: words of `@needs(...)` and names of its marks."""

    parameters: tuple[Parameter, ...]
    declared: frozenset[str] = frozenset()
    takes_any: bool = False  # any other name is accepted too: it has `**knobs`, or source does not tell

    @functools.cached_property
    def paths(self) -> frozenset[str]:
        """The parameters that are annotated as paths."""
        words = {p.name: re.findall(r"\w+", f"{p.annotation} {p.kind}") for p in self.parameters}
        return frozenset(name for name, annotation in words.items() if "Path" in annotation)


UNKNOWN = Signature((), takes_any=True)


@functools.cache  # called for every point of a sweep
def signature(target: str) -> Signature:
    """The signature of a function or class by its import path.

    Raises ValueError if it does not exist, or if Python finds another module of the name first.
    """
    try:
        defined = definition(target)
        return UNKNOWN if defined is None else _of(defined)
    except ValueError:
        refuse_hidden(target.split(".")[0], own_entries())  # then this is the reason
        raise


def declared(target: str) -> frozenset[str]:
    return signature(target).declared


def has_terms_per_response(loss: Mapping[Any, Any]) -> bool:
    """Whether a loss has one term per response: by its mark, or by LAD's knob `ratio`."""
    return "per_response" in declared(loss["_target_"]) or loss.get("ratio") in ("sequence", "sequence_geomean")


def clear_caches() -> None:
    """Clear all caches of sources: in a notebook, files change between two commands."""
    signature.cache_clear()
    read.cache_clear()
    importlib.invalidate_caches()


def _of(defined: Definition) -> Signature:
    if isinstance(defined.node, ast.FunctionDef):
        return _of_function(defined.module, defined.node)
    if isinstance(defined.node, ast.ClassDef):
        return _of_class(defined.module, defined.node)
    return _of_partial(defined.module, defined.node)


def _of_function(module: Module, node: ast.FunctionDef) -> Signature:
    """A decorator that only marks changes nothing; another one may let the function take further knobs."""
    marks = [_marks(module, decorator) for decorator in node.decorator_list]
    takes_any = node.args.kwarg is not None or None in marks
    declares = frozenset(word for of_decorator in marks for word in of_decorator or ())
    return Signature(tuple(_parameters(module, node.args)), declares, takes_any)


def _marks(module: Module, decorator: ast.expr) -> frozenset[str] | None:
    """What a decorator declares of a function; None for a foreign one."""
    arguments = decorator.args if isinstance(decorator, ast.Call) else []
    name = module.dotted(decorator.func if isinstance(decorator, ast.Call) else decorator) or ""
    if name == NEEDS:
        words = [argument.value for argument in arguments if isinstance(argument, ast.Constant)]
        if len(words) != len(arguments):
            raise ValueError(f"{module.name}: @needs is read from source: type its words as texts.")
        return frozenset(map(str, words))
    if name == FIRST_PASS:
        statistics = module.dotted(arguments[0])  # a loss is given what its first pass needs
        return (declared(statistics) if statistics else frozenset[str]()) | {"first_pass"}
    where, _, mark = name.rpartition(".")
    return frozenset({mark}) if where in MARKING else None


def _parameters(module: Module, arguments: ast.arguments) -> Iterator[Parameter]:
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(positional) - len(arguments.defaults)) + [*arguments.defaults, *arguments.kw_defaults]
    for arg, default in zip([*positional, *arguments.kwonlyargs], defaults, strict=True):
        annotation = "Any" if arg.annotation is None else ast.unparse(arg.annotation)
        yield Parameter(arg.arg, annotation, default is None, module)


def _of_class(module: Module, node: ast.ClassDef) -> Signature:
    """Parameters of `__init__`, its own or inherited, or the fields of a dataclass."""
    for member in node.body:
        if isinstance(member, ast.FunctionDef) and member.name == "__init__":
            known = _of_function(module, member)
            return Signature(known.parameters[1:], takes_any=known.takes_any)  # without `self`
    bases = [_of_base(module, base) for base in node.bases]
    takes_any = any(base.takes_any for base in bases)
    decorators = [d.func if isinstance(d, ast.Call) else d for d in node.decorator_list]
    if DATACLASS not in map(module.dotted, decorators):
        parameters = next((base.parameters for base in bases if base.parameters), ())
        return Signature(parameters, takes_any=takes_any or bool(decorators or node.keywords))
    of_bases = {parameter.name: parameter for base in reversed(bases) for parameter in base.parameters}
    fields = of_bases | dict(_fields(module, node))
    return Signature(tuple(field for field in fields.values() if field is not None), takes_any=takes_any)


def _of_base(module: Module, base: ast.expr) -> Signature:
    plain = base.value if isinstance(base, ast.Subscript) else base  # Generic[T]
    name = module.dotted(plain)
    if name in WITHOUT_INIT or ast.unparse(plain) == "object":
        return Signature(())
    return UNKNOWN if name is None else signature(name)


def _fields(module: Module, node: ast.ClassDef) -> Iterator[tuple[str, Parameter | None]]:
    """The fields of a dataclass by name; None for one that is no parameter, also if a base has one of that name."""
    for statement in node.body:
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        annotation = ast.unparse(statement.annotation)
        required = statement.value is None
        if isinstance(statement.value, ast.Call) and module.dotted(statement.value.func) == FIELD:
            options = {keyword.arg: ast.unparse(keyword.value) for keyword in statement.value.keywords}
            if options.get("init") == "False":
                yield statement.target.id, None
                continue
            required = not options.keys() & {"default", "default_factory"}
        if "ClassVar" not in annotation:
            yield statement.target.id, Parameter(statement.target.id, annotation, required, module)


def _of_partial(module: Module, node: ast.Assign | ast.AnnAssign) -> Signature:
    """`mine = functools.partial(other, 1, knob=2)`: positional arguments remove parameters, named ones are defaults."""
    call = node.value
    if not isinstance(call, ast.Call) or module.dotted(call.func) != PARTIAL:
        return UNKNOWN
    name = module.dotted(call.args[0])
    named = {keyword.arg for keyword in call.keywords}
    if name is None or None in named or any(isinstance(argument, ast.Starred) for argument in call.args):
        return UNKNOWN
    inner = signature(name)
    remaining = inner.parameters[len(call.args) - 1 :]
    return replace(inner, parameters=tuple(replace(p, required=p.required and p.name not in named) for p in remaining))


# --- the type of an annotation


def _evaluated(annotation: str, module: Module) -> Any:
    """The type that an annotation of a module means. Raises NameError if it names a class that is not known here."""
    return eval(annotation, {}, _Names(module))  # text of the component's source, which is executed anyway


class _Names(dict[str, Any]):
    """The names that annotations of a module may use: types of libraries, and the module's own aliases of types."""

    def __init__(self, module: Module) -> None:
        super().__init__()
        self.module = module

    def __missing__(self, name: str) -> Any:
        dotted = self.module.dotted(ast.Name(name))
        if dotted is None:
            raise KeyError(name)  # a builtin
        top = dotted.split(".")[0]
        if top in LIBRARIES_OF_TYPES:
            module, _, attribute = dotted.rpartition(".")
            return getattr(importlib.import_module(module), attribute) if module else importlib.import_module(dotted)
        defined = definition(dotted) if top in ("rlvr", self.module.name.split(".")[0]) else None
        if defined is None or not isinstance(defined.node, ast.Assign | ast.AnnAssign) or defined.node.value is None:
            raise NameError(name)
        return _evaluated(ast.unparse(defined.node.value), defined.module)
