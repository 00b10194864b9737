"""Arms: runs that differ by their seed alone. The rows of every table and the lines of every figure are arms."""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from analysis.frames.frames import CONFIG, REPETITION, SETTING, Frames, RunRow, grouped, remembered
from analysis.scores import labels
from rlvr.ledger.cause import State

BASE_POLICY = "model."  # keys of configs by which base policies differ
STRICT = ("tv", "hd", "js")
WEAK = ("kl", "rkl", "jf")

# The kinds of controls (`controls=`): rewards that are not the verifier's, other seeds, no learning.
RANDOM, FLIPPED, MAJORITY, SEEDS, STILL = "random", "flipped", "majority", "seeds", "still"
CONTROL_KNOBS = {**dict.fromkeys((RANDOM, FLIPPED, MAJORITY), "rollout.reward"), SEEDS: "control", STILL: "lr"}

# Keys that fields of an arm contain already, or that do not influence results: not listed as differences.
_NAMED = (
    *("seed", "trainer.seed", "trainer.lr", "trainer.steps", "eta", "beta", "loss.eta", "loss.beta", "loss.divergence"),
    *("divergence", "cluster.", "tracker.", "checkpoint.", "choices.", "loss._target_", "loss._partial_"),
)


@dataclass(frozen=True, eq=False)
class Arm:
    """One group of runs that differ by their seed alone.

    setting: the keys that distinguish the blocks of a table: problems, policies, lengths, evaluations. label: the swept
    knobs, as they were typed; knobs: the same by key. variant: the keys that distinguish arms of one loss, divergence
    and η, without those that are off (a coefficient of 0, a filter `none`).
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
    runs: tuple[RunRow, ...]  # by seed
    short: str = ""  # the label in short, `js η=0.5`, by which a setting's arms are distinguished in figures
    place: str = ""  # the setting apart from its base policy
    tuned: frozenset[str] = frozenset()  # knobs with the best value of each arm: arms are compared in spite of them

    @property
    def run_ids(self) -> tuple[str, ...]:
        return tuple(run.run_id for run in self.runs)

    @property
    def drawn(self) -> tuple[RunRow, ...]:
        """The runs whose mean curves show: those that finished, or all while none has. One that ended early would end
        the curve, or shift it from there on."""
        return tuple(run for run in self.runs if run.state == State.FINISHED) or self.runs

    @property
    def first(self) -> RunRow:
        return self.runs[0]

    @property
    def control(self) -> str:
        """The kind of control: RANDOM, FLIPPED, MAJORITY, SEEDS or STILL; "" for an arm that is no control."""
        if self.first.again:
            return SEEDS
        if reward := self.first.knob("rollout.reward"):
            return str(reward)
        return STILL if self.first.knob("lr") == 0 else ""

    @property
    def own_group(self) -> str:
        """The group id of the config, which an arm shares with its repetition under other seeds."""
        return self.group_id.removesuffix(REPETITION)

    @property
    def from_other_study(self) -> bool:
        return self.first.borrowed

    @property
    def method(self) -> str:
        return f"{self.loss}-{self.divergence}" if self.divergence else self.loss

    def named(self, name: str, *, tuned: bool = True) -> str:
        """The name, with the variant of the arm in parentheses where there is one. tuned: with its tuned knobs, too."""
        variant = self.variant if tuned else without(self.variant, self.tuned)
        return f"{name} ({variant})" if variant else name

    @property
    def scales(self) -> str:
        """`eta=0.5, beta=1`: the scales that the arm has."""
        return ", ".join(f"{name}={value:g}" for name, value in (("eta", self.eta), ("beta", self.beta)) if value > 0)


@remembered
def arms(frames: Frames) -> list[Arm]:
    """The arms of a study, by setting, loss, divergence, eta. Tuned knobs are marked, except where arms differ in these
    alone: there the values are compared.
    """
    of_study = arms_of(frames.rows)
    keys = frozenset((frames.newest("tune") or {}).get("keys", ()))
    others = [(arm.setting, *sorted((k, v) for k, v in arm.knobs.items() if k not in keys)) for arm in of_study]
    is_marked = keys and len(set(others)) == len(others)
    return [replace(arm, tuned=keys) for arm in of_study] if is_marked else of_study


def arms_of(runs: Sequence[RunRow]) -> list[Arm]:
    """The arms of any runs, planned ones included, in the order of `arms`."""
    swept = labels.swept_within(runs)
    prefixes = tuple(p.removeprefix(CONFIG) for p in SETTING)
    candidates = sorted({k for run in runs for k in run.config if k.startswith(prefixes)})
    distinguishing = {*_differing(runs, candidates), *(k for k in candidates if _null_in_some_alike(runs, k))}
    setting_keys = [k for k in candidates if k in distinguishing and not labels.covers(swept, k)]
    settings = _settings(runs, setting_keys)
    places = _settings(runs, [key for key in setting_keys if not key.startswith(BASE_POLICY)])
    of_runs: list[Arm] = []
    for setting, of_setting in _sorted(runs, lambda run: settings[run.run_id]).items():
        by_group = _sorted(of_setting, lambda run: run.group_id)
        groups = {i: tuple(sorted(of_group, key=lambda r: r.seed)) for i, of_group in by_group.items()}
        label_of = labels.of_groups({i: part[0] for i, part in groups.items()})
        shorts = labels.in_short(label_of)
        for loss, of_loss in _sorted(of_setting, lambda run: run.loss).items():
            firsts = {r.group_id: groups[r.group_id][0] for r in of_loss}
            variants = _variants(firsts, _own_keys(of_loss, setting_keys))
            for group_id, first in firsts.items():
                label = label_of[group_id]
                of_runs.append(
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
                        shorts[group_id],
                        place=places[first.run_id],
                    )
                )
    return sorted(of_runs, key=lambda a: (a.setting, a.loss, rank(a.divergence), -_nan_as_least(a.eta), a.variant))


def _settings(runs: Sequence[RunRow], keys: Sequence[str]) -> dict[str, str]:
    """By run, its setting in words. Long values are shortened unless two settings would then read alike."""
    full = {run.run_id: describe(run, keys, shown=labels.value_text) for run in runs}
    short = {full[run.run_id]: describe(run, keys) for run in runs}
    distinct = labels.made_distinct(short, [lambda full_text, *_: full_text])
    return {run_id: distinct[full_text] for run_id, full_text in full.items()}


def _sorted(runs: Iterable[RunRow], key: Callable[[RunRow], str]) -> dict[str, list[RunRow]]:
    """The runs by this key, whose values ascend."""
    return dict(sorted(grouped(runs, key).items()))


def _own_keys(runs: Sequence[RunRow], setting_keys: Sequence[str]) -> list[str]:
    """The keys in which runs of one loss and setting differ, except those that fields of an arm contain."""
    keys = {k for run in runs for k in run.config if not k.startswith(_NAMED) and k not in setting_keys}
    return _differing(runs, sorted(keys))


def _variants(firsts: Mapping[str, RunRow], own_keys: Sequence[str]) -> dict[str, str]:
    """By group, the text that distinguishes it from the others, without knobs that are off.

    Where several groups would read alike: with the knobs that are off; then with the knobs that only some of them have
    and a mark of repetitions under other seeds; then by their ids.
    """

    def name(i: str, variant: str) -> tuple[str, ...]:  # of what a table shows of an arm beside its loss
        return firsts[i].divergence, str(firsts[i].eta), str(firsts[i].beta), variant

    def with_all(i: str, _: tuple[str, ...], alike: Sequence[str]) -> tuple[str, ...]:
        known = {k for other in alike for k in firsts[other].config if not k.startswith(_NAMED)}
        keys = [k for k in known if len({repr(firsts[other].config.get(k)) for other in alike}) > 1]
        again = "control=seeds" if firsts[i].again else ""
        return name(i, ", ".join(filter(None, (describe(firsts[i], {*own_keys, *keys}), again))))

    steps = (lambda i, *_: name(i, describe(firsts[i], own_keys)), with_all, lambda i, *_: name(i, i))
    without_off = {i: [k for k in own_keys if not _off(k, run.config.get(k))] for i, run in firsts.items()}
    distinct = labels.made_distinct({i: name(i, describe(firsts[i], keys)) for i, keys in without_off.items()}, steps)
    return {i: of_group[-1] for i, of_group in distinct.items()}


def _off(key: str, value: Any) -> bool:
    """Whether an option of the trainer or the rollout is off. A `none` of a loss is a choice like any other."""
    return key.startswith(("trainer.", "rollout.")) and str(value) in ("0", "0.0", "none")


def rank(divergence: str) -> tuple[int, str]:
    """A sort key of divergences: the strict ones, the weak ones, then all others by name."""
    known = (*STRICT, *WEAK)
    return (known.index(divergence) if divergence in known else len(known), divergence)


def differing(runs: Sequence[RunRow], without: tuple[str, ...]) -> list[str]:
    """The config keys in which the runs do not all agree; only `lr` where `trainer.lr` repeats it.

    without: prefixes of keys that are left out.
    """
    keys = {k for run in runs for k in run.config if not k.startswith(without)}
    return [k for k in _differing(runs, sorted(keys)) if not repeats(runs, k)]


def repeats(runs: Sequence[RunRow], key: str) -> bool:
    """Whether a component's knob has the value of the top-level key of its name in every run."""
    name = key.rpartition(".")[2]
    return key != name and all(name in run.config and run.config.get(key) == run.config[name] for run in runs)


