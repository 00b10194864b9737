"""The results of a search: its best trials, printed and, with the command of each, written to the sweep's directory."""

import csv
import io
import shlex
from collections.abc import Sequence
from typing import Any

from optuna.trial import FrozenTrial, TrialState

from rlvr.ledger import layout
from rlvr.ledger.files import write_text
from rlvr.metrics import EVALUATION
from sweeps.naming import is_naming
from sweeps.search.controller import Search


def report(search: Search) -> list[dict[str, Any]]:
    """Print the best trial, or the Pareto front if there are several metrics; write best.md and trials.csv.

    Returns [{trial, run_id, values, overrides}], overrides as one would type them.
    """
    target = search.ledger.sweep_dir(search.sweep_id)
    counts = ", ".join(f"{n} {name}" for name, n in search.counts.items())
    best = [_best(trial) for trial in _front(search)]
    lines = [f"Search {search.sweep_id}: {counts or 'no trials'}.", *_table(search, best)]
    commands = [f"    python -m rlvr.run {shlex.join(trial['overrides'])}" for trial in best]
    write_text(layout.search_best(target), "\n".join([*lines, "", *commands]) + "\n", private=True)
    write_text(layout.search_trials(target), _csv(search), private=True)
    places = f"All trials: {layout.search_trials(target)}   Commands of the best: {layout.search_best(target)}"
    more = [] if search.done else ["The search is not complete: the same command continues it."]
    print("\n".join(["", *lines, "", places, *more]), flush=True)
    return best


def _front(search: Search) -> list[FrozenTrial]:
    """The best trials, several where they are tied or, of several metrics, the Pareto front; one for each run."""
    complete = search.trials(TrialState.COMPLETE)
    if not complete:
        return []
    several = len(search.goal.metrics) > 1
    trials = search.study.best_trials if several else [t for t in complete if t.value == search.study.best_value]
    by_run = {t.user_attrs["run_id"]: t for t in reversed(trials)}
    return sorted(by_run.values(), key=lambda t: t.values[0], reverse=search.goal.directions[0] == "maximize")


def _best(trial: FrozenTrial) -> dict[str, Any]:
    attributes = trial.user_attrs
    overrides = [word for word in attributes["overrides"] if not is_naming(word)]
    return {"trial": trial.number, "run_id": attributes["run_id"], "values": trial.values, "overrides": overrides}


def _table(search: Search, best: Sequence[dict[str, Any]]) -> list[str]:
    """The lines of a Markdown table of the best trials."""
    if not best:
        return ["No trial has a value."]
    keys = [axis.key for axis in search.space.axes]
    rows = [
        [str(b["trial"]), b["run_id"], *(f"{v:.6g}" for v in b["values"]), *(_by_key(b["overrides"], keys))]
        for b in best
    ]
    head = ["trial", "run", *search.goal.metrics, *keys]
    several = len(search.goal.metrics) > 1
    ways = ", ".join(f"{d} {m}" for d, m in zip(search.goal.directions, search.goal.metrics, strict=True))
    chosen = "\nChosen on the test problems themselves: its score there is optimistic (docs/optuna.md)."
    on_test = any(metric.startswith(EVALUATION) for metric in search.goal.metrics)
    return [
        f"{'Pareto front' if several else 'Best'} ({ways}):",
        "",
        *(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rows]),
        *([chosen] if on_test else []),
    ]


def _by_key(overrides: Sequence[str], keys: Sequence[str]) -> list[str]:
    """The value of each key; "" where a trial does not have it."""
    values = dict(override.split("=", 1) for override in overrides if "=" in override)
    return [values.get(key, "") for key in keys]


def _csv(search: Search) -> str:
    """Every trial: number, state, metrics, parameters, run, and why it ended early."""
    keys = [axis.key for axis in search.space.axes]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["trial", "state", *search.goal.metrics, *keys, "run_id", "cause", "message"])
    for t in search.trials():
        values = t.values if t.state == TrialState.COMPLETE else [""] * len(search.goal.metrics)
        attrs = t.user_attrs
        row = _by_key(attrs["overrides"], keys) if "overrides" in attrs else [t.params.get(key, "") for key in keys]
        message = attrs.get("pruned" if t.state == TrialState.PRUNED else "message", "")
        run_id, cause = attrs.get("run_id", ""), attrs.get("cause", "")
        writer.writerow([t.number, t.state.name, *values, *row, run_id, cause, message])
    return out.getvalue()
