"""`python -m analysis`: rebuild the tables and figures of a study from the results of its runs."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import sys
import traceback
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from analysis.exchange import MIXED_CODE_HELP, folder_name, joined
from analysis.exchange import home as home_of
from rlvr.ledger import layout, terminal
from rlvr.ledger.files import is_shared

if TYPE_CHECKING:
    from analysis.frames.frames import Frames
    from analysis.report.report import Content
    from analysis.scores.claim import Verdict
    from analysis.serve import Built

EXAMPLES = """\
examples:
  python -m analysis                        the newest study: what decides here, everything in reports/<study>/
  python -m analysis --all                  the same, with every table here
  python -m analysis --studies              every study
  python -m analysis first-try              a study or a sweep by its name, or a sweep by its id
  python -m analysis eta --tables eta --no-figures
  python -m analysis eta --tables saturation     the asymptote of each arm's curve, and its score at twice the steps
  python -m analysis --metrics avg,pass@4,policy/kl_base --against 'loss=grpo lr=1e-4' --across eta
  python -m analysis eta --claims --exit-code
  python -m analysis --serve 8800           the page while runs go on: it is built anew and reloads itself
  python -m analysis eta --json             verdicts, tables and files, for a program
  python -m analysis --source mlflow --uri http://tracking:5000
  python -m analysis bundle study=eta       a study as one file (bundle --help)
  python -m analysis eta.rlvr               tables and page of such a file, without the runs; several: together
  python -m analysis import DUMP --format verl --arm grpo      samples of another trainer as such a file (import --help)
  python -m analysis meta A.rlvr B.rlvr     what several laboratories found, taken together (meta --help)
  python -m analysis audit NAME --n 100     answers to be labelled by a person: the verifier's errors (audit --help)
  python -m analysis findings *.rlvr        what studies found, as Markdown (findings --help)
  python -m analysis paper lad_table_1      a table of a paper, with runs of ours in its rows (paper --help)
"""


# Exit codes; 1 and 3 only with --exit-code.
DONE, CONTRADICTED, BAD_INPUT, OPEN = 0, 1, 2, 3


VERBS = (["bundle"], ["import"], ["findings"], ["paper"], ["meta"], ["audit"])


def main(arguments: list[str] | None = None) -> int:
    """Return the exit code. Bad input, or a study that does not exist, gives one line on standard error."""
    terminal.set_up()
    arguments = sys.argv[1:] if arguments is None else arguments
    console = terminal.console(width=None if sys.stdout.isatty() else 160, highlight=False)
    try:
        with terminal.unfailing_output():
            if arguments[:1] in VERBS:
                return _run_verb(arguments[0], arguments[1:])
            options = read_options(arguments)
            folders = list(dict.fromkeys(folder.expanduser().resolve() for folder in options.config_dir))
            with _naming_own_code(folders):
                outcomes = _reported(options, folders, console)
    except LookupError as error:
        if type(error) is not LookupError:  # a KeyError or IndexError is a defect here: keep its traceback
            raise
        print(f"analysis: {terminal.printable(str(error.args[0]))}", file=sys.stderr)
        return BAD_INPUT
    except OSError as error:
        print(f"analysis: {terminal.one_line(error)}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        return terminal.INTERRUPTED
    if not options.exit_code or outcomes == {"holds"}:
        return DONE
    return CONTRADICTED if "contradicted" in outcomes else OPEN


def _reported(options: argparse.Namespace, folders: Sequence[Path], console: Console) -> set[str]:
    if folders:
        from analysis.report import report

        for folder in folders:
            report.add(folder)
    if options.serve is not None:
        from analysis.serve import serve

        serve(lambda: _built(options), options.serve, home_of(options.home))
    return _rebuild(options, console)


@contextmanager
def _naming_own_code(folders: Sequence[Path]) -> Iterator[None]:
    """Make of an error in a table or figure of the user's a LookupError that names its line."""
    try:
        yield
    except Exception as error:
        places = [(place.filename, place.lineno) for place in traceback.extract_tb(error.__traceback__)]
        places += [(str(error.filename), error.lineno)] if isinstance(error, SyntaxError) else []
        own = [place for place in places if any(Path(place[0]).is_relative_to(folder) for folder in folders)]
        if not own:
            raise
        raise LookupError(
            f"{own[-1][0]}, line {own[-1][1]}: {type(error).__name__}: {terminal.one_line(error)}"
        ) from error


