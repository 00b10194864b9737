"""What makes two runs the same run: the planner, the ledger and the tracker agree through this. Imports little."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

LINES = ("also", "zip", "exclude", "when")  # they shape a grid: no part of one of its points
# Where and how it ran, and what is kept of it: no part of what a run is, and free to change between attempts.
NOT_IDENTITY = ("cluster", "tracker", "checkpoint", "keep_rollouts", "choices", *LINES)
NOT_IDENTITY_OF_ENGINE = ("python", "canary", "timeout_s", "workers")  # of rollout.engine's knobs
# Knobs younger than the first runs, with the value at which a run is what it was without them: it has no part in the
# identity then, and the runs of before keep theirs.
SINCE: Mapping[str, Mapping[str, Any]] = {
    "task": {"binary": False},
    "rollout": {
        "overlong_buffer": None,
        "overlong_penalty": 1.0,
        "overlong_filter": False,
        "logp_old": "engine",
        "importance": "none",
        "importance_cap": 2.0,
        "max_mismatch": None,
        "ahead": 0,
    },
    "trainer": {
        "decay_steps": None,
        "final_lr": 0.0,
        "compile": False,
        "reference_offload": False,
        "lora_rank": None,
        "lora_alpha": 32.0,
    },
}


def identity(plain: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a resolved config that determines a run's results.

    A group that is not chosen has no part in it either: adding one leaves the runs of before what they were.
    """
    kept = {k: v for k, v in plain.items() if k not in NOT_IDENTITY and v is not None}
    if "engine" in kept.get("rollout", {}):
        kept["rollout"] = {**kept["rollout"], "engine": of_engine(kept["rollout"]["engine"])}
    return {k: _without(v, SINCE[k]) if k in SINCE else v for k, v in kept.items()}


def of_engine(engine: Mapping[str, Any]) -> dict[str, Any]:
    """The part of `rollout.engine` that determines what is sampled."""
    return {k: v for k, v in engine.items() if k not in NOT_IDENTITY_OF_ENGINE}


def _without(group: Mapping[str, Any], neutral: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in group.items() if k not in neutral or v != neutral[k]}


def run_id(plain: Mapping[str, Any]) -> str:
    """12 hexadecimal digits naming what determines a run's results."""
    return hashlib.sha256(json.dumps(identity(plain), sort_keys=True).encode()).hexdigest()[:12]
