"""A frozen config as a function of its seed: what differs by the seed alone is composed and checked once."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf

from rlvr.config import schema, values
from rlvr.config.freeze import frozen

OTHER = 2**62 + 12345  # a seed that nobody types
RESOLVERS = {"default", "rlvr_home", "oc.select", "oc.env"}  # they hand a seed on, and compute nothing with it


@dataclass(frozen=True)
class BySeed:
    plain: Mapping[str, Any]
    places: tuple[tuple[str, ...], ...]  # that hold the seed, each as the keys on the way to it

    @classmethod
    def of(cls, config: DictConfig, choices: Mapping[str, str | None], plain: Mapping[str, Any]) -> BySeed | None:
        """None where the seed decides more than the places that hold it. plain: the config, frozen."""
        text = json.dumps(OmegaConf.to_container(config, resolve=False), default=str)
        if not RESOLVERS.issuperset(re.findall(r"\$\{\s*([\w.]+)\s*:", text)):
            return None
        seed = config.seed
        try:
            config.seed = OTHER
            other = frozen(config, choices)
        finally:
            config.seed = seed
        differences = list(_differences(plain, other))
        if any(one != seed or another != OTHER for _, one, another in differences):
            return None
        return cls(plain, tuple(place for place, _, _ in differences))

    def at(self, seed: int) -> dict[str, Any]:
        """The config with this seed. ValueError for one that is out of range."""
        values.check("seed", seed, values.types_of(schema.RunConfig)["seed"])
        values.check_finite({"seed": seed})
        plain = dict(self.plain)
        for *above, last in self.places:
            node = plain
            for key in above:
                node[key] = dict(node[key])
                node = node[key]
            node[last] = seed
        return plain


def setting_and_seed(words: Sequence[str]) -> tuple[tuple[str, ...], int | None]:
    """Overrides without that of the seed, and the seed; None where they set it in no plain way."""
    seeds = [word for word in words if re.fullmatch(r"seed=(0|[1-9][0-9]*)", word)]
    if len(seeds) != 1:
        return tuple(words), None
    return tuple(word for word in words if word != seeds[0]), int(seeds[0].removeprefix("seed="))


def _differences(one: Any, other: Any, place: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    """(keys on the way, value, other value) of what differs between two configs of plain data."""
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        for key, value in cast("dict[str, Any]", one).items():
            yield from _differences(value, other[key], (*place, key))
    elif one != other:
        yield place, one, other
