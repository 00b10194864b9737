"""`python -m sweeps`: how sweeps and runs stand, and their logs; cancel, retry, clean up, ship metrics to MLflow."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rlvr.ledger import layout, terminal
from rlvr.ledger.cause import State
from rlvr.ledger.runs import Unreadable, grouped, read_info
from rlvr.ledger.state import RunState
from rlvr.ledger.sweeps import NO_STUDY, Ledger, NoSweep, Sweep, grows, sweep_id
from sweeps.arms import arms, total
from sweeps.progress import ROWS, arm_table, count, duration, hours, table, why
from sweeps.slurm.submissions import joined, read_queue

EPILOG = """examples:
  python -m sweeps status               the study that was launched last, all its sweeps
  python -m sweeps status first-try     the sweep that was launched with name=first-try
  python -m sweeps status 3f2a --json   the sweep whose id begins with 3f2a, for a program
  python -m sweeps watch                the same table, redrawn until all runs have ended
  python -m sweeps logs lad-js-eta0.5-s0 --follow
  python -m sweeps cancel 3f2a          end its SLURM jobs; the same command goes on with it later
  python -m sweeps retry 3f2a           start what failed or was lost again; finished runs stay
  python -m sweeps gc                   what could be removed, and how much it is; --yes removes it
  python -m sweeps sync                 ship to MLflow what a launch could not
