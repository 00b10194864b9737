"""`python -m analysis`: rebuild the tables and figures of a study from what its runs left behind."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console

from rlvr.ledger import layout
from rlvr.ledger.cause import State

EXAMPLES = """\
examples:
  python -m analysis                        the newest study: tables here, everything in reports/<study>/
  python -m analysis --all                  every study
  python -m analysis --study eta --tables eta --no-figures
  python -m analysis --source mlflow --uri http://tracking:5000
"""


def main(arguments: list[str] | None = None) -> int:
    """Exit codes: 0 done, 2 nothing found or bad input (one line on standard error)."""
    options = parser().parse_args(arguments)
    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False)
    try:
        _rebuild(options, console)
    except LookupError as error:
        if type(error) is not LookupError:  # a KeyError is a fault of ours: its traceback is wanted
            raise
        print(f"analysis: {error.args[0]}", file=sys.stderr)
        return 2
    return 0


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        "python -m analysis",
        description="Rebuild tables, figures and the report page of a study from the ledger (runs/) or from MLflow.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    which = made.add_mutually_exclusive_group()
    which.add_argument("--study", help="the study to report (default: the newest)")
    which.add_argument("--sweep", metavar="ID", help="only the runs of this sweep, as in runs/sweeps/<ID>")
    which.add_argument("--all", action="store_true", help="every study, newest first")
    made.add_argument("--home", type=Path, help="where runs/ lies (default: $RLVR_HOME, the checkout, or here)")
    made.add_argument(
        "--source",
        choices=("ledger", "mlflow"),
        default="ledger",
        help="read metrics and states from runs/ (default) or from MLflow; same numbers",
    )
    made.add_argument("--uri", help="MLflow tracking URI (default: $MLFLOW_TRACKING_URI, else mlflow.db of the home)")
    made.add_argument("--out", type=Path, help="where reports go, a folder per study (default: reports/ of the home)")
    made.add_argument("--tables", metavar="NAMES", help="only these tables, as in eta,divergence")
    made.add_argument("--no-figures", action="store_true", help="tables only: a few seconds faster")
    return made


def _rebuild(options: argparse.Namespace, console: Console) -> None:
    # Here, so that --help answers at once.
    from analysis.frames.load import catalogue, frames

    home = (options.home or layout.home()).expanduser().resolve()
    found = catalogue(home, source=options.source, uri=options.uri)
    everything = found.studies()
    if options.sweep:
        _report(frames(found, sweep=options.sweep), options, home, console)
        return
    studies = (
        [options.study] if options.study else everything if options.all and everything else everything[:1] or [None]
    )
    for study in studies or [None]:
        _report(frames(found, study=study), options, home, console)
    others = [s for s in everything if s not in studies]
    if others:
        console.print(f"Other studies here: {', '.join(others)} (--study NAME, or --all)", markup=False)


def _report(frames, options: argparse.Namespace, home: Path, console: Console) -> None:  # type: ignore[no-untyped-def]
    from analysis.report import report
    from analysis.report.render import terminal

    only = [name for name in options.tables.split(",") if name] if options.tables else None
    content = report.build(frames, only=only, with_figures=not options.no_figures)
    # On disk before it is shown: `| head` must not cost the report.
    name = frames.study if not options.sweep else f"{frames.study}-{options.sweep}"
    files = report.write(frames, content, (options.out or layout.reports(home)).expanduser() / report.folder_name(name))
    counted = frames.runs["state"].value_counts()
    states = ", ".join(f"{counted[s]} {s}" for s in State if s in counted)
    console.print(f"\n{frames.title}: {len(frames.runs)} runs ({states})", style="bold", markup=False)
    for table in content.tables:
        terminal(table, console)
    for line in (*frames.notes, *(f"Skipped {s}." for s in content.skipped)):
        console.print(line, style="dim", markup=False)
    console.print("\nWritten:", style="bold")
    for file in files:
        console.print(f"  {file}", markup=False, soft_wrap=True)
    console.print(f"Browse the runs: {report.browse_command(frames)}", markup=False, soft_wrap=True)
