"""What a component takes and declares: read from the source of its `_target_`, else asked of a process that imports it.

`python -m rlvr.config.signature` is that process: a JSON object comes in on standard input, another goes out.
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
from rlvr.config.imports import environment, extend, python

# Decorators that leave the parameters of what they decorate alone, and the mark that each of them leaves.
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
    """Parameters of a function or class, and what it declares: the words of `@needs(...)`, and marks by name."""

    parameters: tuple[Parameter, ...]
    declared: frozenset[str] = frozenset()
    takes_any: bool = False  # **knobs: any other name too


@functools.cache  # every point of a sweep asks again
def signature(target: str) -> Signature:
    """Of a function or class named by its import path. Raises ValueError if there is none, or its module fails."""
    try:
        return _of(definition(target))
    except Unclear:
        return _asked(target)


def declared(target: str) -> frozenset[str]:
    return signature(target).declared


def forget() -> None:
    """Read all sources anew: a notebook's files change between two commands."""
    signature.cache_clear()
    source.read.cache_clear()
    importlib.invalidate_caches()


# --- from source


def _of(defined: Definition) -> Signature:
    node = defined.node
    if isinstance(node, ast.FunctionDef):
        return _of_function(defined, node)
    if isinstance(node, ast.ClassDef):
        return replace(_of_class(defined, node), declared=frozenset())
    return _of_partial(defined, node)


def _of_function(defined: Definition, node: ast.FunctionDef) -> Signature:
    marks = frozenset[str]().union(*(_marks(defined, each) for each in node.decorator_list))
    parameters = tuple(_named(defined, each) for each in _parameters(node))
    return Signature(parameters, marks, takes_any=node.args.kwarg is not None)


def _marks(defined: Definition, decorator: ast.expr) -> frozenset[str]:
    """What a decorator says of a function. Unclear for one that is not ours: it may change the parameters."""
    name = defined.module.dotted(decorator)
    if name in MARKS:
        return frozenset({MARKS[name]})
    called = defined.module.dotted(decorator.func) if isinstance(decorator, ast.Call) else None
    if not isinstance(decorator, ast.Call) or called not in (NEEDS, FIRST_PASS):
        raise Unclear
    if called == NEEDS:
        words = [each.value for each in decorator.args if isinstance(each, ast.Constant)]
        if len(words) != len(decorator.args):
            raise Unclear
        return frozenset(map(str, words))
    before = defined.module.dotted(decorator.args[0])
    if before is None:
        raise Unclear
    return signature(before).declared  # what its first pass needs, the loss is given too


def _parameters(node: ast.FunctionDef) -> Iterator[Parameter]:
    positional = [*node.args.posonlyargs, *node.args.args]
    first_default = len(positional) - len(node.args.defaults)
    for index, arg in enumerate(positional):
        yield Parameter(arg.arg, _text(arg.annotation), index < first_default)
    for arg, default in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True):
        yield Parameter(arg.arg, _text(arg.annotation), default is None)


def _text(annotation: ast.expr | None) -> str:
    return "Any" if annotation is None else ast.unparse(annotation)


def _named(defined: Definition, parameter: Parameter) -> Parameter:
    """`ratio: Ratio | None` with `Ratio = Literal[...]`, here or where it is imported from, is of that value's type."""
    try:
        written = ast.parse(parameter.annotation, mode="eval")
    except SyntaxError:
        return parameter
    return replace(parameter, annotation=ast.unparse(_InWordsOfTypes(defined.module).visit(written)))


