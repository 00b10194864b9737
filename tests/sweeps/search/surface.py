"""A search over a known surface: the study, the ledger, attempts and metrics are real; a run takes no time.

A run at x takes STEPS steps; at each it measures up = 1 - (x - 0.3)^2, scaled by the share of its steps, and down = x.
It stops when it is asked to, and its first `lost` attempts end as if its node had gone.
"""

import hashlib
import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from optuna.pruners import BasePruner, NopPruner
from optuna.samplers import BaseSampler
from optuna.trial import TrialState

from rlvr.config.overrides import parse
from rlvr.ledger.attempt import Attempt, prune_reason
from rlvr.ledger.cause import Cause
from rlvr.ledger.journal import JournalWriter
from rlvr.ledger.sweeps import Ledger
from sweeps.planned import PlannedRun
from sweeps.search import sampler as samplers
from sweeps.search.controller import Search
from sweeps.search.space import search_space
from sweeps.search.study import Goal, open_study

STEPS = 4
SPACE = ("x=interval(0,1)", "y=range(1,5)", "kind=one,two", "lr=0.1")
MAKE: dict[str, Callable[[samplers.SampledParameter], BaseSampler]] = {
    "tpe": lambda asked: samplers.tpe(asked, seed=0, n_startup_trials=3, n_ei_candidates=24),
    "random": lambda asked: samplers.random(asked, seed=0),
    "cmaes": lambda asked: samplers.cmaes(asked, seed=0, n_startup_trials=1, popsize=4),
    "nsgaii": lambda asked: samplers.nsgaii(asked, seed=0, population_size=3, crossover_prob=0.9, mutation_prob=None),
}


def measured(x: float, step: int) -> dict[str, float]:
    return {"up": (1 - (x - 0.3) ** 2) * step / STEPS, "down": x}


class Here:
    """Runs that advance by one step at every turn, all in this process."""

    stopping = busy = False

    def __init__(self, ledger: Ledger, lost: int = 0) -> None:
        self.ledger, self.lost = ledger, lost
        self.at_work: dict[str, tuple[PlannedRun, Attempt, JournalWriter]] = {}
        self.step: dict[str, int] = {}
        self.said: list[str] = []

    def start(self, run: PlannedRun) -> None:
        attempt = Attempt.open(self.ledger.run_dir(run.run_id))
        self.at_work[run.run_id] = run, attempt, JournalWriter(self.ledger.run_dir(run.run_id), attempt.number)
        self.step[run.run_id] = 0

    def turn(self) -> dict[str, str]:
        ended = {}
        for run_id, (run, attempt, spool) in list(self.at_work.items()):
            step = self.step[run_id] = self.step[run_id] + 1
            pruned = prune_reason(attempt.path)
            if not pruned:
                spool.record(step, measured(run.config["x"], step))
                attempt.heartbeat(step, STEPS, "train")
            is_lost = attempt.number <= self.lost
            if pruned or is_lost or step == STEPS:
                spool.close()
                cause = Cause.PRUNED if pruned else Cause.NODE if is_lost else Cause.OK
                attempt.close(cause, pruned)
                attempt.__exit__(None, None, None)
                del self.at_work[run_id]
                ended[run_id] = ""
        return ended

    def may_prune(self, run_id: str) -> bool:
        return run_id in self.at_work

    def say(self, text: str) -> None:
        self.said.append(text)


def plan_point(overrides: list[str]) -> PlannedRun:
    values = dict(each.split("=") for each in overrides)
    config = {"x": float(values["x"]), "y": values["y"], "kind": values["kind"], "seed": 0, "cluster": {}}
    run_id = hashlib.sha256(repr(config).encode()).hexdigest()[:12]
    return PlannedRun(run_id, run_id, run_id, tuple(overrides), config)


def search(
    home: Path,
    sampler: str = "tpe",
    *,
    metrics: Mapping[str, Any] | None = None,
    pruner: BasePruner | None = None,
    n_trials: int = 8,
    retries: int = 0,
) -> Search:
    space = search_space(parse(SPACE))
    metrics = metrics or {"up": "maximize"}
    goal = Goal(
        list(metrics),
        list(metrics.values()),
        lambda trial, axis: MAKE[sampler](samplers.SampledParameter(space.axes, len(metrics), trial, axis)),
        pruner or NopPruner(),
        n_trials,
        retries,
    )
    ledger = Ledger(home)
    ledger.sweep_dir("s").mkdir(parents=True, exist_ok=True)
    study = open_study(ledger.sweep_dir("s") / "optuna.journal", goal)
    return Search(
        ledger, "s", {"study": "search", "command": "test", "config_dirs": []}, study, space, goal, plan_point
    )


def rows(made: Search) -> list[tuple[Any, ...]]:
    """What became of each trial."""
    assert not made.trials(TrialState.RUNNING, TrialState.WAITING)
    return [(t.number, t.state.name, t.params, t.values, t.intermediate_values) for t in made.trials()]


def in_a_child(work: Callable[[], None], writes: int) -> bool:
    """Do it in a process that is killed before so many files were opened to be written, renamed or made.

    Returns whether it came to its end."""
    if pid := os.fork():
        _, status = os.waitpid(pid, 0)
        assert status in (0, signal.SIGKILL), status
        return status == 0
    try:
        _die_before(writes)
        work()
        os._exit(0)
    finally:
        os._exit(1)


def _die_before(writes: int) -> None:
    left = writes

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal left
        written = event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        if written or event in ("os.rename", "os.mkdir"):
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
