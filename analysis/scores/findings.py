"""Findings of a report besides its tables and claims: a baseline that no arm has, the looks of a stopping rule, tuning
at an edge of the grid, arms that are not above their controls, runs that diverged."""

from collections.abc import Iterable, Mapping
from typing import Any

from analysis.frames.frames import Frames
from analysis.scores import labels
from analysis.scores.arm import SEEDS, arms, settings
from analysis.scores.claim import CLAIMS, Claim, Outcome, Verdict
from analysis.scores.controls import CONTROL_NAMES, against_controls
from analysis.scores.failures import Failures, failures
from analysis.scores.selection import default_reference, select
from analysis.scores.sequential import DROPPED, given_up
from analysis.scores.tuning import Tuned, tuned


def findings(frames: Frames) -> list[Verdict]:
    """The findings in the form of verdicts, so that reports print them like those on claims."""
    return [
        *_without_baseline(frames),
        *_looks(frames.stopping_rule),
        *(edge for tuning in tuned(frames) for edge in _edges(tuning)),
        *_failed(frames),
        *map(_diverging, failures(frames)),
    ]


def _without_baseline(frames: Frames) -> Iterable[Verdict]:
    """A warning if no arm is the study's baseline: the tables then compare to another arm than the study wants."""
    baseline, of_study = frames.baseline, arms(frames)
    if not baseline or not of_study or select(of_study, baseline):
        return
    of_settings = (default_reference(of_setting, baseline) for of_setting in settings(of_study).values())
    instead = labels.joined([arm.label for references in of_settings for arm in references.values()])
    consequence = f"arms are compared to {instead} instead" if instead else "arms are compared to nothing"
    yield Verdict(_statement(f"no arm has the study's baseline, {baseline}: {consequence}"), Outcome.WARNING)


def _looks(rule: Mapping[str, Any]) -> Iterable[Verdict]:
    """The outcome of each difference at its last look. Looks at claims are reported with the claims."""
    if not rule or rule["about"] == CLAIMS:
        return
    newest: dict[str, tuple[int, Mapping[str, Any], Mapping[str, Any]]] = {}
    for number, look in enumerate(rule["looks"], start=1):
        if "best" in rule:  # which arm leads may change: of earlier looks only dropped arms are still of interest
            newest = {name: row for name, row in newest.items() if row[2]["outcome"] in DROPPED}
        newest |= {question["name"]: (number, look, question) for question in look["questions"]}
    for name, (number, look, question) in newest.items():
        level = f"nominal level {look['level']:.2g}, {100 * rule['alpha']:.0f} % over all looks and differences"
        basis = f"look {number} of at most {len(rule['seeds'])}, {look['seeds']} seeds, {level}"
        more = _more(rule, question)
        yield Verdict(_statement(name), Outcome(question["outcome"]), question["measured"], basis, more)


def _more(rule: Mapping[str, Any], question: Mapping[str, Any]) -> str:
    if question["outcome"] != Outcome.UNDECIDED:
        return ""
    if question.get("close") and rule["best"]:
        return f"not better by more than {rule['best']:g}"
    if hopeless := given_up(rule, question):
        return hopeless
    return "the budget is spent" if rule["stopped"] else f"looks go on, to {rule['seeds'][-1]} seeds"


def _edges(tuning: Tuned) -> Iterable[Verdict]:
    picked = tuning.picked
    if picked is None:
        return
    tried = ", ".join(f"{value.value}: {100 * value.mean:.1f} %" for value in tuning.values)
    for knob in tuning.edge:
        text = f"{tuning.arm}: the best {knob}, {picked.knobs[knob]}, is at the edge of what was tried"
        more = "a better one may lie beyond: tune wider"
        yield Verdict(_statement(text), Outcome.WARNING, tried, "validation split", more)


def _failed(frames: Frames) -> Iterable[Verdict]:
    for failed in (against for against in against_controls(frames) if not against.passed):
        metric, seeds = failed.metric, failed.seeds
        measured = metric.difference(failed.effect, failed.interval)
        basis = f"{metric}, {seeds} seed{'s' * (seeds > 1)}{' (of these runs)' * (seeds == 1)}"
        if failed.control == SEEDS:
            floor = f"{metric.scale * failed.floor:+.3g} {metric.of_differences}".rstrip().replace("-", "−")
            text = f"{failed.arm} differs from the reference no more than the reference from itself under other seeds"
            yield Verdict(_statement(text), Outcome.WARNING, measured, f"{basis}; the reference from itself: {floor}")
        else:
            text = f"{failed.arm} is not decidedly above its control, {CONTROL_NAMES[failed.control]}"
            yield Verdict(_statement(text), Outcome.WARNING, measured, basis)


def _diverging(found: Failures) -> Verdict:
    often = {1: "more often than", -1: "less often than", 0: "at another rate than"}[found.sign]
    (a, b), (n, m) = found.diverged, found.ended
    outcome = {1: Outcome.ABOVE, -1: Outcome.BELOW, 0: Outcome.UNDECIDED}[found.sign]
    basis = f"Fisher's exact test, p = {found.p:.2g}, {found.adjusted:.2g} for all arms of the setting (Holm)"
    return Verdict(
        _statement(f"{found.arm.label} diverges {often} {found.reference.label}"),
        outcome,
        f"{a} of {n} runs against {b} of {m}",
        basis,
    )


def _statement(text: str) -> Claim:
    return Claim(text, metric="", arm="", relation="")
