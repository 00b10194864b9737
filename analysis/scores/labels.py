"""Labels of arms, and the knobs in them: the swept knobs, as they were typed, as in `loss=grpo lr = 1e-4`.

Config groups are `group=option`, as on the command line; numbers have spaces around the equals sign, and η has its
inverse beside it, which LAD's tables print.
"""

import contextlib
import math
import re
import shlex
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Any, TypeVar

from analysis.frames.frames import RunRow, grouped
from rlvr.ledger.identity import NOT_IDENTITY
from rlvr.ledger.runs import parse_yaml

K = TypeVar("K", bound=Hashable)
H = TypeVar("H", bound=Hashable)
Step = Callable[[K, H, Sequence[K]], H]
Pairs = tuple[tuple[str, str], ...]  # knobs

# Keys whose values do not make another arm, or that name the sweep itself.
_SILENT = frozenset({"seed", "study", "paper", *NOT_IDENTITY})


# A number with more digits than people type: one that a search has drawn.
_PROPOSED = re.compile(r"-?\d*\.\d{7,}(e[+-]?\d+)?")

_ENCLOSED = r"""'[^']*'|"[^"]*"|\[[^\]]*\]|\{[^}]*\}"""  # in quotes or brackets a value may have spaces and commas
_PAIR = re.compile(rf"""([^\s=]+)\s*=\s*((?:{_ENCLOSED}|[^\s'"\[{{])+)""")
_ALTERNATIVE = re.compile(rf"""(?:{_ENCLOSED}|[^,'"\[{{])+""")


@dataclass(frozen=True)
class Label:
    text: str
    knobs: Mapping[str, str]  # key as typed to value as typed


def typed(run: RunRow) -> dict[str, str]:
    """The overrides of a run without those that make no other arm; numbers as in its command, 1e-4 and not 0.0001.

    Numbers that a search has proposed have four significant digits, as in the names of its runs.
    """
    pairs = (o.lstrip("+~").split("=", 1) for o in run.typed if "=" in o)
    overrides = {k: v for k, v in pairs if k.split(".")[0] not in _SILENT and not k.startswith("hydra")}
    written = _values_in_command(run.command)
    return {k: next((w for w in written.get(k, ()) if _equal_numbers(w, v)), _rounded(v)) for k, v in overrides.items()}


def _rounded(value: str) -> str:
    return f"{float(value):.4g}" if _PROPOSED.fullmatch(value) else value


@lru_cache(maxsize=64)
def _values_in_command(command: str) -> dict[str, list[str]]:
    values_of: dict[str, list[str]] = {}
    with contextlib.suppress(ValueError):  # a command with an unclosed quote has none
        for word in shlex.split(command):
            key, sign, values = word.lstrip("+~").partition("=")
            values_of.setdefault(key, []).extend(values.split(",") if sign else ())
    return values_of


def swept_within(runs: Sequence[RunRow]) -> set[str]:
    """The keys that some sweep varies between its own runs."""
    values: dict[tuple[str, str], set[str]] = {}
    for run in runs:
        for key, value in typed(run).items():
            values.setdefault((run.sweep_id, key), set()).add(value)
    return {key for (sweep, key), in_sweep in values.items() if sweep and len(in_sweep) > 1}


def shared(runs: Sequence[RunRow]) -> dict[str, str]:
    """The knobs that were typed for all of these runs with the same value."""
    of_runs = [typed(run) for run in runs]
    return _common(of_runs) if of_runs else {}


def _common(mappings: Sequence[Mapping[str, str]]) -> dict[str, str]:
    return {key: value for key, value in mappings[0].items() if all(other.get(key) == value for other in mappings)}


def covers(swept: Collection[str], key: str) -> bool:
    """Whether a config key differs because it, or the group that it belongs to, was swept.

    Always False for keys of the task, the model and the evaluation: arms with different problems, base policies or
    numbers of samples must not be compared.
    """
    if key.startswith(("task.", "model.", "evaluation.")):
        return False
    return any(key == k or key.startswith(f"{k}.") for k in swept)


