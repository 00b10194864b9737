"""The display of a sweep: a live table on a terminal, plain lines elsewhere. `rich` is imported only to draw."""

from __future__ import annotations

import shutil
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rlvr.ledger import terminal
from rlvr.ledger.cause import State
from rlvr.ledger.state import RunState
from rlvr.ledger.sweeps import Ledger
from sweeps.arms import arms, total

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

INTERRUPTED = "interrupted"  # shown in place of `preempted` where the user has stopped the launch
REDRAW_S = 0.5
SUMMARY_S = 30.0
QUIET_S = 300.0  # a run without a heartbeat for so long is shown as silent
ROWS = 24  # of the live table, at most
BAR = 12  # characters
# Columns that are dropped, in this order, where the terminal is too narrow. Those of names and states are kept.
EXPENDABLE = ("", "node", "attempt", "attempts", "rate", "GPU time", "time", "id", "ETA", "accuracy", "step")
NAMES = ("run", "arm")  # columns whose cells are never cut, but wrapped
TEXTS = ("id", "run", "arm", "state", "runs", "", "node")  # columns that are aligned at the left
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
    rounded = round(seconds)
    if rounded < 60:
        return f"{rounded}s"
    if rounded < 3600:
        return f"{rounded // 60}m{rounded % 60:02d}s"
    return f"{rounded // 3600}h{rounded % 3600 // 60:02d}m"


def number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _score(state: RunState) -> str:
    """The accuracy, and where it measures the form of answers more than the answers: `0.000 (97% unparsable)`, or
    `0.281 (0% finished)`; else, if it is lower than at first, what it was: `0.002 (was 0.014)`.
    """
    share, first = "", state.first_accuracy
    if state.unparsable is not None and state.unparsable >= 0.5:
        share = f" ({state.unparsable:.0%} unparsable)"
    elif state.finished_share is not None and state.finished_share < 0.05:
        share = f" ({state.finished_share:.0%} finished)"
    elif state.accuracy is not None and first is not None and state.accuracy < first:
        share = f" (was {number(first)})"
    return number(state.accuracy) + share


def pace(rate: float | None) -> str:
    """Steps per second, or per minute or hour where there is less than one per second or minute. rate: per second."""
    for unit, seconds in (("s", 1), ("min", 60)):
        if rate is not None and rate * seconds >= 1:
            return f"{rate * seconds:.3g}/{unit}"
    return "-" if rate is None else f"{rate * 3600:.3g}/h"


def _spent(states: Sequence[RunState]) -> str:
    """The name of the column of time spent by runs: of all their GPUs, or of their processes where there are none."""
    return "GPU time" if any(state.gpus for state in states) else "time"


def hours(useful: float, replayed: float, wasted: float) -> str:
    """`2h05m + 12m03s replayed`: time on steps that count, and on others, if there is any. Arguments in hours."""
    lost = ((replayed, "replayed"), (wasted, "wasted"))
    parts = [f"{duration(3600 * value)} {word}" for value, word in lost if value >= 0.5 / 3600]
    return " + ".join([duration(3600 * useful), *parts])


def _at(state: RunState) -> str:
    """`41/80 ETA 20s`, or what the run does before that can be known: `0/80 base policy`."""
    step = f"{state.step}/{state.steps} " if state.steps else ""
    return step + (state.phase or "starting" if state.eta is None else f"ETA {duration(state.eta)}")


def word(state: State, *, interrupted: bool) -> str:
    """The word for a state. interrupted: whether the user has stopped the launch."""
    return INTERRUPTED if interrupted and state is State.PREEMPTED else state


def why(state: RunState) -> str:
    """The cause of a run's end, and the first line of its message."""
    first_line = state.message.strip().splitlines()[0] if state.message.strip() else ""
    return ": ".join(part for part in (state.cause or state.state, first_line) if part)


def table(
    states: Sequence[RunState],
    *,
    title: str | None = None,
    ids: bool = False,
    width: int | None = None,
    interrupted: bool = False,
) -> Table:
    """One row per run. width: of the terminal, in characters. interrupted: show preempted runs as interrupted."""
    from rich.progress_bar import ProgressBar
    from rich.text import Text

    rows: list[dict[str, Any]] = []
    for state in states:
        shown = word(state.state, interrupted=interrupted)
        shown += f" ({state.phase})" if state.phase and not state.ended else ""
        shown = f"silent {duration(state.heartbeat_age)}" if (state.heartbeat_age or 0) > QUIET_S else shown
        row = {
            "id": state.run_id,
            "run": Text(state.name),
            "state": Text(shown, style=STYLES.get(state.state, "dim")),
            "step": f"{state.step}/{state.steps}" if state.steps else "-",
            "": ProgressBar(total=state.steps or 1, completed=state.step, width=BAR),
            "accuracy": _score(state),
            "rate": pace(state.rate),
            "ETA": duration(state.eta),
            "node": state.node or "-",
            _spent(states): hours(*state.hours) if state.attempt else "-",
            "attempt": str(state.attempt or "-"),
        }
        rows.append(row if ids else {key: cell for key, cell in row.items() if key not in ("id", "node")})
    return _fitted(rows, width, title)


def arm_table(states: Sequence[RunState], *, width: int) -> Table:
    """One row per arm of these runs."""
    from rich.text import Text

    rows: list[dict[str, Any]] = [
        {
            "arm": Text(arm.name),
            "runs": ", ".join(f"{n} {state}" for state, n in sorted(arm.states.items())),
            "step": f"{arm.step}/{arm.steps}" if arm.steps else "-",
            "accuracy": number(arm.accuracy),
            "rate": pace(arm.rate),
            "ETA": duration(arm.eta),
            _spent(states): hours(arm.hours_useful, arm.hours_replayed, arm.hours_wasted),
            "attempts": str(arm.attempts),
        }
        for arm in arms(states)
    ]
    return _fitted(rows, width)


