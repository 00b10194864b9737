"""A component's parameters and declarations, read from the source of its `_target_`, else by a process that imports it.

`python -m rlvr.config.signature` is that process: it reads a JSON object from standard input and prints another.
"""

from __future__ import annotations

import ast
import copy
import functools
import importlib
import inspect
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from rlvr.config import definition as source
from rlvr.config.definition import Definition, Unclear, definition
from rlvr.config.imports import add_import_paths, child_environment, own_entries, python_command, refuse_hidden

# Decorators that do not change a function's parameters -> the mark that each of them sets.
MARKS = {
    "rlvr.objective.batch.binary_rewards": "binary_rewards",
    "rlvr.objective.batch.one_token_responses": "one_token_responses",
    "rlvr.objective.batch.per_response": "per_response",
    "rlvr.objective.batch.compares_responses": "compares_responses",
    "rlvr.objective.batch.uses_equal_groups": "uses_equal_groups",
    "rlvr.objective.batch.whole_groups": "whole_groups",
    "rlvr.model.native_only": "native_only",
}
NEEDS, FIRST_PASS, PARTIAL = "rlvr.objective.batch.needs", "rlvr.objective.batch.first_pass", "functools.partial"
DATACLASS, FIELD = "dataclasses.dataclass", "dataclasses.field"
LIBRARIES_OF_TYPES = ("typing", "collections", "pathlib", "pydantic", "annotated_types")
WITHOUT_INIT = ("typing.Protocol", "typing.Generic", "abc.ABC")


@dataclass(frozen=True)
class Parameter:
    name: str
    annotation: str
    required: bool


@dataclass(frozen=True)
class Signature:
    """Parameters of a function or class, and what it declares: words of `@needs(...)` and names of its marks."""

    parameters: tuple[Parameter, ...]
    declared: frozenset[str] = frozenset()
    takes_any: bool = False  # it has `**knobs`: any other name is accepted too


@functools.cache  # called for every point of a sweep
def signature(target: str) -> Signature:
    """The signature of a function or class by its import path.

    Raises ValueError if it does not exist, if its module cannot be imported, or if Python finds another module first.
    """
    try:
        return _from_source_or_import(target)
    except ValueError:
        refuse_hidden(target.split(".")[0], own_entries())  # then this is the reason
        raise


def _from_source_or_import(target: str) -> Signature:
    try:
        return _from_source(definition(target))
    except Unclear:
        return _from_import(target)


def declared(target: str) -> frozenset[str]:
    return signature(target).declared


def has_terms_per_response(loss: Mapping[Any, Any]) -> bool:
    """Whether a loss has one term per response: by its mark, or by LAD's knob `ratio`."""
    return "per_response" in declared(loss["_target_"]) or loss.get("ratio") in ("sequence", "sequence_geomean")


def clear_caches() -> None:
    """Clear all caches of sources: in a notebook, files change between two commands."""
    signature.cache_clear()
    source.read.cache_clear()
    importlib.invalidate_caches()


# --- from source


def _from_source(defined: Definition) -> Signature:
    node = defined.node
    if isinstance(node, ast.FunctionDef):
        return _of_function(defined, node)
    if isinstance(node, ast.ClassDef):
        return replace(_of_class(defined, node), declared=frozenset())
    return _of_partial(defined, node)


def _of_function(defined: Definition, node: ast.FunctionDef) -> Signature:
    marks = frozenset[str]().union(*(_marks(defined, decorator) for decorator in node.decorator_list))
    parameters = tuple(_without_aliases(defined, parameter) for parameter in _parameters(node))
    return Signature(parameters, marks, takes_any=node.args.kwarg is not None)


def _marks(defined: Definition, decorator: ast.expr) -> frozenset[str]:
    """What a decorator declares of a function. Raises Unclear for a foreign one: it may change the parameters."""
    name = defined.module.dotted(decorator)
    if name in MARKS:
        return frozenset({MARKS[name]})
    called = defined.module.dotted(decorator.func) if isinstance(decorator, ast.Call) else None
    if not isinstance(decorator, ast.Call) or called not in (NEEDS, FIRST_PASS):
        raise Unclear
    if called == NEEDS:
        words = [argument.value for argument in decorator.args if isinstance(argument, ast.Constant)]
        if len(words) != len(decorator.args):
            raise Unclear
        return frozenset(map(str, words))
    first_pass = defined.module.dotted(decorator.args[0])
    if first_pass is None:
        raise Unclear
    return signature(first_pass).declared | {"first_pass"}  # a loss is given what its first pass needs


