"""One command, from what was typed to what came of it.

Hydra makes its launcher and its sweepers itself and passes them nothing of ours: they ask for the current session.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
from collections.abc import Callable, Generator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field

from omegaconf import DictConfig

from rlvr.config import imports
from rlvr.config.checks import Checker
from rlvr.config.compose import Composed, Points
from rlvr.config.registry import Registry
from rlvr.config.signature import forget
from rlvr.ledger.tags import redact
from sweeps.plan import Plan
from sweeps.verdict import Outcome


@dataclass(frozen=True)
class Launch:
    """Runs that a session launched together, or in a dry run would have."""

    plan: Plan  # of a search: its first trials
    outcome: Outcome
    on_slurm: bool
    dry_run: bool
    forecast: tuple[str, ...] = ()  # of a dry run of a sweep that grows: what it is likely to come to


@dataclass
class Session:
    """What a command is told, what it plans, and how its launches ended."""

    typed: Sequence[str] = ()  # arguments as the user wrote them
    registry: Registry = field(default_factory=Registry)  # of the command's search path
    dry_run: bool = False  # launches are planned and shown, nothing is written or started
    one_run: bool = False  # a sweep is refused
    single: Composed | None = None  # the point of a command without -m
    axes: tuple[str, ...] = ()  # that its study would sweep
    program: str = "rlvr.run"
    adapt: Callable[[Sequence[Composed]], list[Composed]] | None = None  # of the points of a sweep, to those launched
    launches: list[Launch] = field(default_factory=list[Launch])

    def __post_init__(self) -> None:
        self.checker = Checker(self.registry, dry_run=self.dry_run)

    @property
    def command(self) -> str:
        """What to type to do it again."""
        return redact(shlex.join(["python", "-m", self.program, *self.typed]))

    def points(self, master: DictConfig, overrides: Sequence[Sequence[str]]) -> Points:
        """Points of a sweep; master: the config that Hydra composed for it. ValueError where one run is wanted."""
        if self.one_run:
            raise ValueError(f"{' '.join(self.typed)} is a sweep, not one run. Pass it to rlvr.sweep([...]).")
        return Points(self.registry.loader, master, overrides)

    def adapted(self, points: Sequence[Composed]) -> Sequence[Composed]:
        """The points that are launched: those that were composed, unless the program makes others of them."""
        return points if self.adapt is None else self.adapt(points)

    @contextlib.contextmanager
    def entered(self) -> Generator[None, None, None]:
        """The session of all that is called in here. What a command leaves in the process is taken back at its end."""
        before, path = dict(os.environ), list(sys.path)
        token = _current.set(self)
        forget()
        imports.extend(self.registry.directories)
        try:
            yield
        finally:
            _current.reset(token)
            sys.path[:] = path
            for name in os.environ.keys() - before.keys():
                del os.environ[name]
            os.environ.update(before)


_current: ContextVar[Session] = ContextVar("session")


def current() -> Session:
    """Raises RuntimeError where Hydra was started by another application than ours."""
    try:
        return _current.get()
    except LookupError:
        raise RuntimeError("hydra/launcher=rlvr and its sweepers belong to `python -m rlvr.run`") from None