"""
POLL_S = 0.3
PATIENCE_S = 3.0  # with squeue
SHOWN = 20  # runs that did not end well, at most
MANY = 100  # runs: beyond, arms are shown in their place
NOTHING = "Nothing has been launched yet. Start with: python -m rlvr.run -m loss=lad divergence=js,hd,tv eta=0.5,1,2,4"


def parser() -> terminal.Parser:
    made = terminal.Parser(prog="python -m sweeps", description=__doc__, epilog=EPILOG)
    commands = made.add_subparsers(dest="command", metavar="command")

    def command(name: str, run: Callable[[argparse.Namespace, Ledger], int], about: str) -> terminal.Parser:
        added = commands.add_parser(name, help=about)
        added.add_argument("--home", type=Path, help=terminal.HOME_HELP)
        added.set_defaults(run=run)
        return added

    which = "name, id or its beginning, or a study"
    status = command("status", _status, "a table of the runs of a sweep")
    status.add_argument("sweep", nargs="?", help=f"{which} (default: all sweeps of the newest study)")
    status.add_argument("--all", action="store_true", help="every sweep, newest last, and runs of no sweep")
    status.add_argument("--runs", action="store_true", help=f"each run, also of a sweep with more than {MANY}")
    status.add_argument("--json", action="store_true", help="for programs: a list of sweeps with their runs")
    command("watch", _watch, "status, redrawn until all runs have ended").add_argument("sweep", nargs="?", help=which)

    cancel = command(
        "cancel", _cancel, "end a launch of this machine, or the SLURM jobs of a sweep or run; they save first"
    )
    retry = command("retry", _retry, "start what has not finished of a sweep or run again")
    for each in (cancel, retry):
        each.add_argument("name", metavar="sweep-or-run", help="name, id or its beginning, or a study")

    retry.add_argument("--unless-cancelled", action="store_true", help="not a sweep that `cancel` has ended")

    gc = command("gc", _gc, "old checkpoints, unused stages, half-written files")
    gc.add_argument("--yes", action="store_true", help="remove them (without: only say what they are)")

    logs = command("logs", _logs, "the log of a run's newest attempt")
    logs.add_argument("name", metavar="run", help="id or name, or the beginning of one")
    logs.add_argument("--attempt", type=int, default=None, help="another attempt than the newest")
    logs.add_argument("--follow", action="store_true", help="print what is added until the run ends")

    sync = command("sync", _sync, "ship metrics to MLflow that are not there yet")
    sync.add_argument("--uri", default=None, help="store for all runs (default: that of each launch)")
    sync.add_argument("--background", action="store_true", help="only if ended runs are not there yet; do not wait")
    sync.add_argument("--verify", action="store_true", help="then compare MLflow with the journals, row by row")
    sync.add_argument("--repair", action="store_true", help="and make equal what differs")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit codes: 0, or 2 for what does not exist; of `retry` those of a launch."""
    terminal.write_ascii_where_needed()
    made = parser()
    options = made.parse_args(arguments)
    if options.command is None:
        made.print_help()
        return 0
    try:
        return options.run(options, Ledger(terminal.home(options.home)))
    except BrokenPipeError:  # the reader, `head` for instance, has seen enough
        sys.stderr.close()
        return 0
    except (ValueError, OSError) as error:
        print(f"sweeps: {terminal.one_line(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


# --- status and watch


def _chosen(options: argparse.Namespace, ledger: Ledger) -> list[Sweep]:
    """The sweeps to show, newest last."""
    if options.sweep:
        chosen = ledger.resolve_sweep(options.sweep)
        _tell_of_others(ledger, options.sweep, chosen)
        return [chosen]
    sweeps = ledger.sweeps()
    if not getattr(options, "all", False):
        return _of_the_newest_study(sweeps)
    in_sweeps = {run_id for sweep in sweeps for run_id in sweep.run_ids}
    single = tuple({"run_id": run_id} for run_id in ledger.runs() if run_id not in in_sweeps)
    return [*([Sweep("-", {"study": "runs of no sweep"}, single)] if single else []), *reversed(sweeps)]


def _tell_of_others(ledger: Ledger, text: str, chosen: Sweep) -> None:
    """Of a study one sweep is looked at: those with other runs are named."""
    if text != chosen.study or text in (chosen.name, chosen.sweep_id):
        return
    others = [each for each in ledger.sweeps() if each.study == text and not set(each.run_ids) <= set(chosen.run_ids)]
    if others:
        ids = ", ".join(each.sweep_id for each in others)
        print(f"This is the newest sweep of {text}, {chosen.sweep_id}. Others, by their ids: {ids}.", file=sys.stderr)


def _sweep_or_run(text: str, ledger: Ledger) -> tuple[Sweep | None, Sequence[str]]:
    """The sweep that a text stands for, and its runs; None, and the run, where no sweep is called so."""
    try:
        sweep = ledger.resolve_sweep(text)
    except NoSweep:  # several are refused: never a run in their place
        return None, [ledger.resolve_run(text)]
    _tell_of_others(ledger, text, sweep)
    return sweep, sweep.run_ids


def _of_the_newest_study(sweeps: Sequence[Sweep]) -> list[Sweep]:
    """Sweeps of a study, newest last, but for those whose runs are all in a newer one; of those of no study, which
    share nothing, the newest alone. sweeps: newest first."""
    newest = sweeps[0].study if sweeps else ""
    if newest in ("", NO_STUDY):
        return list(sweeps[:1])
    shown: list[Sweep] = []
    for sweep in sweeps:
        if sweep.study == newest and not any(set(sweep.run_ids) <= set(newer.run_ids) for newer in shown):
            shown.append(sweep)
    return shown[::-1]


def _status(options: argparse.Namespace, ledger: Ledger) -> int:
    sweeps = _chosen(options, ledger)
    if not sweeps and not options.json:
        print(NOTHING)
        return 0
    queue = read_queue(ledger, PATIENCE_S)
    stand = ((sweep, joined(ledger, ledger.states(sweep.run_ids), queue)) for sweep in sweeps)
    if options.json:
        print(json.dumps([_plain(sweep, states) for sweep, states in stand], indent=2))
        return 0
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False, soft_wrap=True)
    if not queue.answered:
        print("SLURM does not answer: this is what the ledger says.")
    for sweep, states in stand:
        _print(console, sweep, states, each=options.runs)
        if sweep.trials and (best := layout.search_best(ledger.sweep_dir(sweep.sweep_id))).exists():
            console.print(best.read_text(), markup=False)  # the best trial, or the front, and their commands
    others = len(ledger.sweeps()) - len(sweeps)
    if others > 0 and not options.all:
        print(f"{others} other sweep{'s' * (others > 1)}: python -m sweeps status --all")
    _ship_what_is_left(ledger)
    return 0


def _ship_what_is_left(ledger: Ledger) -> None:
    from sweeps.sync import sync_in_background

    with contextlib.suppress(OSError):  # a home that is only read
        if sync_in_background(ledger):
            print(f"MLflow lacks runs that have ended: shipping them now ({layout.sync_log(ledger.home)})")


