"""Parses what users type: Hydra's overrides, as alternative values of each key, and all combinations of them."""

import argparse
import functools
import itertools
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn, cast

from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from rlvr.ledger.identity import ADDED_ARMS, GRID_KEYS, GROWTH, NAMING, NOT_IDENTITY

GRAMMAR = "Type KEY=VALUE, with -m KEY=A,B; a list is KEY=[A,B], a text with signs or spaces 'KEY=\"A TEXT\"'."
HYDRA_KEYS = ("hydra.sweeper.", "hydra/sweeper", "hydra.searchpath", "hydra.verbose")  # keys with an effect
MOST_POINTS = 100_000  # of one launch: composing and checking so many takes ten minutes
Point = dict[str, str]  # key -> override, such as {"eta": "eta=0.5"}


def command_line(words: Sequence[str]) -> argparse.Namespace:
    """The options and overrides of a command, as Hydra parses them. ValueError for unknown options or useless ones."""
    words, parser = _with_one_config_dir(words), get_args_parser()
    parser.error = _refuse_options  # type: ignore[method-assign] - argparse would print Hydra's usage and exit
    options = parser.parse_intermixed_args(list(words))
    if options.package is not None and options.cfg is None:
        raise ValueError(f"--package {options.package} has no effect without --cfg job. Add it or drop it.")
    for name in ("config_path", "config_name", "experimental_rerun"):
        if getattr(options, name) is not None:
            flag = f"--{name.replace('_', '-')}"
            raise ValueError(f"{flag} has no effect: a run is composed from run.yaml. Add options by --config-dir DIR.")
    return options


def _with_one_config_dir(words: Sequence[str]) -> Sequence[str]:
    """Of several `--config-dir` Hydra takes the last: the others are given as its search path."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.error = _refuse_options  # type: ignore[method-assign]
    parser.add_argument("--config-dir", "-cd", action="append", default=[])
    found, others = parser.parse_known_args(list(words))
    folders = cast("list[str]", found.config_dir)
    if len(folders) < 2:
        return words
    *further, last = folders
    entries = ",".join(as_text(f"file://{Path(folder).resolve()}") for folder in further)
    return [*others, f"--config-dir={last}", f"hydra.searchpath=[{entries}]"]


def _refuse_options(message: str) -> NoReturn:
    reason = re.sub(r"^argument (\S+?)(/\S+)?:", r"\1:", message)
    reason = reason.replace("unrecognized arguments:", "there is no option")
    raise ValueError(f"{reason}. `python -m rlvr.run --help` lists what can be typed.")


def parse(words: Sequence[str]) -> list[Override]:
    return OverridesParser.create().parse_overrides(list(words))


def key_of(word: str) -> str:
    """The key of an override, or of the part before its `=`: `+task.size=9` -> task.size"""
    return word.partition("=")[0].lstrip("+~")


def quoted(words: Sequence[str]) -> list[str]:
    """Words quoted for Hydra: `exclude="loss=grpo eta=2"` becomes a list of lines, `exclude=['loss=grpo eta=2']`.

    A `;` separates lines. `tune=lr:1e-5,3e-5`, which Hydra would sweep, becomes one text.
    """
    return [_quoted(word) for word in words]


def _quoted(word: str) -> str:
    key, _, value = word.partition("=")
    if value in ("", "null") or value.startswith(("[", "'", '"')):
        return word
    if key_of(word) in (*GROWTH, *ADDED_ARMS, *NAMING, "baseline"):
        return f"{key}={as_text(value)}"
    if key_of(word) not in GRID_KEYS:
        return word
    return f"{key}=[" + ",".join(as_text(line.strip()) for line in value.split(";") if line.strip()) + "]"


def as_text(value: str) -> str:
    """A value as quoted text of Hydra's grammar."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def check(words: Sequence[str], groups: Collection[str]) -> None:
    """Raises ValueError for words that are no overrides, options that a group cannot take, and repeated keys."""
    for word in words:
        override = read(word)
        key, value = override.key_or_group, override.value()
        if key.startswith(("hydra.", "hydra/")) and not key.startswith(HYDRA_KEYS):
            raise ValueError(f"{word} has no effect on a run. Of Hydra's own: {', '.join(HYDRA_KEYS)}.")
        if key == "study" and override.is_sweep_override():
            raise ValueError(f"{word}: a study brings axes, arms and claims of its own. Launch studies one by one.")
        if key not in groups or isinstance(value, dict) or override.is_delete():
            continue
        if value is None or value == "" or isinstance(value, bool | int | float):
            raise ValueError(f"{word}: {key} takes the name of an option. `python -m rlvr.run --help` lists them.")
        if isinstance(value, list):
            several = ",".join(map(str, cast("list[object]", value)))
            advice = "Pass one." if key in NOT_IDENTITY else f"Sweep them: -m {key}={several}."
            raise ValueError(f"{word} chooses several of {key}, and a run has one. {advice}")
    check_once(words)


def with_home(word: str) -> str:
    """The word with the user's home in place of each ~/ outside of quotes, which Hydra cannot read and no shell expands
    behind a =."""
    return word if re.search("[\"']", word) else re.sub(r"(?<=[=,:[])~(?=/)", str(Path.home()), word)


def read(word: str) -> Override:
    """Parses one override. Raises ValueError with an explanation of our own, not Hydra's, if it is none."""
    try:
        override = parse([word])[0]
        if not override.key_or_group:
            raise HydraException
    except HydraException:
        raise ValueError(_why_unreadable(word)) from None
    return override


