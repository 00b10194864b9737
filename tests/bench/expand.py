"""Expansion of a large sweep: points of a grid, composed, checked and named, until all that is left is to launch them.

A sample of the runs is composed in full as well: were one another run, the bench would fail.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.global_hydra import GlobalHydra
from hydra.types import RunMode

from rlvr.config.compose import Points, composing
from rlvr.config.freeze import frozen
from rlvr.config.overrides import parse
from rlvr.ledger.identity import run_id
from sweeps import grid
from sweeps.plan import Plan, plan

# 5 · 4 · 10 · 5 · 10 = 10,000 points
AXES = [
    "loss=grpo,dapo,dr_grpo,rloo,pacs",
    "rollout.samples=4,8,16,32",
    "trainer.kl=0,1e-4,1e-3,1e-2,1e-1",
    "lr=1e-5,2e-5,5e-5,1e-4,2e-4,3e-4,4e-4,5e-4,1e-3,2e-3",
    "seed=range(10)",
]
LIMIT_S, SAMPLE = 90.0, 20


def rows(*, quick: bool) -> Iterator[dict[str, Any]]:
    """Seconds of one core for all points beside the limit, and for one of them beside a full compose."""
    axes = [*AXES[:3], "lr=1e-4", "seed=0"] if quick else AXES
    with composing():
        loader = GlobalHydra.instance().config_loader()
        assert isinstance(loader, ConfigLoaderImpl)
        master = loader.load_configuration("run", [], RunMode.MULTIRUN)
        began = time.process_time()
        points = Points(loader, master, grid.expand(parse(axes), set(), grid.Rules(), lambda key: None))
        made = plan(points, command="")
        took = time.process_time() - began
        full = _full_s(points, made)
    count = len(made.runs)
    yield {
        "name": f"expansion of {count:,} points",
        "value": took,
        "unit": "core s",
        "peer": "limit",
        "peer_value": LIMIT_S,
        "ratio": LIMIT_S / took,
        "target": 1.0,
    }
    yield {
        "name": "expansion of a point",
        "value": 1e3 * took / count,
        "unit": "core ms",
        "peer": "a full compose",
        "peer_value": 1e3 * full,
        "ratio": full * count / took,
        "target": None,
    }


def _full_s(points: Points, made: Plan) -> float:
    """Seconds of a full compose, from a sample, whose identities must be those of the plan."""
    sample = random.Random(0).sample(range(len(points)), SAMPLE)
    seconds = 0.0
    for index in sample:
        began = time.process_time()
        _, config, choices = points.full(list(made.runs[index].overrides))
        seconds += time.process_time() - began
        assert run_id(frozen(config, choices)) == made.runs[index].run_id, made.runs[index].overrides
    return seconds / SAMPLE