def _fitted(rows: Sequence[Mapping[str, Any]], width: int | None, title: str | None = None) -> Table:
    """A table of the columns that fit into `width` characters; None: of all columns."""
    from rich.table import Table

    columns = list(rows[0]) if rows else []
    needed = {c: max(len(c), *(BAR if c == "" else len(row[c]) for row in rows)) for c in columns}
    for column in EXPENDABLE:
        if width is None or sum(needed.values()) + 2 * (len(needed) - 1) <= width:
            break
        needed.pop(column, None)
    fitted = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for column in needed:
        justify, is_name = "left" if column in TEXTS else "right", column in NAMES
        fitted.add_column(column, justify=justify, no_wrap=not is_name, overflow="fold" if is_name else "ellipsis")
    for row in rows:
        fitted.add_row(*(row[column] for column in needed))
    return fitted


def count(states: Sequence[RunState], *, interrupted: bool = False) -> str:
    """`5 finished, 2 running, 5 queued`."""
    counts = Counter(state.state for state in states)
    shown = [f"{counts[state]} {word(state, interrupted=interrupted)}" for state in State if counts[state]]
    return ", ".join(shown) or "no runs"


def _planned_as_queued(state: RunState) -> RunState:
    """During a launch a planned run is shown as queued."""
    return replace(state, state=State.QUEUED) if state.state is State.PLANNED else state


class Display:
    """The display of one launch. `tick` is cheap: it reads only the running runs again."""

    def __init__(self, ledger: Ledger, run_ids: Sequence[str]) -> None:
        self.ledger = ledger
        self.states = {state.run_id: _planned_as_queued(state) for state in ledger.states(run_ids)}
        self.interrupted = False  # whether a signal has stopped the launch
        self.began = self._drawn = time.monotonic()
        self._live: Live | None = None

    def __enter__(self) -> Display:
        if sys.stdout.isatty():
            from rich.live import Live

            # No thread redraws the table: the launcher does, between two events.
            self._live = Live(self._draw([]), console=terminal.console(), auto_refresh=False, redirect_stderr=False)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.update(self._draw([]), refresh=True)
            self._live.stop()
            self._live = None

    def say(self, text: str) -> None:
        """Print a line, above the live table if there is one."""
        if self._live is not None:
            self._live.console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            print(text, flush=True)

    def started(self, run_id: str) -> None:
        if self._live is None:
            self.say(f"start     {self.states[run_id].name}")

    def ended(self, run_id: str) -> None:
        """Read the state of a run that has ended, and print it. Under a live table only failures are printed."""
        state = self.states[run_id] = self.ledger.state(run_id)
        if state.state.failure:
            self.say(f"{state.state:9} {state.name}: {state.cause or state.message}")
        elif self._live is None:
            numbers = f"step {state.step}/{state.steps}, accuracy {_score(state)}, {duration(state.seconds)}"
            self.say(f"{word(state.state, interrupted=self.interrupted):9} {state.name}: {numbers}")

    def tick(self, active: Sequence[str]) -> None:
        """Redraw the table, or print a line, if enough time has passed since the last one."""
        pause = REDRAW_S if self._live is not None else SUMMARY_S
        if time.monotonic() - self._drawn < pause:
            return
        self._drawn = time.monotonic()
        self.states |= {run_id: _planned_as_queued(self.ledger.state(run_id)) for run_id in active}
        if self._live is not None:
            self._live.update(self._draw(active), refresh=True)
            return
        states = [self.states[run_id] for run_id in active]
        running = [f"{state.name} {_at(state)}" for state in states]
        parts = [self._time(), count(list(self.states.values())), *running[:4]]
        self.say(" | ".join(parts))

    def _time(self) -> str:
        """`8m02s, ETA 31m10s`: since the launch, and until its last run ends."""
        eta = total("", list(self.states.values())).eta
        return duration(time.monotonic() - self.began) + (f", ETA {duration(eta)}" if eta is not None else "")

    def _draw(self, active: Sequence[str]) -> Any:
        """The table with running runs first, then failures, then the newest of the others, and a line of counts."""
        from rich.console import Group

        states = list(self.states.values())
        urgency = sorted(State, key=lambda state: (not state.failure, not state.ended, state is State.FINISHED))
        first = sorted(states, key=lambda s: (s.run_id not in active, urgency.index(s.state), -(s.started or 0)))
        rows = min(ROWS, max(3, shutil.get_terminal_size().lines - 5))
        more = f" ({len(states) - rows} not shown)" if len(states) > rows else ""
        line = f"{count(states, interrupted=self.interrupted)}{more}   {self._time()}"
        return Group(table(first[:rows], width=shutil.get_terminal_size().columns, interrupted=self.interrupted), line)

    def failures(self, ends: Mapping[str, State], messages: Mapping[str, str]) -> None:
        """Print every failed run with its cause and its log.

        ends, messages: by run id, how the launch saw it end; the message is shown where the ledger has no failure.
        """
        for run_id, end in ends.items():
            state = self.states[run_id] = self.ledger.state(run_id)
            reason = why(state) if state.state.failure else messages[run_id]
            log = state.log if state.log is not None and state.log.exists() else None
            self.say(f"{end.upper()} {state.name} ({run_id}): {reason}" + (f"\n       {log}" if log else ""))
