"""The session: everything that belongs to one command, from its arguments to the outcome of its launches.

Hydra constructs its launcher and its sweepers itself, without arguments of ours: they read the current session.
"""

import contextlib
import os
import shlex
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from omegaconf import DictConfig, OmegaConf

from rlvr.config import base_model, imports, signature
from rlvr.config.checks import Checker
from rlvr.config.compose import Composed, Points
from rlvr.config.overrides import Point, value_of
from rlvr.config.registry import Registry
from rlvr.ledger.tags import redact
from sweeps.plan import Plan
from sweeps.verdict import LaunchOutcome


@dataclass(frozen=True)
class Launch:
    """Runs that a session has launched together; in a dry run, those that it would have launched."""

    plan: Plan  # of a search: its first trials
    outcome: LaunchOutcome
    on_slurm: bool
    dry_run: bool
    forecast: tuple[str, ...] = ()  # lines on the likely cost of a growing sweep; only of a dry run


@dataclass
class Session:
    """One command: its arguments and settings, and its launches."""

    typed: Sequence[str] = ()  # arguments as the user wrote them
    registry: Registry = field(default_factory=Registry)  # of the command's search path
    dry_run: bool = False  # launches are planned and shown, nothing is written or started
    show: int = 0  # prompts of each task that a dry run shows
    one_run: bool = False  # whether a sweep is refused
    single: Composed | None = None  # the point of a command without -m
    axes: tuple[str, ...] = ()  # the axes that its study would sweep
    program: str = "rlvr.run"
    adapt: Callable[[Sequence[Composed]], list[Composed]] | None = None  # composed points -> points to launch
    # Records what a launch uses up, as its last step before it writes anything; returns what undoes that.
    record: Callable[[], Callable[[], None]] = lambda: lambda: None
    launches: list[Launch] = field(default_factory=list[Launch])

    def __post_init__(self) -> None:
        self.checker = Checker(self.registry, dry_run=self.dry_run, show=self.show)

    @property
    def command(self) -> str:
        """The command line that repeats this command, without passwords."""
        return redact(shlex.join(["python", "-m", self.program, *self.typed]))

    def points(self, master: DictConfig, overrides: Sequence[Sequence[str]]) -> Points:
        """The points of a sweep. master: the config that Hydra composed for it. ValueError if `one_run`."""
        if self.one_run:
            raise ValueError(f"{' '.join(self.typed)} is a sweep, not one run. Pass it to rlvr.sweep([...]).")
        return Points(self.registry.loader, master, overrides)

    def usual(self, master: DictConfig) -> Callable[[str, Point], object]:
        """(key, point) → the value or option of a key in a point that does not set it. A loss, a recipe or another
        option of the point may bring a value of its own. master: see `points`.
        """
        of_all, composed = master.hydra.runtime.choices, dict[tuple[str, ...], tuple[DictConfig, Mapping[str, Any]]]()

        def usual(key: str, point: Point) -> object:
            own = tuple(word for k, word in point.items() if k in of_all and value_of(word) != of_all[k])
            if own and own not in composed:
                of_command = [word for k, word in point.items() if k in of_all and word not in own]
                composed[own] = self.registry.compose([*of_command, *own])
            config, choices = composed[own] if own else (master, of_all)
            value = choices[key] if key in choices else OmegaConf.select(config, key)
            return OmegaConf.to_container(value) if OmegaConf.is_config(value) else value

        return usual

    @contextlib.contextmanager
    def entered(self) -> Generator[None, None, None]:
        """A context in which this is the current session. At its end sys.path and the environment are restored."""
        before, path = dict(os.environ), list(sys.path)
        token = _current.set(self)
        signature.clear_caches()
        base_model.clear_caches()
        imports.add_import_paths(self.registry.directories)
        try:
            with self.checker.brief_hub():
                yield
        finally:
            _current.reset(token)
            sys.path[:] = path
            for name in os.environ.keys() - before.keys():
                del os.environ[name]
            os.environ.update(before)


_current: ContextVar[Session] = ContextVar("session")


def current() -> Session:
    """The current session. Raises RuntimeError if Hydra was started by another application."""
    try:
        return _current.get()
    except LookupError:
        raise RuntimeError("hydra/launcher=rlvr and its sweepers belong to `python -m rlvr.run`") from None