def _parameters(node: ast.FunctionDef) -> Iterator[Parameter]:
    positional = [*node.args.posonlyargs, *node.args.args]
    first_default = len(positional) - len(node.args.defaults)
    for index, arg in enumerate(positional):
        yield Parameter(arg.arg, _text(arg.annotation), index < first_default)
    for arg, default in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True):
        yield Parameter(arg.arg, _text(arg.annotation), default is None)


def _text(annotation: ast.expr | None) -> str:
    return "Any" if annotation is None else ast.unparse(annotation)


def _without_aliases(defined: Definition, parameter: Parameter) -> Parameter:
    """A parameter whose annotation has no aliases: `Ratio | None` becomes `Literal[...] | None`.

    The alias may be defined in the component's module or imported into it.
    """
    try:
        annotation = ast.parse(parameter.annotation, mode="eval")
    except SyntaxError:
        return parameter
    return replace(parameter, annotation=ast.unparse(_AliasResolver(defined.module).visit(annotation)))


class _AliasResolver(ast.NodeTransformer):
    """Replaces aliases in an annotation by their values, and imported types by their names in `values.VOCABULARY`."""

    def __init__(self, module: source.Module) -> None:
        self.module = module

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self._resolved(node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        return self._resolved(node)

    def _resolved(self, node: ast.expr) -> ast.expr:
        dotted = self.module.dotted(node)
        if dotted is None:
            return node
        if dotted.split(".")[0] in LIBRARIES_OF_TYPES:
            return ast.Name(dotted.rpartition(".")[2])
        if dotted.split(".")[0] not in ("rlvr", self.module.name.split(".")[0]):  # a library's type, such as torch's
            return node
        try:
            alias = definition(dotted)
        except (Unclear, ValueError):
            return node
        if not isinstance(alias.node, ast.Assign | ast.AnnAssign) or alias.node.value is None:
            return node
        return _AliasResolver(alias.module).visit(copy.deepcopy(alias.node.value))


def _of_class(defined: Definition, node: ast.ClassDef) -> Signature:
    """Parameters of `__init__`, its own or inherited, or the fields of a dataclass."""
    bound = {name: statement for statement in node.body for name in source.names_bound(statement)}
    init = bound.get("__init__")
    if node.keywords or "__new__" in bound or (init is not None and not isinstance(init, ast.FunctionDef)):
        raise Unclear
    if init is not None:
        of_init = _of_function(defined, init)
        return replace(of_init, parameters=of_init.parameters[1:])  # without `self`
    decorators = [d.func if isinstance(d, ast.Call) else d for d in node.decorator_list]
    bases = [_of_class(base, base.node) for base in _bases(defined, node) if isinstance(base.node, ast.ClassDef)]
    if not decorators:
        return next((base for base in bases if base.parameters), Signature(()))
    if [defined.module.dotted(decorator) for decorator in decorators] != [DATACLASS]:
        raise Unclear
    fields = {parameter.name: parameter for base in reversed(bases) for parameter in base.parameters}
    fields |= {parameter.name: _without_aliases(defined, parameter) for parameter in _fields(defined, node)}
    return Signature(tuple(fields.values()))


def _bases(defined: Definition, node: ast.ClassDef) -> Iterator[Definition]:
    for base in node.bases:
        plain = base.value if isinstance(base, ast.Subscript) else base  # Generic[T]
        name = defined.module.dotted(plain)
        if name in WITHOUT_INIT or ast.unparse(plain) == "object":
            continue
        if name is None:
            raise Unclear
        yield definition(name)


def _fields(defined: Definition, node: ast.ClassDef) -> Iterator[Parameter]:
    for statement in node.body:
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        if "ClassVar" in ast.unparse(statement.annotation):
            continue
        required = statement.value is None
        if isinstance(statement.value, ast.Call) and defined.module.dotted(statement.value.func) == FIELD:
            options = {keyword.arg: ast.unparse(keyword.value) for keyword in statement.value.keywords}
            if options.get("init") == "False":
                continue
            required = not options.keys() & {"default", "default_factory"}
        yield Parameter(statement.target.id, ast.unparse(statement.annotation), required)


def _of_partial(defined: Definition, node: ast.Assign | ast.AnnAssign) -> Signature:
    """`mine = functools.partial(other, 1, knob=2)`: positional arguments remove parameters, named ones are defaults."""
    call = node.value
    if not isinstance(call, ast.Call) or defined.module.dotted(call.func) != PARTIAL:
        raise Unclear
    function, *positional = call.args
    name = defined.module.dotted(function)
    is_spread = any(isinstance(p, ast.Starred) for p in positional) or any(k.arg is None for k in call.keywords)
    if name is None or is_spread:
        raise Unclear
    inner = signature(name)
    named = {keyword.arg for keyword in call.keywords}
    remaining = inner.parameters[len(positional) :]
    return replace(inner, parameters=tuple(replace(p, required=p.required and p.name not in named) for p in remaining))


# --- from the component itself


def _from_import(target: str) -> Signature:
    """The signature that a process finds by importing the module: slower, but right for any source."""
    module, _, name = target.rpartition(".")
    if module in sys.modules:
        if not hasattr(sys.modules[module], name):
            file = getattr(sys.modules[module], "__file__", "built in")
            raise ValueError(f"_target_: {target}: {module} ({file}) defines no {name}")
        return _inspected(target)
    request = json.dumps({"target": target, "path": sys.path})
    command = python_command("-m", "rlvr.config.signature")
    child = subprocess.run(command, input=request, capture_output=True, text=True, env=child_environment(), check=False)
    if child.returncode:
        lines = [line for line in child.stderr.splitlines() if line.strip()]
        exited = f"_target_: {target}: importing it ends Python with exit code {child.returncode}"
        raise ValueError(lines[-1] if lines else exited)
    return _from_plain(json.loads(child.stdout.splitlines()[-1]))


def _inspected(target: str) -> Signature:
    from hydra.utils import get_object

    component = get_object(target)
    parameters = inspect.signature(component).parameters.values()
    named = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    return Signature(
        tuple(_inspected_parameter(parameter, component) for parameter in named),
        frozenset(_declared_by(component)),
        takes_any=any(p.kind is p.VAR_KEYWORD for p in parameters),
    )


def _inspected_parameter(parameter: inspect.Parameter, component: Any) -> Parameter:
    annotation = _evaluated(parameter.annotation, component)
    if not isinstance(annotation, str):
        annotation = "Any" if annotation is parameter.empty else inspect.formatannotation(annotation)
    annotation = re.sub(rf"\b(?:{'|'.join(LIBRARIES_OF_TYPES)})\.(?:\w+\.)*", "", annotation)
    return Parameter(parameter.name, annotation, parameter.default is parameter.empty)


def _evaluated(annotation: Any, component: Any) -> Any:
    """The value of an annotation that is text; the text itself if it names a class or cannot be evaluated."""
    while isinstance(component, functools.partial):
        component = component.func
    if not isinstance(annotation, str):
        return annotation
    try:
        value = eval(annotation, vars(sys.modules[component.__module__]))
    except (NameError, AttributeError, TypeError, KeyError, SyntaxError):
        return annotation
    return annotation if isinstance(value, type) else value


def _declared_by(component: Any) -> Iterable[str]:
    while isinstance(component, functools.partial):
        component = component.func
    first_pass = getattr(component, "first_pass", None)
    words = [*getattr(component, "needs", ()), *getattr(component, "marks", ())]
    return [*words, *(_declared_by(first_pass) if first_pass is not None else ())]


def _from_plain(plain: Mapping[str, Any]) -> Signature:
    parameters = tuple(Parameter(**fields) for fields in plain["parameters"])
    return Signature(parameters, frozenset(plain["declared"]), takes_any=plain["takes_any"])


def _main() -> int:
    """The child process. What the module prints goes to standard error, so that standard output holds only JSON."""
    request = json.loads(sys.stdin.read())
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    add_import_paths(request["path"])
    try:
        inspected = _inspected(request["target"])
    except Exception as error:  # noqa: BLE001 - a user's module may raise anything; it is reported in one line
        print(f"_target_: {request['target']}: {type(error).__name__}: {error}".replace("\n", " "), file=sys.stderr)
        return 1
    print(json.dumps({**asdict(inspected), "declared": sorted(inspected.declared)}), file=output)
    return 0


if __name__ == "__main__":
    sys.exit(_main())
