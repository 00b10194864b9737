"""`python -m analysis meta`: arms of the same names in several bundles, as one combines what laboratories found."""

from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

from analysis.frames.frames import IMPORTED, Frames
from analysis.report import render
from analysis.scores.arm import arms, arms_of
from analysis.tables.across import across, name_of
from rlvr.ledger import terminal

EXAMPLES = """\
examples:
  python -m analysis meta ours.rlvr theirs.rlvr                 every arm that both have, against the reference of each
  python -m analysis meta *.rlvr --against 'loss=grpo' --json
"""


def main(arguments: Sequence[str]) -> None:
    """Raises LookupError if a file is no bundle or typed twice, if two have seeds of one setting, or if no two have an
    arm and a reference of the same names."""
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

    if twice := [str(file) for file, count in Counter(options.files).items() if count > 1]:
        raise LookupError(f"{', '.join(twice)}: typed twice. Type each bundle once.")
    studies = {str(file.with_suffix("")): bundle.read(file) for file in options.files}
    for (one, a), (other, b) in combinations(zip(options.files, studies.values(), strict=True), 2):
        if arm := _with_more_seeds(a, b):
            raise LookupError(
                f"{one} and {other} have seeds of one setting, {arm!r}: more seeds are no other setting. Pool them: "
                f"python -m analysis {one} {other}"
            )
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


def _with_more_seeds(one: Frames, other: Frames) -> str:
    """The first arm of both with seeds that one of them lacks; "" for none. Of imports not all knobs are known."""
    runs_of = {arm.group_id: {*arm.run_ids} for arm in arms_of(one.rows) if arm.first.study != IMPORTED}
    return next((name_of(a) for a in arms_of(other.rows) if {*a.run_ids} != runs_of.get(a.group_id, {*a.run_ids})), "")