def parser() -> terminal.Parser:
    parser = terminal.Parser(
        "python -m analysis",
        description="Rebuild tables, figures and the report page of a study from the ledger (runs/) or from MLflow.",
        epilog=EXAMPLES,
    )
    parser.add_argument(
        "words",
        nargs="*",
        metavar="NAME | FILE",
        help="a study, the name or the id of a sweep; or bundles (.rlvr), which replace runs/",
    )
    selection = parser.add_mutually_exclusive_group()
    selection.add_argument("--study", help="the study to report (default: the newest)")
    selection.add_argument(
        "--sweep", metavar="NAME", help="only the runs of this sweep: its name, its id or the beginning of it"
    )
    selection.add_argument("--studies", action="store_true", help="every study, newest first")
    parser.add_argument("--home", type=Path, help=terminal.HOME_HELP)
    parser.add_argument(
        "--source",
        choices=("ledger", "mlflow"),
        default="ledger",
        help="read metrics and states from runs/ (default) or from MLflow; same numbers",
    )
    parser.add_argument("--uri", help="of --source mlflow (default: $MLFLOW_TRACKING_URI, else mlflow.db of the home)")
    _add_report_options(parser)
    return parser


def _add_report_options(parser: argparse.ArgumentParser) -> None:
    """What is made of the runs, and how it is shown."""
    parser.add_argument("--out", type=Path, help="where reports go, a folder per study (default: reports/ of the home)")
    parser.add_argument(
        "--config-dir",
        metavar="DIR",
        action="append",
        default=[],
        type=Path,
        help="tables and figures of your own: DIR/tables/NAME.py, DIR/figures/NAME.py",
    )
    parser.add_argument(
        "--tables", metavar="NAMES", help="only these tables, as in eta,divergence; in reports/<study>-part/"
    )
    parser.add_argument(
        "--metrics", metavar="NAMES", default="", help="columns of the comparison, as in avg@8,pass@4,policy/kl_base"
    )
    parser.add_argument(
        "--against", metavar="ARM", default="", help="what arms are compared to, as in 'loss=grpo lr=1e-4', or base"
    )
    parser.add_argument("--across", metavar="KNOB", default="", help="the knob whose values become columns")
    parser.add_argument("--all", action="store_true", help="print every table, with its notes")
    parser.add_argument("--mixed-code", action="store_true", help=MIXED_CODE_HELP)
    parser.add_argument("--spend", action="store_true", help="all reports on the same test problems share the 5 %%")
    parser.add_argument("--json", action="store_true", help="for programs: print a list of studies as JSON")
    parser.add_argument("--no-figures", action="store_true", help="a few seconds faster; in reports/<study>-part/")
    parser.add_argument(
        "--claims", action="store_true", help="the verdicts on the study's claims alone; writes nothing"
    )
    parser.add_argument(
        "--serve",
        metavar="PORT",
        type=int,
        help="show the page on loopback, built anew while runs go on; the address that is printed has a token",
    )
    parser.add_argument(
        "--exit-code",
        action="store_true",
        help="exit with 1 if a claim is contradicted, 3 if one is undecided or not tested, or if there is none",
    )


def read_options(arguments: list[str]) -> argparse.Namespace:
    """The parsed options, with two more: `files`, the bundles, and `name`, a study or a sweep, "" if none is named."""
    options = parser().parse_args(arguments)
    options.files = [Path(word) for word in options.words if _is_file(word)]
    options.name = next((word for word in options.words if not _is_file(word)), "")
    named = list(options.words)
    named += [f"--{name} {value}" for name in ("study", "sweep") if (value := getattr(options, name))]
    named += ["--studies"] if options.studies else []
    if len(named) > max(1, len(options.files)):
        raise LookupError(
            f"one study, or one sweep, or bundles ({layout.BUNDLE}): {' '.join(named)} names several. To compare "
            "them: `python -m analysis bundle NAME` of each, then `python -m analysis A.rlvr B.rlvr`."
        )
    _reject_unread(options)
    return options


