"""The plugins that Hydra discovers: the launcher and the two sweepers that conf/hydra/ names.

`hydra_plugins` is a namespace package: every Hydra application in this environment imports this file when it starts,
some twice. So our own packages are imported only when one of the classes is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


class RlvrLauncher(Launcher):
    """`hydra/launcher=rlvr`, which other projects' sweepers may use too. Implementation: sweeps/launcher.py."""

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.config = config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        from sweeps.launcher import launch_points

        return launch_points(self.config, job_overrides)


class GridSweeper(Sweeper):
    """`hydra/sweeper=grid`, the default. Implementation: sweeps/launcher.py."""

    def __init__(self, params: Any = None) -> None:
        self.params = params

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        from sweeps.launcher import GridSweep

        self.grid = GridSweep(config, self.params)

    def sweep(self, arguments: list[str]) -> Sequence[JobReturn]:
        return self.grid.sweep(arguments)


class OptunaSweeper(Sweeper):
    """`hydra/sweeper=optuna`. Implementation: sweeps/search/sweeper.py."""

    def __init__(self, **knobs: Any) -> None:
        self.knobs = knobs

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        from sweeps.search.sweeper import SearchSweep

        self.search = SearchSweep(config, **self.knobs)

    def sweep(self, arguments: list[str]) -> list[dict[str, Any]]:
        return self.search.sweep(arguments)
