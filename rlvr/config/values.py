"""Checks that a knob's value has its type, is finite and in range; the same for the schema and for all components.

Ranges are part of a parameter's annotation, with names of pydantic and annotated_types: `lr: PositiveFloat`,
`share: Annotated[float, Interval(ge=0, le=1)]`. A text in the annotation describes the value: "a share of lr".
"""

import functools
import json
import math
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin

import pydantic

LARGEST = 2**63  # all signed integers of 64 bits are below it
FLOAT32 = (1.2e-38, 3.4e38)  # its smallest and largest normal numbers: objectives are computed in float32

NOUNS: Mapping[object, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    Path: "a path",
    type(None): "null",
    **dict.fromkeys((list, tuple, Sequence), "a list"),
    **dict.fromkeys((dict, Mapping), "a mapping {name: value}"),
}


def checkable(evaluate: Callable[[], Any]) -> Any:
    """The type that an annotation evaluates to; None if that fails, or if its values are no plain data."""
    try:
        kind = evaluate()
        _validator(kind)
    except (NameError, AttributeError, TypeError, ValueError, SyntaxError, pydantic.PydanticUserError):
        return None
    return kind if _is_data(kind) else None


def _is_data(kind: Any) -> bool:
    if get_origin(kind) is Literal or kind in (Any, Ellipsis):
        return True
    if get_origin(kind) is Annotated:
        return _is_data(get_args(kind)[0])
    return (get_origin(kind) or kind) in (*NOUNS, Union, types.UnionType) and all(map(_is_data, get_args(kind)))


@functools.cache
def types_of(schema: type, prefix: str = "") -> dict[str, Any]:
    """Dotted key -> type, of all values of a dataclass and of nested ones. `Any` is left out: components have a schema
    of their own.
    """
    types_by_key: dict[str, Any] = {}
    for name, kind in typing.get_type_hints(schema, include_extras=True).items():
        if is_dataclass(kind):
            types_by_key |= types_of(cast("type", kind), f"{prefix}{name}.")
        elif kind is not Any:
            types_by_key[prefix + name] = _literal(kind)
    return types_by_key


def _literal(kind: Any) -> Any:
    """`Annotated[str, Literal["a", "b"]]`, which OmegaConf takes for a text, as its literals."""
    if get_origin(kind) in (Union, types.UnionType):
        return Union[tuple(map(_literal, get_args(kind)))]  # noqa: UP007 - of types that are known at run time
    return next((of for of in getattr(kind, "__metadata__", ()) if get_origin(of) is Literal), kind)


@functools.cache
def sections_of(schema: type, prefix: str = "") -> dict[str, frozenset[str]]:
    """Dotted key -> names of the fields, of a dataclass (key "") and of nested ones."""
    kinds = typing.get_type_hints(schema)
    names_by_section = {prefix: frozenset(kinds)}
    for name, kind in kinds.items():
        if is_dataclass(kind):
            names_by_section |= sections_of(cast("type", kind), f"{prefix}.{name}".lstrip("."))
    return names_by_section


def value_at(plain: Mapping[str, Any], key: str) -> Any:
    """The value of a plain config at a dotted key."""
    node: Any = plain
    for name in key.split(".") if key else ():
        node = node[name]
    return node


def leaves(node: object, place: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], object]]:
    """(place, value) of each value in a config that is no mapping or list. A place: names and indices on the way."""
    if isinstance(node, Mapping | list | tuple):
        inner = cast("Mapping[Any, object] | Sequence[object]", node)
        for name, below in inner.items() if isinstance(inner, Mapping) else enumerate(inner):
            yield from leaves(below, (*place, name))
    else:
        yield place, node


def check(key: str, value: object, kind: Any, usual: Callable[[str], object] = lambda _: None) -> None:
    """Raises ValueError for a plain value that is not of its type. usual: returns a knob's default, as an example."""
    if not _fits(value, kind):
        raise ValueError(refusal(key, value, kind, usual(key)))


def check_finite(plain: Mapping[str, Any]) -> None:
    """Raises ValueError for numbers that are not finite, integers beyond 64 bits and floats beyond float32."""
    for place, value in leaves(plain):
        if not isinstance(value, int | float):
            continue
        key = ".".join(name for name in place if isinstance(name, str))
        if isinstance(value, int) and not -LARGEST <= value < LARGEST:
            raise ValueError(f"{key}={value} must be less than 2^63: numbers have 64 bits.")
        if not math.isfinite(value):
            raise ValueError(f"{key}={value} must be a finite number.")
        if value == 0 and math.copysign(1, value) < 0:
            raise ValueError(f"{key}={value} is 0, and would be another run than {key}=0. Type {key}=0.")
        if isinstance(value, float) and value and not FLOAT32[0] < abs(value) < FLOAT32[1]:
            raise ValueError(f"{key}={value} must be 0, or of a size from {FLOAT32[0]} to {FLOAT32[1]}: a float32.")


