"""What a report says beside its tables and the claims: a baseline that no arm has, the looks of a stopping rule, tuning
at an edge, controls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from analysis.frames.frames import Frames
from analysis.scores import study, words
from analysis.scores.arm import SEEDS, arms, settings
from analysis.scores.claim import CLAIMS, Claim, Outcome, Verdict
from analysis.scores.controls import IN_WORDS, held
from analysis.scores.selection import default_reference, select
from analysis.scores.tuning import Tuned, tuned


def findings(frames: Frames) -> list[Verdict]:
    """In the form of verdicts: what is said, how it stands, what was measured, what that rests on, what would help."""
    return [
        *_without_baseline(frames),
        *_looks(study.stopping_rule(frames)),
        *(found for one in tuned(frames) for found in _edges(one)),
        *_failed(frames),
    ]


def _without_baseline(frames: Frames) -> Iterable[Verdict]:
    """Tables compare to another arm then: what they compare to is not what the study asked for."""
    asked, found = study.baseline(frames), arms(frames)
    if not asked or not found or select(found, asked):
        return
    of_settings = (default_reference([a for a in found if a.setting == name], asked) for name in settings(found))
    instead = words.together([arm.label for references in of_settings for arm in references.values()])
    told = f"arms are compared to {instead} instead" if instead else "arms are compared to nothing"
    yield Verdict(_says(f"no arm has the study's baseline, {asked}: {told}"), Outcome.WARNING)


def _looks(rule: Mapping[str, Any]) -> Iterable[Verdict]:
    """Each difference as its last look found it; those of claims stand with the claims."""
    if not rule or rule["about"] == CLAIMS:
        return
    newest: dict[str, tuple[int, Mapping[str, Any], Mapping[str, Any]]] = {}
    for number, look in enumerate(rule["looks"], start=1):
        newest |= {question["name"]: (number, look, question) for question in look["questions"]}
    for name, (number, look, question) in newest.items():
        level = f"nominal level {look['level']:.2g}, {100 * rule['alpha']:.0f} % over all looks and differences"
        basis = f"look {number} of at most {len(rule['seeds'])}, {look['seeds']} seeds, {level}"
        yield Verdict(_says(name), Outcome(question["outcome"]), question["measured"], basis, _more(rule, question))


def _more(rule: Mapping[str, Any], question: Mapping[str, Any]) -> str:
    if question["outcome"] != Outcome.UNDECIDED:
        return ""
    return "the budget is spent" if rule["stopped"] else f"looks go on, to {rule['seeds'][-1]} seeds"


def _edges(found: Tuned) -> Iterable[Verdict]:
    picked = found.picked
    for knob in found.edge if picked is not None else ():
        assert picked is not None
        tried = ", ".join(f"{one.value}: {100 * one.mean:.1f} %" for one in found.values)
        says = f"{found.arm}: the best {knob}, {picked.knobs[knob]}, is at the edge of what was tried"
        more = "a better one may lie beyond: tune wider"
        yield Verdict(_says(says), Outcome.WARNING, tried, "validation split", more)


def _failed(frames: Frames) -> Iterable[Verdict]:
    """The arms that are not above their controls."""
    for one in (each for each in held(frames) if not each.passed):
        measured = one.metric.difference(one.effect, one.interval)
        basis = f"{one.metric}, {one.seeds} seed{'s' * (one.seeds > 1)}{' (of these runs)' * (one.seeds == 1)}"
        if one.control == SEEDS:
            floor = f"{one.metric.scale * one.floor:+.3g} {one.metric.of_differences}".rstrip().replace("-", "−")
            says = f"{one.arm} differs from the reference no more than the reference from itself under other seeds"
            yield Verdict(_says(says), Outcome.WARNING, measured, f"{basis}; the reference from itself: {floor}")
        else:
            says = f"{one.arm} is not decidedly above its control, {IN_WORDS[one.control]}"
            yield Verdict(_says(says), Outcome.WARNING, measured, basis)


def _says(text: str) -> Claim:
    return Claim(text, metric="", arm="", relation="")
