"""`python -m analysis paper`: the tables and figures that papers print, with runs of this ledger beside them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from analysis.frames import bundle
from analysis.frames.frames import Frames
from analysis.frames.load import catalogue, frames
from analysis.paper.figures import Pictured, figures
from analysis.paper.ours import table
from analysis.paper.printed import tables
from analysis.report import render
from rlvr.ledger import layout, terminal

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EXAMPLES = """\
examples:
  python -m analysis paper                          which tables and figures there are
  python -m analysis paper lad_table_6              this one, with runs of every study
  python -m analysis paper lad_figure_3             as PNG and PDF, in reports/paper/
  python -m analysis paper maxrl_figure_3 --study rollout_scaling
  python -m analysis paper lad_figure_1 docs/evidence/bandit_off_policy.rlvr     from a bundle
  python -m analysis paper pacs --markdown          all of a paper, tables as Markdown
"""


def main(arguments: Sequence[str]) -> None:
    """LookupError: there is no such table or figure, or nothing to draw it from."""
    parser = terminal.Parser(
        "python -m analysis paper",
        description="Show tables and figures as papers print them, with runs of ours beside the rows that they "
        "correspond to. Where a paper prints no number of a figure, draw the same of ours.",
        epilog=EXAMPLES,
    )
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME | FILE",
        help="as in lad_table_6, pacs_figure_4, or lad: all of it; bundles (.rlvr), in the place of runs/",
    )
    parser.add_argument("--home", type=Path, help=terminal.HOME_HELP)
    parser.add_argument("--study", help="whose runs a figure without printed numbers shows (default: the newest)")
    parser.add_argument("--out", type=Path, help="where figures go (default: reports/paper/ of the home)")
    parser.add_argument("--markdown", action="store_true", help="tables as Markdown")
    options = parser.parse_args(arguments)
    files = [Path(word) for word in options.names if Path(word).suffix == layout.BUNDLE]
    chosen = [name for word in options.names if Path(word) not in files for name in _named(word)]
    if not chosen:
        _list()
        return
    try:
        home = terminal.home(options.home)
    except ValueError as error:
        raise LookupError(str(error)) from None
    studies = _of_files(files) if files else _of_home(home, options.study)
    _show([name for name in chosen if name in tables()], studies.everything, as_markdown=options.markdown)
    out = (options.out or layout.reports(home) / "paper").expanduser()
    for pictured in (figures()[name] for name in chosen if name in figures()):
        _draw(pictured, studies, out, required=len(chosen) == 1)


@dataclass(frozen=True)
class Studies:
    """everything: all runs; None where there are none. each: (name, runs) of the studies that figures of ours show,
    the first first, loaded as they are asked for."""

    everything: Frames | None
    each: Callable[[], Iterator[tuple[str, Frames]]]


def _of_home(home: Path, study: str | None) -> Studies:
    known = catalogue(home)
    everything = frames(known, runs=list(known.records)) if known.records else None
    names = [study] if study else known.studies()
    loaded = cache(lambda name: frames(known, study=name))
    return Studies(everything, lambda: ((name, loaded(name)) for name in names))


def _of_files(files: Sequence[Path]) -> Studies:
    """Of bundles, each a study."""
    named = [(file.stem, bundle.read(file)) for file in files]
    return Studies(bundle.merged([found for _, found in named]), lambda: iter(named))


def _list() -> None:
    for name, printed in tables().items():
        print(f"{name:18} {printed.says} ({printed.of})")
    for name, pictured in figures().items():
        if name not in tables():
            drawn = "printed numbers" if pictured.printed else pictured.command or f"ours: {', '.join(pictured.ours)}"
            print(f"{name:18} {pictured.says} ({drawn})")


def _named(asked: str) -> list[str]:
    known = list(dict.fromkeys([*tables(), *figures()]))
    found = [name for name in known if name == asked or name.startswith((f"{asked}_table", f"{asked}_figure"))]
    if not found:
        raise LookupError(
            f"paper {asked}: there is no such {'figure' if 'figure' in asked else 'table'}. "
            f"Tables: {', '.join(tables())}. Figures: {', '.join(figures())}."
        )
    return found


def _show(names: Sequence[str], everything: Frames | None, *, as_markdown: bool) -> None:
    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False)
    for made in (table(everything, tables()[name]) for name in names):
        if as_markdown:
            print(render.markdown(made))
        else:
            render.terminal(made, console)


# --- figures


def _draw(pictured: Pictured, studies: Studies, out: Path, *, required: bool) -> None:
    """Write what there is of it. required: LookupError if that is nothing."""
    files = [file for name, drawing in _drawings(pictured, studies) for file in _written(drawing, out / name)]
    if not files and required:
        raise LookupError(f"{pictured.paper}, {pictured.title}: {_remedy(pictured)}")
    for line in (*pictured.notes, *map(str, files)) if files else (_remedy(pictured),):
        print(f"{pictured.name}: {line}")


def _drawings(pictured: Pictured, studies: Studies) -> Iterator[tuple[str, Figure]]:
    """(name, figure) of the printed numbers, then of ours, of the first study that has it."""
    from analysis.paper.draw import figure  # matplotlib takes a third of a second

    if pictured.printed is not None:
        yield pictured.name, figure(pictured, table(studies.everything, pictured.printed))
    for name in pictured.ours:
        for study, runs in studies.each():
            drawing = _ours(name, runs)
            if drawing is not None:
                yield f"{pictured.name}-{name}-{study}", drawing
                break


def _ours(name: str, frames: Frames) -> Figure | None:
    from analysis import figures as room
    from analysis.report.drawing import available

    return available(room)[name].figure(frames)


def _written(drawing: Figure, path: Path) -> list[Path]:
    from analysis.report import style

    path.parent.mkdir(parents=True, exist_ok=True)
    files = [path.with_name(f"{path.name}.{kind}") for kind in ("png", "pdf")]
    for file in files:
        file.write_bytes(style.encode(drawing, file.suffix.removeprefix(".")))
    return files


def _remedy(pictured: Pictured) -> str:
    """What to type, where there is nothing to draw it from."""
    if pictured.command:
        return f"the paper prints no number of it. Ours: {pictured.command}"
    run = f" python -m rlvr.run study={pictured.study} makes some." if pictured.study else ""
    return f"the paper prints no number of it, and no runs here show it ({', '.join(pictured.ours)}).{run}"
