"""Check a component's knobs against the signature of its `_target_`, read from source: nothing is imported."""

from __future__ import annotations

import ast
import difflib
import functools
import importlib.util
import typing
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

# Arguments that rlvr/job passes: no YAML gives them.
PROVIDED = {
    "rollout.engine": {"model", "device", "eos_token_ids", "pad_token_id"},
    "model": {"task", "store"},
    "loss": {"policy", "batch"},
    "hydra.sweeper.sampler": {"asked"},
    "divergence": {"log_ratio", "a"},
    "advantage": {"reward", "group", "mask", "logp_old", "value", "entropy"},
}


@dataclass(frozen=True)
class Parameter:
    name: str
    annotation: str
    required: bool


def signature(target: str) -> list[Parameter]:
    """Parameters of a function or class named by its import path, without importing its module.

    Raises ValueError if there is no such module or name.
    """
    body, node = _definition(target)
    # `Ratio = Literal[...]` of the same module stands for its value.
    aliases = {
        t.id: ast.unparse(n.value)
        for n in body
        if isinstance(n, ast.Assign)
        for t in n.targets
        if isinstance(t, ast.Name)
    }
    if isinstance(node, ast.ClassDef):
        inits = [n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"]
        if not inits:
            return [_field(n) for n in node.body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)]
        node = inits[0]
    found = [p for p in _parameters(node) if p.name != "self"]
    return [replace(p, annotation=aliases.get(p.annotation, p.annotation)) for p in found]


@functools.cache
def declared(target: str) -> frozenset[str]:
    """What a component says of itself in source: of a function its bare decorators and the words of its `@needs(...)`,
    of a class the methods it defines, the attributes it sets in its body, and these again as `name = value`. Raises
    ValueError as `signature` does.
    """
    _, node = _definition(target)
    if isinstance(node, ast.ClassDef):
        methods = {n.name for n in node.body if isinstance(n, ast.FunctionDef)}
        assignments = [n for n in node.body if isinstance(n, ast.Assign)]
        names = {ast.unparse(t) for n in assignments for t in n.targets}
        return frozenset(methods | names | {ast.unparse(n) for n in assignments})
    bare = {d.id for d in node.decorator_list if isinstance(d, ast.Name)}
    calls = [d for d in node.decorator_list if isinstance(d, ast.Call) and ast.unparse(d.func) == "needs"]
    return frozenset(bare | {str(a.value) for d in calls for a in d.args if isinstance(a, ast.Constant)})


@functools.cache  # every point of a sweep asks again
def _definition(target: str) -> tuple[list[ast.stmt], ast.FunctionDef | ast.ClassDef]:
    """(statements of the module, the one that defines the function or class)."""
    module, _, name = target.rpartition(".")
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise ValueError(f"_target_: {target}: no module {module}")
    body = ast.parse(Path(spec.origin).read_text()).body
    node = next((n for n in body if isinstance(n, ast.FunctionDef | ast.ClassDef) and n.name == name), None)
    if node is None:
        raise ValueError(f"_target_: {target}: {module} defines no {name}")
    return body, node


def _field(node: ast.AnnAssign) -> Parameter:
    assert isinstance(node.target, ast.Name)
    return Parameter(node.target.id, ast.unparse(node.annotation), node.value is None)


def _parameters(node: ast.FunctionDef) -> Iterator[Parameter]:
    positional = [*node.args.posonlyargs, *node.args.args]
    first_default = len(positional) - len(node.args.defaults)
    for index, arg in enumerate(positional):
        yield Parameter(arg.arg, ast.unparse(arg.annotation) if arg.annotation else "Any", index < first_default)
    for arg, default in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True):
        yield Parameter(arg.arg, ast.unparse(arg.annotation) if arg.annotation else "Any", default is None)


def components(config: DictConfig, section: str) -> Iterator[tuple[str, DictConfig]]:
    """(dotted path, node) of every node of a top-level key that has a `_target_`."""

    def walk(path: str, node: object) -> Iterator[tuple[str, DictConfig]]:
        if isinstance(node, DictConfig):
            if node.get("_target_"):
                yield path, node
            for key in node:
                # A component given by interpolation (loss.divergence) is checked where it stands.
                if not OmegaConf.is_missing(node, key) and not OmegaConf.is_interpolation(node, str(key)):
                    yield from walk(f"{path}.{key}", node[key])

    if OmegaConf.is_missing(config, section) or OmegaConf.is_interpolation(config, section):
        return iter(())
    return walk(section, config[section])


def bind(path: str, node: DictConfig) -> None:
    """Check a component's knobs against its signature: names, presence, types. Raises ValueError."""
    parameters = {p.name: p for p in signature(node["_target_"])}
    provided = PROVIDED.get(path, set[str]())
    knobs = {p for p in parameters if p not in provided}
    for key in node:
        if str(key) in {"_target_", "_partial_", "_convert_"}:
            continue
        if key not in knobs:
            raise ValueError(
                f"{path}.{key} is unknown: {path} takes {', '.join(sorted(knobs))}.{close_match(str(key), knobs)}"
            )
        if OmegaConf.is_missing(node, key):
            raise ValueError(f"{path}.{key} has no value: pass {path}.{key}=...")
        _check_type(f"{path}.{key}", parameters[str(key)].annotation, node[key])
    missing = [p.name for p in parameters.values() if p.required and p.name in knobs and p.name not in node]
    if missing:
        raise ValueError(f"{path} needs {', '.join(missing)}: pass {path}.{missing[0]}=...")


_TYPES: dict[str, object] = {
    "Any": Any,
    "Literal": typing.Literal,
    "Path": Path,
    "Sequence": Sequence,
    "Mapping": Mapping,
}


@functools.cache
def _wanted(annotation: str) -> Any:
    """What validates values of an annotation; None for a type of the component's own, built from a nested component."""
    from pydantic import TypeAdapter

    try:
        return TypeAdapter(eval(annotation, dict(_TYPES)))  # our own source, not input
    except NameError:
        return None


def _check_type(key: str, annotation: str, value: object) -> None:
    from pydantic import ValidationError

    wanted = _wanted(annotation)
    if wanted is None:
        return
    plain = OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
    try:
        wanted.validate_python(plain)
    except ValidationError as error:
        raise ValueError(f"{key}={plain}: {error.errors()[0]['msg']}; {annotation} is expected.") from None


def close_match(key: str, known: Collection[str]) -> str:
    near = difflib.get_close_matches(key, list(known), n=1)
    return f" Did you mean {near[0]}?" if near else ""
