"""Arms: runs that differ by their seed alone. The rows of every table and the lines of every figure are arms."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from analysis.frames.frame import Frame
from analysis.frames.load import SETTING

STRICT = ("tv", "hd", "js")
WEAK = ("kl", "rkl", "jf")

# Named by an arm's own fields, or without influence on results: not listed again as a difference.
_TOLD = (
    "config.seed",
    "config.trainer.seed",
    "config.trainer.lr",
    "config.trainer.steps",
    "config.eta",
    "config.beta",
    "config.loss.eta",
    "config.loss.beta",
    "config.loss.divergence",
    "config.divergence",
    "config.cluster.",
    "config.tracker.",
    "config.checkpoint.",
    "config.choices.",
    "config.loss._target_",
    "config.loss._partial_",
)


@dataclass(frozen=True)
class Arm:
    """One group of seeds. `setting` tells apart tables, `variant` arms of one loss, divergence and eta, in words.

    A variant leaves out what is off: a coefficient of 0 or a filter `none` is how the other arms have it.
    """

    group_id: str
    setting: str
    loss: str
    divergence: str
    eta: float
    beta: float
    variant: str
    run_ids: tuple[str, ...]
    reference: bool = False

    @property
    def method(self) -> str:
        return f"{self.loss}-{self.divergence}" if self.divergence else self.loss


def arms(runs: Frame) -> list[Arm]:
    """The arms of a runs frame, by setting, loss, divergence, eta."""
    if runs.empty:
        return []
    columns = [c for c in runs.columns if c.startswith("config.")]
    setting = differing(runs, [c for c in columns if c.startswith(SETTING)])
    labels = runs.apply(lambda row: describe(row, setting), axis=1)
    found = []
    for (loss, _), part in runs.groupby(["loss", labels], sort=True):
        own = differing(part, [c for c in columns if not c.startswith((*SETTING, *_TOLD))])
        firsts = {str(i): seeds.iloc[0] for i, seeds in part.groupby("group_id", sort=False)}
        variants = _variants(firsts, own)
        for group_id, seeds in part.groupby("group_id", sort=False):
            first = firsts[str(group_id)]
            found.append(
                Arm(
                    str(group_id),
                    labels[seeds.index[0]],
                    str(loss),
                    first["divergence"],
                    float(first["eta"]),
                    float(first["beta"]),
                    variants[str(group_id)],
                    tuple(seeds.sort_values("seed")["run_id"]),
                    bool(first["reference"]),
                )
            )
    return sorted(found, key=lambda a: (a.setting, a.loss, rank(a.divergence), -_number(a.eta), a.variant))


def _variants(firsts: Mapping[str, Frame], own: Sequence[str]) -> dict[str, str]:
    """By group, what tells it from the others, without knobs that are off; with them where two would read alike."""
    short = {i: describe(row, [c for c in own if not _off(c, row[c])]) for i, row in firsts.items()}
    told = {i: (row["divergence"], str(row["eta"]), str(row["beta"]), short[i]) for i, row in firsts.items()}
    alike = Counter(told.values())
    return {i: short[i] if alike[told[i]] == 1 else describe(row, own) for i, row in firsts.items()}


def _off(column: str, value: Any) -> bool:
    """An option of the trainer or the rollout that is not in use; a loss's own `none` is one choice among others."""
    return column.startswith(("config.trainer.", "config.rollout.")) and str(value) in ("0", "0.0", "none")


def rank(divergence: str) -> tuple[int, str]:
    """Order of divergences everywhere: strict, weak, then whatever was added."""
    known = (*STRICT, *WEAK)
    return (known.index(divergence) if divergence in known else len(known), divergence)


def differing(runs: Frame, columns: Iterable[str]) -> list[str]:
    """The columns in which these runs do not all agree; a run that is silent about a knob agrees with everyone."""
    return [c for c in columns if runs[c].dropna().map(repr).nunique() > 1]


def describe(row: Frame, columns: Iterable[str]) -> str:
    """`lr=1e-05, task.size=17`: the given columns of a run in words."""
    words = {}
    for column in sorted(c for c in columns if not _blank(row[c])):
        name, value = column.removeprefix("config."), _short(row[column])
        if name.endswith("._target_"):
            name, value = name.removesuffix("._target_"), value.rpartition(".")[2]
        words[name] = value
    return ", ".join(f"{name}={value}" for name, value in words.items())


def inverse(eta: float) -> str:
    """1/eta as the paper prints it: 1/4, 1/2, 1, 2 ..."""
    if math.isnan(eta) or eta <= 0:
        return "?"
    if eta > 1 and abs(eta - round(eta)) < 1e-9:
        return f"1/{round(eta)}"
    return f"{1 / eta:.4g}"


def settings(found: Iterable[Arm]) -> list[str]:
    return list(dict.fromkeys(a.setting for a in found))


def grpo_command(frames_runs: Frame, setting: list[Arm]) -> str:
    """The command that would add the missing GRPO run to these arms: their overrides without what only LAD reads."""
    ids = [i for a in setting for i in a.run_ids]
    told = frames_runs.loc[frames_runs["run_id"].isin(ids), "overrides"]
    shared: list[str] | None = None
    for overrides in told:
        kept = [o for o in str(overrides).split() if o.split("=")[0] not in _LAD_ONLY]
        shared = kept if shared is None else [o for o in shared if o in kept]
    return " ".join(["python -m rlvr.run", "loss=grpo", *(shared or [])])


_LAD_ONLY = {"loss", "divergence", "eta", "beta", "study", "+study"}


def _number(value: float) -> float:
    return -math.inf if math.isnan(value) else value


def _blank(value: Any) -> bool:
    return value is None or value == "" or (isinstance(value, float) and math.isnan(value))


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    text = str(value)
    return text if len(text) <= 40 else f"…{text[-39:]}"
