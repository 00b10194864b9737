"""Turns composed configs into the runs of a sweep: checks and names each, and refuses two that are the same."""

from __future__ import annotations

import contextlib
import shlex
import time
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from omegaconf import DictConfig

from analysis.scores.claim import read as read_claim
from rlvr.config import imports, targets
from rlvr.config.by_number import ConfigOfNumbers, setting_and_numbers
from rlvr.config.checks import Checker
from rlvr.config.compose import Composed, Points
from rlvr.config.freeze import arm_name, frozen_config, group_id, group_of, run_name
from rlvr.config.overrides import key_of
from rlvr.config.registry import SHORTHANDS
from rlvr.ledger.identity import EXPECTED, NAMING, run_id
from rlvr.ledger.sweeps import NO_STUDY, Ledger, sweep_id
from sweeps.naming import RunNames, check_words, is_naming
from sweeps.planned import PlannedRun, write_runs

WORTHWHILE = 3  # least points of a setting: learning what they have in common takes at least two compositions


@dataclass(frozen=True)
class Plan:
    sweep_id: str
    study: str
    command: str
    runs: tuple[PlannedRun, ...]
    question: str = ""  # of the study
    config_dirs: tuple[str, ...] = ()  # directories of options beside conf/

    @property
    def name(self) -> str:
        """The name of the sweep, as typed; "" without one."""
        return str(self.runs[0].config.get("name") or "")

    @property
    def own_gpus(self) -> bool:
        """Whether SLURM, if there is one, allocates every run GPUs that no other run uses: only then times compare."""
        clusters = [run.config["cluster"] for run in self.runs]
        return all(c["backend"] != "local" and c["gpus"] > 0 and c["pack"] == 1 for c in clusters)

    @property
    def about(self) -> dict[str, Any]:
        """The content of sweep.json, but for the time."""
        return {
            "sweep_id": self.sweep_id,
            "study": self.study,
            "question": self.question,
            **{key: self.runs[0].config[key] for key in (*NAMING, "tracker") if self.runs[0].config.get(key)},
            "command": self.command,
            "config_dirs": list(self.config_dirs),
            "import_paths": list(dict.fromkeys(path for run in self.runs for path in run.import_paths)),
            "swept": _swept([run.overrides for run in self.runs]),
            **self._expected,
        }

    @property
    def _expected(self) -> dict[str, Any]:
        """The claims and the baseline. Empty ones too if a study file or the command says so: then the study has none
        from now on. A launch that says nothing, such as one of more seeds, leaves those of the study as they are.
        """
        config = self.runs[0].config
        said = {word.partition("=")[0] for word in shlex.split(self.command)}
        of_file = bool(config["choices"].get("study"))
        return {key: config.get(key) for key in EXPECTED if of_file or key in said or config.get(key)}


def _swept(points: Sequence[Sequence[str]]) -> dict[str, list[str]]:
    """The override keys that differ between points, with their values in order of appearance."""
    values: dict[str, list[str]] = {}
    for point in points:
        for key, value in _pairs(point).items():
            if value not in values.setdefault(key, []):
                values[key].append(value)
    return {k: v for k, v in values.items() if len(v) > 1}


def _pairs(overrides: Sequence[str]) -> dict[str, str]:
    return dict(o.lstrip("+").split("=", 1) for o in overrides if "=" in o)


def plan(points: Sequence[Composed], *, command: str, checker: Checker | None = None) -> Plan:
    """Check and identify every point: (overrides, composed config, Hydra choices). Each is read once, in order.

    checker: for the search path that the points were composed from; None: for conf/ alone. Raises ValueError that names
    the wrong point. Writes nothing.
    """
    checker = checker or Checker()
    runs: dict[str, PlannedRun] = {}
    trainings: dict[str, PlannedRun] = {}
    for run in _planned(points, checker):
        training = _training_id(run)
        if training in trainings:
            raise ValueError(_duplicate_message(trainings[training], run))
        runs[run.run_id] = trainings[training] = run
    swept = _swept([run.overrides for run in runs.values()])
    named = tuple(
        replace(run, name=run_name(run.config, run.overrides, swept), arm=arm_name(run.config, run.overrides, swept))
        for run in runs.values()
    )
    num = Counter(run.name for run in named)  # of several with one name, each gets the beginning of its id appended
    named = tuple(replace(r, name=f"{r.name}-{r.run_id[:6]}") if num[r.name] > 1 else r for r in named)
    first = named[0].config
    _check_claims(first)
    check_words(first)
    study = first["choices"].get("study") or first.get("name") or NO_STUDY
    registry = checker.registry
    return Plan(sweep_id(study, runs), study, command, named, registry.question(study), registry.folders)


def _planned(points: Sequence[Composed], checker: Checker) -> Iterator[PlannedRun]:
    """Every point as a run, checked. Of points that differ by numbers alone only the first is composed."""
    groups: dict[tuple[str, ...], str] = {}
    paths: dict[frozenset[str], tuple[str, ...]] = {}
    settings = _Settings(points)
    for index in range(len(points)):
        if index in settings:
            yield settings.run_without_composing(index, checker)
            continue
        overrides, config, choices = points[index]
        with _point_in_errors(points, overrides):
            plain = frozen_config(config, choices, on_paper=checker.dry_run)
            packages = targets.packages(plain)
            if packages not in paths:
                paths[packages] = imports.import_paths(packages)
            targets.refuse_targets(plain, paths[packages])
            checker.check(config, choices, plain)
            checker.check_task(config, choices, plain)
        typed = _typed(overrides)
        group = tuple(o for o in typed if key_of(o) != "seed")
        if group not in groups:
            is_group = plain["seed"] == 0 and not plain.get("policy")  # the group id is the run id with seed 0
            groups[group] = run_id(plain) if is_group else group_id(config, on_paper=checker.dry_run)
        run = PlannedRun(run_id(plain), groups[group], "", typed, plain, import_paths=paths[packages])
        settings.learn(index, run, config, choices)
        yield run


