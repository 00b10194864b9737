"""What a person sees of a sweep: a live table on a terminal, plain lines elsewhere. `rich` is imported only to draw."""

from __future__ import annotations

import shutil
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rlvr.ledger.cause import State
from rlvr.ledger.state import RunState
from rlvr.ledger.sweeps import Ledger
from sweeps.arms import Sum

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

REDRAW_S = 0.5
SUMMARY_S = 30.0
QUIET_S = 300.0  # without a heartbeat: worth a remark
ROWS = 24  # of the live table, at most
STYLES = {
    State.RUNNING: "cyan",
    State.FINISHED: "green",
    State.DIVERGED: "magenta",
    State.FAILED: "bold red",
    State.PREEMPTED: "yellow",
    State.PRUNED: "magenta",
    State.LOST: "red",
    State.MISSING: "red",
    State.UNREADABLE: "red",
}


def duration(seconds: float | None) -> str:
    """43s, 3m05s, 2h05m; a dash for None."""
    if seconds is None:
        return "-"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    return f"{whole // 60}m{whole % 60:02d}s" if whole < 3600 else f"{whole // 3600}h{whole % 3600 // 60:02d}m"


def number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def pace(rate: float | None) -> str:
    """Steps per second, or per minute or hour where that says more."""
    for unit, seconds in (("s", 1), ("min", 60)):
        if rate is not None and rate * seconds >= 1:
            return f"{rate * seconds:.3g}/{unit}"
    return "-" if rate is None else f"{rate * 3600:.3g}/h"


def hours(useful: float, replayed: float, wasted: float) -> str:
    """`2.1 + 0.2 replayed`: hours on steps that count, and those on others, where there are any."""
    rest = [f"{value:.2g} {word}" for value, word in ((replayed, "replayed"), (wasted, "wasted")) if value > 0.005]
    return " + ".join([f"{useful:.2f}", *rest])


def why(state: RunState) -> str:
    """One line: the cause and the message of an end that was not wanted."""
    first = state.message.strip().splitlines()[0] if state.message.strip() else ""
    return ": ".join(part for part in (state.cause or state.state, first) if part)


def table(states: Sequence[RunState], *, title: str | None = None, ids: bool = False) -> Table:
    """One row per run."""
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    made = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for heading in ("id", "run") if ids else ("run",):
        made.add_column(heading, no_wrap=True)
    made.add_column("state", no_wrap=True)
    for heading in ("step", "", "accuracy", "rate", "ETA", *(["node", "hours"] if ids else []), "attempt", "time"):
        made.add_column(heading, justify="left" if heading in ("", "node") else "right", no_wrap=True)
    for state in states:
        shown = f"{state.state} ({state.phase})" if state.phase and not state.ended else state.state
        shown = f"silent {duration(state.heartbeat_age)}" if (state.heartbeat_age or 0) > QUIET_S else shown
        made.add_row(
            *([state.run_id] if ids else []),
            Text(state.name),
            Text(shown, style=STYLES.get(state.state, "dim")),
            f"{state.step}/{state.steps}" if state.steps else "-",
            ProgressBar(total=state.steps or 1, completed=state.step, width=12),
            number(state.accuracy),
            pace(state.rate),
            duration(state.eta),
            *([state.node or "-", hours(*state.hours)] if ids else []),
            str(state.attempt or "-"),
            duration(state.seconds) if state.attempt else "-",
        )
    return made


def arm_table(sums: Sequence[Sum]) -> Table:
    """One row per arm."""
    from rich.table import Table

    made = Table(box=None, pad_edge=False)
    made.add_column("arm", no_wrap=True)
    made.add_column("runs", no_wrap=True)
    for heading in ("step", "accuracy", "rate", "ETA", "hours", "attempts"):
        made.add_column(heading, justify="right", no_wrap=True)
    for each in sums:
        runs = ", ".join(f"{n} {state}" for state, n in sorted(each.states.items()))
        spent = hours(each.hours_useful, each.hours_replayed, each.hours_wasted)
        step = f"{each.step}/{each.steps}" if each.steps else "-"
        made.add_row(
            each.name, runs, step, number(each.accuracy), pace(each.rate), duration(each.eta), spent, str(each.attempts)
        )
    return made


