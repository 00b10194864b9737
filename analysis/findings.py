"""`python -m analysis findings`: the results of studies as Markdown, from their bundles and the claims in their files.

The Markdown is inserted into a page between two comments; the rest of the page is left as it is. The same bundles and
files give the same bytes, so that a page and the evidence beside it cannot disagree.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from analysis.frames import bundle
from analysis.frames.frames import Frames
from analysis.frames.load import STUDY_FILES
from analysis.scores.claim import OF_CLAIMS, Origin, Outcome, Verdict, read
from analysis.scores.crossed import LEVEL
from analysis.scores.verdict import verdicts
from rlvr.ledger import terminal
from rlvr.ledger.files import write_atomically
from rlvr.ledger.runs import parse_yaml

BEGIN, END = "<!-- findings -->", "<!-- end of findings -->"
RESTATED = "(stated after the runs)"
SAME = ("metric", "arm", "relation", "of", "against", "at")  # claims that agree in these test the same
EXAMPLES = """\
examples:
  python -m analysis findings docs/evidence/*.rlvr --into docs/studies.md    replaces the text between the comments
  python -m analysis findings eta.rlvr                                       prints it
"""


def main(arguments: Sequence[str]) -> None:
    """Raises LookupError if a file is no bundle, or the page lacks the two comments."""
    parser = terminal.Parser(
        "python -m analysis findings",
        description="Write what studies found, as Markdown, from their bundles.",
        epilog=EXAMPLES,
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="bundles (.rlvr)")
    parser.add_argument("--into", type=Path, metavar="PAGE", help=f"a page with {BEGIN} and {END}")
    options = parser.parse_args(arguments)
    text = findings(options.files)
    if options.into is None:
        print(text, end="")
        return
    page = inserted(options.into.read_text(encoding="utf-8"), text)
    with write_atomically(options.into, durable=False) as aside:
        aside.write_text(page, encoding="utf-8")
    print(f"{options.into}: {len(options.files)} bundles")


def findings(files: Sequence[Path], folder: Path = STUDY_FILES) -> str:
    """Markdown, ending in a newline: a count of the verdicts, then the verdicts of each study, by the study's name.

    folder: holds the files of the studies. Their claims are judged as the files state them today; claims of studies
    without a bundle are not tested. A study without a file is judged by the claims that it was launched with. Bundles
    of one study are judged together: the later ones hold seeds that were added because the first had not decided.
    """
    if not files:
        return "No study has a bundle yet.\n"
    parts_of: dict[str, list[tuple[Path, Frames]]] = {}
    newest_first = sorted(((file, bundle.read(file)) for file in files), key=lambda part: -_created(part[1]))
    for file, frames in newest_first:
        parts_of.setdefault(frames.study, []).append((file, frames))
    today = claims_of_files(folder)
    judged: dict[str, list[Verdict]] = {}
    sections: list[str] = []
    for name, named_parts in sorted(parts_of.items()):
        parts = [frames for _, frames in named_parts]
        merged, looks = bundle.merged(parts), _looks(parts)
        judged[name] = _judged(merged, parts, looks, today.get(name))
        sections += _section(merged, judged[name], looks, sorted(file.name for file, _ in named_parts))
    untested = [name for name in today if name not in judged]
    everything = [verdict for of_study in judged.values() for verdict in of_study]
    everything += [Verdict(read(claim), Outcome.NOT_TESTED) for name in untested for claim in today[name]]
    return "\n\n".join([_summary(everything, untested), *sections]) + "\n"


def claims_of_files(folder: Path = STUDY_FILES) -> dict[str, list[Mapping[str, Any]]]:
    """By study, in the order of the names, the claims in its file; studies without claims are left out."""
    files = {
        file.stem: cast(Mapping[str, Any], parse_yaml(file.read_bytes())) for file in sorted(folder.glob("*.yaml"))
    }
    return {name: list(content["claims"]) for name, content in files.items() if content.get("claims")}


def _created(frames: Frames) -> float:
    """The time of the newest run, in seconds since 1970."""
    return float(frames.runs["created"].max())


def inserted(page: str, text: str) -> str:
    """The page with `text` between its two comments. Raises LookupError for a page without them."""
    if page.count(BEGIN) != 1 or page.count(END) != 1 or page.index(BEGIN) > page.index(END):
        raise LookupError(f"the page needs one line {BEGIN} and, below it, one line {END}.")
    return f"{page.partition(BEGIN)[0]}{BEGIN}\n{text}{END}{page.partition(END)[2]}"


def _summary(everything: Sequence[Verdict], untested: Sequence[str]) -> str:
    """untested: studies without a bundle."""
    totals = [
        f"- Claims of papers: {_shares(everything, Origin.PAPER)}{_restated(everything)}",
        f"- Controls, which test the study: {_shares(everything, Origin.CONTROL)}",
        f"- Claims of our own: {_shares(everything, Origin.OWN)}",
    ]
    if untested:
        totals.append(f"- Not tested, for their studies have no bundle: those of {', '.join(untested)}.")
    return "\n".join(totals)


def _restated(everything: Sequence[Verdict]) -> str:
    of_papers = [verdict for verdict in everything if verdict.claim.origin == Origin.PAPER]
    decided = [verdict for verdict in of_papers if verdict.outcome in (Outcome.HOLDS, Outcome.CONTRADICTED)]
    after = sum(RESTATED in verdict.claim.says for verdict in decided)
    return f" Of the decided {after} were stated, or changed, after the runs." if after else ""


def _shares(everything: Sequence[Verdict], origin: Origin) -> str:
    counted = Counter(verdict.outcome for verdict in everything if verdict.claim.origin == origin)
    number, decided = counted.total(), counted[Outcome.HOLDS] + counted[Outcome.CONTRADICTED]
    if not number:
        return "none."
    listed = ", ".join(f"{outcome} {counted[outcome]}" for outcome in OF_CLAIMS if counted[outcome])
    return f"{decided} of {number} decided ({100 * decided / number:.0f} %): {listed}."


def _judged(
    frames: Frames, parts: Sequence[Frames], looks: int, today: Sequence[Mapping[str, Any]] | None
) -> list[Verdict]:
    """The verdicts on today's claims. A claim that some launch of the study did not record is marked with RESTATED.

    frames: all bundles of the study merged. parts: its bundles, newest first. The looks share the 5 % (Bonferroni).
    """
    launched = [part.claims for part in parts]
    marked = [
        claim
        if all(any(all(claim.get(k) == other.get(k) for k in SAME) for other in claims) for claims in launched)
        else {**claim, "says": f"{claim['says']} {RESTATED}"}
        for claim in (launched[0] if today is None else today)
    ]
    return verdicts(frames, None if looks == 1 else 1 - (1 - LEVEL) / looks, claims=marked)


def _looks(parts: Sequence[Frames]) -> int:
    """The number of bundles that give some arm more seeds than the bundles before them. parts: of one study, newest
    first. Raises LookupError if one of several has a stopping rule, and with it looks of its own.
    """
    looks, earlier_seeds = 0, dict[str, set[int]]()
    for part in reversed(parts):
        seeds_of: dict[str, set[int]] = {}
        for arm, seed in zip(part.runs["group_id"], part.runs["seed"].astype(int), strict=True):
            seeds_of.setdefault(str(arm), set()).add(seed)
        if len(parts) > 1 and part.stopping_rule:
            raise LookupError(
                f"{part.study}: a bundle with a stopping rule (until=) is judged alone. Pass one of them."
            )
        adds_seeds = any(arm in earlier_seeds and seeds - earlier_seeds[arm] for arm, seeds in seeds_of.items())
        looks += not earlier_seeds or adds_seeds
        for arm, seeds in seeds_of.items():
            earlier_seeds.setdefault(arm, set()).update(seeds)
    return looks


def _section(frames: Frames, judged: Sequence[Verdict], looks: int, files: Sequence[str]) -> list[str]:
    """The parts of a study's section: its question, what ran, and its verdicts. files: the names of its bundles."""
    about = f"{frames.question} {_provenance(frames)} Bundles: {', '.join(f'`{file}`' for file in files)}."
    if looks > 1:
        about += f" Seeds were added after a look at the first: the {looks} looks share the 5 % of each verdict."
    lines = [_row("claim", "printed", "here, with the interval that decides", "verdict"), "|---|---|---|---|"]
    table = "\n".join([*lines, *map(_claim, judged)]) if judged else ""
    return [part for part in (f"### {frames.study}", about.strip(), table) if part]


def _claim(verdict: Verdict) -> str:
    claim = verdict.claim
    printed = f"{claim.printed} ({claim.source})" if claim.printed and claim.source else claim.printed or claim.source
    here = "; ".join(part for part in (verdict.measured, verdict.basis) if part)
    outcome = f"**{verdict.outcome}**" + (f": {verdict.note}" if verdict.note else "")
    return _row(claim.says, printed, here, outcome)


def _row(*cells: object) -> str:
    return f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in cells)} |"


def _provenance(frames: Frames) -> str:
    runs = frames.runs
    states = ", ".join(f"{number} {state}" for state, number in runs["state"].value_counts().items())
    seeds = sorted(runs["seed"].astype(int).unique())
    commits = ", ".join(sorted({str(sha)[:7] for sha in runs["git_sha"] if sha})) or "unknown"
    day = datetime.fromtimestamp(_created(frames), UTC).date()
    return f"{len(runs)} runs ({states}), seeds {', '.join(map(str, seeds))}, commit {commits}, {day}."