def _reject_unread(options: argparse.Namespace) -> None:
    """Raises LookupError for an option that the others leave without effect, and for a list without a name."""
    for name in ("metrics", "tables"):
        value = getattr(options, name)
        if value and not value.replace(",", " ").split():
            raise LookupError(f"--{name} {value}: there is no name in it. Type names with commas between, or drop it.")
    if options.all and (options.tables or options.json):
        of_all = "--tables, which prints those that it names" if options.tables else "--json, which has every table"
        raise LookupError(f"--all has no effect with {of_all}. Drop --all.")
    if options.serve is not None:
        typed = [n for n in ("json", "claims", "studies", "all", "exit_code") if getattr(options, n)]
        if typed or not 0 <= options.serve < 1 << 16:
            why = (
                f"--{typed[0].replace('_', '-')} has no effect with it"
                if typed
                else "a port is 1 to 65535, 0 a free one"
            )
            raise LookupError(f"--serve {options.serve}: {why}.")
    of_report = ("metrics", "against", "across", "tables", "out", "all", "config_dir")
    typed = [f"--{name.replace('_', '-')}" for name in of_report if getattr(options, name)]
    if options.claims and typed:
        raise LookupError(
            f"{' and '.join(typed)}: no effect with --claims, which judges each claim by its own metric and reference "
            "and writes nothing. Drop --claims for the report, which has the verdicts too."
        )
    if options.files and (options.uri or options.source == "mlflow" or options.spend):
        raise LookupError("--source, --uri and --spend have no effect with bundles, which hold their runs. Drop them.")
    if options.uri and options.source != "mlflow":
        raise LookupError("--uri has no effect without --source mlflow. Type both for MLflow, neither for runs/.")


def _is_file(word: str) -> bool:
    """Whether a word means a bundle: by its suffix, or by the content of the file of that name. Any other file, such as
    `eta` beside a study of that name, is not meant.
    """
    return Path(word).suffix == layout.BUNDLE or zipfile.is_zipfile(word)


def _run_verb(verb: str, arguments: list[str]) -> int:
    from analysis import audit, exchange, findings, meta
    from analysis.paper import command as paper

    verbs = {"bundle": exchange.bundle, "import": exchange.import_dump, "findings": findings.main}
    verbs |= {"paper": paper.main, "meta": meta.main, "audit": audit.main}
    verbs[verb](arguments)
    return DONE


def _rebuild(options: argparse.Namespace, console: Console) -> set[str]:
    """Report every requested study; returns the outcomes of their claims. Of --studies one that cannot be reported
    keeps none of the others from it: its error is raised after them.
    """
    home = home_of(options.home)
    from analysis.frames.bundle import UNREADABLE

    chosen, others = _chosen(options, home)
    reported: list[tuple[Sequence[Verdict], dict[str, Any]]] = []
    refused: list[str] = []
    for name, load in chosen.items():
        try:
            reported.append(_study(load(), options, home, console))
        except (LookupError, *UNREADABLE) as error:
            bad_input = type(error) is LookupError
            if bad_input and options.studies:
                refused.append(f"{name}: {error}")
                continue
            if bad_input or not options.files:
                raise
            raise LookupError(f"what the bundle says cannot be reported: {type(error).__name__}: {error}") from None
    if options.json:
        print(json.dumps([record for _, record in reported], indent=2, allow_nan=False))
    elif others and not options.claims:
        console.print(f"Other studies here: {', '.join(others)} (python -m analysis NAME, or --studies)", markup=False)
    if refused:
        raise LookupError(f"{len(refused)} of {len(chosen)} studies not reported. {' '.join(refused)}")
    return {verdict.outcome.value for verdicts, _ in reported for verdict in verdicts}


def _chosen(options: argparse.Namespace, home: Path) -> tuple[dict[str, Callable[[], Frames]], list[str]]:
    """(by name what loads the studies that the options name, the names of all other studies)."""
    # Imported here, so that --help answers at once.
    from analysis.frames import bundle
    from analysis.frames.load import catalogue, frames

    how = {"mixed_code": options.mixed_code, "spend": options.spend}
    if options.files:
        parts = [bundle.read(file) for file in options.files]
        return {"": partial(bundle.merged, parts, mixed_code=options.mixed_code)}, []
    listing = catalogue(home, source=options.source, uri=options.uri)
    known_studies = listing.studies()
    study = options.study or (options.name if options.name in known_studies else "")
    if not study and (sweep := options.sweep or options.name):
        return {sweep: partial(frames, listing, sweep=sweep, **how)}, []
    studies = [study] if study else known_studies[: None if options.studies else 1]
    others = [name for name in known_studies if name not in studies]
    return {name or "": partial(frames, listing, study=name, **how) for name in studies or [None]}, others


