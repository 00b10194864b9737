"""What people type: overrides of Hydra as alternatives of a key, and every combination of them."""

from __future__ import annotations

import argparse
import functools
import itertools
import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NoReturn, cast

from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

GRAMMAR = "Type KEY=VALUE, with -m KEY=A,B; a list is KEY=[A,B], a text with signs or spaces 'KEY=\"A TEXT\"'."
OF_HYDRA = ("hydra.sweeper.", "hydra/sweeper", "hydra.searchpath", "hydra.verbose")  # keys of Hydra that are read here
MOST_POINTS = 100_000  # of a launch: composing and checking them takes ten minutes
Point = dict[str, str]  # key -> override, such as {"eta": "eta=0.5"}


def command_line(words: Sequence[str]) -> argparse.Namespace:
    """The options and overrides of a command, as Hydra knows them. ValueError for what is none."""
    parser = get_args_parser()
    parser.error = _refuse_options  # type: ignore[method-assign] - which else prints a usage that is not ours, and exits
    options = parser.parse_intermixed_args(list(words))
    if options.package is not None and options.cfg is None:
        raise ValueError(f"--package {options.package} has no effect without --cfg job. Add it or drop it.")
    for name in ("config_path", "config_name", "experimental_rerun"):
        if getattr(options, name) is not None:
            flag = f"--{name.replace('_', '-')}"
            raise ValueError(f"{flag} has no effect: a run is composed from run.yaml. Add options by --config-dir DIR.")
    return options


def _refuse_options(message: str) -> NoReturn:
    words = re.sub(r"^argument (\S+?)(/\S+)?:", r"\1:", message).replace(
        "unrecognized arguments:", "there is no option"
    )
    raise ValueError(f"{words}. `python -m rlvr.run --help` lists what can be typed.")


def parse(words: Sequence[str]) -> list[Override]:
    return OverridesParser.create().parse_overrides(list(words))


def key_of(word: str) -> str:
    """Of an override, or of what stands before its `=`: `+task.size=9` -> task.size"""
    return word.partition("=")[0].lstrip("+~")


def check(words: Sequence[str], groups: Collection[str]) -> None:
    """ValueError for a word that is no override, in words of our own, or that a run's groups cannot take."""
    for word in words:
        override = read(word)
        key, value = override.key_or_group, override.value()
        if key.startswith(("hydra.", "hydra/")) and not key.startswith(OF_HYDRA):
            raise ValueError(f"{word} has no effect on a run. Of Hydra's own: {', '.join(OF_HYDRA)}.")
        if key == "study" and override.is_sweep_override():
            raise ValueError(f"{word}: a study brings axes, arms and claims of its own. Launch studies one by one.")
        if key not in groups or isinstance(value, dict) or override.is_delete():
            continue
        if value is None or value == "" or isinstance(value, bool | int | float):
            raise ValueError(f"{word}: {key} takes the name of an option. `python -m rlvr.run --help` lists them.")
        if isinstance(value, list):
            several = ",".join(map(str, cast("list[object]", value)))
            raise ValueError(f"{word} chooses several of {key}, and a run has one. Sweep them: -m {key}={several}.")
    check_once(words)


def read(word: str) -> Override:
    """ValueError, in words of our own, for a word that is no override."""
    try:
        override = parse([word])[0]
        if not override.key_or_group:
            raise HydraException
    except HydraException:
        raise ValueError(_not_read(word)) from None
    return override


def _not_read(word: str) -> str:
    """Why a word is no override."""
    key, is_given, value = word.partition("=")
    if word.startswith("-"):
        return f"{word} is no option of this command. `python -m rlvr.run --help` lists what can be typed."
    if not is_given or not key:
        return f"{word}: no {'name of a knob' if is_given else 'value'}. {GRAMMAR}"
    if not re.fullmatch(r"[+~]*[A-Za-z_][\w./@:$-]*", key, re.ASCII):
        return f"{word}: {key!r} is no name of a knob. {GRAMMAR}"
    if not value.isascii() or re.search(r"[^\w\s.,:=+*/@%?|${}()\[\]\\'\"~<>;!&^#-]", value, re.ASCII):
        return f"{word}: letters and signs of other scripts stand in quotes. {GRAMMAR}"
    return f"{word}: the value cannot be read. {GRAMMAR}"


def check_once(words: Sequence[str]) -> None:
    """ValueError for a key that a command line gives two values: one of them would be ignored."""
    given: dict[str, str] = {}
    for word in words:
        key = key_of(word)
        if word.startswith("~"):  # an entry of a mapping is dropped, and may be set anew
            continue
        if given.get(key, word) != word:
            raise ValueError(f"{given[key]} and {word}: {key} is given twice. Keep one of them.")
        given[key] = word


def alternatives(overrides: Iterable[Override]) -> dict[str, list[str]]:
    """The alternatives of every key, in order; of a key given twice the later ones.

    ValueError for a value that stands twice on an axis, or for more values than a sweep has points.
    """
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
            found[key_of(element)] = _axis(one)
        else:
            found[key_of(element)] = [f"{element}={one.get_value_element_as_str()}"]
    return found


def _axis(override: Override) -> list[str]:
    element = override.get_key_element()
    try:
        values = list(itertools.islice(override.sweep_string_iterator(), MOST_POINTS + 1))
    except (ValueError, HydraException) as error:
        what = "name the options, glob lists none here" if isinstance(error, HydraException) else str(error)
        raise ValueError(f"{override.input_line}: {what}.") from None
    if not values:
        raise ValueError(f"{override.input_line} has no value. Drop it, or give it some.")
    if len(values) > MOST_POINTS:
        raise _too_many(f"{override.input_line} has more than {MOST_POINTS} values")
    if twice := [value for value, num in Counter(values).items() if num > 1]:
        raise ValueError(f"{override.input_line}: {twice[0]} stands twice on this axis. Drop one.")
    return [f"{element}={value}" for value in values]


def _too_many(what: str) -> ValueError:
    return ValueError(
        f"{what}, and a launch has at most {MOST_POINTS} points. Launch parts of it, such as seed=range(0,1000) and "
        "then seed=range(1000,2000), or search it: hydra/sweeper=optuna."
    )


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
    num_points = math.prod(map(len, columns))
    if num_points > MOST_POINTS:
        raise _too_many(f"the grid has {num_points} points")
    return [{k: v for part in row for k, v in part.items()} for row in itertools.product(*columns)]


@functools.cache
def value_of(override: str) -> object:
    """The value that Hydra reads in an override: 1e-3 and 0.001 are one."""
    return parse([override])[0].value()


def usual(config: DictConfig, key: str) -> object:
    """What holds for points that do not set this key."""
    choices = config.hydra.runtime.choices
    value = choices[key] if key in choices else OmegaConf.select(config, key)
    return OmegaConf.to_container(value) if OmegaConf.is_config(value) else value
