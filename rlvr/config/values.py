"""Is the value of a knob of its type, finite and in range? One answer for schema and components, ours and the user's.

Ranges stand where a parameter is declared, in the words of pydantic and annotated_types: `lr: PositiveFloat`,
`share: Annotated[float, Interval(ge=0, le=1)]`. A text among the annotations says what the value is: "a share of lr".
"""

from __future__ import annotations

import functools
import json
import math
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin

import annotated_types
import pydantic

LARGEST = 2**63  # whole numbers of 64 bits are below it
FLOAT32 = (1.2e-38, 3.4e38)  # the smallest and the largest normal number: objectives are computed in it

# What annotations of knobs are written in; one with any other name is of a type that is not checked here.
VOCABULARY: Mapping[str, object] = {
    **{name: getattr(annotated_types, name) for name in ("Gt", "Ge", "Lt", "Le", "Interval", "MultipleOf", "Len")},
    **{name: getattr(pydantic, name) for name in ("PositiveInt", "NonNegativeInt", "NegativeInt", "FiniteFloat")},
    **{name: getattr(pydantic, name) for name in ("PositiveFloat", "NonNegativeFloat", "NegativeFloat", "Field")},
    **{name: getattr(typing, name) for name in ("Any", "Annotated", "Literal", "Optional", "Union")},
    **{"Path": Path, "Sequence": Sequence, "Mapping": Mapping},
    **{"Dict": dict, "List": list, "Tuple": tuple},
}
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


@functools.cache
def type_of(annotation: str) -> Any:
    """The type that a component's annotation means; None for one of its own, which is built from a nested component."""
    try:
        kind = eval(annotation, dict(VOCABULARY))  # of the component's source, which is run anyway
        _validator(kind)
    except (NameError, AttributeError, TypeError, pydantic.PydanticUserError):
        return None
    return kind


@functools.cache
def types_of(schema: type, prefix: str = "") -> dict[str, Any]:
    """Dotted key -> type, of every value of a dataclass and of those in it. `Any` is a component: it has its own."""
    found: dict[str, Any] = {}
    for name, kind in typing.get_type_hints(schema, include_extras=True).items():
        if is_dataclass(kind):
            found |= types_of(cast("type", kind), f"{prefix}{name}.")
        elif kind is not Any:
            found[prefix + name] = kind
    return found


@functools.cache
def sections_of(schema: type, prefix: str = "") -> dict[str, frozenset[str]]:
    """Dotted key -> names in it, of a dataclass ("") and of those in it."""
    kinds = typing.get_type_hints(schema)
    found = {prefix: frozenset(kinds)}
    for name, kind in kinds.items():
        if is_dataclass(kind):
            found |= sections_of(cast("type", kind), f"{prefix}.{name}".lstrip("."))
    return found


def at(plain: Mapping[str, Any], key: str) -> Any:
    """What a plain config has at a dotted key."""
    node: Any = plain
    for name in key.split(".") if key else ():
        node = node[name]
    return node


def check(key: str, value: object, kind: Any, usual: Callable[[str], object] = lambda _: None) -> None:
    """ValueError for a plain value that is not of its type. usual: what a knob usually is, to be typed in its place."""
    if not _fits(value, kind):
        raise ValueError(refusal(key, value, kind, usual(key)))


def check_finite(plain: Mapping[str, Any]) -> None:
    """ValueError for a number anywhere that is not finite, or beyond 64 bits: nothing can be computed with it."""
    for key, value in _numbers("", plain):
        if isinstance(value, int) and not -LARGEST <= value < LARGEST:
            raise ValueError(f"{key}={value} must be less than 2^63: numbers have 64 bits.")
        if not math.isfinite(value):
            raise ValueError(f"{key}={value} must be a finite number.")
        if isinstance(value, float) and value and not FLOAT32[0] < abs(value) < FLOAT32[1]:
            raise ValueError(f"{key}={value} must be 0, or of a size from {FLOAT32[0]} to {FLOAT32[1]}: a float32.")


