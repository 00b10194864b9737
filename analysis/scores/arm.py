"""Arms: runs that differ by their seed alone. The rows of every table and the lines of every figure are arms."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from analysis.frames.frames import SETTING, Frames
from analysis.frames.run import AGAIN, CONFIG, Run
from analysis.scores import words

STRICT = ("tv", "hd", "js")
WEAK = ("kl", "rkl", "jf")

# What an arm may be a control by (`controls=`): rewards that are not the verifier's, other seeds, no learning.
RANDOM, FLIPPED, SEEDS, STILL = "random", "flipped", "seeds", "still"
CONTROL_KNOBS = {RANDOM: "rollout.reward", FLIPPED: "rollout.reward", SEEDS: "control", STILL: "lr"}  # what makes each

# Named by an arm's own fields, or without influence on results: not listed again as a difference.
_NAMED = (
    "seed",
    "trainer.seed",
    "trainer.lr",
    "trainer.steps",
    "eta",
    "beta",
    "loss.eta",
    "loss.beta",
    "loss.divergence",
    "divergence",
    "cluster.",
    "tracker.",
    "checkpoint.",
    "choices.",
    "loss._target_",
    "loss._partial_",
)


@dataclass(frozen=True, eq=False)
class Arm:
    """One group of seeds.

    setting: what tells apart the blocks of a table: other problems, policies, lengths, evaluations. label: what was
    swept, in the words that were typed; knobs: the same by key. variant: what tells apart arms of one loss, divergence
    and η, without what is off (a coefficient of 0, a filter `none`).
    """

    group_id: str
    setting: str
    label: str
    knobs: Mapping[str, str]
    loss: str
    divergence: str
    eta: float
    beta: float
    variant: str
    runs: tuple[Run, ...]  # by seed
    tuned: frozenset[str] = frozenset()  # knobs that have the best value of each arm: no difference in what is compared

    @property
    def run_ids(self) -> tuple[str, ...]:
        return tuple(run.run_id for run in self.runs)

    @property
    def first(self) -> Run:
        return self.runs[0]

    @property
    def control(self) -> str:
        """One of the words above; "" of an arm that is no control."""
        reward, lr = self.first.knob("rollout.reward"), self.first.knob("lr")
        return SEEDS if self.first.again else str(reward) if reward else STILL if lr == 0 else ""

    @property
    def own_group(self) -> str:
        """The group id that its config has: the same arm under other seeds is a group of its own here."""
        return self.group_id.removesuffix(AGAIN)

    @property
    def borrowed(self) -> bool:
        return self.first.borrowed

    @property
    def method(self) -> str:
        return f"{self.loss}-{self.divergence}" if self.divergence else self.loss

    @property
    def scales(self) -> str:
        """`eta=0.5, beta=1`: those that it has."""
        return ", ".join(f"{name}={value:g}" for name, value in (("eta", self.eta), ("beta", self.beta)) if value > 0)


def arms(frames: Frames) -> list[Arm]:
    """The arms of a study, by setting, loss, divergence, eta."""
    if "arms" not in frames.cache:
        frames.cache["arms"] = _with_tuned(frames, arms_of(frames.rows))
    return frames.cache["arms"]


def _with_tuned(frames: Frames, found: list[Arm]) -> list[Arm]:
    """What was tuned is marked in arms that differ in more than that: where they do not, values are being compared."""
    keys = frozenset((frames.newest("tune") or {}).get("keys", ()))
    if not keys:
        return found
    rest = [(arm.setting, *sorted((k, v) for k, v in arm.knobs.items() if k not in keys)) for arm in found]
    return [replace(arm, tuned=keys) for arm in found] if len(set(rest)) == len(rest) else found


def arms_of(runs: Sequence[Run]) -> list[Arm]:
    """The same of any runs, planned ones too."""
    swept = words.swept_within(runs)
    apart = [k for k in _differing(runs, _setting_keys(runs)) if not words.covers(swept, k)]
    settings = _settings(runs, apart)
    found: list[Arm] = []
    for setting, here in _parts(runs, lambda run: settings[run.run_id]).items():
        groups = {
            i: tuple(sorted(part, key=lambda r: r.seed)) for i, part in _parts(here, lambda r: r.group_id).items()
        }
        labels = words.labels({i: part[0] for i, part in groups.items()})
        for loss, of_loss in _parts(here, lambda run: run.loss).items():
            firsts = {r.group_id: groups[r.group_id][0] for r in of_loss}
            variants = _variants(firsts, _own_keys(of_loss, apart))
            for group_id, first in firsts.items():
                label = labels[group_id]
                found.append(
                    Arm(
                        group_id,
                        setting,
                        label.text,
                        label.knobs,
                        loss,
                        first.divergence,
                        first.eta,
                        first.beta,
                        variants[group_id],
                        groups[group_id],
                    )
                )
    return sorted(found, key=lambda a: (a.setting, a.loss, rank(a.divergence), -_last(a.eta), a.variant))


def _settings(runs: Sequence[Run], apart: Sequence[str]) -> dict[str, str]:
    """By run, its setting in words; long values are cut where none other reads alike then."""
    whole = {run.run_id: describe(run, apart, shown=words.whole) for run in runs}
    cut = {run.run_id: describe(run, apart) for run in runs}
    alike = Counter(cut[i] for i in {text: i for i, text in whole.items()}.values())
    return {i: cut[i] if alike[cut[i]] == 1 else whole[i] for i in whole}


def _parts(runs: Iterable[Run], key: Callable[[Run], str]) -> dict[str, list[Run]]:
    """By key, sorted; runs in their own order within one."""
    parts: dict[str, list[Run]] = {}
    for run in runs:
        parts.setdefault(key(run), []).append(run)
    return dict(sorted(parts.items()))


def _setting_keys(runs: Sequence[Run]) -> list[str]:
    prefixes = tuple(p.removeprefix(CONFIG) for p in SETTING)
    return sorted({k for run in runs for k in run.config if k.startswith(prefixes)})


def _own_keys(runs: Sequence[Run], apart: Sequence[str]) -> list[str]:
    """The keys in which runs of one loss and setting differ, other than those that have fields of their own."""
    keys = {k for run in runs for k in run.config if not k.startswith(_NAMED) and k not in apart}
    return _differing(runs, sorted(keys))


def _variants(firsts: Mapping[str, Run], own: Sequence[str]) -> dict[str, str]:
    """By group, what tells it from the others, without knobs that are off. Where several would read alike: with these;
    then with the knobs that only some of them have, and which of them is another under other seeds; then by their ids.
    """
    found = {i: describe(run, [k for k in own if not _off(k, run.config.get(k))]) for i, run in firsts.items()}
    for alike in _alike(firsts, found):
        found |= {i: describe(firsts[i], own) for i in alike}
    for alike in _alike(firsts, found):
        known = {k for i in alike for k in firsts[i].config if not k.startswith(_NAMED)}
        apart = [k for k in known if len({repr(firsts[i].config.get(k)) for i in alike}) > 1]
        for i in alike:
            again = "control=seeds" if firsts[i].again else ""
            found[i] = ", ".join(filter(None, (describe(firsts[i], {*own, *apart}), again)))
    return found | {i: i for alike in _alike(firsts, found) for i in alike}


def _alike(firsts: Mapping[str, Run], variants: Mapping[str, str]) -> list[list[str]]:
    """Groups of one divergence, η and β that have the same variant."""
    named: dict[tuple[str, ...], list[str]] = {}
    for i, run in firsts.items():
        named.setdefault((run.divergence, str(run.eta), str(run.beta), variants[i]), []).append(i)
    return [groups for groups in named.values() if len(groups) > 1]


def _off(key: str, value: Any) -> bool:
    """An option of the trainer or the rollout that is not in use; a loss's own `none` is one choice among others."""
    return key.startswith(("trainer.", "rollout.")) and str(value) in ("0", "0.0", "none")


