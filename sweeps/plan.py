"""From composed configs to runs: check each, name each, refuse two that are the same, and set the finished aside."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from analysis.scores.claim import read as read_claim
from rlvr.config import imports, targets
from rlvr.config.by_seed import BySeed, setting_and_seed
from rlvr.config.checks import Checker
from rlvr.config.compose import Composed, Points
from rlvr.config.freeze import arm_name, frozen, group_id, run_name
from rlvr.config.overrides import key_of
from rlvr.ledger.identity import EXPECTED, NAMING, run_id
from rlvr.ledger.sweeps import NO_STUDY, Ledger, sweep_id
from sweeps.naming import RunNames, check_words, is_naming
from sweeps.planned import Planned, write_runs


@dataclass(frozen=True)
class Plan:
    sweep_id: str
    study: str
    command: str
    runs: tuple[Planned, ...]
    question: str = ""  # of the study
    config_dirs: tuple[str, ...] = ()  # that options were found in, beside conf/

    @property
    def name(self) -> str:
        """Of the sweep, as it was typed; "" without one."""
        return str(self.runs[0].config.get("name") or "")

    @property
    def about(self) -> dict[str, Any]:
        """What sweep.json keeps of it, but for the time."""
        return {
            "sweep_id": self.sweep_id,
            "study": self.study,
            "question": self.question,
            **{key: self.runs[0].config[key] for key in NAMING if self.runs[0].config.get(key)},
            "command": self.command,
            "config_dirs": list(self.config_dirs),
            "import_paths": list(dict.fromkeys(path for run in self.runs for path in run.import_paths)),
            "swept": _swept([run.overrides for run in self.runs]),
            **{key: self.runs[0].config[key] for key in EXPECTED if self.runs[0].config.get(key)},
        }


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
    """Check and identify every (overrides, composed config, Hydra choices); each is looked at once, in order.

    checker: of the search path that they were composed from; None: conf/ alone. Raises ValueError, with the point it is
    about, before anything is written.
    """
    checker = checker or Checker()
    runs: dict[str, Planned] = {}
    for run in _planned(points, checker):
        if run.run_id in runs:
            raise ValueError(_twins(runs[run.run_id], run))
        runs[run.run_id] = run
    swept = _swept([run.overrides for run in runs.values()])
    named = tuple(
        replace(run, name=run_name(run.config, run.overrides, swept), arm=arm_name(run.config, run.overrides, swept))
        for run in runs.values()
    )
    named = _with_names_of_their_own(named)
    first = named[0].config
    _check_claims(first)
    check_words(first)
    study = first["choices"].get("study") or first.get("name") or NO_STUDY
    registry = checker.registry
    return Plan(sweep_id(study, runs), study, command, named, registry.question(study), registry.folders)


def _planned(points: Sequence[Composed], checker: Checker) -> Iterator[Planned]:
    """Every point as a run, checked. Of points that differ by their seed alone the first is composed."""
    groups: dict[tuple[str, ...], str] = {}
    paths: dict[frozenset[str], tuple[str, ...]] = {}
    settings: dict[tuple[str, ...], tuple[Planned, BySeed]] = {}
    for index in range(len(points)):
        setting, seed = setting_and_seed(points.words(index)) if isinstance(points, Points) else ((), None)
        if isinstance(points, Points) and seed is not None and setting in settings:
            first, by_seed = settings[setting]
            with _named(points, points.words(index)):
                plain = by_seed.at(seed)
            yield replace(first, run_id=run_id(plain), overrides=_typed(points.words(index)), config=plain)
            continue
        overrides, config, choices = points[index]
        with _named(points, overrides):
            plain = frozen(config, choices)
            packages = targets.packages(plain)
            if packages not in paths:
                paths[packages] = imports.import_paths(packages)
            targets.refuse_targets(plain, paths[packages])
            checker.check(config, choices, plain)
            checker.check_task(config, choices, plain)
        typed = _typed(overrides)
        group = tuple(o for o in typed if key_of(o) != "seed")
        if group not in groups:
            groups[group] = run_id(plain) if plain["seed"] == 0 and not plain.get("policy") else group_id(config)
        run = Planned(run_id(plain), groups[group], "", typed, plain, import_paths=paths[packages])
        if seed is not None and (by_seed := BySeed.of(config, choices, plain)) is not None:
            settings[setting] = run, by_seed
        yield run


def _typed(overrides: Sequence[str]) -> tuple[str, ...]:
    """Without those that only name the sweep."""
    return tuple(o for o in overrides if not is_naming(o))


@contextlib.contextmanager
def _named(points: Sequence[Any], overrides: Sequence[str]) -> Generator[None, None, None]:
    """What is wrong with a point names it."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{error}{_where(points, _typed(overrides))}") from None


def _with_names_of_their_own(runs: Sequence[Planned]) -> tuple[Planned, ...]:
    """A name stands for one run of a sweep: where two would share it, each has the beginning of its id too."""
    num = Counter(run.name for run in runs)
    return tuple(replace(r, name=f"{r.name}-{r.run_id[:6]}") if num[r.name] > 1 else r for r in runs)


def with_unique_names(planned: Plan, names: RunNames) -> Plan:
    """Every run by a name that no other run of the ledger has."""
    return replace(planned, runs=tuple(map(names.give, planned.runs)))


def _check_claims(config: Mapping[str, Any]) -> None:
    """ValueError for one that the analysis could not read: better before the runs than after them."""
    for number, claim in enumerate(config.get("claims") or (), start=1):
        try:
            read_claim(claim)
        except ValueError as error:
            raise ValueError(f"claim {number}: {error} (docs/analysis.md, Claims)") from None


def _where(points: Sequence[Any], overrides: Sequence[str]) -> str:
    return f" (in the grid point {' '.join(overrides)})" if len(points) > 1 else ""


def _twins(first: Planned, second: Planned) -> str:
    a, b = _pairs(first.overrides), _pairs(second.overrides)
    keys = [k for k in b if a.get(k) != b[k]]
    if keys:
        values = ", ".join(f"{k}={a.get(k)} and {k}={b[k]}" for k in keys)
        return f"{values} make the same run: the sweep of {', '.join(keys)} changes nothing. Drop one."
    return f"The point {' '.join(second.overrides)} stands twice in the grid. Drop one."


def write(plan: Plan, ledger: Ledger) -> None:
    """Put the plan on the ledger. Harmless when repeated."""
    write_runs(plan.runs, ledger, plan.about)
    lines = [run.line(index, run.overrides) for index, run in enumerate(plan.runs)]
    ledger.record_sweep(plan.sweep_id, {**plan.about, "created": time.time()}, lines)