def null_in_some(runs: Sequence[RunRow], key: str) -> bool:
    """Whether a knob that some of the runs have is null in others. A run lacks one that is null, but also one that its
    version did not know: it is null beside a value of the same launch, or one that was typed."""
    having, lacking = [r for r in runs if key in r.config], [r for r in runs if key not in r.config]
    launches = {run.sweep_id for run in lacking if run.sweep_id}
    return bool(lacking) and any(run.sweep_id in launches or key in labels.typed(run) for run in having)


def _null_in_some_alike(runs: Sequence[RunRow], key: str) -> bool:
    """`null_in_some` of runs that have the same task or model, whose knobs the others do not know."""
    component = f"{key.partition('.')[0]}._target_"
    return any(null_in_some(alike, key) for alike in grouped(runs, lambda run: run.config.get(component)).values())


def _differing(runs: Sequence[RunRow], keys: Iterable[str]) -> list[str]:
    """The keys for which the runs that have them have different values."""
    return [k for k in keys if len({repr(run.config[k]) for run in runs if k in run.config}) > 1]


def describe(run: RunRow, keys: Iterable[str], shown: Callable[[Any], str] = labels.short) -> str:
    """`lr=1e-05, task.size=17`: the values of these keys in a run, with `shown` as their text."""
    values: dict[str, str] = {}
    for key in sorted(k for k in keys if run.config.get(k) not in (None, "")):
        name, value = key, shown(run.config[key])
        if key.endswith("._target_"):
            name, value = key.removesuffix("._target_"), value.rpartition(".")[2]
        values[name] = value
    return ", ".join(f"{name}={value}" for name, value in values.items())


def distinct_names(names: Mapping[Arm, str]) -> dict[Arm, str]:
    """The names, and to a name that several arms have, the parts of each arm's η, β and variant that are not in it."""

    def with_missing(arm: Arm, name: str, _: Sequence[Arm]) -> str:
        missing = [part for part in (*arm.scales.split(", "), *arm.variant.split(", ")) if part and part not in name]
        return f"{name} ({', '.join(missing)})" if missing else name

    return labels.made_distinct(names, [with_missing])


def without(details: str, keys: Collection[str]) -> str:
    """The scales or the variant of an arm without these knobs. A component may repeat a knob: beta is loss.beta."""
    names = {*keys, *map(_last_part, keys)}
    parts = [(part, part.partition("=")[0]) for part in details.split(", ")]
    return ", ".join(part for part, key in parts if key not in names and _last_part(key) not in keys)


def _last_part(key: str) -> str:
    return key.rpartition(".")[2]


def settings(of_arms: Iterable[Arm]) -> dict[str, list[Arm]]:
    """The arms of each setting, by its name, in their order."""
    return grouped(of_arms, lambda arm: arm.setting)


def _nan_as_least(value: float) -> float:
    return -math.inf if math.isnan(value) else value
