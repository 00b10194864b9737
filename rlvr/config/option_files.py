"""Faults of a user's own config files that Hydra reports far from the line at fault, or not at all.

Only the files that a command chooses are read, those beside conf/: a damaged one must not break a run without it.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast

import yaml
from hydra.core.default_element import GroupDefault

from rlvr.config import schema
from rlvr.config.binding import close_match
from rlvr.config.overrides import key_of
from rlvr.config.registry import Registry

GLOBAL = "# @package _global_"
KNOBS = frozenset(field.name for field in dataclasses.fields(schema.RunConfig))
Entry = tuple[str, yaml.Node, int]  # a key, its value, its line


def chosen(words: Sequence[str], registry: Registry) -> Iterator[tuple[str, str, Path]]:
    """(group, option, file) of the options of the user's directories that a command names."""
    groups = registry.groups()
    for word in words:
        group = key_of(word)
        if group in groups:
            for option in word.partition("=")[2].split(","):
                files = (Path(folder, group, f"{option}.yaml") for folder in registry.directories)
                yield from ((group, option, file) for file in files if file.is_file())


def check(words: Sequence[str], registry: Registry) -> None:
    """Raises ValueError with file, line and what to write for the first fault of a file that a command chooses."""
    for group, option, file in chosen(words, registry):
        with file.open(encoding="utf-8") as opened:  # errors name an open file
            root = cast("yaml.Node | None", yaml.compose(opened))  # pyright: ignore[reportUnknownMemberType]
        if root is None:
            raise ValueError(f"{file} is empty. Fill it, or choose another {group}.")
        if not isinstance(root, yaml.MappingNode):
            raise ValueError(f"{file}, line {root.start_mark.line + 1}: lines of `KNOB: VALUE` are expected.")
        for key, value, line in _entries(root):
            if key == "defaults" and not isinstance(value, yaml.SequenceNode):
                raise ValueError(f"{file}, line {line}: a list is expected, each line as `- override /GROUP: OPTION`.")
        registry.lineage(f"{group}/{option}")
        built_in = registry.node(group, registry.options(group)[0])
        if built_in.get("_target_") and not registry.node(group, option).get("_target_"):
            raise ValueError(f"{file} has no _target_. Write `_target_: MODULE.FUNCTION`: what makes the {group}.")
        for line, fault in _faults(group, option, root, registry):
            raise ValueError(f"{file}, line {line}: {fault}")


def place_of(text: str, words: Sequence[str], registry: Registry) -> str:
    """`FILE, line N: ` of a text in the files that a command chooses; "" if it is in none."""
    for *_, file in chosen(words, registry):
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            if text in line.partition("#")[0]:
                return f"{file}, line {number}: "
    return ""


def _faults(group: str, option: str, root: yaml.Node, registry: Registry) -> Iterator[tuple[int, str]]:
    """(line, what to write) of each fault."""
    loaded = registry.loader.repository.load_config(f"{group}/{option}")
    is_global = loaded is not None and loaded.header.get("package") == "_global_"
    if group not in KNOBS and not group.startswith("hydra") and not is_global:
        yield 1, f"a {group} sets knobs of the whole run. Its first line must be `{GLOBAL}`."
    for key, value, line in _entries(root):
        if is_global and key not in KNOBS and key not in ("defaults", "hydra", group):
            yield line, f"{key} is not a knob of a run.{close_match(key, [*KNOBS, 'defaults', 'hydra'])}"
        if is_global and key in _groups_of_run(registry) and isinstance(value, yaml.ScalarNode) and value.value:
            yield line, f"a {key} is chosen under `defaults:`. Write `- override /{key}: {value.value}` there."
        if key == "defaults":
            yield from _of_defaults(value, registry)
        if key == "hydra":
            yield from _of_sweeper(value, registry)


def _groups_of_run(registry: Registry) -> set[str | None]:
    return {default.group for default in registry.load("run")[1] if isinstance(default, GroupDefault)}


def _of_defaults(node: yaml.Node, registry: Registry) -> Iterator[tuple[int, str]]:
    """Groups that there are not, and groups that every run has, chosen without `override` or without the slash."""
    of_run = _groups_of_run(registry)
    for item in node.value:
        for key, value, line in _entries(item):
            written, group = key.partition(" ")[0], key.rpartition(" ")[2]
            name = group.lstrip("/").partition("@")[0].partition("/")[0]
            if group.startswith("/") and name not in registry.groups():
                yield line, f"there is no group {name}.{close_match(name, registry.groups())}"
            if group.lstrip("/") in of_run and not (written == "override" and group.startswith("/")):
                yield (
                    line,
                    f"every run has a {group.lstrip('/')}. Write `- override /{group.lstrip('/')}: {value.value}`.",
                )


def _of_sweeper(node: yaml.Node, registry: Registry) -> Iterator[tuple[int, str]]:
    """A mode or keys that there are not, and axes that are no text."""
    known = {str(key) for option in registry.options("hydra/sweeper") for key in registry.node("hydra/sweeper", option)}
    for name, sweeper, line_of_name in _entries(node):
        if name == "mode" and sweeper.value not in ("RUN", "MULTIRUN"):
            yield line_of_name, f"mode: {sweeper.value} is not known. Write `mode: MULTIRUN` for a sweep, or drop it."
        for key, value, line in _entries(sweeper) if name == "sweeper" else ():
            if key not in {*known, "sampler", "pruner"}:
                yield line, f"{key} is not a knob of hydra.sweeper.{close_match(key, known)}"
            for axis, values, line_of_axis in _entries(value) if key == "params" else ():
                if not values.value:
                    yield line_of_axis, f"{axis} has no values. Write `{axis}: A,B`."
                if isinstance(values, yaml.SequenceNode):
                    listed = ",".join(str(item.value) for item in values.value)
                    yield line_of_axis, f"the values of an axis are one text. Write `{axis}: {listed}`."


def _entries(node: yaml.Node) -> list[Entry]:
    if not isinstance(node, yaml.MappingNode):
        return []
    return [(str(key.value), value, key.start_mark.line + 1) for key, value in node.value]
