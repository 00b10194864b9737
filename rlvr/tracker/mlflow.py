"""Ship metrics to MLflow or another tracker: `python -m rlvr.tracker.mlflow --home H [--sweep ID ...] [--follow]`."""

import os
import signal
import stat
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from rlvr.ledger import terminal
from rlvr.ledger.sweeps import Ledger, Sweep, find_sweep
from rlvr.tracker import store
from rlvr.tracker.copies import Copier
from rlvr.tracker.shipper import Report, Shipper

__all__ = ["Report", "Shipper", "follow", "main", "run_dirs"]

PERIOD_S = 2.0
LONGEST_WAIT_S = 60.0  # between attempts to reach a store that is down
LEFT = 3  # exit code: something could not be shipped


def run_dirs(home: Path, sweep_ids: Sequence[str] = ()) -> list[Path]:
    """Directories of the runs of these sweeps, or of every run on the ledger if none is given.

    sweep_ids: ids or names. Raises ValueError if there is no such sweep.
    """
    ledger = Ledger(home)
    run_ids = [run_id for sweep in _selected_sweeps(ledger, sweep_ids) for run_id in sweep.run_ids]
    if not sweep_ids:  # runs of a sweep whose directories are gone stay in the list: MLflow has to show that
        run_ids = [*ledger.runs(), *run_ids]
    return [ledger.run_dir(run_id) for run_id in dict.fromkeys(run_ids)]


def _selected_sweeps(ledger: Ledger, sweep_ids: Sequence[str]) -> list[Sweep]:
    """The sweeps with these ids or names, or all of them if none is given. Raises ValueError."""
    sweeps = ledger.sweeps()
    return [find_sweep(sweeps, text) for text in sweep_ids] if sweep_ids else sweeps


def follow(shipper: Shipper | Copier, sweep_ids: Sequence[str], stop: threading.Event, *, until_done: bool) -> Report:
    """Ship in passes until `stop` is set, which starts a last pass. Returns its report, with the lines of all passes.

    until_done: stop, too, once all runs have ended and everything has arrived. A store that is down is tried again
    after 4, 8, ... 60 seconds.
    """
    shipped: Counter[str] = Counter()
    wait = PERIOD_S
    printed: str | None = None
    while True:
        is_last = stop.is_set()
        report = shipper.ship(run_dirs(shipper.home, sweep_ids))
        shipped.update(report.shipped)
        trouble = report.error or report.warning
        if trouble is not None and trouble != printed:
            print(f"{report.tracker}: {trouble}", file=sys.stderr, flush=True)
        printed = trouble
        if is_last or (until_done and not report.running and report.complete):
            report.shipped = dict(shipped)
            return report
        wait = min(2 * wait, LONGEST_WAIT_S) if report.error else PERIOD_S
        stop.wait(wait)


def _stop_on(stop: threading.Event) -> None:
    """Set `stop` on SIGTERM, on Ctrl-C, and when the pipe that is our standard input is closed by its other end."""

    def set_stop(number: int, _: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)  # a second signal ends the process at once
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, set_stop)
    try:
        mode = os.fstat(0).st_mode
    except OSError:
        return  # there is no standard input
    # Not for /dev/null, the input of a job in the background: it is at its end from the start.
    if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
        threading.Thread(target=_stop_at_end_of_input, args=(stop,), daemon=True).start()


def _stop_at_end_of_input(stop: threading.Event) -> None:
    while os.read(0, 4096):
        pass
    stop.set()


def _parser() -> terminal.Parser:
    parser = terminal.Parser(
        prog="python -m rlvr.tracker.mlflow",
        description="Ship the metrics of runs to MLflow or another tracker. Safe to repeat, to kill and to run twice: "
        f"every line arrives once. Exit code 0: everything has arrived; {LEFT}: something is left, try again later.",
    )
    parser.add_argument("--home", type=Path, help=terminal.HOME_HELP)
    parser.add_argument(
        "--uri",
        help="MLflow store (default: $MLFLOW_TRACKING_URI, else sqlite in <home>/mlflow.db), or tensorboard, wandb, "
        "trackio, each with :FOLDER or without",
    )
    parser.add_argument(
        "--sweep", nargs="+", default=[], metavar="NAME", help="only the runs of these sweeps (names or ids)"
    )
    parser.add_argument("--follow", action="store_true", help=f"a pass every {PERIOD_S:.0f} s, until SIGTERM")
    parser.add_argument("--until-done", action="store_true", help="follow until every run has ended and is shipped")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        shipper = (Copier if store.is_copy(options.uri) else Shipper)(terminal.home(options.home), options.uri)
        if options.follow or options.until_done:
            stop = threading.Event()
            _stop_on(stop)
            report = follow(shipper, options.sweep, stop, until_done=options.until_done)
        else:
            report = shipper.ship(run_dirs(shipper.home, options.sweep))
            if report.warning:
                print(f"MLflow: {report.warning}", file=sys.stderr)
        for sweep in _selected_sweeps(shipper.ledger, options.sweep):
            report.note_problems(sweep)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(report)
    return 0 if report.complete else LEFT


if __name__ == "__main__":
    sys.exit(main())
