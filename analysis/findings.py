"""`python -m analysis findings`: what studies found, as Markdown made from their bundles and the claims of their files.

It stands in a page between two comments, and the rest of the page is left as it is. The same bundles and files give the
same bytes, so that a page and the evidence beside it cannot disagree.
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
from rlvr.ledger.files import whole

if TYPE_CHECKING:
    from analysis.frames.frames import Frames
    from analysis.scores.claim import Origin, Outcome, Verdict

BEGIN, END = "<!-- findings -->", "<!-- end of findings -->"
RESTATED = "(stated after the runs)"
ANOTHER_SETTING = "**Of another setting than today's**"
EXAMPLES = """\
examples:
  python -m analysis findings docs/evidence/*.rlvr --into docs/studies.md    replaces what stands between the comments
  python -m analysis findings eta.rlvr                                       prints it
"""


def main(arguments: Sequence[str]) -> None:
    """LookupError: a file is no bundle, or the page lacks the two comments."""
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
    with whole(options.into, durable=False) as aside:
        aside.write_text(page, encoding="utf-8")
    print(f"{options.into}: {len(options.files)} bundles")


def findings(files: Sequence[Path], folder: Path = study_files.FOLDER) -> str:
    """Markdown, ending in a newline: the verdicts counted, then each study's, in the order of their names.

    folder: of the studies' files, whose claims are judged as they stand there today; those without a bundle are
    not tested. A study without a file is judged by the claims that it was launched with. Bundles of one study are
    judged together: seeds that were added because the first had not decided.
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
    told = [summary]
    for study, frames in studies.items():
        told += _study(frames, judged[study], looks[study])
    return "\n\n".join(told) + "\n"


def inserted(page: str, text: str) -> str:
    """A page with `text` between its two comments."""
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

    everything = [verdict for found in judged.values() for verdict in found]
    lines = [_row("study", *OF_CLAIMS, "controls", "our own claims"), "|---|" + "---:|" * len(OF_CLAIMS) + "---|---|"]
    for study, found in [*judged.items(), ("all", everything)]:
        of_papers = _outcomes(found, Origin.PAPER)
        others = [_listed(_outcomes(found, origin)) for origin in (Origin.CONTROL, Origin.OWN)]
        lines.append(_row(study, *(of_papers[outcome] or "" for outcome in OF_CLAIMS), *others))
    told = [
        f"- Claims of papers: {_shares(_outcomes(everything, Origin.PAPER))}{_restated(everything)}",
        f"- Controls, which test the study: {_shares(_outcomes(everything, Origin.CONTROL))}",
        f"- Claims of our own: {_shares(_outcomes(everything, Origin.OWN))}",
    ]
    if untested:
        told.append(f"- Not tested, for their studies have no bundle: those of {', '.join(untested)}.")
    return "\n".join(told) + "\n\nThe first four columns count claims of papers.\n\n" + "\n".join(lines)


def _restated(found: Sequence[Verdict]) -> str:
    from analysis.scores.claim import Origin, Outcome

    decided = [
        v for v in found if v.claim.origin == Origin.PAPER and v.outcome in (Outcome.HOLDS, Outcome.CONTRADICTED)
    ]
    after = sum(RESTATED in verdict.claim.says for verdict in decided)
    return f" Of the decided {after} were stated, or changed, after the runs." if after else ""


def _outcomes(found: Sequence[Verdict], origin: Origin) -> Counter[Outcome]:
    return Counter(verdict.outcome for verdict in found if verdict.claim.origin == origin)


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
    """Of today's claims; one that tests something else than each that the study was launched with says so.

    frames: of all its bundles. parts: these, newest first. The looks share the 5 % (Bonferroni).
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
    """Bundles of one study, newest first, that give an arm more seeds than those before them. LookupError if one has
    looks of its own, by a stopping rule.
    """
    from analysis.scores import study

    looks, before = 0, dict[str, set[int]]()
    for part in reversed(parts):
        own: dict[str, set[int]] = {}
        for arm, seed in zip(part.runs["group_id"], part.runs["seed"].astype(int), strict=True):
            own.setdefault(str(arm), set()).add(seed)
        if len(parts) > 1 and study.stopping_rule(part):
            raise LookupError(
                f"{part.study}: a bundle with a stopping rule (until=) is judged alone. Pass one of them."
            )
        looks += not before or any(arm in before and seeds - before[arm] for arm, seeds in own.items())
        for arm, seeds in own.items():
            before.setdefault(arm, set()).update(seeds)
    return looks


def _study(frames: Frames, found: Sequence[Verdict], looks: int) -> list[str]:
    from analysis.report.render import markdown
    from analysis.scores.metric import HOURS
    from analysis.tables import comparison

    parts = [f"### {frames.study}", frames.question, _provenance(frames), _another_setting(frames)]
    if looks > 1:
        parts.append(f"Seeds were added after a look at the first: the {looks} looks share the 5 % of each verdict.")
    if found:
        lines = [_row("claim", "printed", "here, with the interval that decides", "verdict"), "|---|---|---|---|"]
        parts.append("\n".join(lines + [_claim(verdict) for verdict in found]))
    table = comparison.table(frames)
    if table is not None:
        # Hours are those of the machine, and of what else it did: they compare no arms, nor ways to decide.
        shown = tuple(name for name in table.shown if name != str(HOURS))
        cells = table.cells.assign(cheapest="")
        body = markdown(replace(table, shown=shown, cells=cells)).split("\n\n", 2)[2].rstrip()
        parts.append(f"<details><summary>All arms</summary>\n\n{body}\n\n</details>")
    return [part for part in parts if part]


def _claim(verdict: Verdict) -> str:
    claim = verdict.claim
    printed = f"{claim.printed} ({claim.source})" if claim.printed and claim.source else claim.printed or claim.source
    here = "; ".join(part for part in (verdict.found, verdict.basis) if part)
    outcome = f"**{verdict.outcome}**" + (f": {verdict.more}" if verdict.more else "")
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
    command = ", ".join(f"`{each}`" for each in frames.commands) + ": " if frames.commands else ""
    return f"{command}{len(runs)} runs ({states}), seeds {', '.join(map(str, seeds))}, commit {commits}, {day}."
