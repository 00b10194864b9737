"""What makes two runs the same run: the planner, the ledger and the tracker agree through this. Imports little."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, cast

LINES = ("also", "zip", "exclude", "when")  # they shape a grid: no part of one of its points
GROWTH = ("until", "budget", "tune")  # what comes next in a sweep hangs on what was measured (sweeps/growing)
ADDED = ("controls",)  # further arms, which the sweep makes of its own
NAMING = ("name", "tags")  # what a launch is called
EXPECTED = ("baseline", "claims")  # what a study expects of its arms: `python -m analysis` judges it
# Where and how it ran, and what is kept of it: no part of what a run is, and free to change between attempts.
NOT_IDENTITY = (
    *("cluster", "tracker", "checkpoint", "keep_rollouts", "choices"),
    *(*LINES, *GROWTH, *ADDED, *NAMING, *EXPECTED),
)
NOT_IDENTITY_OF_ENGINE = ("python", "canary", "timeout_s", "workers", "tensor_parallel")  # of rollout.engine's knobs
NOT_IDENTITY_OF_TASK = ("reader",)  # it repeats what model, policy and rollout say
NOT_IDENTITY_OF_POLICY = ("path", "name")  # of an evaluation's policy, which its digest names


def identity(plain: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a resolved config that determines a run's results.

    What is null has no part in it either: a new knob or group that is null by default leaves every run what it was.
    """
    return decisive(_without_null(plain))


def decisive(plain: Mapping[str, Any]) -> dict[str, Any]:
    """A resolved config without what is no part of what a run is: where and how it ran, and what was kept of it."""
    kept = {k: v for k, v in plain.items() if k not in NOT_IDENTITY}
    if "engine" in (kept.get("rollout") or {}):
        kept["rollout"] = {**kept["rollout"], "engine": of_engine(kept["rollout"]["engine"])}
    if kept.get("task"):
        kept["task"] = of_task(kept["task"])
    if kept.get("policy"):
        kept["policy"] = {k: v for k, v in kept["policy"].items() if k not in NOT_IDENTITY_OF_POLICY}
    return kept


def of_engine(engine: Mapping[str, Any]) -> dict[str, Any]:
    """The part of `rollout.engine` that determines what is sampled."""
    return {k: v for k, v in engine.items() if k not in NOT_IDENTITY_OF_ENGINE}


def of_task(task: Mapping[str, Any]) -> dict[str, Any]:
    """The part of `task` that determines its problems, and how they are judged."""
    return {k: v for k, v in task.items() if k not in NOT_IDENTITY_OF_TASK}


def _without_null(node: Mapping[str, Any]) -> dict[str, Any]:
    """Without the values that are null, and the groups that hold no others."""
    kept = {
        key: _without_null(cast("dict[str, Any]", value)) if isinstance(value, dict) else value
        for key, value in node.items()
        if value is not None
    }
    return {k: v for k, v in kept.items() if v != {} or node[k] == {}}


def run_id(plain: Mapping[str, Any]) -> str:
    """12 hexadecimal digits naming what determines a run's results."""
    return hashlib.sha256(json.dumps(identity(plain), sort_keys=True).encode()).hexdigest()[:12]
