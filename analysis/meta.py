"""`python -m analysis meta`: arms of the same names in several bundles, as one combines what laboratories found."""

from collections.abc import Sequence
from pathlib import Path

from analysis.report import render
from analysis.scores.arm import arms
from analysis.tables.across import across, name_of
from rlvr.ledger import terminal

EXAMPLES = """\
examples:
  python -m analysis meta ours.rlvr theirs.rlvr                 every arm that both have, against the reference of each
  python -m analysis meta *.rlvr --against 'loss=grpo' --json
"""


def main(arguments: Sequence[str]) -> None:
    """Raises LookupError if a file is no bundle, or no two have an arm and a reference of the same names."""
    parser = terminal.Parser(
        "python -m analysis meta",
        description="Random-effects meta-analysis of the differences that several bundles have in common.",
        epilog=EXAMPLES,
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="bundles (.rlvr), one per laboratory")
    parser.add_argument("--against", metavar="ARM", default="", help="what arms are compared to, as in 'loss=grpo'")
    parser.add_argument("--json", action="store_true", help="for programs: the rows of the table")
    options = parser.parse_args(arguments)
    from analysis.frames import bundle

    studies = {str(file.with_suffix("")): bundle.read(file) for file in options.files}
    table = across(studies, options.against)
    if table is None:
        named = "; ".join(f"{name}: {', '.join(map(name_of, arms(f))) or 'none'}" for name, f in studies.items())
        runs = [set(frames.runs["run_id"]) for frames in studies.values()]
        repeated = " Runs that several files hold count once." if len(set().union(*runs)) < sum(map(len, runs)) else ""
        raise LookupError(f"no arm and reference have the same names in two settings.{repeated} Arms: {named}.")
    if options.json:
        print(table.cells.to_json(orient="records", indent=2))
    else:
        render.terminal(table, terminal.console(highlight=False))
