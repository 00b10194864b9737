"""What finished runs took, by kind: the measure for those that are planned."""

from __future__ import annotations

import json
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlvr.config.registry import SHORTHANDS
from rlvr.ledger import layout
from rlvr.ledger.cause import State
from rlvr.ledger.checkpoints import checkpoints
from rlvr.ledger.identity import NOT_IDENTITY
from rlvr.ledger.runs import Unreadable, flatten, read_config
from rlvr.ledger.stages import recorded_stages
from rlvr.ledger.state import RunState
from rlvr.ledger.sweeps import Ledger
from sweeps.planned import Planned

# What a step costs hangs on the rest; runs that differ in these alone are taken to cost the same per step.
SAME_COST = {"seed", "steps", "lr", *SHORTHANDS, "advantage", "divergence", "loss", *NOT_IDENTITY}


@dataclass(frozen=True)
class RunCost:
    """What a finished run took."""

    pace_s: float  # seconds per step, without the stages that it built, or waited for
    checkpoint: int  # bytes of its newest one; 0: it keeps none
    other: int  # bytes of all else that it left


Past = Mapping[str, Sequence[RunCost]]  # by kind, or by run


def spent_before(ledger: Ledger, kinds: Collection[str]) -> Past:
    """Finished runs of these kinds."""
    found: dict[str, list[RunCost]] = {}
    for state in ledger.states(ledger.runs()):
        if state.state is not State.FINISHED or not state.steps or not state.seconds:
            continue
        run_dir = ledger.run_dir(state.run_id)
        try:
            kind = kind_of(read_config(run_dir))
        except Unreadable:  # no measure of anything
            continue
        if kind in kinds:
            kept = [_bytes(path) for path in checkpoints(layout.checkpoints(run_dir))]
            pace_s = max(0.0, state.seconds - waited_s(run_dir, state)) / state.steps
            spent = RunCost(pace_s, kept[-1] if kept else 0, _bytes(run_dir) - sum(kept))
            found.setdefault(kind, []).append(spent)
    return found


def waited_s(run_dir: Path, state: RunState) -> float:
    """Seconds that a run's newest attempt waited for its stages to be built, by itself or by another."""
    store = layout.stages_beside(run_dir)
    built = [(store / name).stat().st_mtime for name in recorded_stages(run_dir) or () if (store / name).is_dir()]
    began, ended = state.started or 0.0, state.end_time or 0.0
    return max((at - began for at in built if began < at < ended), default=0.0)


def _bytes(directory: Path) -> int:
    return sum(p.stat().st_size for p in directory.rglob("*") if p.is_file())


def kind_of(config: Mapping[str, Any]) -> str:
    """The same text for runs that are taken to cost the same per step."""
    knobs = flatten({k: v for k, v in config.items() if k not in SAME_COST})
    alike = {k: v for k, v in knobs.items() if v is not None and k.rpartition(".")[2] not in SAME_COST}
    return json.dumps({**alike, "ranks": config["cluster"]["ranks"]}, sort_keys=True)


def mean_hours(runs: Sequence[Planned], ledger: Ledger) -> float | None:
    """Hours of one of these runs on average, over those that are like finished ones; None if none is."""
    known = list(run_hours(runs, ledger).values())
    return statistics.fmean(known) if known else None


def run_hours(runs: Sequence[Planned], ledger: Ledger) -> dict[str, float]:
    """Hours that each of these runs takes, from the pace of finished runs alike; without those that are like none."""
    kinds = {run.run_id: kind_of(run.config) for run in runs}
    past = spent_before(ledger, set(kinds.values()))
    pace = {kind: statistics.median(one.pace_s for one in alike) / 3600 for kind, alike in past.items()}
    return {run.run_id: run.config["steps"] * pace[kinds[run.run_id]] for run in runs if kinds[run.run_id] in pace}
