"""Expansion of a large sweep: the points of a grid are composed, checked and named, up to their launch.

A sample of the runs is also composed in full; the benchmark fails if that gives another run.
"""

import random
import time
from collections.abc import Iterator

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.global_hydra import GlobalHydra
from hydra.types import RunMode

from rlvr.config.compose import Points
from rlvr.config.freeze import frozen_config
from rlvr.config.overrides import parse
from rlvr.ledger.identity import run_id
from sweeps import grid
from sweeps.plan import Plan, plan
from tests.bench.row import Row, row
from tests.support.composing import composing

# 5 · 4 · 10 · 5 · 10 = 10,000 points
AXES = [
    *("loss=grpo,dapo,dr_grpo,rloo,pacs", "rollout.samples=4,8,16,32", "trainer.kl=0,1e-4,1e-3,1e-2,1e-1"),
    *("lr=1e-5,2e-5,5e-5,1e-4,2e-4,3e-4,4e-4,5e-4,1e-3,2e-3", "seed=range(10)"),
]
LIMIT_S, SAMPLE = 90.0, 20


def rows(*, quick: bool) -> Iterator[Row]:
    """Seconds of one core for all points, beside the limit; and for one point, beside composing it in full."""
    axes = [*AXES[:3], "lr=1e-4", "seed=0"] if quick else AXES
    with composing():
        loader = GlobalHydra.instance().config_loader()
        assert isinstance(loader, ConfigLoaderImpl)
        master = loader.load_configuration("run", [], RunMode.MULTIRUN)
        began = time.process_time()
        points = Points(loader, master, grid.expand(parse(axes), set(), grid.Rules(), lambda key: None))
        sweep_plan = plan(points, command="")
        seconds = time.process_time() - began
        full = _full_s(points, sweep_plan)
    count = len(sweep_plan.runs)
    yield row(f"expansion of {count:,} points", seconds, "core s", "limit", LIMIT_S, smaller=True, target=1.0)
    of_point, unit = 1e3 * seconds / count, "core ms"
    yield row("expansion of a point", of_point, unit, "a full compose", 1e3 * full, smaller=True)


def _full_s(points: Points, sweep_plan: Plan) -> float:
    """Mean seconds of a full compose, over a sample of runs, whose ids must be those of the plan."""
    sample = random.Random(0).sample(range(len(points)), SAMPLE)
    seconds = 0.0
    for index in sample:
        began = time.process_time()
        _, config, choices = points.full(list(sweep_plan.runs[index].overrides))
        seconds += time.process_time() - began
        assert run_id(frozen_config(config, choices)) == sweep_plan.runs[index].run_id, sweep_plan.runs[index].overrides
    return seconds / SAMPLE