def _title(sweep: Sweep, states: Sequence[RunState]) -> str:
    swept: Mapping[str, Sequence[Any]] = sweep.info.get("swept") or {}
    grid = "  ".join(f"{key}={','.join(map(str, values))}" for key, values in swept.items())
    spent, unit = total("", states), "of GPUs" if any(state.gpus for state in states) else "of runs"
    called = f" {sweep.name}" if sweep.name not in ("", sweep.study) else ""
    text = f"{sweep.study or 'sweep'}{called} {sweep.sweep_id}: {count(states)}"
    text += f", {hours(spent.hours_useful, spent.hours_replayed, spent.hours_wasted)} {unit}" if spent.attempts else ""
    text += f", ETA {duration(spent.eta)}" if spent.eta is not None else ""
    return text + (f"   ({grid})" if grid else "")


def _print(console: Any, sweep: Sweep, states: Sequence[RunState], *, each: bool) -> None:
    """Runs, or of a large sweep arms; arms too where they have several runs."""
    console.print(_title(sweep, states), markup=False, style="bold")
    for problem in sweep.problems:
        console.print(problem, markup=False)
    unreadable = [Unreadable(f"run {s.run_id}", s.message) for s in states if s.state is State.UNREADABLE]
    for line in grouped(unreadable, len(unreadable) if each else SHOWN):
        console.print(line, markup=False)
    states = [state for state in states if state.state is not State.UNREADABLE]
    by_arm = arms(states)
    if states and (each or len(states) <= MANY):
        console.print(table(states, ids=True, width=console.width))
    if len(states) > MANY or len(by_arm) < len(states):
        console.print(arm_table(by_arm, width=console.width))
    trouble = [state for state in states if state.ended and state.state not in (State.FINISHED, State.PLANNED)]
    for state in trouble if each else trouble[:SHOWN]:
        log = f"\n    {state.log}" if state.log else ""
        console.print(f"{state.state} {state.name}: {why(state)}{log}", markup=False)
    if len(trouble) > SHOWN and not each:
        console.print(f"and {len(trouble) - SHOWN} more such runs: --runs shows all", markup=False)
    if planned := sum(state.state is State.PLANNED for state in states):
        again = f"python -m sweeps retry {'RUN' if sweep.sweep_id == '-' else sweep.sweep_id}"
        console.print(f"{planned} planned: repeat the launch, or {again}", markup=False)
    console.print()


def _plain(sweep: Sweep, states: Sequence[RunState]) -> dict[str, Any]:
    runs = [{**asdict(state), "log": str(state.log) if state.log else None} for state in states]
    sums = {"arms": [asdict(arm) for arm in arms(states)], "total": asdict(total("all", states))}
    return {**sweep.info, "sweep_id": sweep.sweep_id, "problems": sweep.problems, **sums, "runs": runs}


def _watch(options: argparse.Namespace, ledger: Ledger) -> int:
    from rich.console import Group
    from rich.live import Live

    sweeps = _chosen(options, ledger)
    if not sweeps:
        print(NOTHING)
        return 0
    sweep = sweeps[-1]
    with Live(auto_refresh=False) as live:
        while True:
            states = joined(ledger, ledger.states(sweep.run_ids), read_queue(ledger, PATIENCE_S))
            width = live.console.width
            shown = arm_table(arms(states), width=width) if len(states) > ROWS else table(states, width=width)
            live.update(Group(_title(sweep, states), shown), refresh=True)
            if all(state.ended for state in states):
                return 0
            time.sleep(1)


# --- cancel


def _cancel(options: argparse.Namespace, ledger: Ledger) -> int:
    from slurm.client import is_configured
    from sweeps import local
    from sweeps.slurm.launch import cancel

    sweep, run_ids = _sweep_or_run(options.name, ledger)
    what = "run" if sweep is None else "sweep"
    sweeps = [each for each in ledger.sweeps() if run_ids[0] in each.run_ids] if sweep is None else [sweep]
    for each in sweeps:
        if what == "run" and len(each.run_ids) > 1:
            continue  # a launch ends as a whole
        stopped = local.stop(ledger, each.sweep_id)
        for pid in stopped:
            print(f"Process {pid} of this machine was told to stop: runs finish their step and save.")
        if stopped:
            return 0
    if not is_configured():
        raise ValueError(
            f"no launch of this machine works on {what} {options.name} alone, and there is no SLURM here: nothing is "
            "cancelled. `python -m sweeps cancel SWEEP` ends a launch with all of its runs."
        )
    found = cancel(ledger, run_ids, sweep.sweep_id if sweep is not None else None)
    asked = [run_id for run_id in found if run_id in run_ids]
    beside = f", with {len(found) - len(asked)} runs that are packed into the same jobs" if found != asked else ""
    print(f"{len(asked)} of {len(run_ids)} runs of the {what} had a job: told to save and end{beside}.")
    return 0


