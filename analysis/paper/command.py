"""`python -m analysis paper`: the tables and figures that papers print, with runs of this ledger beside them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from analysis.exchange import MIXED_CODE_HELP
from analysis.exchange import home as home_of
from analysis.frames import bundle
from analysis.frames.frames import Frames
from analysis.frames.load import catalogue, frames
from analysis.paper.counterparts import table
from analysis.paper.printed import PaperFigure, figures, tables
from analysis.report import render
from rlvr.ledger import layout, terminal

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EXAMPLES = """\
examples:
  python -m analysis paper                          which tables and figures there are
  python -m analysis paper lad_table_6              this table, with runs of every study
  python -m analysis paper lad_figure_3             as PNG and PDF, in reports/paper/
  python -m analysis paper maxrl_figure_3 --study rollout_scaling
  python -m analysis paper lad_figure_1 docs/evidence/bandit_off_policy.rlvr     from a bundle
  python -m analysis paper pacs --markdown          everything of a paper, tables as Markdown
"""


def main(arguments: Sequence[str]) -> None:
    """Run the command. LookupError for an unknown table or figure, and for a single figure without data."""
    parser = terminal.Parser(
        "python -m analysis paper",
        description="Show tables and figures as papers print them, with runs of ours beside the rows that they "
        "correspond to. Where a paper prints no number of a figure, the same is drawn from runs of ours.",
        epilog=EXAMPLES,
    )
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME | FILE",
        help="such as lad_table_6, pacs_figure_4, or lad for all of a paper; bundles (.rlvr) are read instead of runs/",
    )
    parser.add_argument("--home", type=Path, help=terminal.HOME_HELP)
    parser.add_argument("--study", help="whose runs a figure without printed numbers shows (default: the newest)")
    parser.add_argument("--out", type=Path, help="where figures go (default: reports/paper/ of the home)")
    parser.add_argument("--mixed-code", action="store_true", help=MIXED_CODE_HELP)
    parser.add_argument("--markdown", action="store_true", help="tables as Markdown")
    options = parser.parse_args(arguments)
    files = [Path(word) for word in options.names if Path(word).suffix == layout.BUNDLE]
    chosen = [name for word in options.names if Path(word) not in files for name in _matching_names(word)]
    if not chosen:
        _list()
        return
    home = home_of(options.home)
    named = [(file.stem, bundle.read(file)) for file in files]
    mixed = options.mixed_code
    if named:
        studies = Studies(bundle.merged([runs for _, runs in named], mixed_code=mixed), lambda: iter(named))
    else:
        studies = _of_home(home, options.study, mixed_code=mixed)
    console = terminal.console(width=None if sys.stdout.isatty() else 160, highlight=False)
    for name in (name for name in chosen if name in tables()):
        with_ours = table(studies.everything, tables()[name])
        if options.markdown:
            print(render.markdown(with_ours))
        else:
            render.terminal(with_ours, console)
    out = (options.out or layout.reports(home) / "paper").expanduser()
    for paper_figure in (figures()[name] for name in chosen if name in figures()):
        _draw(paper_figure, studies, out, required=len(chosen) == 1)


@dataclass(frozen=True)
class Studies:
    """The runs of ours that are shown.

    everything: all runs; None without any. in_turn: iterates over (name, runs) of the studies that a figure may show,
    in order of preference; a study is loaded when it is reached.
    """

    everything: Frames | None
    in_turn: Callable[[], Iterator[tuple[str, Frames]]]


def _of_home(home: Path, study: str | None, *, mixed_code: bool) -> Studies:
    known = catalogue(home)
    everything = frames(known, runs=list(known.records), mixed_code=mixed_code) if known.records else None
    names = [study] if study else known.studies()
    loaded = cache(lambda name: frames(known, study=name, mixed_code=mixed_code))
    return Studies(everything, lambda: ((name, loaded(name)) for name in names))


def _list() -> None:
    """Print every table and figure, with what a figure is drawn from."""
    for name, printed in tables().items():
        print(f"{name:18} {printed.says} ({printed.of})")
    for name, paper_figure in figures().items():
        if name not in tables():
            source = "printed numbers" if paper_figure.printed else paper_figure.command
            source = source or f"ours: {', '.join(paper_figure.ours)}"
            print(f"{name:18} {paper_figure.says} ({source})")


def _matching_names(word: str) -> list[str]:
    """The tables and figures that a word of the command line names: one, or all of a paper."""
    known = list(dict.fromkeys([*tables(), *figures()]))
    matching = [name for name in known if name == word or name.startswith((f"{word}_table", f"{word}_figure"))]
    if not matching:
        raise LookupError(
            f"paper {word}: there is no such {'figure' if 'figure' in word else 'table'}. "
            f"Tables: {', '.join(tables())}. Figures: {', '.join(figures())}."
        )
    return matching


# --- figures


def _draw(paper_figure: PaperFigure, studies: Studies, out: Path, *, required: bool) -> None:
    """Write the drawings of a figure, or print how to get one. required: LookupError where there is none."""
    from analysis.report import style  # matplotlib takes a third of a second

    files = [file for name, drawing in _drawings(paper_figure, studies) for file in style.save(drawing, out / name)]
    if not files and required:
        raise LookupError(f"{paper_figure.paper}, {paper_figure.title}: {_remedy(paper_figure)}")
    for line in (*paper_figure.notes, *map(str, files)) if files else (_remedy(paper_figure),):
        print(f"{paper_figure.name}: {line}")


def _drawings(paper_figure: PaperFigure, studies: Studies) -> Iterator[tuple[str, Figure]]:
    """(name, drawing) of the printed numbers, then of our runs: of the first study that has the figure."""
    from analysis import figures as figure_package
    from analysis.paper.draw import figure
    from analysis.report.report import available

    if paper_figure.printed is not None:
        yield paper_figure.name, figure(paper_figure, table(studies.everything, paper_figure.printed))
    for name in paper_figure.ours:
        for study, runs in studies.in_turn():
            drawing = available(figure_package)[name].figure(runs)
            if drawing is not None:
                yield f"{paper_figure.name}-{name}-{study}", drawing
                break


def _remedy(paper_figure: PaperFigure) -> str:
    """Why there is nothing to draw, and what to type."""
    if paper_figure.command:
        return f"the paper prints no number of it. Ours: {paper_figure.command}"
    run = f" python -m rlvr.run study={paper_figure.study} makes some." if paper_figure.study else ""
    return f"the paper prints no number of it, and no runs here show it ({', '.join(paper_figure.ours)}).{run}"
