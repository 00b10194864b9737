"""What was swept, in the words that were typed: `loss=grpo lr = 1e-4`. Config groups are `group=option`, as on the
command line; values have spaces about their sign, and η its inverse beside it, which is what LAD's tables print."""

from __future__ import annotations

import contextlib
import math
import re
import shlex
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Any

from analysis.frames.run import Run
from rlvr.ledger.identity import NOT_IDENTITY

# What a sweep may vary without making another arm, or what names the sweep itself.
_SILENT = frozenset({"seed", "study", "paper", *NOT_IDENTITY})


# A number of more digits than people type: one that a search has drawn.
_PROPOSED = re.compile(r"-?\d*\.\d{7,}(e[+-]?\d+)?")


@dataclass(frozen=True)
class Label:
    text: str
    knobs: Mapping[str, str]  # key as typed to value as typed


def typed(run: Run) -> dict[str, str]:
    """What was typed for a run, but for what makes no other arm; numbers as in its command, 1e-4 and not 0.0001.

    Numbers that a search has proposed have four significant digits, as in the names of its runs.
    """
    pairs = (o.lstrip("+~").split("=", 1) for o in run.typed if "=" in o)
    kept = {k: v for k, v in pairs if k.split(".")[0] not in _SILENT and not k.startswith("hydra")}
    written = _written(run.command)
    return {k: next((w for w in written.get(k, ()) if equal(w, v)), _rounded(v)) for k, v in kept.items()}


def _rounded(value: str) -> str:
    return f"{float(value):.4g}" if _PROPOSED.fullmatch(value) else value


@lru_cache(maxsize=64)
def _written(command: str) -> dict[str, list[str]]:
    """The values of each knob as a command has them."""
    found: dict[str, list[str]] = {}
    with contextlib.suppress(ValueError):  # a command with an open quote says nothing
        for word in shlex.split(command):
            key, sign, values = word.lstrip("+~").partition("=")
            found.setdefault(key, []).extend(values.split(",") if sign else ())
    return found


def swept_within(runs: Sequence[Run]) -> set[str]:
    """The keys that some sweep varies between its own runs."""
    values: dict[tuple[str, str], set[str]] = {}
    for run in runs:
        for key, value in typed(run).items():
            values.setdefault((run.sweep_id, key), set()).add(value)
    return {key for (sweep, key), found in values.items() if sweep and len(found) > 1}


def shared(runs: Sequence[Run]) -> dict[str, str]:
    """What was typed for all of these runs alike."""
    given = [typed(run) for run in runs]
    return {k: v for k, v in given[0].items() if all(own.get(k) == v for own in given)} if given else {}


def covers(swept: Collection[str], key: str) -> bool:
    """Whether a config key differs because it, or the group that it belongs to, was swept.

    Never of the task, the model and the evaluation: other problems, arms that start from other base policies, and other
    numbers of samples are not to be compared.
    """
    if key.startswith(("task.", "model.", "evaluation.")):
        return False
    return any(key == k or key.startswith(f"{k}.") for k in swept)


def labels(firsts: Mapping[str, Run]) -> dict[str, Label]:
    """By group, what tells its arm from the others of a setting. firsts: a run of each group.

    A knob to which several values were given is told of every arm, from its config where it was not typed; one that
    some arms alone were given is told of those. Where arms would still read alike, every config key that differs, and
    at last the id of the group: no two arms have one name.
    """
    given = {i: typed(run) for i, run in firsts.items()}
    values: dict[str, set[str | None]] = {key: set() for key in dict.fromkeys(chain.from_iterable(given.values()))}
    for own in given.values():
        for key, seen in values.items():
            seen.add(own.get(key))
    varied = [key for key, seen in values.items() if len(seen) > 1]
    several = {key for key in varied if len(values[key] - {None}) > 1}
    told = {i: _told(firsts[i], own, varied, several) for i, own in given.items()}
    told = _told_apart(told, firsts, varied)
    return {i: Label(text(knobs), knobs) for i, knobs in told.items()}


def _told(run: Run, own: Mapping[str, str], varied: Sequence[str], several: Collection[str]) -> dict[str, str]:
    told: dict[str, str] = {}
    for key in varied:
        value = own.get(key) or (_configured(run, key) if key in several else None)
        if value is not None:
            told[key] = value
    return told


def _configured(run: Run, key: str) -> str | None:
    """The value that holds for a run that was not told; None where the knob is not its own, or off."""
    value = run.knob(key)
    return None if value in (None, "") or str(value) in ("none", "None") else whole(value)


