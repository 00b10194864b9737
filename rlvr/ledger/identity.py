"""What makes two runs the same run, as the planner, the ledger and the tracker define it. Imports little."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, cast

GRID_KEYS = ("also", "zip", "exclude", "when")  # they define the grid, and are not part of the config of a run in it
GROWTH = ("until", "budget", "tune")  # later runs of a sweep depend on the results of earlier ones (sweeps/growing)
ADDED_ARMS = ("controls",)  # further arms, which the sweep itself adds
NAMING = ("name", "tags")  # the names of a launch
EXPECTED = ("baseline", "claims")  # what a study expects of its arms; `python -m analysis` tests it
# Where and how a run is carried out, and what is kept of it: not part of its identity, may change between attempts.
NOT_IDENTITY = (
    *("cluster", "tracker", "checkpoint", "keep_rollouts", "choices"),
    *(*GRID_KEYS, *GROWTH, *ADDED_ARMS, *NAMING, *EXPECTED),
)
NOT_IDENTITY_OF_ENGINE = ("python", "canary", "timeout_s", "workers", "tensor_parallel")  # knobs of rollout.engine
NOT_IDENTITY_OF_TASK = ("reader",)  # it repeats settings of model, policy and rollout
NOT_IDENTITY_OF_POLICY = ("path", "name")  # of an evaluation's policy, which is identified by its digest


def identity(plain: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a resolved config that determines a run's results.

    Null values are left out: a new knob or group that is null by default does not change the identity of any run.
    """
    return decisive(_without_null(plain))


def decisive(plain: Mapping[str, Any]) -> dict[str, Any]:
    """A resolved config without the settings of where and how a run is carried out, and of what is kept of it."""
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
    """`node` without null values, and without groups in which all values are null."""
    kept = {
        key: _without_null(cast("dict[str, Any]", value)) if isinstance(value, dict) else value
        for key, value in node.items()
        if value is not None
    }
    return {k: v for k, v in kept.items() if v != {} or node[k] == {}}


def run_id(plain: Mapping[str, Any]) -> str:
    """12 hexadecimal digits naming what determines a run's results."""
    return hash_of(identity(plain), 12)


def hash_of(content: object, num_digits: int) -> str:
    """The first hexadecimal digits of the SHA-256 of plain data as JSON with sorted keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:num_digits]
