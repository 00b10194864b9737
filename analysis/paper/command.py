"""`python -m analysis paper`: the tables that papers print, with runs of this ledger in their rows."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from analysis.frames.frames import Frames
from analysis.frames.load import catalogue, frames
from analysis.paper.ours import table
from analysis.paper.printed import tables
from analysis.report.render import markdown, terminal
from rlvr.ledger import layout

EXAMPLES = """\
examples:
  python -m analysis paper                          which tables there are
  python -m analysis paper lad_table_6              this one, with runs of every study
  python -m analysis paper pacs --markdown          all of a paper, as Markdown
"""


def main(arguments: Sequence[str]) -> None:
    """LookupError: there is no such table."""
    parser = argparse.ArgumentParser(
        "python -m analysis paper",
        description="Show tables as papers print them, with runs of ours below the rows that they correspond to.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="TABLE", help="as in lad_table_6, or lad: all of a paper")
    parser.add_argument("--home", type=Path, help="where runs/ lies (default: $RLVR_HOME, the checkout, or here)")
    parser.add_argument("--markdown", action="store_true", help="as Markdown")
    options = parser.parse_args(arguments)
    if not options.names:
        for name, printed in tables().items():
            print(f"{name:18} {printed.says} ({printed.of})")
        return
    chosen = [name for asked in options.names for name in _named(asked)]
    everything = _every_run((options.home or layout.home()).expanduser().resolve())
    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False)
    for made in (table(everything, tables()[name]) for name in chosen):
        if options.markdown:
            print(markdown(made))
        else:
            terminal(made, console)


def _named(asked: str) -> list[str]:
    found = [name for name in tables() if name == asked or name.startswith((f"{asked}_table", f"{asked}_figure"))]
    if not found:
        raise LookupError(f"paper {asked}: there is no such table. Tables: {', '.join(tables())}.")
    return found


def _every_run(home: Path) -> Frames | None:
    """Of all studies; None where there is no run."""
    known = catalogue(home)
    return frames(known, runs=list(known.records)) if known.records else None