def _built(options: argparse.Namespace) -> Built:
    """The page of the study as it is now, for --serve; its report is written too."""
    from analysis.serve import Built
    from rlvr.ledger.cause import State

    home = home_of(options.home)
    (load,) = _chosen(options, home)[0].values()
    of_study = load()
    _, files = _write(of_study, options, home)
    logs = {str(log): home / str(log) for log in of_study.runs["log"] if log} if of_study.home else {}
    live = any(run.state in (State.PLANNED, State.QUEUED, State.RUNNING) for run in of_study.rows)
    names = {sweep.sweep_id: f"all of {sweep.name or sweep.study or sweep.sweep_id}" for sweep in of_study.sweeps}
    names |= {run.run_id: f"{run.name} ({run.state})" for run in of_study.rows if run.state != State.FINISHED}
    return Built(files[0].read_bytes(), logs, live, names if of_study.home else {})


def _study(
    frames: Frames, options: argparse.Namespace, home: Path, console: Console
) -> tuple[Sequence[Verdict], dict[str, Any]]:
    """Judge, write and print one study; returns the verdicts on its claims, and its record for --json."""
    from analysis.report.record import record
    from analysis.scores.verdict import verdicts

    if not options.claims:
        content, files = _write(frames, options, home)
        if not options.json:
            _print(frames, content, files[0], options, console)
        notes = (*content.not_shown, *frames.notes)
        return content.claims, record(frames, content.verdicts, content.tables, notes, files)
    judged = verdicts(frames)
    if not options.json:
        from analysis.report.render import claims

        none = "no claims. A study's file lists them, and its launch records them (docs/analysis.md)."
        console.print(f"{frames.title}: {f'{len(judged)} claims' if judged else none}", style="bold", markup=False)
        claims(judged, console)
    return judged, record(frames, judged, (), (), ())


def _write(frames: Frames, options: argparse.Namespace, home: Path) -> tuple[Content, list[Path]]:
    """Build and write the report of a study. A report from bundles, or a part of one, has a folder of its own: it must
    not replace the complete report on the runs of this home."""
    from analysis.report import report
    from analysis.tables.comparison import ComparisonOptions

    name = f"{joined([file.stem for file in options.files])}{layout.OF_BUNDLES}" if options.files else frames.title
    if options.tables or options.no_figures:
        name += layout.OF_PARTS
    out = (options.out or layout.reports(home)).expanduser() / folder_name(name)
    page = layout.report_page(out)
    if page.exists() and page.stat().st_uid != os.geteuid() != 0 and not is_shared():
        raise LookupError(f"{page} is the report of another user, and is kept. Pass --out DIR for one of your own.")
    only = [name for name in map(str.strip, options.tables.split(",")) if name] if options.tables else None
    ask = ComparisonOptions(options.metrics, options.against, options.across)
    content = report.build(frames, only=only, with_figures=not options.no_figures, ask=ask)
    return content, report.write(frames, content, out)


def _print(frames: Frames, content: Content, page: Path, options: argparse.Namespace, console: Console) -> None:
    """Print a report that was written: verdicts, what decides (with --all or --tables the tables), and its place."""
    from analysis.report import render, report
    from analysis.report.record import states

    listed = ", ".join(f"{count} {state}" for state, count in states(frames).items())
    console.print(f"\n{frames.title}: {len(frames.runs)} runs ({listed})", style="bold", markup=False)
    render.claims(content.verdicts, console)
    if options.all or options.tables:
        for table in content.tables:
            render.terminal(table, console)
    elif content.tables:
        for headline in content.headlines:
            console.print(f"{headline.title}: {headline.text}", markup=False)
        metrics = content.tables[0].shown if options.metrics else ()
        render.deciding(content.tables[0], metrics, console)
    for line in (*content.not_shown, *frames.notes):
        console.print(line, style="dim", markup=False)
    hidden = "" if options.all or options.tables else " (here with --all)"
    console.print(f"Page: {page}", markup=False, soft_wrap=True)
    console.print(f"Tables{hidden} and figures are beside it.", markup=False)
    # Not for runs of tracker=none, or of bundles, which are in no store.
    if frames.home is not None and (":" in frames.origin or layout.mlflow_database(frames.home).exists()):
        command = report.browse_command(frames)
        if command.startswith("mlflow ") and shutil.which("mlflow") is None:  # the environment is not activated
            command = f"{shlex.quote(str(Path(sys.executable).parent))}/{command}"
        command = command if command.startswith("http") else f"MLFLOW_DISABLE_TELEMETRY=true {command}"
        address = report.browse_address(frames)
        then = f"   then {address}" if address else ""
        console.print(f"Browse the runs: {command}{then}", markup=False, soft_wrap=True)
