"""What people type: overrides of Hydra as alternatives of a key, and every combination of them."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Mapping, Sequence

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override

Point = dict[str, str]  # key -> override, such as {"eta": "eta=0.5"}


def parse(words: Sequence[str]) -> list[Override]:
    return OverridesParser.create().parse_overrides(list(words))


def key_of(element: str) -> str:
    return element.lstrip("+~")


def alternatives(overrides: Iterable[Override]) -> dict[str, list[str]]:
    """The alternatives of every key, in order; of a key given twice the later ones."""
    found: dict[str, list[str]] = {}
    for one in overrides:
        element = one.get_key_element()
        if one.is_sweep_override() and not one.is_discrete_sweep():
            raise ValueError(
                f"{one.input_line}: a grid takes lists such as {element}=1,2, choice(...) and range(...). "
                "Pass hydra/sweeper=optuna to search an interval."
            )
        if one.is_delete():
            found[key_of(element)] = [one.input_line or element]
        elif one.is_sweep_override():
            found[key_of(element)] = [f"{element}={value}" for value in one.sweep_string_iterator()]
        else:
            found[key_of(element)] = [f"{element}={one.get_value_element_as_str()}"]
    return found


def cross(given: Mapping[str, Sequence[str]], pairs: Sequence[Sequence[str]] = ()) -> list[Point]:
    """Every combination; keys of a pair go in step. Raises ValueError where they are not equally many."""
    columns: list[list[Point]] = []
    done: set[str] = set()
    for key in given:
        if key in done:
            continue
        together = [k for pair in pairs if key in pair for k in pair if k in given] or [key]
        if len({len(given[k]) for k in together}) > 1:
            told = ", ".join(f"{k} has {len(given[k])}" for k in together)
            raise ValueError(
                f"zip={','.join(together)} pairs values one by one, and {told}. Give equally many of each."
            )
        rows = zip(*(given[k] for k in together), strict=True)
        columns.append([dict(zip(together, row, strict=True)) for row in rows])
        done.update(together)
    return [{k: v for part in row for k, v in part.items()} for row in itertools.product(*columns)]


@functools.cache
def value_of(override: str) -> object:
    """The value that Hydra reads in an override: 1e-3 and 0.001 are one."""
    return parse([override])[0].value()
