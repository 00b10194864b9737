"""`python -m analysis findings`: the results of studies as Markdown, from their bundles and the claims in their files.

The Markdown is inserted into a page between two comments; the rest of the page is left as it is. The same bundles and
files give the same bytes, so that a page and the evidence beside it cannot disagree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis import study_files
from rlvr.ledger import terminal
from rlvr.ledger.files import write_atomically

if TYPE_CHECKING:
    from analysis.frames.frames import Frames
    from analysis.scores.claim import Origin, Outcome, Verdict

BEGIN, END = "<!-- findings -->", "<!-- end of findings -->"
RESTATED = "(stated after the runs)"
ANOTHER_SETTING = "**Of another setting than today's**"
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
    page = inserted(_read(options.into), text)
    with write_atomically(options.into, durable=False) as aside:
        aside.write_text(page, encoding="utf-8")
    print(f"{options.into}: {len(options.files)} bundles")


def findings(files: Sequence[Path], folder: Path = study_files.FOLDER) -> str:
    """Markdown, ending in a newline: a count of the verdicts, then the verdicts of each study, by the study's name.

    folder: holds the files of the studies. Their claims are judged as the files state them today; claims of studies
    without a bundle are not tested. A study without a file is judged by the claims that it was launched with. Bundles
    of one study are judged together: the later ones hold seeds that were added because the first had not decided.
    """
    from analysis.frames import bundle

    if not files:
        return "No study has a bundle yet.\n"
    parts_of: dict[str, list[Frames]] = {}
    newest_first = sorted(map(bundle.read, files), key=lambda frames: -float(frames.runs["created"].max()))
    for frames in newest_first:
        parts_of.setdefault(frames.study, []).append(frames)
    studies = {study: bundle.merged(parts) for study, parts in sorted(parts_of.items())}
    looks = {study: _looks(parts) for study, parts in parts_of.items()}
    today = study_files.claims(folder)
    judged = {
        study: _judged(frames, parts_of[study], looks[study], today.get(study)) for study, frames in studies.items()
    }
    untested = {name: _without_bundle(claims) for name, claims in today.items() if name not in judged}
    summary = _summary(dict(sorted({**judged, **untested}.items())), list(untested))
    sections = [summary]
    for study, frames in studies.items():
        sections += _study(frames, judged[study], looks[study])
    return "\n\n".join(sections) + "\n"


def inserted(page: str, text: str) -> str:
    """The page with `text` between its two comments. Raises LookupError for a page without them."""
    if page.count(BEGIN) != 1 or page.count(END) != 1 or page.index(BEGIN) > page.index(END):
        raise LookupError(f"the page needs one line {BEGIN} and, below it, one line {END}.")
    return f"{page.partition(BEGIN)[0]}{BEGIN}\n{text}{END}{page.partition(END)[2]}"


def _read(page: Path) -> str:
    try:
        return page.read_text(encoding="utf-8")
    except OSError as error:
        raise LookupError(f"{page}: {error.strerror}.") from None


def _summary(judged: Mapping[str, Sequence[Verdict]], untested: Sequence[str]) -> str:
    """untested: studies without a bundle."""
    from analysis.scores.claim import OF_CLAIMS, Origin

    everything = [verdict for of_study in judged.values() for verdict in of_study]
    lines = [_row("study", *OF_CLAIMS, "controls", "our own claims"), "|---|" + "---:|" * len(OF_CLAIMS) + "---|---|"]
    for study, of_study in [*judged.items(), ("all", everything)]:
        of_papers = _outcomes(of_study, Origin.PAPER)
        others = [_listed(_outcomes(of_study, origin)) for origin in (Origin.CONTROL, Origin.OWN)]
        lines.append(_row(study, *(of_papers[outcome] or "" for outcome in OF_CLAIMS), *others))
    totals = [
        f"- Claims of papers: {_shares(_outcomes(everything, Origin.PAPER))}{_restated(everything)}",
        f"- Controls, which test the study: {_shares(_outcomes(everything, Origin.CONTROL))}",
        f"- Claims of our own: {_shares(_outcomes(everything, Origin.OWN))}",
    ]
    if untested:
        totals.append(f"- Not tested, for their studies have no bundle: those of {', '.join(untested)}.")
    return "\n".join(totals) + "\n\nThe first four columns count claims of papers.\n\n" + "\n".join(lines)


def _restated(verdicts: Sequence[Verdict]) -> str:
    from analysis.scores.claim import Origin, Outcome

    decided = [
        verdict
        for verdict in verdicts
        if verdict.claim.origin == Origin.PAPER and verdict.outcome in (Outcome.HOLDS, Outcome.CONTRADICTED)
    ]
    after = sum(RESTATED in verdict.claim.says for verdict in decided)
    return f" Of the decided {after} were stated, or changed, after the runs." if after else ""


def _outcomes(verdicts: Sequence[Verdict], origin: Origin) -> Counter[Outcome]:
    return Counter(verdict.outcome for verdict in verdicts if verdict.claim.origin == origin)


def _shares(counted: Counter[Outcome]) -> str:
    from analysis.scores.claim import Outcome

    number = counted.total()
    decided = counted[Outcome.HOLDS] + counted[Outcome.CONTRADICTED]
    if not number:
        return "none."
    return f"{decided} of {number} decided ({100 * decided / number:.0f} %): {_listed(counted)}."


def _listed(counted: Counter[Outcome]) -> str:
    from analysis.scores.claim import OF_CLAIMS

    return ", ".join(f"{outcome} {counted[outcome]}" for outcome in OF_CLAIMS if counted[outcome])


def _without_bundle(claims: Sequence[Mapping[str, Any]]) -> list[Verdict]:
    from analysis.scores.claim import Outcome, Verdict, read

    return [Verdict(read(claim), Outcome.NOT_TESTED) for claim in claims]


def _judged(
    frames: Frames, parts: Sequence[Frames], looks: int, today: Sequence[Mapping[str, Any]] | None
) -> list[Verdict]:
    """The verdicts on today's claims. A claim that some launch of the study did not record is marked with RESTATED.

    frames: all bundles of the study merged. parts: its bundles, newest first. The looks share the 5 % (Bonferroni).
    """
    from analysis.scores import study
    from analysis.scores.crossed import LEVEL
    from analysis.scores.verdict import verdicts

    launched = [study.claims(part) for part in parts]
    marked = [
        claim
        if all(any(study_files.same(claim, other) for other in claims) for claims in launched)
        else {**claim, "says": f"{claim['says']} {RESTATED}"}
        for claim in (launched[0] if today is None else today)
    ]
    return verdicts(frames, None if looks == 1 else 1 - (1 - LEVEL) / looks, claims=marked)


def _looks(parts: Sequence[Frames]) -> int:
    """The number of bundles that give some arm more seeds than the bundles before them. parts: of one study, newest
    first. Raises LookupError if one of several has a stopping rule, and with it looks of its own.
    """
    from analysis.scores import study

    looks, earlier_seeds = 0, dict[str, set[int]]()
    for part in reversed(parts):
        seeds_of: dict[str, set[int]] = {}
        for arm, seed in zip(part.runs["group_id"], part.runs["seed"].astype(int), strict=True):
            seeds_of.setdefault(str(arm), set()).add(seed)
        if len(parts) > 1 and study.stopping_rule(part):
            raise LookupError(
                f"{part.study}: a bundle with a stopping rule (until=) is judged alone. Pass one of them."
            )
        adds_seeds = any(arm in earlier_seeds and seeds - earlier_seeds[arm] for arm, seeds in seeds_of.items())
        looks += not earlier_seeds or adds_seeds
        for arm, seeds in seeds_of.items():
            earlier_seeds.setdefault(arm, set()).update(seeds)
    return looks


def _study(frames: Frames, verdicts: Sequence[Verdict], looks: int) -> list[str]:
    from analysis.report.render import markdown
    from analysis.scores.metric import HOURS
    from analysis.scores.trajectory import SHARED_TIME
    from analysis.tables import comparison

    parts = [f"### {frames.study}", frames.question, _provenance(frames), _another_setting(frames)]
    if looks > 1:
        parts.append(f"Seeds were added after a look at the first: the {looks} looks share the 5 % of each verdict.")
    if verdicts:
        lines = [_row("claim", "printed", "here, with the interval that decides", "verdict"), "|---|---|---|---|"]
        parts.append("\n".join(lines + [_claim(verdict) for verdict in verdicts]))
    table = comparison.table(frames)
    if table is not None:
        # Hours depend on the machine and its other load, so neither hours nor what they decide (`cheapest`) is shown.
        shown = tuple(name for name in table.shown if name != str(HOURS))
        cells = table.cells.assign(cheapest="")
        notes = tuple(n for n in table.notes if not any(text in n for text in (comparison.HOURS_NOTE, SHARED_TIME)))
        body = markdown(replace(table, shown=shown, cells=cells, notes=notes)).split("\n\n", 2)[2].rstrip()
        parts.append(f"<details><summary>All arms</summary>\n\n{body}\n\n</details>")
    return [part for part in parts if part]


def _claim(verdict: Verdict) -> str:
    claim = verdict.claim
    printed = f"{claim.printed} ({claim.source})" if claim.printed and claim.source else claim.printed or claim.source
    here = "; ".join(part for part in (verdict.measured, verdict.basis) if part)
    outcome = f"**{verdict.outcome}**" + (f": {verdict.note}" if verdict.note else "")
    return _row(claim.says, printed, here, outcome)


def _row(*cells: object) -> str:
    return f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in cells)} |"


def _another_setting(frames: Frames) -> str:
    differing = study_files.changed(frames)
    listed = ", ".join(f"{key} = {before} (today {today})" for key, (before, today) in differing.items())
    return f"{ANOTHER_SETTING}: {listed}." if listed else ""


def _provenance(frames: Frames) -> str:
    runs = frames.runs
    states = ", ".join(f"{number} {state}" for state, number in runs["state"].value_counts().items())
    seeds = sorted(runs["seed"].astype(int).unique())
    commits = ", ".join(sorted({str(sha)[:7] for sha in runs["git_sha"] if sha})) or "unknown"
    day = datetime.fromtimestamp(float(runs["created"].max()), UTC).date()
    command = ", ".join(f"`{line}`" for line in frames.commands) + ": " if frames.commands else ""
    return f"{command}{len(runs)} runs ({states}), seeds {', '.join(map(str, seeds))}, commit {commits}, {day}."
