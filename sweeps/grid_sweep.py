"""Hydra's sweeper `hydra/sweeper=grid`: lists and ranges, shaped by also, zip, exclude and when (docs/sweeps.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hydra.core.utils import JobReturn
from omegaconf import DictConfig

from rlvr.config.overrides import parse
from rlvr.ledger.identity import GRID_KEYS
from sweeps import grid, session
from sweeps.launcher import launch_points


class GridSweep:
    """All points of a grid, launched together."""

    def __init__(self, config: DictConfig, params: Mapping[str, str] | None = None) -> None:
        """config: as Hydra composed it for the command. params: the axes of the study, by key."""
        self.config, self.params = config, params or {}

    def sweep(self, arguments: Sequence[str]) -> list[JobReturn]:
        return launch_points(self.config, self.points(arguments))

    def points(self, arguments: Sequence[str]) -> list[list[str]]:
        overrides = parse([*(f"{key}={value}" for key, value in self.params.items()), *arguments])
        rules = grid.Rules(**{name: list(self.config[name]) for name in GRID_KEYS})
        return grid.expand(overrides, self.params, rules, session.current().usual(self.config))
