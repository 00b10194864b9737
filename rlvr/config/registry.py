"""The options of every config group on Hydra's whole search path, and the options of other groups that each brings.

conf/ is one directory of that path. The directories of `--config-dir` and `hydra.searchpath` are searched in the same
way, so that a user's options are equal to the built-in ones in lists, hints, checks and differences to the default.
"""

from __future__ import annotations

import functools
import importlib.resources
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import yaml
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.utils import create_config_search_path
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.default_element import ConfigDefault, GroupDefault, InputDefault
from hydra.core.object_type import ObjectType
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rlvr.config import schema, sources
from rlvr.config.overrides import command_line, parse
from rlvr.ledger.runs import flatten

SHORTHANDS = ("eta", "beta", "clip_high")  # top-level knobs for the losses that read them


@dataclass(frozen=True)
class BroughtOption:
    """An option of another group that an option brings along."""

    group: str
    option: str
    is_override: bool  # it replaces the default option; False: the default run does not have this group


class Registry:
    """The groups and options on one search path. Every file is read on first use, and once."""

    def __init__(self, folders: Sequence[str] = ()) -> None:
        """folders: config directories beside conf/, in the order in which they are searched: paths, or URLs of Hydra
        such as pkg://ours.conf. Options of conf/ take precedence over theirs.
        """
        schema.register()
        sources.register()
        plain = [folder.removeprefix("file://") for folder in folders]
        self.folders = tuple(folder if "://" in folder else str(Path(folder).resolve()) for folder in plain)
        path = create_config_search_path(str(schema.CONF))
        for folder in self.folders:
            path.prepend("command-line", folder if "://" in folder else f"file://{folder}", SearchPathQuery("schema"))
        self.loader = ConfigLoaderImpl(path)
        self._read: dict[str, tuple[DictConfig, list[InputDefault]]] = {}
        self._nodes: dict[tuple[str, str], DictConfig] = {}
        self._plain: dict[str, Any] = {}
        self._names: dict[tuple[str, ...], list[str]] = {}
        self._readable: dict[str, list[str]] = {}
        self.unreadable: dict[tuple[str, str], Exception] = {}  # (group, option), of those that were looked at

    @staticmethod
    def of(arguments: Sequence[str]) -> Registry:
        """The registry of a command line's search path. Errors in its overrides are left to Hydra.

        Raises ValueError for a directory that does not exist, which Hydra would only warn of, or ignore, and for an
        option of the name of a built-in one, which would be taken in its place.
        """
        options = command_line(arguments)
        flags = {f"--config-dir={options.config_dir}": options.config_dir} if options.config_dir is not None else {}
        folders = flags | {f"hydra.searchpath=[{entry}]": entry for entry in _search_path(options.overrides)}
        for typed, folder in folders.items():
            path = folder.removeprefix("file://")
            if "://" not in path and not (path and Path(path).is_dir()):
                is_file = bool(path) and Path(path).is_file()
                raise ValueError(f"{typed}: {'that is a file' if is_file else 'there is no such directory'}.")
        own = [Path(path) for folder in folders.values() if "://" not in (path := folder.removeprefix("file://"))]
        for folder in own:
            _check_names(folder, own)
        return Registry([*folders.values()])

    @property
    def directories(self) -> list[str]:
        """The folders that are directories, which may also contain Python files."""
        return [folder for folder in self.folders if "://" not in folder]

    # --- groups and options

    def groups(self) -> list[str]:
        return self.loader.repository.get_group_options("", ObjectType.GROUP)

    def options(self, group: str) -> list[str]:
        return self.loader.repository.get_group_options(group, ObjectType.CONFIG)

    def readable(self, group: str) -> list[str]:
        """The options of a group whose files can be read: a damaged file must not break a run that does not use it."""
        if group not in self._readable:
            self._readable[group] = [option for option in self.options(group) if self._is_readable(group, option)]
        return self._readable[group]

    def _is_readable(self, group: str, option: str) -> bool:
        try:
            self.brought(group, option)
            self.node(group, option)
        except (HydraException, OmegaConfBaseException, yaml.YAMLError, ValueError) as error:
            self.unreadable[group, option] = error
            return False
        return True

    def node(self, group: str, option: str) -> DictConfig:
        """The content of an option's file, merged with the options of its group that it is based on, unresolved.

        What it sets in other groups (`@package _global_`) is left out. Callers share the node, which is read-only.
        """
        if (group, option) not in self._nodes:
            self._nodes[group, option] = self._merged(group, option)
        return self._nodes[group, option]

    def _merged(self, group: str, option: str) -> DictConfig:
        merged = OmegaConf.merge(*(self.load(path)[0] for path in self.lineage(f"{group}/{option}")))
        assert isinstance(merged, DictConfig)
        OmegaConf.set_readonly(merged, True)
        return merged

    def lineage(self, path: str, above: tuple[str, ...] = ()) -> list[str]:
        """The options of its group that an option is based on, and the option itself, last; each as group/option.

        Raises ValueError for an option that is based on itself.
        """
        if path in above:
            raise ValueError(f"{path} is based on itself: {' > '.join((*above, path))}. Drop it from its `defaults`.")
        bases = _bases(_split(path)[0], self.load(path)[1])
        return [*(found for base in bases for found in self.lineage(base, (*above, path))), path]

    def as_written(self, choices: Mapping[str, str | None], key: str) -> object:
        """The value of a knob in the file of the chosen option, or in run.yaml; None if it has none or interpolates."""
        group, _, knob = key.partition(".")
        option = choices.get(group)
        path = f"{group}/{option}" if option else "run"
        if path not in self._plain:
            node = self.node(group, option) if option else self.load(path)[0]
            self._plain[path] = OmegaConf.to_container(node, resolve=False)
        value = self._plain[path]
        for name in (knob if option else key).split("."):
            value = cast("dict[str, Any]", value).get(name) if isinstance(value, dict) else None
        return None if isinstance(value, str) and ("${" in value or value == "???") else value

    def brought(self, group: str, option: str) -> list[BroughtOption]:
        """What an option brings along, by its defaults list and those of the options that it is based on."""
        return [found for path in self.lineage(f"{group}/{option}") for found in _groups_of(self.load(path)[1])]

    def load(self, path: str) -> tuple[DictConfig, list[InputDefault]]:
        """(content, defaults list) of a file. Raises ValueError if there is no such file."""
        if path not in self._read:
            loaded = self.loader.repository.load_config(path)
            if loaded is None or not isinstance(loaded.config, DictConfig):
                raise ValueError(f"{path} is no config.")
            config, group = loaded.config, _split(path)[0]
            if loaded.header.get("package") == "_global_" and isinstance(config.get(group), DictConfig):
                config = config[group]
            self._read[path] = config, loaded.defaults_list or []
        return self._read[path]

    # --- properties of losses

    def losses_with(self, group: str) -> list[str]:
        """Losses that bring along a group that the others do not have, such as divergence or presample."""
        return [loss for loss in self.readable("loss") if self._adds(loss, group)]

    def _adds(self, loss: str, group: str) -> bool:
        return any(brought.group == group and not brought.is_override for brought in self.brought("loss", loss))

    @functools.cached_property
    def losses_without_advantage(self) -> list[str]:
        """Losses that read no advantage: their files choose `advantage=none`."""
        none = BroughtOption("advantage", "none", is_override=True)
        return [loss for loss in self.readable("loss") if none in self.brought("loss", loss)]

    def losses_reading(self, shorthand: str) -> list[str]:
        """Losses that read one of SHORTHANDS."""
        nodes = {loss: schema.as_dict(self.node("loss", loss)) for loss in self.readable("loss")}
        return [loss for loss, node in nodes.items() if key_reading(shorthand, node)]

    # --- composing

    def compose(self, overrides: Sequence[str] = ()) -> tuple[DictConfig, dict[str, Any]]:
        """(config, chosen options) of a run with these overrides. Raises what Hydra raises, or `check_option_names`."""
        loaded = self.loader.load_configuration("run", list(overrides), RunMode.RUN, from_shell=False)
        composed, choices = schema.without_hydra(loaded)
        check_option_names(choices)
        return composed, choices

    def names(self, overrides: tuple[str, ...] = ()) -> list[str]:
        """Dotted keys of all knobs of a run with these overrides, and all groups. Raises what Hydra raises."""
        if overrides not in self._names:
            config, _ = self.compose(overrides)
            self._names[overrides] = [*flatten(schema.as_dict(config)), *self.groups()]
        return self._names[overrides]

    def question(self, study: str) -> str:
        """The question of a study: the first comment line of its file; "" if there is none."""
        for line in self._text(f"study/{study}.yaml").splitlines():
            words = line.lstrip("# ").strip()
            if not line.startswith("#"):
                return ""
            if words and not words.startswith("@"):
                return words
        return ""

    def _text(self, file: str) -> str:
        """The text of a file on the search path; "" if there is none."""
        for source in self.loader.repository.get_sources():
            if source.scheme() == "file" and (path := Path(source.path) / file).is_file():
                return path.read_text(encoding="utf-8")
            if source.scheme() == "pkg" and source.is_config(file):
                package, _, folder = source.path.partition("/")
                return importlib.resources.files(package).joinpath(folder, file).read_text(encoding="utf-8")
        return ""


