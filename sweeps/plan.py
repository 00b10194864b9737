"""Turns composed configs into the runs of a sweep: checks and names each, and refuses two that are the same."""

import contextlib
import shlex
import time
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from omegaconf.errors import InterpolationResolutionError

from analysis.scores.claim import read as read_claim
from rlvr.config import imports, own_code, program, targets
from rlvr.config.checks import Checker, NotRead
from rlvr.config.compose import Composed, Points, Setting
from rlvr.config.freeze import arm_name, run_name
from rlvr.config.overrides import key_of
from rlvr.config.registry import SHORTHANDS
from rlvr.ledger.identity import EXPECTED, NAMING, run_id
from rlvr.ledger.sweeps import NO_STUDY, Ledger, sweep_id
from sweeps.naming import RunNames, check_words, is_naming
from sweeps.planned import PlannedRun, write_runs


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


def _varied(points: Sequence[Sequence[str]]) -> set[str]:
    """The override keys that differ between points, or that some points lack, such as knobs of an arm of `also`."""
    keys = [set(_pairs(point)) for point in points]
    return {*_swept(points)} | (set[str].union(*keys) - set[str].intersection(*keys))


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
    varied = _varied([run.overrides for run in runs.values()])
    arms = [arm_name(run.config, run.overrides, varied) for run in runs.values()]
    named = tuple(
        replace(run, name=run_name(arm, run.config), arm=arm) for run, arm in zip(runs.values(), arms, strict=True)
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
    """Every point as a run, checked."""
    groups: dict[tuple[str, ...], str] = {}
    paths: dict[frozenset[str], tuple[str, ...]] = {}  # by the targets of a run
    for index in range(len(points)):
        words = points.words(index) if isinstance(points, Points) else points[index][0]
        with _point_in_errors(points, words):
            setting = points.setting(index) if isinstance(points, Points) else Setting(*points[index][1:])
            plain = setting.frozen(on_paper=checker.dry_run)
            of_run = targets.targets(plain)
            if of_run not in paths:
                paths[of_run] = imports.import_paths(targets.packages(plain))
                targets.refuse_targets(plain, paths[of_run])
                own_code.refuse_missing(plain, paths[of_run])
            program.check_words(words, plain, checker.registry)
            checker.check(setting.config, setting.choices, plain, setting.written)
            checker.check_task(setting.config, setting.choices, plain)
        typed = _typed(words)
        group = tuple(o for o in typed if key_of(o) != "seed")
        if group not in groups:
            is_group = plain["seed"] == 0 and not plain.get("policy")  # the group id is the run id with seed 0
            groups[group] = run_id(plain) if is_group else setting.group_id(on_paper=checker.dry_run)
        yield PlannedRun(run_id(plain), groups[group], "", typed, plain, import_paths=paths[of_run])


def _typed(overrides: Sequence[str]) -> tuple[str, ...]:
    """The overrides without those that only name the sweep."""
    return tuple(o for o in overrides if not is_naming(o))


@contextlib.contextmanager
def _point_in_errors(points: Sequence[Any], overrides: Sequence[str]) -> Generator[None, None, None]:
    """Add the point to the message of a ValueError that is raised in this context."""
    where = f" (in the grid point {' '.join(_typed(overrides))})" if len(points) > 1 else ""
    try:
        yield
    except NotRead as error:
        raise NotRead(f"{error}{where}", error.knob, error.loss) from None
    except InterpolationResolutionError:  # also a ValueError; `explain` names the line
        raise
    except ValueError as error:
        raise ValueError(f"{error}{where}") from None


def with_unique_names(planned: Plan, ledger: Ledger) -> Plan:
    """The plan with a name for every run that no other run of the ledger has."""
    return replace(planned, runs=tuple(map(RunNames(ledger).give, planned.runs)))


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
    """The same for runs that train alike: the run id with numbers as such, 1 is 1.0, and without the shorthands, whose
    values are also in the keys that read them. A program reads them by their own names.
    """
    repeated = () if run.config.get("program") else (*SHORTHANDS, "lr")
    return run_id({key: _as_numbers(value) for key, value in run.config.items() if key not in repeated})


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