def refusal(key: str, value: object, kind: Any, usual: object = None) -> str:
    """Message for a value that is not of its type: what came, what is allowed, what to type."""
    missed_range, advice, assignment = _range_missed(value, kind), _example(key, kind, usual), f"{key}={typed(value)}"
    if missed_range:
        return f"{assignment} must be {missed_range}.{advice}"
    expectation = expected(kind)
    if isinstance(value, float) and not math.isfinite(value):
        expectation = expectation.replace("a number", "a finite number")
    return f"{assignment}: {expectation}.{advice}"


def not_read(key: str, text: str, kind: Any, usual: object = None) -> str:
    """Message for a typed text that cannot be read as its type."""
    return f"{key}={text}: {expected(kind)}.{_example(key, kind, usual)}"


def _example(key: str, kind: Any, usual: object) -> str:
    return f" Type {key}={typed(usual)}, for example." if usual is not None and _fits(usual, kind) else ""


def typed(value: object) -> str:
    """A value as it is typed on the command line."""
    if isinstance(value, Mapping):
        entries = cast("Mapping[object, object]", value).items()
        return "{" + ",".join(f"{key}:{typed(entry)}" for key, entry in entries) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(typed, cast("Sequence[object]", value))) + "]"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return f"'{value}'" if isinstance(value, str) and _is_number(value) else str(value)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def expected(kind: Any) -> str:
    """The values of a type, in words: `a number is expected, greater than 0, or null`."""
    members = [member for member in _members(kind) if member is not type(None)]
    parts = [f"{_either([_noun(member) for member in members])} is expected"]
    if len(members) == 1 and (bounds := _bounds(members[0])):
        parts.append(bounds)
    if len(members) < len(_members(kind)):
        parts.append("or null")
    return ", ".join(parts)


def _members(kind: Any) -> Sequence[Any]:
    return get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)


def _noun(kind: Any) -> str:
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _noun(inner[0])
    if origin is Literal:
        return _either([typed(value) for value in inner])
    if origin is tuple and Ellipsis not in inner:
        return f"a list of {len(inner)}"
    if origin in (list, tuple, Sequence):
        return "a list"
    return NOUNS.get(origin or kind, "another type")


def _either(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _bounds(kind: Any) -> str:
    """What a type requires of a value beyond its plain type, in words."""
    if get_origin(kind) in (list, tuple, Sequence) and get_args(kind):
        item = get_args(kind)[0]
        bounds = _bounds(item)
        return f"each {_noun(item)}{', ' if bounds else ''}{bounds}"
    if get_origin(kind) is not Annotated:
        return ""
    limits: dict[str, object] = {}
    words: list[str] = []
    for constraint in _metadata(kind):
        if isinstance(constraint, str):
            words.append(constraint)
        for name in ("gt", "ge", "lt", "le", "multiple_of"):
            if getattr(constraint, name, None) is not None:
                limits[name] = getattr(constraint, name)
    return ", ".join([*words, *_range(limits)])


def _metadata(kind: Any) -> Iterator[object]:
    for constraint in getattr(kind, "__metadata__", ()):
        yield constraint
        yield from getattr(constraint, "metadata", ())  # constraints in pydantic's Field
    inner = get_args(kind)[0]
    if get_origin(inner) is Annotated:
        yield from _metadata(inner)


def _range(limits: Mapping[str, object]) -> Iterator[str]:
    low, high = limits.get("ge", limits.get("gt")), limits.get("le", limits.get("lt"))
    if low is not None and high is not None:
        yield f"{'from' if 'ge' in limits else 'above'} {low} to {'' if 'le' in limits else 'less than '}{high}"
    elif low is not None:
        yield f"{low} or more" if "ge" in limits else f"greater than {low}"
    elif high is not None:
        yield f"{high} or less" if "le" in limits else f"less than {high}"
    if "multiple_of" in limits:
        yield f"a multiple of {limits['multiple_of']}"


def _range_missed(value: object, kind: Any) -> str:
    """The allowed range, if the value is a number of the right type outside of it (without "or null"); else ""."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return ""
    members = [member for member in _members(kind) if member is not type(None)]
    missed = [member for member in members if get_origin(member) is Annotated and _fits(value, get_args(member)[0])]
    return _either([_bounds(member) for member in missed]) if len(missed) == len(members) else ""


def _fits(value: object, kind: Any) -> bool:
    """Whether a value is of a type, strictly and as JSON: "1" is no number, a list may be a tuple and a text a path."""
    try:
        _validator(kind).validate_json(json.dumps(value))
    except (pydantic.ValidationError, TypeError):
        return False
    return True


@functools.cache
def _validator(kind: Any) -> pydantic.TypeAdapter[Any]:
    return pydantic.TypeAdapter(kind, config=pydantic.ConfigDict(allow_inf_nan=False, strict=True))
