"""The frozen config as a function of the typed numbers: points that differ only in numbers are composed once."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rlvr.config.binding import UnresolvedConfig
from rlvr.config.freeze import frozen_config
from rlvr.config.schema import Choices

Number = int | float
Place = tuple[str, ...]  # the keys on the way to a value

OTHER = 2**52 + 12345  # a number that nobody types, exact as a float too; further keys get the ones after it
# Resolvers that compute nothing with numbers.
RESOLVERS = {"default", "rlvr_home", "whose_logp", "default_lr", "oc.select", "oc.env"}
# Numbers that Hydra and Python read alike, in 64 bits.
_TYPED = re.compile(r"([A-Za-z_][\w.]*)=(-?(?:0|[1-9][0-9]{0,17})(?:\.[0-9]{1,17})?(?:e[-+]?[0-9]{1,2})?)")


@dataclass(frozen=True)
class ConfigOfNumbers:
    """What the points of a setting have in common, and where the frozen config holds each of their numbers."""

    config: DictConfig  # of one of the points
    choices: Choices
    plain: Mapping[str, Any]  # `config`, frozen
    places: Mapping[str, Sequence[tuple[Place, type]]]  # by key: where its number is held, and as which type
    written: UnresolvedConfig

    @classmethod
    def of(
        cls, config: DictConfig, choices: Choices, plain: Mapping[str, Any], numbers: Mapping[str, Number]
    ) -> ConfigOfNumbers | None:
        """None if a number, or the seed, influences more than the places that hold it.

        plain: the config, frozen. numbers: the typed numbers, by key.
        """
        text = json.dumps(OmegaConf.to_container(config, resolve=False), default=str)
        resolvers = set(re.findall(r"\$\{\s*([\w.]+)\s*:", text))
        is_nested = re.search(r"\$\{(?!\s*default\s*:)[^{}]*\$\{", text)  # a number may be part of the key that is read
        if is_nested or not RESOLVERS.issuperset(resolvers):
            return None
        numbers = {"seed": plain["seed"], **numbers}
        held = {key: OmegaConf.select(config, key) for key in numbers}
        if any((type(held[key]), held[key]) not in ((int, n), (float, n)) for key, n in numbers.items()):
            return None  # a boolean, a text, or an option whose name is a number
        others = {key: type(number)(OTHER + 4096 * at) for at, (key, number) in enumerate(numbers.items())}
        known = cls(config, choices, plain, {}, UnresolvedConfig(config))
        places: dict[str, list[tuple[Place, type]]] = {}
        for key, number in numbers.items():
            changes = list(_differences(plain, known._composed(numbers | {key: others[key]}, numbers)))
            if any((before, after) != (number, others[key]) for _, before, after in changes):
                return None
            places[key] = [(place, type(after)) for place, _, after in changes]
        known = cls(config, choices, plain, places, known.written)
        return known if repr(known.at(others)) == repr(known._composed(others, numbers)) else None

    def _composed(self, numbers: Mapping[str, Number], before: Mapping[str, Number]) -> dict[str, Any]:
        """The frozen config with these numbers, computed by OmegaConf; {} if it cannot be resolved.

        `self.config` has the numbers `before` again afterwards.
        """
        try:
            for key, number in numbers.items():
                OmegaConf.update(self.config, key, number)
            return frozen_config(self.config, self.choices)
        except (OmegaConfBaseException, ValueError):
            return {}
        finally:
            for key, number in before.items():
                OmegaConf.update(self.config, key, number)

    def at(self, numbers: Mapping[str, Number]) -> dict[str, Any]:
        """The frozen config with these numbers. What does not change is shared with `self.plain`."""
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
    """(overrides with each number replaced by the name of its type, the numbers by key).

    Overrides of a key that is typed twice stay as they are.
    """
    matches = [_TYPED.fullmatch(word) for word in words]
    keys = [word.partition("=")[0].lstrip("+~") for word in words]
    setting: list[str] = []
    numbers: dict[str, Number] = {}
    for word, key, match in zip(words, keys, matches, strict=True):
        if match is None or keys.count(key) > 1:
            setting.append(word)
            continue
        text = match[2]
        numbers[key] = int(text) if re.fullmatch(r"-?[0-9]+", text) else float(text)
        setting.append(f"{key}={type(numbers[key]).__name__}")
    return tuple(setting), numbers


def _differences(before: Any, after: Any, place: Place = ()) -> Iterator[tuple[Place, Any, Any]]:
    """(keys on the way, value before, value after) of each difference between two configs of plain data."""
    if isinstance(before, dict) and isinstance(after, dict) and before.keys() == after.keys():
        for key, value in cast("dict[str, Any]", before).items():
            yield from _differences(value, after[key], (*place, key))
    elif before != after:
        yield place, before, after
