"""The result of a launch from Python: its runs, each with its config, state, metrics and directory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from omegaconf import DictConfig, OmegaConf

from rlvr.ledger import journal, layout
from rlvr.ledger.cause import State
from rlvr.ledger.runs import read_config
from rlvr.ledger.state import RunState
from rlvr.ledger.sweeps import Ledger
from sweeps.session import Launch
from sweeps.verdict import LaunchOutcome

if TYPE_CHECKING:
    import pandas as pd  # pyright: ignore[reportMissingTypeStubs]


@dataclass(frozen=True)
class RunResult:
    """One run: as it was planned, and its current state on the ledger."""

    run_id: str
    name: str
    directory: Path  # runs/<run_id>
    planned: Mapping[str, Any] | None = field(default=None, repr=False)  # config, if the run is not on the ledger

    @property
    def config(self) -> DictConfig:
        """The resolved config, as the run reads it."""
        if self.planned is not None:
            return OmegaConf.create(dict(self.planned))
        return OmegaConf.create(read_config(self.directory))

    @property
    def standing(self) -> RunState:
        """The run on the ledger: state, step, cause and message of its end, time spent."""
        if self.planned is not None:
            return RunState(self.run_id, self.name, State.PLANNED)
        return Ledger(layout.home_of_run(self.directory)).state(self.run_id)

    @property
    def state(self) -> str:
        """planned, running, finished, diverged, failed, preempted, pruned or lost."""
        return self.standing.state.value

    @property
    def metrics(self) -> pd.DataFrame:
        """A row for each recorded step, a column for each metric; empty before the run has begun."""
        import pandas as pd  # pyright: ignore[reportMissingTypeStubs]

        records = journal.read(layout.journal(self.directory)).records
        steps = pd.Index([record.step for record in records], name="step")
        return pd.DataFrame([record.metrics for record in records], index=steps)

    def __repr__(self) -> str:
        return f"<run {self.name} ({self.run_id}): {self.state}>"


@dataclass(frozen=True)
class SweepResult:
    """The runs of one launch. Iterating yields the runs; `sweep[0]` and `sweep["lad-js-eta0.5-s0"]` are one run."""

    sweep_id: str
    study: str
    runs: tuple[RunResult, ...]
    outcome: LaunchOutcome  # which runs finished in this launch, which before it, and which failed and why

    @staticmethod
    def of(launch: Launch, ledger: Ledger) -> SweepResult:
        """The runs of a launch, from the ledger (a search knows them only at its end); of a dry run, from its plan."""
        plan = launch.plan
        if launch.dry_run:
            runs = [RunResult(run.run_id, run.name, ledger.run_dir(run.run_id), run.config) for run in plan.runs]
        else:
            lines = ledger.sweep(plan.sweep_id).runs
            runs = [RunResult(line["run_id"], line["name"], ledger.run_dir(line["run_id"])) for line in lines]
        return SweepResult(plan.sweep_id, plan.study, tuple(runs), launch.outcome)

    def __iter__(self) -> Iterator[RunResult]:
        return iter(self.runs)

    def __len__(self) -> int:
        return len(self.runs)

    @overload
    def __getitem__(self, which: int | str) -> RunResult: ...
    @overload
    def __getitem__(self, which: slice) -> tuple[RunResult, ...]: ...
    def __getitem__(self, which: int | str | slice) -> RunResult | tuple[RunResult, ...]:
        """The run at an index, or of a name or id; a slice: these runs. Raises KeyError for a name that no run has."""
        if isinstance(which, int | slice):
            return self.runs[which]
        by_name = {run.name: run for run in self.runs} | {run.run_id: run for run in self.runs}
        return by_name[which]

    def __repr__(self) -> str:
        states = Counter(run.state for run in self.runs)
        shown = ", ".join(f"{number} {state}" for state, number in states.items())
        return f"<sweep {self.sweep_id} of {self.study}: {len(self.runs)} runs, {shown}>"
