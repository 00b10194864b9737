"""Composes the points of a sweep cheaply: in full once per choice of groups, then a patched copy for each point."""

from __future__ import annotations

import contextlib
import functools
import pickle
import sys
from collections.abc import Generator, Sequence
from typing import Any, overload

from hydra import initialize_config_dir
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf, open_dict

from rlvr.config import schema, sources
from rlvr.config.overrides import parse

Composed = tuple[list[str], DictConfig, dict[str, Any]]  # overrides, config, Hydra's choices
SAMPLE = 3  # points that are also composed in full, as a check


@contextlib.contextmanager
def composing() -> Generator[None, None, None]:
    """Inside this context Hydra's own `compose("run", [...])` finds conf/, our schema and our resolvers."""
    schema.register()
    sources.register()
    with initialize_config_dir(str(schema.CONF), version_base="1.3"):
        yield


class Points(Sequence[Composed]):
    """Points of a sweep, each composed on access: ten thousand at once would fill the memory.

    Hydra composes the chosen options of all groups, then applies the other overrides in their order. This class does
    the same, but the first part once per choice of groups and the second with Hydra's own function. A sample, from the
    first point to the last, is also composed in full: if one differs, all points are composed in full.
    """

    def __init__(self, loader: ConfigLoaderImpl, master: DictConfig, points: Sequence[Sequence[str]]) -> None:
        self._loader, self._master, self._points = loader, master, [list(point) for point in points]
        self._bases: dict[tuple[str, ...], tuple[bytes, dict[str, Any]]] = {}
        self._patch = True
        self.num_full = 0  # full composes so far
        self._verify()

    def __len__(self) -> int:
        return len(self._points)

    def words(self, index: int) -> list[str]:
        """The overrides of a point, without composing it."""
        return self._points[index]

    @overload
    def __getitem__(self, index: int) -> Composed: ...
    @overload
    def __getitem__(self, index: slice) -> list[Composed]: ...
    def __getitem__(self, index: int | slice) -> Composed | list[Composed]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        point = self._points[index]
        return self._patched(point) if self._patch else self.full(point)

    def _patched(self, point: list[str]) -> Composed:
        groups = tuple(override for override in point if self._chooses_option(override))
        if groups not in self._bases:
            _, config, choices = self.full(list(groups))
            self._bases[groups] = pickle.dumps(config), choices  # loading takes a fifth of the time of a deep copy
        base, choices = self._bases[groups]
        config = pickle.loads(base)  # noqa: S301 - bytes that were pickled above
        overrides = [_parsed(override) for override in point if override not in groups]
        ConfigLoaderImpl._apply_overrides_to_config(overrides, config)  # pyright: ignore[reportPrivateUsage]
        return list(point), config, choices

    def full(self, point: list[str]) -> Composed:
        self.num_full += 1
        composed = self._loader.load_sweep_config(self._master, point)
        choices = schema.as_dict(composed.hydra.runtime.choices)
        with open_dict(composed):
            del composed["hydra"]
        return list(point), composed, choices

    def _chooses_option(self, override: str) -> bool:
        """Whether an override chooses an option of a group. Other overrides are applied to the composed config."""
        parsed = _parsed(override)
        return self._is_group(parsed.key_or_group) and not isinstance(parsed.value(), dict)

    @functools.cached_property
    def _is_group(self) -> Any:
        return functools.cache(self._loader.repository.group_exists)

    def _verify(self) -> None:
        last = len(self) - 1
        for index in sorted({round(i * last / (SAMPLE - 1)) for i in range(SAMPLE)} if self else ()):
            if _as_text(self._patched(self._points[index])) != _as_text(self.full(self._points[index])):
                print(
                    f"{' '.join(self._points[index])}: patching and composing differ; all points are composed in full, "
                    "which takes longer. Please report it.",
                    file=sys.stderr,
                )
                self._patch = False
                return


@functools.cache
def _parsed(override: str) -> Override:
    return parse([override])[0]


def _as_text(point: Composed) -> str:
    """Config and choices as text, in which 1 and 1.0 differ."""
    _, config, choices = point
    return repr((OmegaConf.to_container(config), choices))
