"""`python -m sweeps`: the state of sweeps and runs, and their logs; cancel, retry, clean up, ship metrics to MLflow."""

import argparse
import codecs
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
from rlvr.ledger.runs import Unreadable, lines_by_reason, read_info
from rlvr.ledger.state import RunState
from rlvr.ledger.sweeps import NO_STUDY, Ledger, NoSweep, Sweep, grows
from sweeps.arms import arms, mixed_code, total
from sweeps.progress import ROWS, arm_table, count, duration, hours, table, why
from sweeps.slurm.submissions import may_grow, read_queue, with_queue_states

EPILOG = """examples:
  python -m sweeps status               all sweeps of the study that was launched last
  python -m sweeps status first-try     the sweep that was launched with name=first-try
  python -m sweeps status 3f2a --json   the sweep whose id begins with 3f2a, for a program
  python -m sweeps watch                the same table, redrawn until all runs have ended
  python -m sweeps logs lad-js-eta0.5-s0 --follow
  python -m sweeps cancel 3f2a          end its launch or SLURM jobs; repeat the launch to go on
  python -m sweeps retry 3f2a           start failed and lost runs again; finished and pruned runs are kept
  python -m sweeps gc                   list what can be removed, and its size; --yes removes it
  python -m sweeps sync                 ship to MLflow the metrics that a launch could not ship
"""
POLL_S = 0.3
BLOCK = 2**20  # bytes of a log that are read at once
PATIENCE_S = 3.0  # longest wait for squeue
SHOWN = 20  # at most so many failed runs are listed
MANY = 100  # of a sweep with more runs, arms are shown instead of runs
NOTHING = "Nothing has been launched yet. Start with: python -m rlvr.run -m loss=lad divergence=js,hd,tv eta=0.5,1,2,4"


