"""The composed points of a sweep, cheaply: a full compose for each choice of groups, a patched copy for each point."""

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

from rlvr.config import schema
from rlvr.config.overrides import parse

Composed = tuple[list[str], DictConfig, dict[str, Any]]  # overrides, config, Hydra's choices
SAMPLE = 3  # points that are also composed in full


@contextlib.contextmanager
def composing() -> Generator[None, None, None]:
    """In here, Hydra's own `compose("run", [...])` knows conf/ and all that this project adds to it."""
    schema.register()
    with initialize_config_dir(str(schema.CONF), version_base="1.3"):
        yield


class Points(Sequence[Composed]):
    """Points of a sweep, each composed when it is asked for: ten thousand at once would fill the memory.

    Hydra composes what the groups bring and then applies all other overrides to it, in their order. So do we, but the
    first part once for each choice of groups and the second with Hydra's own function. A sample, from the first point
    to the last, is composed in full as well: should they ever differ, all are.
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
        """The overrides of a point, which is not composed for that."""
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
        groups = tuple(o for o in point if self._chooses(o))
        if groups not in self._bases:
            _, config, choices = self.full(list(groups))
            self._bases[groups] = pickle.dumps(config), choices  # reads back in a fifth of the time of a deep copy
        base, choices = self._bases[groups]
        config = pickle.loads(base)  # noqa: S301 - our own bytes of a moment ago
        overrides = [_parsed(o) for o in point if o not in groups]
        ConfigLoaderImpl._apply_overrides_to_config(overrides, config)  # pyright: ignore[reportPrivateUsage]
        return list(point), config, choices

    def full(self, point: list[str]) -> Composed:
        self.num_full += 1
        composed = self._loader.load_sweep_config(self._master, point)
        choices = schema.as_dict(composed.hydra.runtime.choices)
        with open_dict(composed):
            del composed["hydra"]
        return list(point), composed, choices

    def _chooses(self, override: str) -> bool:
        """Does it choose an option of a group, and so what is composed? Else it is applied to what was composed."""
        one = _parsed(override)
        return self._is_group(one.key_or_group) and not isinstance(one.value(), dict)

    @functools.cached_property
    def _is_group(self) -> Any:
        return functools.cache(self._loader.repository.group_exists)

    def _verify(self) -> None:
        last = len(self) - 1
        for index in sorted({round(i * last / (SAMPLE - 1)) for i in range(SAMPLE)} if self else ()):
            if _shown(self._patched(self._points[index])) != _shown(self.full(self._points[index])):
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


def _shown(point: Composed) -> str:
    """All of it as text: 1 and 1.0 are two configs."""
    return repr((OmegaConf.to_container(point[1]), point[2]))