# --- retry and gc


def _retry(options: argparse.Namespace, ledger: Ledger) -> int:
    from sweeps.launcher import again

    sweep, run_ids = _sweep_or_run(options.name, ledger)
    if sweep is not None and sweep.problems:
        print(*sweep.problems, sep="\n", file=sys.stderr)
    if not run_ids:
        raise ValueError(f"nothing of sweep {options.name} can be started again.")
    growing = sweep is not None and grows(sweep.info)
    if not growing and all(state.state is State.FINISHED for state in ledger.states(run_ids)):
        print("All finished: nothing to start again.")
        return 0
    if sweep is not None:
        return again(ledger, sweep.sweep_id, unless_cancelled=options.unless_cancelled).exit_code
    (run_id,) = run_ids
    its = next((each for each in ledger.sweeps() if run_id in each.run_ids), None) or _sweep_of_one(ledger, run_id)
    return again(ledger, its.sweep_id, run_id, unless_cancelled=options.unless_cancelled).exit_code


def _sweep_of_one(ledger: Ledger, run_id: str) -> Sweep:
    """The sweep that a command for this run alone would make, of a run that is in none."""
    info = read_info(ledger.run_dir(run_id))
    study = info.study or NO_STUDY
    name = sweep_id(study, [run_id])
    about: dict[str, Any] = {"study": study, "command": info.command, "created": time.time(), "swept": {}}
    line: dict[str, Any] = {"run_id": run_id, "name": info.name, "arm": info.arm, "group_id": info.group_id}
    line |= {"overrides": [], "index": 0}
    ledger.record_sweep(name, about, [line])
    return ledger.sweep(name)


def _gc(options: argparse.Namespace, ledger: Ledger) -> int:
    from sweeps import gc

    found = gc.find(ledger)
    for line in gc.left_alone(ledger):
        print(line)
    for left in found:
        print(f"{left.size / 2**20:10.1f} MB  {left.path.relative_to(ledger.home)}  ({left.why})")
    total = sum(left.size for left in found)
    if options.yes:
        print(f"Removed {gc.remove(found, print) / 2**20:.1f} of {total / 2**20:.1f} MB.")
    else:
        print(f"{total / 2**20:.1f} MB could go: python -m sweeps gc --yes" if found else "Nothing to remove.")
    return 0


# --- logs


def _logs(options: argparse.Namespace, ledger: Ledger) -> int:
    run_id = ledger.resolve_run(options.name)
    state = ledger.state(run_id)
    attempt = options.attempt or state.attempt
    if state.state is State.UNREADABLE:
        raise Unreadable(f"run {run_id}", state.message)
    if not attempt:
        raise ValueError(f"Run {state.name} ({run_id}) has not begun: there is no log yet.")
    path = layout.log(layout.attempt(ledger.run_dir(run_id), attempt))
    if not path.parent.is_dir():
        raise ValueError(f"Run {state.name} ({run_id}) has {state.attempt} attempts, no number {attempt}.")
    place = _print_from(path, 0)
    while options.follow:
        running = ledger.state(run_id).state is State.RUNNING  # asked first: what it wrote last is still printed
        place = _print_from(path, place)
        if not running:
            break
        time.sleep(POLL_S)
    return 0


def _print_from(path: Path, place: int) -> int:
    """Print a file from a byte on; returns where it ends now. No file yet is an empty one."""
    if not path.exists():
        return place
    with path.open("rb") as file:
        file.seek(place)
        new = file.read()
    sys.stdout.write(new.decode(errors="replace"))
    sys.stdout.flush()
    return place + len(new)


# --- sync


def _sync(options: argparse.Namespace, ledger: Ledger) -> int:
    from sweeps.sync import sync, sync_in_background

    told = [f"--{name}" for name in ("uri", "verify", "repair") if getattr(options, name)]
    if options.background and told:
        raise ValueError(f"--background ships each launch to its own store, and no more. Drop it, or drop {told[0]}.")
    if options.background:
        sync_in_background(ledger)
        return 0
    return sync(ledger, options.uri, [word for word in told if word != "--uri"])