class _Settings:
    """Settings: points that differ by numbers alone. Once one point of a setting is composed, the others are not.

    The setting of a point is known to this class (`index in settings`) after `learn`.
    """

    def __init__(self, points: Sequence[Composed]) -> None:
        self._points = points
        words = map(points.words, range(len(points))) if isinstance(points, Points) else ()
        self._setting_and_numbers = [setting_and_numbers(overrides) for overrides in words]
        self._num_points = Counter(setting for setting, _ in self._setting_and_numbers)
        self._known: dict[tuple[str, ...], tuple[PlannedRun, ConfigOfNumbers]] = {}
        self._groups: dict[tuple[object, ...], str] = {}

    def __contains__(self, index: int) -> bool:
        return bool(self._setting_and_numbers) and self._setting_and_numbers[index][0] in self._known

    def learn(self, index: int, run: PlannedRun, config: DictConfig, choices: Mapping[str, str | None]) -> None:
        if not self._setting_and_numbers:
            return
        setting, numbers = self._setting_and_numbers[index]
        if self._num_points[setting] < WORTHWHILE:
            return
        by_number = ConfigOfNumbers.of(config, choices, run.config, numbers)
        if by_number is None:
            self._num_points[setting] = 0  # each of its points has to be composed
        else:
            self._known[setting] = run, by_number

    def run_without_composing(self, index: int, checker: Checker) -> PlannedRun:
        """The run of a point whose setting is known, checked."""
        setting, numbers = self._setting_and_numbers[index]
        first, by_number = self._known[setting]
        words = cast("Points", self._points).words(index)
        with _point_in_errors(self._points, words):
            plain = by_number.at(numbers)
            checker.check(by_number.config, by_number.choices, plain, by_number.written)
            checker.check_task(by_number.config, by_number.choices, plain)
        this_id = run_id(plain)
        group = (setting, *(number for key, number in numbers.items() if key != "seed"))
        if group not in self._groups:
            is_group = plain["seed"] == 0 and not plain.get("policy")
            self._groups[group] = this_id if is_group else group_of(by_number.at({**numbers, "seed": 0}))
        return replace(first, run_id=this_id, group_id=self._groups[group], overrides=_typed(words), config=plain)


def _typed(overrides: Sequence[str]) -> tuple[str, ...]:
    """The overrides without those that only name the sweep."""
    return tuple(o for o in overrides if not is_naming(o))


@contextlib.contextmanager
def _point_in_errors(points: Sequence[Any], overrides: Sequence[str]) -> Generator[None, None, None]:
    """Add the point to the message of a ValueError that is raised in this context."""
    try:
        yield
    except ValueError as error:
        where = f" (in the grid point {' '.join(_typed(overrides))})" if len(points) > 1 else ""
        raise ValueError(f"{error}{where}") from None


def with_unique_names(planned: Plan, names: RunNames) -> Plan:
    """The plan with a name for every run that no other run of the ledger has."""
    return replace(planned, runs=tuple(map(names.give, planned.runs)))


def _check_claims(config: Mapping[str, Any]) -> None:
    """ValueError for a claim that the analysis cannot read, or for two claims with one name: a stopping rule remembers
    its decisions by the names of claims.
    """
    numbers: dict[tuple[str, ...], int] = {}
    for number, content in enumerate(config.get("claims") or (), start=1):
        try:
            claim = read_claim(content)
        except ValueError as error:
            raise ValueError(f"claim {number}: {error} (docs/analysis.md, Claims)") from None
        first = numbers.setdefault((claim.says, claim.metric, claim.arm, claim.relation), number)
        if first != number:
            raise ValueError(f"claims {first} and {number} say the same of {claim.arm}: {claim.says!r}. Reword one.")


def _training_id(run: PlannedRun) -> str:
    """The same for runs that train alike: the run id without the shorthands, whose values are also in the keys that
    read them, and with numbers as such: 1 is 1.0.
    """
    return run_id({key: _as_numbers(value) for key, value in run.config.items() if key not in (*SHORTHANDS, "lr")})


def _as_numbers(value: object) -> object:
    """The value with all whole numbers in it as floats."""
    if isinstance(value, dict):
        return {key: _as_numbers(of_key) for key, of_key in cast("dict[str, object]", value).items()}
    if isinstance(value, list):
        return [_as_numbers(item) for item in cast("list[object]", value)]
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _duplicate_message(first: PlannedRun, second: PlannedRun) -> str:
    a, b = _pairs(first.overrides), _pairs(second.overrides)
    keys = [k for k in b if a.get(k) != b[k]]
    if keys:
        values = ", ".join(f"{k}={a[k]} and {k}={b[k]}" if k in a else f"no {k} and {k}={b[k]}" for k in keys)
        return f"{values} make the same run: the sweep of {', '.join(keys)} changes nothing. Drop one."
    return f"The point {' '.join(second.overrides)} is twice in the grid. Drop one."


def write(plan: Plan, ledger: Ledger) -> None:
    """Put the plan on the ledger. Harmless when repeated."""
    write_runs(plan.runs, ledger, plan.about)
    lines = [run.line(index, run.overrides) for index, run in enumerate(plan.runs)]
    ledger.record_sweep(plan.sweep_id, {**plan.about, "created": time.time()}, lines)