def _told_apart(
    told: Mapping[str, dict[str, str]], firsts: Mapping[str, Run], varied: Sequence[str]
) -> dict[str, dict[str, str]]:
    """Complete labels that are empty or not alone: by what others were given, by chosen options, by any config key; where
    even these read alike (values that differ beyond the digits shown), by the ids of their groups."""
    if len(told) < 2:
        return {i: knobs or _alone(firsts[i]) for i, knobs in told.items()}
    differ = _differing(list(firsts.values()))
    chosen = [key for key in differ if key.startswith("choices.")]
    found = dict(told)
    for keys in (varied, chosen, differ):
        alike = Counter(text(knobs) for knobs in found.values())
        for i, knobs in found.items():
            if not knobs or alike[text(knobs)] > 1:
                own = {
                    key.removeprefix("choices."): _configured(firsts[i], key.removeprefix("choices.")) for key in keys
                }
                found[i] = {**{key: value for key, value in own.items() if value is not None}, **knobs}
    alike = Counter(text(knobs) for knobs in found.values())
    return {i: {**knobs, "group": i} if alike[text(knobs)] > 1 else knobs for i, knobs in found.items()}


def _alone(run: Run) -> dict[str, str]:
    """What an arm is called that stands alone: its loss, or of an evaluation, which has none, its policy."""
    policy = "" if run.loss else typed(run).get("policy") or run.knob("policy.name")
    return {"policy": str(policy)} if policy else {"loss": run.loss}


def _differing(runs: Sequence[Run]) -> list[str]:
    """The config keys in which runs differ, but for seeds and for what makes no other arm."""
    keys = sorted({k for run in runs for k in run.config})
    silent = _SILENT - {"choices"}
    named = [k for k in keys if k.split(".")[0] not in silent and not k.endswith(("._partial_", "._target_", ".seed"))]
    return [k for k in named if len({repr(run.config.get(k)) for run in runs}) > 1]


def text(knobs: Mapping[str, str]) -> str:
    return " ".join(pair(key, value) for key, value in knobs.items())


def pair(key: str, value: str) -> str:
    """`loss=grpo`, `lr = 1e-4`, `eta = 0.5 (1/η = 2)`."""
    size = number(value)
    if math.isnan(size):
        return f"{key}={value}"
    beside = f" (1/η = {inverse(size)})" if key.rpartition(".")[2] == "eta" else ""
    return f"{key} = {value}{beside}"


def inverse(eta: float) -> str:
    """1/eta as LAD prints it: 1/4, 1/2, 1, 2 ..."""
    if math.isnan(eta) or eta <= 0:
        return "?"
    if eta > 1 and abs(eta - round(eta)) < 1e-9:
        return f"1/{round(eta)}"
    return f"{1 / eta:.4g}"


def together(labels: Sequence[str]) -> str:
    """Several references in a few words: `loss=grpo at the same lr` of arms that share one knob and not the other."""
    apart = list(dict.fromkeys(labels))
    with contextlib.suppress(ValueError):  # an arm that is not named by knobs
        told = [parse(label) for label in apart]
        common = {k: v for k, v in told[0].items() if all(own.get(k) == v for own in told)} if told else {}
        others = dict.fromkeys(key for own in told for key in own if key not in common)
        if len(apart) > 1 and common and others:
            return f"{text(common)} at the same {', '.join(others)}"
    return " or ".join(apart)


def parse(selector: str) -> dict[str, str]:
    """`loss=grpo lr = 1e-4` to pairs. Raises ValueError for anything else."""
    joined = re.sub(r"\s*=\s*", "=", selector.strip())
    joined = re.sub(r"\(1/η=[^)]*\)", "", joined)
    pairs = [part.partition("=") for part in joined.split()]
    if not pairs or any(not sign or not key or not value for key, sign, value in pairs):
        raise ValueError(f"{selector!r} names no arm: write knobs as in 'loss=grpo lr=1e-4'.")
    return {key: value for key, _, value in pairs}


def equal(one: str, other: str) -> bool:
    """Whether two values are the same, as text or as numbers: 1e-4 and 0.0001."""
    a, b = number(one), number(other)
    return one == other or (not math.isnan(a) and math.isclose(a, b, rel_tol=1e-9))


def number(value: str) -> float:
    try:
        return float(value)
    except ValueError:
        return math.nan


def whole(value: Any) -> str:
    """A value of a config, by which arms are told apart and compared."""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def short(value: Any) -> str:
    """The same to be shown, at most 40 characters."""
    text = whole(value)
    return text if len(text) <= 40 else f"…{text[-39:]}"