def of_groups(firsts: Mapping[str, RunRow]) -> dict[str, Label]:
    """By group, the label that distinguishes its arm from the others of a setting. firsts: a run of each group.

    A knob that was typed with several values is in the label of every arm, from its config if it was not typed for it;
    a knob that was typed for some arms only is in the labels of these. Where labels would still be equal, config keys
    that differ are added, and at last the id of the group: no two arms have the same label.
    """
    # Of the base policy, in which the arms of a setting agree, a launch may have typed what another left as it was.
    typed_knobs = {
        i: {k: v for k, v in typed(run).items() if not (k.startswith("model.") and k in run.config)}
        for i, run in firsts.items()
    }
    keys = dict.fromkeys(chain.from_iterable(typed_knobs.values()))
    values = {key: {knobs.get(key) for knobs in typed_knobs.values()} for key in keys}
    varied = [key for key in keys if len(values[key]) > 1]
    several = {key for key in varied if len(values[key] - {None}) > 1}
    knobs_of = {i: _varied_knobs(firsts[i], knobs, varied, several) for i, knobs in typed_knobs.items()}
    if len(knobs_of) == 1:
        return {i: _of_single_arm(firsts[i], knobs) for i, knobs in knobs_of.items()}
    differing = _differing(list(firsts.values()))
    choices = [key for key in differing if key.startswith("choices.")]

    def with_keys(keys: Sequence[str]) -> Step[str, Pairs]:
        return lambda i, pairs, _: tuple({**_configured_knobs(firsts[i], keys), **dict(pairs)}.items())

    steps: list[Step[str, Pairs]] = [with_keys(keys) for keys in (varied, choices, differing)]
    steps.append(lambda i, pairs, alike: (*pairs, ("group", i)) if len(alike) > 1 else pairs)
    distinct = made_distinct({i: tuple(knobs.items()) for i, knobs in knobs_of.items()}, steps)
    return {
        i: Label(text(dict(pairs)), dict(pairs)) if pairs else _of_single_arm(firsts[i], {})  # all is off in it
        for i, pairs in distinct.items()
    }


def made_distinct(names: Mapping[K, H], steps: Iterable[Step[K, H]]) -> dict[K, H]:
    """The names, of which those that are empty or not unique are replaced, step by step, by more explicit ones.

    steps: each gives the next name of an item, from the item, its name, and all items with that name.
    """
    distinct = dict(names)
    for step in steps:
        for name, items in grouped(distinct, distinct.__getitem__).items():
            if len(items) > 1 or not name:
                distinct |= {item: step(item, name, items) for item in items}
    return distinct


def _varied_knobs(
    run: RunRow, typed_knobs: Mapping[str, str], varied: Sequence[str], several: Collection[str]
) -> dict[str, str]:
    """The varied knobs of a run, as typed; those typed with several values else from its config."""
    knobs: dict[str, str] = {}
    for key in varied:
        value = typed_knobs.get(key) or (_configured(run, key) if key in several else None)
        if value is not None:
            knobs[key] = value
    return knobs


def _configured_knobs(run: RunRow, keys: Iterable[str]) -> dict[str, str]:
    names = [key.removeprefix("choices.") for key in keys]
    return {name: value for name in names if (value := _configured(run, name)) is not None}


def _configured(run: RunRow, key: str) -> str | None:
    """The value of a knob in a run's config; None if the run does not have the knob, or it is off."""
    value = run.knob(key)
    return None if value in (None, "") or str(value) in ("none", "None") else value_text(value)


def _of_single_arm(run: RunRow, knobs: Mapping[str, str]) -> Label:
    """The label of one arm: its varied knobs, else its loss. Of what has none, an evaluation has its policy, and
    an import the name (`arm`) or the knobs that were typed for it."""
    if not knobs and run.loss:
        knobs = {"program" if run.knob("program") == run.loss else "loss": run.loss}
    elif not knobs:
        policy = typed(run).get("policy") or run.knob("policy.name")
        knobs = {"policy": str(policy)} if policy else typed(run) or {"loss": ""}
    return Label(knobs["arm"] if "arm" in knobs else text(knobs), knobs)


def _differing(runs: Sequence[RunRow]) -> list[str]:
    """The config keys in which runs differ, without seeds and keys that make no other arm."""
    silent, parts = _SILENT - {"choices"}, ("._partial_", "._target_", ".seed")
    keys = sorted({key for run in runs for key in run.config})
    keys = [key for key in keys if key.split(".")[0] not in silent and not key.endswith(parts)]
    return [key for key in keys if len({repr(run.config.get(key)) for run in runs}) > 1]


def text(knobs: Mapping[str, str]) -> str:
    """The knobs as a label: `loss=grpo lr = 1e-4`."""
    return " ".join(pair(key, value) for key, value in knobs.items())