def refusal(key: str, value: object, kind: Any, usual: object = None) -> str:
    """What came, what is allowed, what to type."""
    missed, advice = _range_missed(value, kind), ""
    if usual is not None and _fits(usual, kind):
        advice = f" Type {key}={typed(usual)}, for example."
    came, wanted = f"{key}={typed(value)}", expected(kind)
    if isinstance(value, float) and not math.isfinite(value):
        wanted = wanted.replace("a number", "a finite number")
    return f"{came} must be {missed}.{advice}" if missed else f"{came}: {wanted}.{advice}"


def not_read(key: str, text: str, kind: Any, usual: object = None) -> str:
    """The same, of a text that was typed and cannot be read as its type."""
    advice = f" Type {key}={typed(usual)}, for example." if usual is not None and _fits(usual, kind) else ""
    return f"{key}={text}: {expected(kind)}.{advice}"


def typed(value: object) -> str:
    """A value as it is typed on the command line."""
    if isinstance(value, Mapping):
        pairs = cast("Mapping[object, object]", value).items()
        return "{" + ",".join(f"{key}:{typed(each)}" for key, each in pairs) + "}"
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
    """Values of a type, in words: `a number is expected, greater than 0, or null`."""
    members = [each for each in _members(kind) if each is not type(None)]
    bounds = _bounds(members[0]) if len(members) == 1 else ""
    tail = ["or null"] if len(members) < len(_members(kind)) else []
    return ", ".join(
        [f"{_either([_noun(each) for each in members])} is expected", *([bounds] if bounds else []), *tail]
    )


def _members(kind: Any) -> Sequence[Any]:
    return get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)


def _noun(kind: Any) -> str:
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _noun(inner[0])
    if origin is Literal:
        return _either([typed(each) for each in inner])
    if origin is tuple and Ellipsis not in inner:
        return f"a list of {len(inner)}"
    if origin in (list, tuple, Sequence):
        return "a list"
    return NOUNS.get(origin or kind, "another type")


def _either(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _bounds(kind: Any) -> str:
    """What a type asks beyond its plain one, in words."""
    if get_origin(kind) in (list, tuple, Sequence) and get_args(kind):
        each = get_args(kind)[0]
        bounds = _bounds(each)
        return f"each {_noun(each)}{', ' if bounds else ''}{bounds}"
    if get_origin(kind) is not Annotated:
        return ""
    limits: dict[str, object] = {}
    words: list[str] = []
    for each in _metadata(kind):
        if isinstance(each, str):
            words.append(each)
        for name in ("gt", "ge", "lt", "le", "multiple_of"):
            if getattr(each, name, None) is not None:
                limits[name] = getattr(each, name)
    return ", ".join([*words, *_range(limits)])


def _metadata(kind: Any) -> Iterator[object]:
    for each in getattr(kind, "__metadata__", ()):
        yield each
        yield from getattr(each, "metadata", ())  # of pydantic's Field
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
    """The range alone, of a number that only misses that (null, which it was not meant to be, is left out); else ""."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return ""
    members = _members(kind)
    ranges = [each for each in members if get_origin(each) is Annotated and _fits(value, get_args(each)[0])]
    others = [each for each in members if each is not type(None)]
    return _either([*map(_bounds, ranges)]) if len(ranges) == len(others) else ""


def _fits(value: object, kind: Any) -> bool:
    """Strictly, as JSON: 1 is a number and "1" is not, a list may be a tuple and a text a path."""
    try:
        _validator(kind).validate_json(json.dumps(value))
    except (pydantic.ValidationError, TypeError):
        return False
    return True


@functools.cache
def _validator(kind: Any) -> pydantic.TypeAdapter[Any]:
    return pydantic.TypeAdapter(kind, config=pydantic.ConfigDict(allow_inf_nan=False, strict=True))


def _numbers(key: str, node: object) -> Iterator[tuple[str, int | float]]:
    if isinstance(node, Mapping):
        for name, value in cast("Mapping[object, object]", node).items():
            yield from _numbers(f"{key}.{name}" if key else str(name), value)
    elif isinstance(node, list | tuple):
        for value in cast("Sequence[object]", node):
            yield from _numbers(key, value)
    elif isinstance(node, int | float):
        yield key, node