def rank(divergence: str) -> tuple[int, str]:
    """Order of divergences everywhere: strict, weak, then whatever was added."""
    known = (*STRICT, *WEAK)
    return (known.index(divergence) if divergence in known else len(known), divergence)


def differing(frames: Frames, without: tuple[str, ...]) -> list[str]:
    """The config keys, but for these beginnings, in which the runs do not all agree: `lr`, and not `trainer.lr` too."""
    keys = {k for run in frames.rows for k in run.config if not k.startswith(without)}
    apart = _differing(frames.rows, sorted(keys))
    return [k for k in apart if not _repeats(frames.rows, k)]


def _repeats(runs: Sequence[Run], key: str) -> bool:
    """Whether a component's knob is what the shorthand of its name says, in every run."""
    name = key.rpartition(".")[2]
    return key != name and all(name in run.config and run.config.get(key) == run.config[name] for run in runs)


def _differing(runs: Sequence[Run], keys: Iterable[str]) -> list[str]:
    """A run that is silent about a knob agrees with everyone."""
    return [k for k in keys if len({repr(run.config[k]) for run in runs if k in run.config}) > 1]


def describe(run: Run, keys: Iterable[str], shown: Callable[[Any], str] = words.short) -> str:
    """`lr=1e-05, task.size=17`: these keys of a run in words."""
    told: dict[str, str] = {}
    for key in sorted(k for k in keys if run.config.get(k) not in (None, "")):
        name, value = key, shown(run.config[key])
        if key.endswith("._target_"):
            name, value = key.removesuffix("._target_"), value.rpartition(".")[2]
        told[name] = value
    return ", ".join(f"{name}={value}" for name, value in told.items())


def told_apart(names: Mapping[Arm, str]) -> dict[Arm, str]:
    """The same names; where several arms of one setting have one, with what it lacks of η, β and variant."""
    times = Counter(names.values())
    found = dict(names)
    for arm, name in names.items():
        more = [part for part in (*arm.scales.split(", "), *arm.variant.split(", ")) if part and part not in name]
        if times[name] > 1 and more:
            found[arm] = f"{name} ({', '.join(more)})"
    return found


def settings(found: Iterable[Arm]) -> list[str]:
    return list(dict.fromkeys(a.setting for a in found))


def grpo_command(setting: Iterable[Arm]) -> str:
    """The command that would add the missing GRPO run to these arms: their overrides without what only LAD reads."""
    shared: list[str] | None = None
    for run in (run for arm in setting for run in arm.runs):
        kept = [o for o in run.typed if o.split("=")[0] not in _LAD_ONLY]
        shared = kept if shared is None else [o for o in shared if o in kept]
    return " ".join(["python -m rlvr.run", "loss=grpo", *(shared or [])])


_LAD_ONLY = {"loss", "divergence", "eta", "beta", "study", "+study"}


def _last(value: float) -> float:
    return -math.inf if math.isnan(value) else value
