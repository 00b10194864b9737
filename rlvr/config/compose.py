"""Composes the points of a sweep cheaply: in full once per setting, then with other values."""

import functools
import itertools
import pickle
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, overload

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.override_parser.types import Override, OverrideType
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from rlvr.config import schema
from rlvr.config.binding import UnresolvedConfig
from rlvr.config.freeze import frozen, group_of, resolved, resolving
from rlvr.config.overrides import parse
from rlvr.config.schema import Choices
from rlvr.config.values import leaves

Composed = tuple[list[str], DictConfig, dict[str, Any]]  # overrides, config, Hydra's choices
MOST_SETTINGS = 256  # that are kept: each takes half a megabyte
_NAME = re.compile(r"[A-Za-z_][\w.]*")  # of a knob


class Setting:
    """What points have in common that choose the same options and set the same knobs, to other values.

    The config of a point is that of the first one in which Hydra's own function sets these knobs. A value of its frozen
    config is as in the first one, unless it is one of these knobs or refers to another value: these are read anew.
    """

    def __init__(self, config: DictConfig, choices: Choices) -> None:
        self.config, self.choices = config, dict(choices)
        self.written = UnresolvedConfig(config)
        self._changing: dict[tuple[Any, ...], None] = {}  # places of values that are set, or refer to another value
        self._resolved: bytes | None = None  # the first config, resolved; loading it is faster than a copy
        self._sections: dict[str, Any] = {}  # of frozen configs, by their content

    def set(self, overrides: Sequence[Override]) -> None:
        """Set the knobs of the setting to the values of another point."""
        for override in overrides:
            kind = OverrideType.FORCE_ADD if override.is_add() else override.type  # its knob is there by now
            ConfigLoaderImpl._apply_overrides_to_config(  # pyright: ignore[reportPrivateUsage]
                [replace(override, type=kind)], self.config
            )
            self._changing[tuple(override.key_or_group.split("."))] = None

    def frozen(self, *, on_paper: bool = False) -> dict[str, Any]:
        """The frozen config of the point whose values are set. Equal sections of several points are one object: ten
        thousand of each would fill the memory.
        """
        plain = frozen(self._plain(on_paper), self.choices)
        return {name: self._sections.setdefault(repr(section), section) for name, section in plain.items()}

    def group_id(self, *, on_paper: bool = False) -> str:
        """The identity without the seed: runs that differ only in their seed are repetitions of one group."""
        seed, self._changing["seed",] = self.config.seed, None
        try:
            self.config.seed = 0
            return group_of(frozen(self._plain(on_paper), {}))
        finally:
            self.config.seed = seed

    def _plain(self, on_paper: bool) -> dict[str, Any]:
        if self._resolved is None:
            plain = resolved(self.config, on_paper=on_paper)
            raw = leaves(OmegaConf.to_container(self.config))
            self._changing |= {place: None for place, value in raw if isinstance(value, str) and "${" in value}
            self._resolved = None if OmegaConf.missing_keys(self.config) else pickle.dumps(plain)
            return plain
        plain = pickle.loads(self._resolved)  # noqa: S301 - bytes that were pickled above
        with resolving():
            for place in self._changing:
                node: Any = self.config
                section: Any = plain
                for name in place[:-1]:
                    node, section = node[name], section[name]
                value = node[place[-1]]
                is_node = OmegaConf.is_config(value)
                section[place[-1]] = (
                    OmegaConf.to_container(value, resolve=True, throw_on_missing=True) if is_node else value
                )
        return plain


class Points(Sequence[Composed]):
    """Points of a sweep, each composed on access: ten thousand at once would fill the memory.

    As a check the last point is also composed in full: if that differs, all points are.
    """

    def __init__(self, loader: ConfigLoaderImpl, master: DictConfig, points: Sequence[Sequence[str]]) -> None:
        self._loader, self._master, self._points = loader, master, [list(point) for point in points]
        self._keys = list(map(self._key, self._points))
        self._settings: dict[tuple[str, ...], Setting] = {}
        self._shared = True
        self._verify()

    def __len__(self) -> int:
        return len(self._points)

    @overload
    def __getitem__(self, index: int) -> Composed: ...
    @overload
    def __getitem__(self, index: slice) -> list[Composed]: ...
    def __getitem__(self, index: int | slice) -> Composed | list[Composed]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        setting = self.setting(index)
        return self._points[index].copy(), pickle.loads(pickle.dumps(setting.config)), setting.choices  # noqa: S301

    def words(self, index: int) -> list[str]:
        """The overrides of a point, without composing it."""
        return self._points[index]

    def setting(self, index: int) -> Setting:
        """The setting of a point, with its values. The next call may give it those of another point. The notes of an
        error are the words of the point: some are no words of the command, as those of `tune`.
        """
        point, key = self._points[index], self._keys[index]
        try:
            if not self._shared:
                return Setting(*self.full(point)[1:])
            if (setting := self._settings.get(key)) is None:
                if len(self._settings) >= MOST_SETTINGS:
                    self._settings.clear()
                setting = self._settings[key] = Setting(*self.full(point)[1:])
            setting.set([_parsed(word) for word, in_key in zip(point, key, strict=True) if word != in_key])
        except HydraException as error:
            error.__notes__ = point
            raise
        return setting

    def full(self, point: list[str]) -> Composed:
        return list(point), *schema.without_hydra(self._loader.load_sweep_config(self._master, point))

    def _key(self, point: Sequence[str]) -> tuple[str, ...]:
        """What all points of a setting have: the words that choose options or refer to other values, and for other
        words the names of the knobs that they set. All words, if their order matters.
        """
        others = [word for word in point if not self._chooses_option(word)]
        names = sorted(_parsed(word).key_or_group for word in others)
        overlapping = any(f"{below}.".startswith(f"{name}.") for name, below in itertools.pairwise(names))
        if overlapping or not all(map(_sets_value, others)):
            return tuple(point)
        fixed = [word for word in point if word not in others or "${" in word or "???" in word]
        return tuple(word if word in fixed else word.partition("=")[0] for word in point)

    def _chooses_option(self, word: str) -> bool:
        override = _parsed(word)
        is_group = self._loader.repository.group_exists(override.key_or_group)
        return is_group and not isinstance(override.value(), dict)

    def _verify(self) -> None:
        first = self._keys.index(self._keys[-1]) if self._keys else -1  # of the last point's setting
        if first in (-1, len(self) - 1):
            return
        self.setting(first)
        if _as_text(self[-1]) != _as_text(self.full(self._points[-1])):
            print(
                f"{' '.join(self._points[-1])}: setting values and composing differ; all points are composed in full, "
                "which takes longer. Please report it.",
                file=sys.stderr,
            )
            self._shared = False


def _sets_value(word: str) -> bool:
    """Whether an override sets a knob to a number, a text or a list, all the same whether the knob is there."""
    override = _parsed(word)
    is_name = _NAME.fullmatch(override.key_or_group) is not None
    return is_name and not override.is_delete() and not isinstance(override.value(), dict)


@functools.cache
def _parsed(override: str) -> Override:
    return parse([override])[0]


def _as_text(point: Composed) -> str:
    """Config and choices as text, in which 1 and 1.0 differ."""
    _, config, choices = point
    return repr((OmegaConf.to_container(config), choices))