def parser() -> terminal.Parser:
    parser = terminal.Parser(prog="python -m sweeps", description=__doc__, epilog=EPILOG)
    commands = parser.add_subparsers(dest="command", metavar="command")

    def command(name: str, run: Callable[[argparse.Namespace, Ledger], int], about: str) -> terminal.Parser:
        subparser = commands.add_parser(name, help=about)
        subparser.add_argument("--home", type=Path, help=terminal.HOME_HELP)
        subparser.set_defaults(run=run)
        return subparser

    which = "name, id or its beginning, or a study"
    status = command("status", _status, "a table of the runs of a sweep")
    status.add_argument("sweep", nargs="?", help=f"{which} (default: all sweeps of the newest study)")
    status.add_argument("--all", action="store_true", help="every sweep, newest last, and runs of no sweep")
    status.add_argument("--runs", action="store_true", help=f"list every run, also of a sweep with more than {MANY}")
    status.add_argument("--json", action="store_true", help="for programs: a list of sweeps with their runs")
    command("watch", _watch, "status, redrawn until all runs have ended").add_argument("sweep", nargs="?", help=which)

    cancel = command(
        "cancel", _cancel, "end a launch on this machine, or the SLURM jobs of a sweep or run; they save first"
    )
    retry = command("retry", _retry, "start the unfinished runs of a sweep, or one run, again")
    for subparser in (cancel, retry):
        subparser.add_argument("name", metavar="sweep-or-run", help=which)

    retry.add_argument("--unless-cancelled", action="store_true", help="refuse a sweep that `cancel` has ended")
    retry.add_argument("--waiting", action="store_true", help="only runs that wait for room in SLURM's queue")

    gc = command("gc", _gc, "list or remove old checkpoints, unused stages, half-written files")
    gc.add_argument("--yes", action="store_true", help="remove them (default: only list them)")

    logs = command("logs", _logs, "the log of a run's newest attempt")
    logs.add_argument("name", metavar="run", help="id or name, or the beginning of one")
    logs.add_argument("--attempt", type=int, default=None, help="number of the attempt (default: the newest)")
    logs.add_argument("--follow", action="store_true", help="print new lines until the run ends")

    sync = command("sync", _sync, "ship metrics to MLflow that are not there yet")
    sync.add_argument("--uri", default=None, help="store for all runs (default: the store of each launch)")
    sync.add_argument("--background", action="store_true", help="only if ended runs are not there yet; do not wait")
    sync.add_argument(
        "--resend",
        nargs="+",
        metavar="NAME",
        default=[],
        help="replace these sweeps or runs in MLflow by their journals",
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit codes: 0 for success, 2 for an error, 130 for Ctrl-C; `retry` exits with the code of its launch."""
    terminal.set_up()
    command_line = parser()
    options = command_line.parse_args(arguments)
    if options.command is None:
        command_line.print_help()
        return 0
    try:
        follows = options.command == "watch" or getattr(options, "follow", False)
        with contextlib.nullcontext() if follows else terminal.unfailing_output():
            return options.run(options, Ledger(terminal.home(options.home)))
    except BrokenPipeError:  # what only follows runs ends with its reader, `head` for instance
        sys.stderr.close()
        return 0
    except (ValueError, OSError) as error:
        print(f"sweeps: {terminal.one_line(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return terminal.INTERRUPTED


# --- status and watch


def _sweeps_to_show(options: argparse.Namespace, ledger: Ledger) -> list[Sweep]:
    """The sweeps to show, newest last."""
    if options.sweep:
        chosen = _sweep_alone(options.sweep, ledger)
        _print_other_sweeps(ledger, options.sweep, chosen)
        return [chosen]
    sweeps = ledger.sweeps()
    if not getattr(options, "all", False):
        return _sweeps_of_newest_study(sweeps)
    in_sweeps = {run_id for sweep in sweeps for run_id in sweep.run_ids}
    single = tuple({"run_id": run_id} for run_id in ledger.runs() if run_id not in in_sweeps)
    return [*([Sweep("-", {"study": "runs of no sweep"}, single)] if single else []), *reversed(sweeps)]


def _sweep_alone(text: str, ledger: Ledger) -> Sweep:
    """The sweep that `text` names. Raises ValueError, for a run with what to type instead."""
    try:
        return ledger.resolve_sweep(text)
    except NoSweep as no_sweep:
        try:
            run_id = ledger.resolve_run(text)
        except ValueError:  # none, or several
            raise no_sweep from None
    sweeps = [sweep.sweep_id for sweep in ledger.sweeps() if run_id in sweep.run_ids]
    raise ValueError(
        f"{text} is a run of {f'sweep {sweeps[0]}' if sweeps else 'no sweep'}. `python -m sweeps status "
        f"{sweeps[0] if sweeps else '--all'}` shows it, `python -m sweeps logs {run_id}` prints its log."
    )


def _print_other_sweeps(ledger: Ledger, text: str, chosen: Sweep) -> None:
    """Where `text` is a study, of which only its newest sweep was chosen: name its sweeps that have other runs."""
    if text != chosen.study or text in (chosen.name, chosen.sweep_id):
        return
    of_study = [sweep for sweep in ledger.sweeps() if sweep.study == text]
    others = [sweep for sweep in of_study if not set(sweep.run_ids) <= set(chosen.run_ids)]
    if others:
        ids = ", ".join(sweep.sweep_id for sweep in others)
        print(f"This is the newest sweep of {text}, {chosen.sweep_id}. Others, by their ids: {ids}.", file=sys.stderr)


def _sweep_or_run(text: str, ledger: Ledger) -> tuple[Sweep | None, Sequence[str]]:
    """The sweep that `text` names, and its run ids; (None, [run id]) where it names no sweep but a run."""
    try:
        sweep = ledger.resolve_sweep(text)
    except NoSweep:  # a text that fits several sweeps raises another error: a run never takes their place
        return None, [ledger.resolve_run(text)]
    _print_other_sweeps(ledger, text, sweep)
    return sweep, sweep.run_ids


def _sweeps_of_newest_study(sweeps: Sequence[Sweep]) -> list[Sweep]:
    """The sweeps of the newest study, newest last, without those whose runs are all in a newer one. Sweeps without a
    study have nothing in common: of those the newest alone. sweeps: newest first.
    """
    newest = sweeps[0].study if sweeps else ""
    if newest in ("", NO_STUDY):
        return list(sweeps[:1])
    shown: list[Sweep] = []
    for sweep in sweeps:
        if sweep.study == newest and not any(set(sweep.run_ids) <= set(newer.run_ids) for newer in shown):
            shown.append(sweep)
    return shown[::-1]


def _status(options: argparse.Namespace, ledger: Ledger) -> int:
    sweeps = _sweeps_to_show(options, ledger)
    if not sweeps and not options.json:
        print(NOTHING)
        return 0
    queue = read_queue(ledger, PATIENCE_S)
    with_states = ((sweep, with_queue_states(ledger, ledger.states(sweep.run_ids), queue)) for sweep in sweeps)
    if options.json:
        print(json.dumps([_as_json(sweep, states) for sweep, states in with_states], indent=2))
        return 0
    console = terminal.console(width=None if sys.stdout.isatty() else 160, highlight=False, soft_wrap=True)
    if not queue.answered:
        print("SLURM does not answer: these are the states on the ledger.")
    for sweep, states in with_states:
        _print_sweep(console, sweep, states, all_runs=options.runs)
        if sweep.trials and (best := layout.search_best(ledger.sweep_dir(sweep.sweep_id))).exists():
            console.print(best.read_text(), markup=False)  # the best trial, or the front, and their commands
    others = len(ledger.sweeps()) - len(sweeps)
    if others > 0 and not options.all:
        print(f"{others} other sweep{'s' * (others > 1)}: python -m sweeps status --all")
    from sweeps.sync import sync_in_background

    with contextlib.suppress(OSError):  # a read-only home
        if sync_in_background(ledger):
            print(f"The tracker lacks what runs have logged: shipping it now ({layout.sync_log(ledger.home)})")
    return 0


def _title(sweep: Sweep, states: Sequence[RunState]) -> str:
    swept: Mapping[str, Sequence[Any]] = sweep.info.get("swept") or {}
    grid = "  ".join(f"{key}={','.join(map(str, values))}" for key, values in swept.items())
    spent, unit = total("", states), "of GPUs" if any(state.gpus for state in states) else "of runs"
    name = f" {sweep.name}" if sweep.name not in ("", sweep.study) else ""
    text = f"{sweep.study or 'sweep'}{name} {sweep.sweep_id}: {count(states)}"
    if spent.attempts:
        text += f", {hours(spent.hours_useful, spent.hours_replayed, spent.hours_wasted)} {unit}, with start-up"
    text += f", ETA {duration(spent.eta)}" if spent.eta is not None else ""
    return text + (f"   ({grid})" if grid else "")


def _print_sweep(console: Any, sweep: Sweep, states: Sequence[RunState], *, all_runs: bool) -> None:
    """Print a table of runs (of more than MANY only with `all_runs`), and one of arms unless every arm is one run."""
    console.print(_title(sweep, states), markup=False, style="bold")
    for problem in sweep.problems:
        console.print(problem, markup=False)
    unreadable = [Unreadable(f"run {s.run_id}", s.message) for s in states if s.state is State.UNREADABLE]
    for line in lines_by_reason(unreadable, len(unreadable) if all_runs else SHOWN):
        console.print(line, markup=False)
    states = [state for state in states if state.state is not State.UNREADABLE]
    if states and (all_runs or len(states) <= MANY):
        console.print(table(states, ids=True, width=console.width))
    if len(states) > MANY or len(arms(states)) < len(states):
        console.print(arm_table(states, width=console.width))
    failed = [state for state in states if state.ended and state.state not in (State.FINISHED, State.PLANNED)]
    for state in failed if all_runs else failed[:SHOWN]:
        log = f"\n    {state.log}" if state.log else ""
        console.print(f"{state.state} {state.name}: {why(state)}{log}", markup=False)
    if len(failed) > SHOWN and not all_runs:
        console.print(f"and {len(failed) - SHOWN} more such runs: --runs shows all", markup=False)
    for line in mixed_code(states):
        console.print(line, markup=False)
    if planned := sum(state.state is State.PLANNED for state in states):
        again = "" if sweep.sweep_id == "-" else f", or python -m sweeps retry {sweep.sweep_id}"
        console.print(f"{planned} planned: repeat the launch{again}", markup=False)
    console.print()


def _as_json(sweep: Sweep, states: Sequence[RunState]) -> dict[str, Any]:
    """A sweep for programs: docs/sweeps.md, "For programs"."""
    summaries = {"arms": [asdict(arm) for arm in arms(states)], "total": asdict(total("all", states))}
    runs = [_run_as_json(state) for state in states]
    return {**sweep.info, "sweep_id": sweep.sweep_id, "problems": sweep.problems, **summaries, "runs": runs}


def _run_as_json(state: RunState) -> dict[str, Any]:
    """reason: why the run has ended without success, or what it does or waits for."""
    reason = state.phase if not state.ended else "" if state.state is State.FINISHED else why(state)
    times = {"hours": sum(state.hours), "reason": reason}
    return {**asdict(state), "log": str(state.log) if state.log else None, **times}


def _watch(options: argparse.Namespace, ledger: Ledger) -> int:
    from rich.console import Group
    from rich.live import Live

    sweeps = _sweeps_to_show(options, ledger)
    if not sweeps:
        print(NOTHING)
        return 0
    sweep = sweeps[-1]
    with Live(console=terminal.console(), auto_refresh=False) as live:
        while True:
            sweep = ledger.sweep(sweep.sweep_id)  # a search, or a growing sweep, adds runs
            queue = read_queue(ledger, PATIENCE_S)
            states = with_queue_states(ledger, ledger.states(sweep.run_ids), queue)
            width = live.console.width
            rows = arm_table(states, width=width) if len(states) > ROWS else table(states, width=width)
            live.update(Group(_title(sweep, states), rows), refresh=True)
            if all(state.ended for state in states) and not may_grow(ledger, sweep, queue):
                return 0
            time.sleep(1)


# --- cancel


def _cancel(options: argparse.Namespace, ledger: Ledger) -> int:
    from slurm.client import is_configured
    from sweeps import local
    from sweeps.slurm.launch import cancel

    sweep, run_ids = _sweep_or_run(options.name, ledger)
    kind = "run" if sweep is None else "sweep"
    candidates = [sweep] if sweep is not None else [s for s in ledger.sweeps() if run_ids[0] in s.run_ids]
    for candidate in candidates:
        is_one_of_several = kind == "run" and len(candidate.run_ids) > 1
        # A launch on this machine can only be ended with all of its runs.
        stopped = local.stop(ledger, candidate.sweep_id, run_ids[0] if is_one_of_several else None)
        for pid in stopped:
            print(f"Process {pid} of this machine was signalled to stop: runs finish their step and save.")
        if stopped:
            return 0
    signalled = cancel(ledger, run_ids, sweep.sweep_id if sweep is not None else None) if is_configured() else []
    states = ledger.states(run_ids)
    if not signalled and all(state.ended for state in states):
        print(f"Nothing of {kind} {options.name} is running ({count(states)}): nothing to cancel.")
        return 0
    if not is_configured():
        alone = f"{kind} {options.name}{' alone' if kind == 'run' else ''}"
        of_all = [f"`python -m sweeps cancel {s.sweep_id}` ends all runs of its launch." for s in candidates[:1]]
        raise ValueError(
            f"no launch on this machine works on {alone}, and there is no SLURM here: nothing is cancelled. "
            f"{''.join(of_all) if kind == 'run' else 'Cancel it on the machine of its launch.'}"
        )
    wanted = [run_id for run_id in signalled if run_id in run_ids]
    num_packed = len(signalled) - len(wanted)
    packed = f", with {num_packed} runs that are packed into the same jobs" if signalled != wanted else ""
    print(f"{len(wanted)} of {len(run_ids)} runs of the {kind} had a job: signalled to save and end{packed}.")
    return 0


# --- retry and gc


def _retry(options: argparse.Namespace, ledger: Ledger) -> int:
    from sweeps.launcher import relaunch

    sweep, run_ids = _sweep_or_run(options.name, ledger)
    if options.waiting:
        from sweeps.slurm.launch import submit_waiting

        if sweep is not None and (submitted := submit_waiting(ledger, sweep.sweep_id)) is not None:
            print(submitted.summary(), flush=True)
        return 0
    if sweep is not None and sweep.problems:
        print(*sweep.problems, sep="\n", file=sys.stderr)
    if not run_ids:
        raise ValueError(f"no run of sweep {options.name} can be started again.")
    growing = sweep is not None and grows(sweep.info)
    if not growing and all(state.state is State.FINISHED for state in ledger.states(run_ids)):
        print("All runs have finished: nothing to start again.")
        return 0
    if sweep is not None:
        return relaunch(ledger, sweep.sweep_id, unless_cancelled=options.unless_cancelled).exit_code
    (run_id,) = run_ids
    of_run = next((sweep for sweep in ledger.sweeps() if run_id in sweep.run_ids), None)
    if of_run is None:
        raise ValueError(f"run {run_id} is in no sweep. Repeat its launch: {read_info(ledger.run_dir(run_id)).command}")
    return relaunch(ledger, of_run.sweep_id, run_id, unless_cancelled=options.unless_cancelled).exit_code


def _gc(options: argparse.Namespace, ledger: Ledger) -> int:
    from sweeps import gc

    removable = gc.find(ledger)
    for line in gc.unreadable(ledger):
        print(line)
    for item in removable:
        print(f"{item.size / 2**20:10.1f} MB  {item.path.relative_to(ledger.home)}  ({item.why})")
    total_mb = sum(item.size for item in removable) / 2**20
    if options.yes:
        print(f"Removed {gc.remove(removable, print) / 2**20:.1f} of {total_mb:.1f} MB.")
    elif removable:
        print(f"{total_mb:.1f} MB can be removed: python -m sweeps gc --yes")
    else:
        print("Nothing to remove.")
    return 0


# --- logs


def _logs(options: argparse.Namespace, ledger: Ledger) -> int:
    run_id = ledger.resolve_run(options.name)
    state = ledger.state(run_id)
    attempt = state.attempt if options.attempt is None else options.attempt
    if state.state is State.UNREADABLE:
        raise Unreadable(f"run {run_id}", state.message)
    if not state.attempt:
        raise ValueError(f"Run {state.name} ({run_id}) has not begun: there is no log yet.")
    path = layout.log(layout.attempt(ledger.run_dir(run_id), attempt))
    if not path.parent.is_dir():
        raise ValueError(f"Run {state.name} ({run_id}) has {state.attempt} attempts, no number {attempt}.")
    text = codecs.getincrementaldecoder("utf-8")("replace")
    position = _print_from(path, 0, text)
    while options.follow:
        running = ledger.state(run_id).state is State.RUNNING  # before printing: so its last lines are printed too
        position = _print_from(path, position, text)
        if not running:
            break
        time.sleep(POLL_S)
    sys.stdout.write(text.decode(b"", final=True))
    return 0


def _print_from(path: Path, position: int, text: codecs.IncrementalDecoder) -> int:
    """Print a file from this byte on; returns the position of its end. A missing file counts as empty.

    text: keeps the beginning of a character whose other bytes are still to be written.
    """
    if not path.exists():
        return position
    with path.open("rb") as file:
        file.seek(position)
        while part := file.read(BLOCK):  # a log may be larger than the memory
            sys.stdout.write(terminal.printable(text.decode(part).replace("\r", "\n")))
            position += len(part)
    sys.stdout.flush()
    return position


# --- sync


def _sync(options: argparse.Namespace, ledger: Ledger) -> int:
    from rlvr.tracker.cursor import forget
    from sweeps.sync import sync, sync_in_background

    flags = [f"--{name}" for name in ("uri", "resend") if getattr(options, name)]
    if options.background and flags:
        raise ValueError(f"--background only ships each launch to its own store. Drop it, or drop {flags[0]}.")
    if options.background:
        sync_in_background(ledger)
        return 0
    for sweep, run_ids in [_sweep_or_run(name, ledger) for name in options.resend]:
        of_sweep = [] if sweep is None else [ledger.sweep_dir(sweep.sweep_id)]
        forget(ledger.home, [*of_sweep, *map(ledger.run_dir, run_ids)])
    return sync(ledger, options.uri)