class _InWordsOfTypes(ast.NodeTransformer):
    """An annotation as the module means it: aliases by what they stand for, names of `values.VOCABULARY` as there."""

    def __init__(self, module: source.Module) -> None:
        self.module = module

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self._meant(node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        return self._meant(node)

    def _meant(self, node: ast.expr) -> ast.expr:
        dotted = self.module.dotted(node)
        if dotted is None:
            return node
        if dotted.split(".")[0] in LIBRARIES_OF_TYPES:
            return ast.Name(dotted.rpartition(".")[2])
        if dotted.split(".")[0] not in ("rlvr", self.module.name.split(".")[0]):  # torch's own types are none of these
            return node
        try:
            named = definition(dotted)
        except (Unclear, ValueError):
            return node
        if not isinstance(named.node, ast.Assign | ast.AnnAssign) or named.node.value is None:
            return node
        return _InWordsOfTypes(named.module).visit(copy.deepcopy(named.node.value))


def _of_class(defined: Definition, node: ast.ClassDef) -> Signature:
    """Parameters of `__init__`, its own or inherited, or the fields of a dataclass."""
    bound = {name: each for each in node.body for name in source.names_bound(each)}
    init = bound.get("__init__")
    if node.keywords or "__new__" in bound or (init is not None and not isinstance(init, ast.FunctionDef)):
        raise Unclear
    if init is not None:
        own = _of_function(defined, init)
        return replace(own, parameters=own.parameters[1:])
    decorators = [each.func if isinstance(each, ast.Call) else each for each in node.decorator_list]
    bases = [_of_class(base, base.node) for base in _bases(defined, node) if isinstance(base.node, ast.ClassDef)]
    if not decorators:
        return next((base for base in bases if base.parameters), Signature(()))
    if [defined.module.dotted(each) for each in decorators] != [DATACLASS]:
        raise Unclear
    fields = {each.name: each for base in reversed(bases) for each in base.parameters}
    fields |= {each.name: _named(defined, each) for each in _fields(defined, node)}
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
    for each in node.body:
        if not isinstance(each, ast.AnnAssign) or not isinstance(each.target, ast.Name):
            continue
        if "ClassVar" in ast.unparse(each.annotation):
            continue
        required = each.value is None
        if isinstance(each.value, ast.Call) and defined.module.dotted(each.value.func) == FIELD:
            options = {keyword.arg: ast.unparse(keyword.value) for keyword in each.value.keywords}
            if options.get("init") == "False":
                continue
            required = not options.keys() & {"default", "default_factory"}
        yield Parameter(each.target.id, ast.unparse(each.annotation), required)


def _of_partial(defined: Definition, node: ast.Assign | ast.AnnAssign) -> Signature:
    """`mine = functools.partial(other, 1, knob=2)`: what is given by position is gone, what is given by name is set."""
    call = node.value
    if not isinstance(call, ast.Call) or defined.module.dotted(call.func) != PARTIAL:
        raise Unclear
    function, *given = call.args
    name = defined.module.dotted(function)
    is_spread = any(isinstance(each, ast.Starred) for each in given) or any(k.arg is None for k in call.keywords)
    if name is None or is_spread:
        raise Unclear
    inner = signature(name)
    by_name = {keyword.arg for keyword in call.keywords}
    left = inner.parameters[len(given) :]
    return replace(inner, parameters=tuple(replace(p, required=p.required and p.name not in by_name) for p in left))


# --- from the component itself


def _asked(target: str) -> Signature:
    """Of what a process that imports the module finds: slower, and right whatever the source does."""
    module = target.rpartition(".")[0]
    if module in sys.modules:
        return _inspected(target)
    request = json.dumps({"target": target, "path": sys.path})
    command = python("-m", "rlvr.config.signature")
    done = subprocess.run(command, input=request, capture_output=True, text=True, env=environment(), check=False)
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.strip()]
        raise ValueError(said[-1] if said else f"_target_: {target}: to import it ends Python, code {done.returncode}")
    return _from_plain(json.loads(done.stdout.splitlines()[-1]))


def _inspected(target: str) -> Signature:
    from hydra.utils import get_object

    component = get_object(target)
    parameters = inspect.signature(component).parameters.values()
    named = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    return Signature(
        tuple(_inspected_parameter(each, component) for each in named),
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
    """An annotation that is text as the type that it means, where that is not one of the component's own."""
    while isinstance(component, functools.partial):
        component = component.func
    if not isinstance(annotation, str):
        return annotation
    try:
        meant = eval(annotation, vars(sys.modules[component.__module__]))
    except (NameError, AttributeError, TypeError, KeyError, SyntaxError):
        return annotation
    return annotation if isinstance(meant, type) else meant


def _declared_by(component: Any) -> Iterable[str]:
    while isinstance(component, functools.partial):
        component = component.func
    before = getattr(component, "first_pass", None)
    own = [*getattr(component, "needs", ()), *getattr(component, "marks", ())]
    return [*own, *(_declared_by(before) if before is not None else ())]


def _from_plain(plain: Mapping[str, Any]) -> Signature:
    parameters = tuple(Parameter(**each) for each in plain["parameters"])
    return Signature(parameters, frozenset(plain["declared"]), takes_any=plain["takes_any"])


def _answer() -> int:
    """The child's side. What the module prints goes to standard error."""
    request = json.loads(sys.stdin.read())
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    extend(request["path"])
    try:
        found = _inspected(request["target"])
    except Exception as error:  # noqa: BLE001 - of somebody else's module: whatever it is, it is told in one line
        print(f"_target_: {request['target']}: {type(error).__name__}: {error}".replace("\n", " "), file=sys.stderr)
        return 1
    print(json.dumps({**asdict(found), "declared": sorted(found.declared)}), file=answers)
    return 0


if __name__ == "__main__":
    sys.exit(_answer())