def _why_unreadable(word: str) -> str:
    key, equals_sign, value = word.partition("=")
    if word[0] in "\N{EN DASH}\N{EM DASH}\N{MINUS SIGN}":
        return f"{word} begins with a dash that is no hyphen. Type it anew: -{word.lstrip(word[0])}."
    if word.startswith("-"):
        return f"{word} is no option of this command. `python -m rlvr.run --help` lists what can be typed."
    if strange := re.search(r"[^\x00-\x7f]", word if not equals_sign else key + value):
        name = unicodedata.name(strange[0], "a character without a name")
        plain = unicodedata.normalize("NFKC", word)
        remedy = f"Type {plain}." if plain.isascii() else "Type it anew, or put the text that it belongs to in quotes."
        return f"{word}: {strange[0]!r} is {name}. {remedy}"
    if not equals_sign or not key:
        return f"{word}: no {'name of a knob' if equals_sign else 'value'}. {GRAMMAR}"
    if not re.fullmatch(r"[+~]*[A-Za-z_][\w./@:$-]*", key, re.ASCII):
        return f"{word}: {key!r} is no name of a knob. {GRAMMAR}"
    return f"{word}: the value cannot be read. {GRAMMAR}"


def check_once(words: Sequence[str]) -> None:
    """Raises ValueError for a key with two values on one command line: one of them would be ignored."""
    word_of_key: dict[str, str] = {}
    for word in words:
        key = key_of(word)
        if word.startswith("~"):  # drops an entry of a mapping, which may then be set to another value
            continue
        if word_of_key.get(key, word) != word:
            raise ValueError(f"{word_of_key[key]} and {word}: {key} is given twice. Keep one of them.")
        word_of_key[key] = word


def alternatives(overrides: Iterable[Override]) -> dict[str, list[str]]:
    """Key -> its alternative overrides, in order; for a repeated key those of its last override.

    Raises ValueError for an interval, a value that an axis lists twice, or more values than a launch may have points.
    """
    words: dict[str, list[str]] = {}
    for override in overrides:
        element = override.get_key_element()
        if override.is_sweep_override() and not override.is_discrete_sweep():
            raise ValueError(
                f"{override.input_line}: a grid takes lists such as {element}=1,2, choice(...) and range(...). "
                "Pass hydra/sweeper=optuna to search an interval."
            )
        if override.is_delete():
            words[key_of(element)] = [override.input_line or element]
        elif override.is_sweep_override():
            words[key_of(element)] = _axis(override)
        else:
            words[key_of(element)] = [_word(element, override.get_value_element_as_str())]
    return words


def _axis(override: Override) -> list[str]:
    element = override.get_key_element()
    try:
        values = list(itertools.islice(override.sweep_string_iterator(), MOST_POINTS + 1))
    except (ValueError, HydraException) as error:
        reason = "name the options, glob lists none here" if isinstance(error, HydraException) else str(error)
        raise ValueError(f"{override.input_line}: {reason}.") from None
    if not values:
        raise ValueError(f"{override.input_line} has no value. Drop it, or give it some.")
    if len(values) > MOST_POINTS:
        raise _too_many(f"{override.input_line} has more than {MOST_POINTS} values")
    if repeated := [value for value, count in Counter(values).items() if count > 1]:
        raise ValueError(f"{override.input_line}: {repeated[0]} is listed twice on this axis. Drop one.")
    return [_word(element, value) for value in values]


def _word(element: str, value: str) -> str:
    """KEY=VALUE, with true and false as a person types them: Hydra spells them like Python does."""
    return f"{element}={value.lower() if value in ('True', 'False') else value}"


def _too_many(reason: str) -> ValueError:
    return ValueError(
        f"{reason}, and a launch has at most {MOST_POINTS} points. Launch parts of it, such as seed=range(0,1000) and "
        "then seed=range(1000,2000), or search it: hydra/sweeper=optuna."
    )


def combinations(axes: Mapping[str, Sequence[str]], pairs: Sequence[Sequence[str]] = ()) -> list[Point]:
    """All combinations of the axes' values; the values of zipped keys are paired one by one.

    Raises ValueError if zipped keys have different numbers of values.
    """
    columns: list[list[Point]] = []
    done: set[str] = set()
    for key in axes:
        if key in done:
            continue
        zipped = [k for pair in pairs if key in pair for k in pair if k in axes] or [key]
        if len({len(axes[k]) for k in zipped}) > 1:
            numbers = ", ".join(f"{k} has {len(axes[k])}" for k in zipped)
            raise ValueError(
                f"zip={','.join(zipped)} pairs values one by one, and {numbers}. Give equally many of each."
            )
        rows = zip(*(axes[k] for k in zipped), strict=True)
        columns.append([dict(zip(zipped, row, strict=True)) for row in rows])
        done.update(zipped)
    num_points = math.prod(map(len, columns))
    if num_points > MOST_POINTS:
        raise _too_many(f"the grid has {num_points} points")
    return [{k: v for part in row for k, v in part.items()} for row in itertools.product(*columns)]


def seed_of(override: str) -> int:
    """The number of `seed=NUMBER`. Raises ValueError for anything else."""
    try:
        return int(str(value_of(override)))
    except ValueError:
        raise ValueError(f"{override}: a whole number is expected, 0 or more.") from None


@functools.cache
def value_of(override: str) -> object:
    """The value of an override as Hydra reads it: 1e-3 and 0.001 are equal."""
    return parse([override])[0].value()