def check_option_names(choices: Mapping[str, object]) -> None:
    """Raises ValueError for an option that is chosen by a path, `loss=grpo.yaml` or `loss=../task/maze`.

    Hydra takes both, but checks and the names of arms would treat the first as another option than `loss=grpo`.
    """
    for group, option in choices.items():
        if isinstance(option, str) and option.endswith(".yaml"):
            raise ValueError(f"{group}={option} is the name of a file. Type {group}={option.removesuffix('.yaml')}.")
        if isinstance(option, str) and ".." in option.split("/"):
            raise ValueError(f"{group}={option} is no option of {group}. `python -m rlvr.run --help` lists them.")


def key_reading(name: str, node: Mapping[str, Any]) -> str | None:
    """The dotted key that reads a top-level knob, in a loss or a config before it is resolved; None: none does."""
    return next((key for key, value in flatten(node).items() if f"${{{name}}}" in str(value)), None)


def _check_names(folder: Path, others: Iterable[Path]) -> None:
    """Raises ValueError for an option that has the name of a built-in one, or of one of another config directory."""
    for group in (path.name for path in schema.CONF.iterdir() if path.is_dir()):
        for file in sorted((folder / group).rglob("*.yaml")):
            built_in = schema.CONF / file.relative_to(folder)
            if built_in.is_file() and not built_in.samefile(file):
                raise ValueError(
                    f"{file.resolve()} has the name of a built-in option, {built_in.resolve()}, which would be used in "
                    "its place. Give it another name."
                )
            for other in (other / file.relative_to(folder) for other in others if other != folder):
                if other.is_file() and not other.samefile(file):
                    raise ValueError(f"{file} and {other} have one name, and one would hide the other. Rename one.")


def _search_path(overrides: Sequence[str]) -> list[str]:
    """The entries of `hydra.searchpath=[...]` on a command line."""
    for override in overrides:
        if override.lstrip("+").startswith("hydra.searchpath="):
            try:
                value = parse([override])[0].value()
            except HydraException:
                return []
            return [str(entry) for entry in value] if isinstance(value, list) else []
    return []


def _bases(group: str, defaults: Sequence[InputDefault]) -> list[str]:
    """The options of the same group that a file is based on, each as group/option."""
    paths: list[str] = []
    for default in defaults:
        if isinstance(default, ConfigDefault) and default.path not in (None, "_self_"):
            paths.append(default.path.lstrip("/") if default.path.startswith("/") else f"{group}/{default.path}")
    return [path for path in paths if _split(path)[0] == group]


def _groups_of(defaults: Sequence[InputDefault]) -> Iterator[BroughtOption]:
    for default in defaults:
        if isinstance(default, GroupDefault) and isinstance(default.value, str):
            yield BroughtOption(str(default.group).lstrip("/"), default.value, bool(default.override))


def _split(path: str) -> tuple[str, str]:
    group, _, option = path.rpartition("/")
    return group, option
