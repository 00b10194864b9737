"""The time and disk space of planned runs, estimated from finished runs of their kind."""

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlvr.config import cost, memory
from rlvr.config.registry import SHORTHANDS
from rlvr.ledger import layout
from rlvr.ledger.cause import State
from rlvr.ledger.checkpoints import checkpoints
from rlvr.ledger.identity import NOT_IDENTITY
from rlvr.ledger.runs import Unreadable, flatten, read_config
from rlvr.ledger.stages import recorded_stages
from rlvr.ledger.state import RunState
from rlvr.ledger.sweeps import Ledger
from sweeps.planned import PlannedRun

# Runs that differ in these keys alone are assumed to cost the same per step.
SAME_COST = {"seed", "steps", "lr", *SHORTHANDS, "advantage", "divergence", "loss", *NOT_IDENTITY}


@dataclass(frozen=True)
class RunCost:
    """The time and disk space of a finished run."""

    pace_s: float  # seconds per step, without the time in which its stages were built
    checkpoint: int  # bytes of its newest checkpoint; 0 if it keeps none
    other: int  # bytes of all its other files


Past = Mapping[str, Sequence[RunCost]]  # by run id


def alike(runs: Sequence[PlannedRun], ledger: Ledger) -> Past:
    """For each of these runs the costs of the finished runs of its kind; without runs whose kind is new."""
    kinds, costs = {run.run_id: kind_of(run.config) for run in runs}, dict[str, list[RunCost]]()
    for state in ledger.states(ledger.runs()):
        if state.state is not State.FINISHED or not state.steps or not state.seconds:
            continue
        run_dir = ledger.run_dir(state.run_id)
        try:
            kind = kind_of(read_config(run_dir))
        except Unreadable:
            continue
        if kind in kinds.values():
            kept = [_bytes(path) for path in checkpoints(layout.checkpoints(run_dir))]
            pace_s = max(0.0, state.seconds - waited_s(run_dir, state)) / state.steps
            run_cost = RunCost(pace_s, kept[-1] if kept else 0, _bytes(run_dir) - sum(kept))
            costs.setdefault(kind, []).append(run_cost)
    return {run_id: costs[kind] for run_id, kind in kinds.items() if kind in costs}


def waited_s(run_dir: Path, state: RunState) -> float:
    """Seconds of a run's newest attempt until the last of its stages was built, by itself or by another run."""
    store = layout.stages_beside(run_dir)
    built = [(store / name).stat().st_mtime for name in recorded_stages(run_dir) or () if (store / name).is_dir()]
    began, ended = state.started or 0.0, state.end_time or 0.0
    return max((built_at - began for built_at in built if began < built_at < ended), default=0.0)


def _bytes(directory: Path) -> int:
    return sum(p.stat().st_size for p in directory.rglob("*") if p.is_file())


def kind_of(config: Mapping[str, Any]) -> str:
    """The kind of a run: the same text for runs that are assumed to cost the same per step."""
    knobs = flatten({k: v for k, v in config.items() if k not in SAME_COST})
    relevant = {k: v for k, v in knobs.items() if v is not None and k.rpartition(".")[2] not in SAME_COST}
    return json.dumps({**relevant, "ranks": config["cluster"]["ranks"]}, sort_keys=True)


def estimate(run: PlannedRun, past: Past) -> tuple[float, str] | None:
    """(hours of a whole run, what they are from): of finished runs of its kind, else of the cost model; None without
    either, where the model's size is not known.
    """
    if run.run_id in past:
        return run.config["steps"] * _median_pace_s(past[run.run_id]) / 3600, "finished runs"
    model = memory.trained_architecture(run.config)
    return None if model is None else (cost.hours(run.config, model), "cost model")


def mean_hours(runs: Sequence[PlannedRun], ledger: Ledger) -> float | None:
    """Mean hours per run, over those of these runs whose kind has finished before; None if there are none."""
    past = alike(runs, ledger)
    hours = [run.config["steps"] * _median_pace_s(past[run.run_id]) / 3600 for run in runs if run.run_id in past]
    return statistics.fmean(hours) if hours else None


def _median_pace_s(costs: Sequence[RunCost]) -> float:
    return statistics.median(of_run.pace_s for of_run in costs)
