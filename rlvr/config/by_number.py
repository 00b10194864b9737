"""A frozen config as a function of the numbers typed in it: points that differ in these alone are composed once."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rlvr.config.binding import Written
from rlvr.config.freeze import frozen
from rlvr.config.schema import Choices

Number = int | float
Place = tuple[str, ...]  # the keys on the way to a value

OTHER = 2**52 + 12345  # a number that nobody types, and a float too; those after it stand for further keys
RESOLVERS = {"default", "rlvr_home", "whose_logp", "oc.select", "oc.env"}  # they compute nothing with a number
# What Hydra and Python read alike, in 64 bits.
_TYPED = re.compile(r"([A-Za-z_][\w.]*)=(-?(?:0|[1-9][0-9]{0,17})(?:\.[0-9]{1,17})?(?:e[-+]?[0-9]{1,2})?)")


@dataclass(frozen=True)
class ByNumber:
    """What the points of a setting have in common, and where each of their numbers stands."""

    config: DictConfig  # of one of them
    choices: Choices
    plain: Mapping[str, Any]  # that one, frozen
    places: Mapping[str, Sequence[tuple[Place, type]]]  # by key: where its number stands, and as what
    written: Written

    @classmethod
    def of(
        cls, config: DictConfig, choices: Choices, plain: Mapping[str, Any], numbers: Mapping[str, Number]
    ) -> ByNumber | None:
        """None where a number decides more than the places that hold it, or the seed does.

        plain: the config, frozen. numbers: what was typed, by key.
        """
        text = json.dumps(OmegaConf.to_container(config, resolve=False), default=str)
        resolvers = set(re.findall(r"\$\{\s*([\w.]+)\s*:", text))
        is_nested = re.search(r"\$\{(?!\s*default\s*:)[^{}]*\$\{", text)  # a number may name what is read
        if is_nested or not RESOLVERS.issuperset(resolvers):
            return None
        numbers = {"seed": plain["seed"], **numbers}
        held = {key: OmegaConf.select(config, key) for key in numbers}
        if any((type(held[key]), held[key]) not in ((int, n), (float, n)) for key, n in numbers.items()):
            return None  # a switch, a text, the number of an option
        others = {key: type(number)(OTHER + 4096 * at) for at, (key, number) in enumerate(numbers.items())}
        known = cls(config, choices, plain, {}, Written(config))
        places: dict[str, list[tuple[Place, type]]] = {}
        for key, number in numbers.items():
            found = list(_differences(plain, known._composed(numbers | {key: others[key]}, numbers)))
            if any((one, another) != (number, others[key]) for _, one, another in found):
                return None
            places[key] = [(place, type(another)) for place, _, another in found]
        known = cls(config, choices, plain, places, known.written)
        return known if repr(known.at(others)) == repr(known._composed(others, numbers)) else None

    def _composed(self, numbers: Mapping[str, Number], before: Mapping[str, Number]) -> dict[str, Any]:
        """The frozen config with these numbers, by Hydra's own way; {} if there is none."""
        try:
            for key, number in numbers.items():
                OmegaConf.update(self.config, key, number)
            return frozen(self.config, self.choices)
        except (OmegaConfBaseException, ValueError):
            return {}
        finally:
            for key, number in before.items():
                OmegaConf.update(self.config, key, number)

    def at(self, numbers: Mapping[str, Number]) -> dict[str, Any]:
        """The config with these numbers."""
        plain = dict(self.plain)
        copied: dict[Place, dict[str, Any]] = {(): plain}
        for key, number in numbers.items():
            for place, kind in self.places[key]:
                for depth in range(1, len(place)):
                    if place[:depth] not in copied:
                        above = copied[place[: depth - 1]]
                        above[place[depth - 1]] = copied[place[:depth]] = dict(above[place[depth - 1]])
                copied[place[:-1]][place[-1]] = kind(number)
        return plain


def setting_and_numbers(words: Sequence[str]) -> tuple[tuple[str, ...], dict[str, Number]]:
    """Overrides with the types of the numbers in the place of these, and the numbers by key.

    A key that is typed twice keeps its words.
    """
    typed = [_TYPED.fullmatch(word) for word in words]
    keys = [word.partition("=")[0].lstrip("+~") for word in words]
    setting: list[str] = []
    numbers: dict[str, Number] = {}
    for word, key, match in zip(words, keys, typed, strict=True):
        if match is None or keys.count(key) > 1:
            setting.append(word)
            continue
        text = match[2]
        numbers[key] = int(text) if re.fullmatch(r"-?[0-9]+", text) else float(text)
        setting.append(f"{key}={type(numbers[key]).__name__}")
    return tuple(setting), numbers


def _differences(one: Any, other: Any, place: Place = ()) -> Iterator[tuple[Place, Any, Any]]:
    """(keys on the way, value, other value) of what differs between two configs of plain data."""
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        for key, value in cast("dict[str, Any]", one).items():
            yield from _differences(value, other[key], (*place, key))
    elif one != other:
        yield place, one, other