def pair(key: str, value: str) -> str:
    """`loss=grpo`, `lr = 1e-4`, `eta = 0.5 (1/η = 2)`."""
    as_number = number(value)
    if math.isnan(as_number):
        return f"{key}={value}"
    beside = f" (1/η = {inverse(as_number)})" if key.rpartition(".")[2] == "eta" else ""
    return f"{key} = {value}{beside}"


_SYMBOLS = {"eta": "η", "beta": "β", "alpha": "α"}


def in_short(of_groups: Mapping[K, Label]) -> dict[K, str]:
    """By group its label for figures: `js η=0.5`, with the loss too where several have that divergence; the whole label
    where this would not tell arms apart."""

    def words(key: K, without: Collection[str]) -> str:
        knobs = of_groups[key].knobs
        parts = [knobs[name] for name in ("loss", "divergence") if name in knobs and name not in without]
        others = [(name.rpartition(".")[2], v) for name, v in knobs.items() if name not in ("loss", "divergence")]
        return " ".join([*parts, *(f"{_SYMBOLS.get(name, name)}={value}" for name, value in others)])

    short = {key: words(key, ["loss"] if "divergence" in label.knobs else []) for key, label in of_groups.items()}
    steps = (lambda key, *_: words(key, []), lambda key, *_: of_groups[key].text)
    return made_distinct(short, steps)


def inverse(eta: float) -> str:
    """1/eta as LAD prints it: 1/4, 1/2, 1, 2 ..."""
    if math.isnan(eta) or eta <= 0:
        return "?"
    if eta > 1 and abs(eta - round(eta)) < 1e-9:
        return f"1/{round(eta)}"
    return f"{1 / eta:.4g}"


def joined(labels: Sequence[str]) -> str:
    """Several labels of arms in short: `loss=grpo at the same lr` for arms that share one knob and not the other."""
    distinct = list(dict.fromkeys(labels))
    with contextlib.suppress(ValueError):  # the label of an arm that has no knobs
        knobs_of = [parse(label) for label in distinct]
        common = _common(knobs_of) if knobs_of else {}
        others = dict.fromkeys(key for knobs in knobs_of for key in knobs if key not in common)
        if len(distinct) > 1 and common and others:
            return f"{text(common)} at the same {', '.join(others)}"
    return " or ".join(distinct)


def parse(selector: str) -> dict[str, str]:
    """The knobs of a selector such as `loss=grpo lr = 1e-4`. Raises ValueError for anything else."""
    knobs = re.sub(r"\(1/η\s*=[^)]*\)", "", selector)
    if not _PAIR.search(knobs) or _PAIR.sub("", knobs).strip():
        raise ValueError(f"{selector!r} names no arm: write knobs as in 'loss=grpo lr=1e-4'.")
    pairs = _PAIR.findall(knobs)
    if twice := [key for key, number in Counter(key for key, _ in pairs).items() if number > 1]:
        raise ValueError(f"{selector!r} gives {twice[0]} twice. Keep one of them; alternatives are {twice[0]}=A,B.")
    return dict(pairs)


def alternatives(value: str) -> list[str]:
    """The values of a knob of a selector: `js,hd` are two, `[0.9,0.95]` is one."""
    return _ALTERNATIVE.findall(value)


def equal(one: str, other: str) -> bool:
    """Whether two values are equal: as text, as numbers (1e-4 and 0.0001), or as what a config has for them (true and
    True, [0.9,0.95] and [0.9, 0.95])."""
    return one == other or _equal_numbers(one, other) or _parsed(one) == _parsed(other)


def _equal_numbers(one: str, other: str) -> bool:
    a, b = number(one), number(other)
    return not math.isnan(a) and math.isclose(a, b, rel_tol=1e-9)


@lru_cache(maxsize=1024)
def _parsed(value: str) -> str:
    """The value that a config has for a text, written in one way."""
    try:
        return repr(parse_yaml(value))
    except ValueError:
        return value


def number(value: str) -> float:
    """The value as a number; NaN for other texts."""
    try:
        return float(value)
    except ValueError:
        return math.nan


def value_text(value: Any) -> str:
    """A value of a config as the text by which arms are distinguished and compared."""
    if isinstance(value, bool):
        return str(value).lower()
    is_short = isinstance(value, float) and float(f"{value:.6g}") == value
    return f"{value:.6g}" if is_short else str(value)


def short(value: Any) -> str:
    """The text of a value for printing, at most 40 characters."""
    text = f"{value:.6g}" if isinstance(value, float) else value_text(value)
    return text if len(text) <= 40 else f"…{text[-39:]}"
