"""`--json`: launches as plain data, for programs. Reads the ledger and writes nothing. Schema: docs/sweeps.md."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rlvr.config.checks import Checker
from rlvr.config.look import FirstLook
from rlvr.ledger import journal, layout
from rlvr.ledger.sweeps import Ledger
from sweeps.past import alike, estimate
from sweeps.plan import Plan
from sweeps.result import RunResult, SweepResult
from sweeps.session import Launch

SCORE = "evaluation/"  # how the names of scores begin


def launches_as_data(
    launches: Sequence[Launch], ledger: Ledger, checker: Checker | None = None
) -> list[dict[str, Any]]:
    """One object per launch, or per launch that a dry run would have made.

    checker: that of the launches, if prompts are shown.
    """
    data = list[dict[str, Any]]()
    for launch in launches:
        dry, plan = launch.dry_run, launch.plan
        runs = _planned(plan, ledger) if dry else [_launched(run) for run in SweepResult.of(launch, ledger)]
        shown = {"shown": _shown(plan, checker)} if checker is not None else {}
        data.append({"study": plan.study, "sweep_id": plan.sweep_id, "dry_run": dry, "runs": runs, **shown})
    return data


def _shown(plan: Plan, checker: Checker) -> list[dict[str, Any]]:
    """The look at each distinct task of a plan, with the runs that have it."""
    run_ids: dict[FirstLook, list[str]] = {}
    for run in plan.runs:
        run_ids.setdefault(checker.look(run.config), []).append(run.run_id)
    return [{"run_ids": ids, **asdict(look)} for look, ids in run_ids.items()]


def _planned(plan: Plan, ledger: Ledger) -> list[dict[str, Any]]:
    past, runs = alike(plan.runs, ledger), list[dict[str, Any]]()
    for run in plan.runs:
        state = ledger.state(run.run_id)
        hours, hours_from = estimate(run, past) or (None, None)
        steps = run.config["steps"]
        about = run.about | {"overrides": list(run.overrides)}
        about |= {"state": state.state.value if state.attempt else "new"}
        about |= {"step": state.step, "steps": steps, "hours_from": hours_from}
        runs.append({**about, "hours": None if hours is None else hours * max(0, steps - state.step) / max(1, steps)})
    return runs


def _launched(run: RunResult) -> dict[str, Any]:
    scores: dict[str, float] = {}
    for record in journal.read(layout.journal(run.directory)).records:  # the newest of each
        scores |= {name: value for name, value in record.metrics.items() if name.startswith(SCORE)}
    standing = run.standing
    about = {"run_id": run.run_id, "name": run.name, "directory": str(run.directory), "state": standing.state.value}
    return {**about, "message": standing.message, "scores": scores}
