"""`python -m analysis findings`: the results of studies as Markdown, from their bundles and the claims in their files.

The Markdown is inserted into a page between two comments; the rest of the page is left as it is. The same bundles and
files give the same bytes, so that a page and the evidence beside it cannot disagree.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from analysis.frames import bundle
from analysis.frames.frames import Frames
from analysis.frames.load import STUDY_FILES
from analysis.scores.arm import arms
from analysis.scores.claim import OF_CLAIMS, Claim, Origin, Outcome, Verdict, read
from analysis.scores.crossed import LEVEL
from analysis.scores.metric import parse
from analysis.scores.verdict import verdicts
from rlvr.ledger import terminal
from rlvr.ledger.files import write_atomically
from rlvr.ledger.runs import parse_yaml

DECIDED = (Outcome.HOLDS, Outcome.CONTRADICTED)
BEGIN, END = "<!-- findings -->", "<!-- end of findings -->"
RESTATED = "(stated after the runs)"
SAME = ("metric", "arm", "relation", "of", "against", "at")  # claims that agree in these test the same
EXAMPLES = """\
examples:
  python -m analysis findings docs/evidence/*.rlvr docs/evidence/pretrained/*.rlvr --into docs/studies.md
  python -m analysis findings eta.rlvr    prints it; --into replaces what two comments of a page enclose
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
    today, names = claims_of_files(folder), _names(files)
    parts_of: dict[str, dict[str, list[tuple[str, Frames]]]] = {}
    ordered = sorted(((f, bundle.read(f)) for f in files), key=lambda part: bundle.newest_first(part[1]))
    for (file, frames), of in zip(ordered, instruments([frames for _, frames in ordered]), strict=True):
        parts_of.setdefault(frames.study, {}).setdefault(of, []).append((names[file], frames))
    studies = [_Study.of(name, parts, today.get(name)) for name, parts in sorted(parts_of.items())]
    untested = [name for name in today if name not in parts_of]
    everything = [verdict for study in studies for verdict in study.first]
    everything += [Verdict(read(claim), Outcome.NOT_TESTED) for name in untested for claim in today[name]]
    summary = "\n".join([*_summary(everything, untested), *_of_two(studies)])
    return "\n\n".join([summary, *(part for study in studies for part in study.section())]) + "\n"


def instruments(parts: Sequence[Frames]) -> list[str]:
    """The instrument of each bundle. What adds seeds to an arm of an older bundle of the study, but not to all of its
    tasks, measured with that one's. parts: newest first."""
    of_arms: dict[tuple[str, str], str] = {}
    names: list[str] = []
    for frames in reversed(parts):
        its_arms = [(frames.study, run.group_id) for run in frames.rows]
        names.append(next((of_arms[arm] for arm in its_arms if arm in of_arms), instrument(frames)))
        of_arms |= dict.fromkeys(its_arms, names[-1])
    return names[::-1]


def instrument(frames: Frames) -> str:
    """What the runs measured with: the task, and the pretrained models, as `OWNER/MODEL, sums`, of a file or directory
    its own name, and whether adapters alone were trained (LoRA). Base policies that are taught here from several seeds
    are one instrument: a verdict over them is not of one alone."""
    names = set[str]()
    for run in frames.rows:
        if path := run.knob("model.path"):
            model = str(path).partition("@")[0]
            is_of_hub = re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", model) and not model.endswith(".gguf")
            name = model if is_of_hub else Path(model).name.removesuffix(".gguf")
            names.add(f"{name} (LoRA)" if run.knob("trainer.lora_rank") else name)
    return ", ".join([*sorted(names), *sorted({run.task for run in frames.rows})])


def _names(files: Sequence[Path]) -> dict[Path, str]:
    """The files as they are named to the reader: from the folder that all lie in."""
    folder = Path(os.path.commonpath([file.resolve().parent for file in files]))
    return {file: str(file.resolve().relative_to(folder)) for file in files}


def claims_of_files(folder: Path = STUDY_FILES) -> dict[str, list[Mapping[str, Any]]]:
    """By study, in the order of the names, the claims in its file; studies without claims are left out."""
    files = {
        file.stem: cast(Mapping[str, Any], parse_yaml(file.read_bytes())) for file in sorted(folder.glob("*.yaml"))
    }
    return {name: list(content["claims"]) for name, content in files.items() if content.get("claims")}


def inserted(page: str, text: str) -> str:
    """The page with `text` between its two comments. Raises LookupError for a page without them."""
    if page.count(BEGIN) != 1 or page.count(END) != 1 or page.index(BEGIN) > page.index(END):
        raise LookupError(f"the page needs one line {BEGIN} and, below it, one line {END}.")
    return f"{page.partition(BEGIN)[0]}{BEGIN}\n{text}{END}{page.partition(END)[2]}"


def _summary(everything: Sequence[Verdict], untested: Sequence[str]) -> list[str]:
    """untested: studies without a bundle."""
    totals = [
        f"- Claims of papers: {_shares(everything, Origin.PAPER)}{_restated(everything)}",
        f"- Controls, which test the study: {_shares(everything, Origin.CONTROL)}",
        f"- Claims of our own: {_shares(everything, Origin.OWN)}",
    ]
    if untested:
        totals.append(f"- Not tested, for their studies have no bundle: those of {', '.join(untested)}.")
    return totals


def _restated(everything: Sequence[Verdict]) -> str:
    of_papers = [verdict for verdict in everything if verdict.claim.origin == Origin.PAPER]
    decided = [verdict for verdict in of_papers if verdict.outcome in DECIDED]
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

    frames: all bundles of the study merged. parts: its bundles, newest first. The looks share the 5 % (Bonferroni). A
    claim keeps the metric that it names, though another k was measured.
    """
    launched, judged = [part.claims for part in parts], list[Verdict]()
    level = None if looks == 1 else 1 - (1 - LEVEL) / looks
    for claim in launched[0] if today is None else today:
        same = all(any(all(claim.get(k) == other.get(k) for k in SAME) for other in claims) for claims in launched)
        says, metric = claim["says"] if same else f"{claim['says']} {RESTATED}", str(claim["metric"])
        of_claim = verdicts(frames, level, claims=[{**claim, "says": says, "metric": _measured(metric, frames)}])
        judged += [replace(verdict, claim=replace(verdict.claim, metric=metric)) for verdict in of_claim]
    return judged


def _measured(metric: str, frames: Frames) -> str:
    """The metric or, where it is pass@k of another k or of another instrument's benchmark, the widest that there is."""
    name = re.fullmatch(r"(?:evaluation/[^/]+/)?(avg|pass)(?:_at_|@)\d+", metric)
    with contextlib.suppress(LookupError):
        parse(metric, frames, frames.runs["run_id"])
        return metric
    return name[1] if name else metric


def _looks(frames: Frames, parts: Sequence[Frames]) -> int:
    """The number of bundles that give an arm seeds, or a place base policies, beside those of the bundles before them.

    frames: the bundles merged. parts: of one study, newest first. Raises LookupError if one of several has a stopping
    rule, and with it looks of its own.
    """
    at = {arm.group_id: (arm.place, arm.setting) for arm in arms(frames)}
    looks, earlier_seeds, settings_of = 0, dict[str, set[int]](), dict[str, set[str]]()
    for part in reversed(parts):
        seeds_of: dict[str, set[int]] = {}
        for arm, seed in zip(part.runs["group_id"].astype(str), part.runs["seed"].astype(int), strict=True):
            if arm in at:  # not a repetition (`controls=seeds`) whose runs a later bundle has as seeds of the arm
                seeds_of.setdefault(arm, set()).add(seed)
        if len(parts) > 1 and part.stopping_rule:
            raise LookupError(
                f"{part.study}: a bundle with a stopping rule (until=) is judged alone. Pass one of them."
            )
        adds_seeds = any(arm in earlier_seeds and seeds - earlier_seeds[arm] for arm, seeds in seeds_of.items())
        places = [at[arm] for arm in seeds_of]
        adds_bases = any(place in settings_of and setting not in settings_of[place] for place, setting in places)
        looks += not earlier_seeds or adds_seeds or adds_bases
        for arm, seeds in seeds_of.items():
            earlier_seeds.setdefault(arm, set()).update(seeds)
        for place, setting in places:
            settings_of.setdefault(place, set()).add(setting)
    return looks


@dataclass(frozen=True)
class _Study:
    """What a study found, by instrument: what ran, in words, and the verdicts. Models taught here come first."""

    name: str
    question: str
    ran: Mapping[str, str]
    judged: Mapping[str, list[Verdict]]

    @classmethod
    def of(
        cls, name: str, bundles: Mapping[str, list[tuple[str, Frames]]], today: Sequence[Mapping[str, Any]] | None
    ) -> _Study:
        """bundles: by instrument, (name, frames), newest first."""
        ran, judged, question = dict[str, str](), dict[str, list[Verdict]](), ""
        pretrained = {label: bool(parts[0][1].rows[0].knob("model.path")) for label, parts in bundles.items()}
        for label in sorted(bundles, key=lambda label: (pretrained[label], label)):
            parts = [frames for _, frames in bundles[label]]
            frames = bundle.merged(parts)
            looks = _looks(frames, parts)
            files = ", ".join(f"`{file}`" for file, _ in sorted(bundles[label], key=lambda part: part[0]))
            ran[label] = f"{_provenance(frames)} Bundles: {files}."
            shared = f" More was run after a look at the first: the {looks} looks share the 5 % of each verdict."
            ran[label] += shared * (looks > 1)
            judged[label] = _judged(frames, parts, looks, today)
            question = question or frames.question
        return cls(name, question, ran, judged)

    @property
    def first(self) -> list[Verdict]:
        """The verdicts on the first instrument."""
        return next(iter(self.judged.values()))

    def rows(self) -> list[list[Verdict | None]]:
        """The verdicts on each claim, one of each instrument; of a claim in several settings, a row of each."""
        by_claim: dict[Claim, list[dict[str, Verdict]]] = {}
        for number, of_instrument in enumerate(self.judged.values()):
            for verdict in of_instrument:
                says = verdict.claim.says.removesuffix(f" {RESTATED}")
                claim = replace(verdict.claim, says=says)
                by_claim.setdefault(claim, [{} for _ in self.judged])[number][verdict.setting] = verdict
        rows: list[list[Verdict | None]] = []
        for of_claim in by_claim.values():
            if max(map(len, of_claim)) == 1:  # each instrument names its only setting in its own way
                rows.append([next(iter(of.values()), None) for of in of_claim])
            else:
                names = dict.fromkeys(name for of in of_claim for name in of)
                rows += [[of.get(name) for of in of_claim] for name in names]
        return rows

    def section(self) -> list[str]:
        """Its parts: the question, what ran, and the verdicts, a column per instrument."""
        several = len(self.ran) > 1
        ran = " ".join(f"On {label}: {text}" if several else text for label, text in self.ran.items())
        head = [_row("claim", "printed", *self.judged), "|---" * (2 + len(self.judged)) + "|"]
        table = "\n".join([*head, *map(_line, self.rows())]) if self.first else ""
        return [part for part in (f"### {self.name}", f"{self.question} {ran}".strip(), table) if part]


def _line(row: Sequence[Verdict | None]) -> str:
    says = next(verdict.claim for verdict in row if verdict)
    printed = " ".join(filter(None, (says.printed, says.printed and says.source and f"({says.source})"))) or says.source
    return _row(says.says, printed, *(_cell(verdict, says.says) if verdict else "" for verdict in row))


def _cell(verdict: Verdict, says: str) -> str:
    """`**holds** +1.6 [0.4, 2.8] points; pass@16, ...`: the interval that decides. says: as the row has it."""
    parts = (verdict.note, verdict.measured, verdict.basis, *verdict.rows, RESTATED * (verdict.claim.says > says))
    return f"**{verdict.outcome}**{verdict.extent}: {'; '.join(filter(None, parts))}"


def _of_two(studies: Sequence[_Study]) -> list[str]:
    """Of each further instrument: how many claims it decides, and where it agrees with the first."""
    pairs: dict[str, list[tuple[str, Outcome | None, Outcome]]] = {}
    for study in studies:
        for first, *others in study.rows():
            for label, other in zip([*study.judged][1:], others, strict=True):
                if other:
                    says = f"{study.name}: {other.claim.says}"
                    pairs.setdefault(label, []).append((says, first and first.outcome, other.outcome))
    lines: list[str] = []
    for label, of_label in pairs.items():
        _, first, own = ([v is not None and v in DECIDED for v in of] for of in zip(*of_label, strict=True))
        both = [row for row, *of_row in zip(of_label, first, own, strict=True) if all(of_row)]
        apart = [f"`{claim}` ({a}, {b})" for claim, a, b in both if a != b]
        absent = sum(b == Outcome.NOT_TESTED for *_, b in of_label)
        lines.append(
            f"On {label} {sum(own)} of {len(own)} claims are decided, {absent} not tested; in the first column "
            f"{sum(first)} of them. Both decide {len(both)}, and agree on {len(both) - len(apart)}; they disagree on "
            f"{'; '.join(apart) or 'none'}."
        )
    return [f"- {' '.join(lines)}"] if lines else []


def _row(*cells: object) -> str:
    return f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in cells)} |"


def _provenance(frames: Frames) -> str:
    runs = frames.runs
    states = ", ".join(f"{number} {state}" for state, number in runs["state"].value_counts().items())
    seeds = sorted(runs["seed"].astype(int).unique())
    commits = ", ".join(sorted({str(sha)[:7] for sha in runs["git_sha"] if sha})) or "unknown"
    day = datetime.fromtimestamp(float(frames.runs["created"].max()), UTC).date()
    return f"{len(runs)} runs ({states}), seeds {', '.join(map(str, seeds))}, commit {commits}, {day}."