def count(states: Sequence[RunState]) -> str:
    """`5 finished, 2 running, 5 queued`."""
    counts = Counter(state.state for state in states)
    return ", ".join(f"{counts[state]} {state}" for state in State if counts[state]) or "no runs"


def _queued(state: RunState) -> RunState:
    """What a launch is to start waits for it."""
    return replace(state, state=State.QUEUED) if state.state is State.PLANNED else state


class Progress:
    """The display of one launch. `tick` is cheap: only runs at work are read again."""

    def __init__(self, ledger: Ledger, run_ids: Sequence[str], *, show: bool) -> None:
        self.ledger, self.show = ledger, show
        self.states = {state.run_id: _queued(state) for state in ledger.states(run_ids)}
        self.began = self._drawn = time.monotonic()
        self._live: Live | None = None

    def __enter__(self) -> Progress:
        if self.show and sys.stdout.isatty():
            from rich.console import Console
            from rich.live import Live

            # No thread redraws: the launcher does, between two events.
            self._live = Live(self._draw([]), console=Console(), auto_refresh=False, redirect_stderr=False)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.update(self._draw([]), refresh=True)
            self._live.stop()
            self._live = None

    def say(self, text: str) -> None:
        """A line that stays."""
        if not self.show:
            return
        if self._live is not None:
            self._live.console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            print(text, flush=True)

    def started(self, run_id: str) -> None:
        if self._live is None:
            self.say(f"start     {self.states[run_id].name}")

    def ended(self, run_id: str) -> None:
        """A run came to an end: read how, and say it (a terminal shows it in the table; only failures get a line)."""
        state = self.states[run_id] = self.ledger.state(run_id)
        place = f"step {state.step}/{state.steps}, accuracy {number(state.accuracy)}, {duration(state.seconds)}"
        if state.state.failure:
            self.say(f"{state.state:9} {state.name}: {state.cause or state.message}")
        elif self._live is None:
            self.say(f"{state.state:9} {state.name}: {place}")

    def tick(self, active: Sequence[str]) -> None:
        """Redraw, or print a line, when it is time."""
        pause = REDRAW_S if self._live is not None else SUMMARY_S
        if not self.show or time.monotonic() - self._drawn < pause:
            return
        self._drawn = time.monotonic()
        self.states |= {run_id: _queued(self.ledger.state(run_id)) for run_id in active}
        if self._live is not None:
            self._live.update(self._draw(active), refresh=True)
            return
        at_work = [f"{s.name} {s.step}/{s.steps} ETA {duration(s.eta)}" for s in map(self.states.__getitem__, active)]
        parts = [duration(self._drawn - self.began), count(list(self.states.values())), *at_work[:4]]
        self.say(" | ".join(parts))

    def _draw(self, active: Sequence[str]) -> Any:
        """Runs at work first, then failures, then what ended last; the rest is counted."""
        from rich.console import Group

        states = list(self.states.values())
        urgency = sorted(State, key=lambda state: (not state.failure, not state.ended, state is State.FINISHED))
        first = sorted(states, key=lambda s: (s.run_id not in active, urgency.index(s.state), -(s.started or 0)))
        rows = min(ROWS, max(3, shutil.get_terminal_size().lines - 5))
        more = f" ({len(states) - rows} not shown)" if len(states) > rows else ""
        line = f"{count(states)}{more}   {duration(time.monotonic() - self.began)}"
        return Group(table(first[:rows]), line)

    def failures(self, ends: Mapping[str, State], messages: Mapping[str, str]) -> None:
        """Name every failed run with its cause and its log. ends, messages: of the launch, where no attempt says it."""
        for run_id, end in ends.items():
            state = self.states[run_id] = self.ledger.state(run_id)
            reason = why(state) if state.state.failure else messages[run_id]
            log = state.log if state.log is not None and state.log.exists() else None
            self.say(f"{end.upper()} {state.name} ({run_id}): {reason}" + (f"\n       {log}" if log else ""))
