"""`controls=seeds,random,flipped,still`: further arms that show what chance alone, or any reward, or none would do.

seeds      the reference again, under other seeds: the noise floor of a difference
random     every arm with random rewards (rollout.reward=random)
flipped    every arm with right and wrong exchanged (rollout.reward=flipped)
still      the reference with lr=0: what is measured where nothing is learned

The analysis holds every arm against its controls (analysis/scores/controls.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from rlvr.config.overrides import key_of
from sweeps.grid import Usual, condition

SEEDS, RANDOM, FLIPPED, STILL = "seeds", "random", "flipped", "still"
KNOWN = (SEEDS, RANDOM, FLIPPED, STILL)
REPLACED = {RANDOM: "rollout.reward=random", FLIPPED: "rollout.reward=flipped", STILL: "lr=0"}
SETTING = ("task", "model", "evaluation", "steps")  # arms that differ in these are not compared

Point = Sequence[str]


def read(text: str) -> list[str]:
    """The controls that are asked for. Raises ValueError for an unknown one."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    if unknown := [word for word in words if word not in KNOWN]:
        raise ValueError(f"controls={text}: {unknown[0]} is unknown. Controls: {', '.join(KNOWN)}.")
    return words


def added(points: Sequence[Point], text: str, baseline: str, usual: Usual) -> list[tuple[list[str], str]]:
    """(overrides, control) of every further point. baseline: the knobs of the reference, "" for GRPO or the first arm.

    Raises ValueError for an unknown control, and for a baseline that none of the points has.
    """
    found: list[tuple[list[str], str]] = []
    for control in read(text):
        for point in points if control in (RANDOM, FLIPPED) else _references(points, baseline, usual):
            if control == SEEDS:
                found.append((_with(point, f"seed={_fresh(points, point, usual)}"), control))
            else:
                found.append((_with(point, REPLACED[control]), control))
    return list({tuple(words): (words, control) for words, control in found}.values())


def _references(points: Sequence[Point], baseline: str, usual: Usual) -> list[Point]:
    """In each setting the points of one arm: that which the baseline names, else GRPO, else the first."""
    from analysis.scores.words import parse  # with pandas: not for `--help`

    selectors = [" ".join(map("=".join, parse(text).items())) for text in (baseline, "loss=grpo") if text]
    rules = [condition("baseline", text, text) for text in selectors]
    named = [[point for point in points if rule.holds({key_of(word): word for word in point}, usual)] for rule in rules]
    if baseline and not named[0]:
        raise ValueError(f"baseline={baseline!r}: no point of the sweep has it, and controls repeat it. Pass another.")
    by_setting: dict[tuple[str, ...], list[Point]] = {}
    for point in points:
        by_setting.setdefault(tuple(w for w in point if key_of(w).split(".")[0] in SETTING), []).append(point)
    return [point for here in by_setting.values() for point in _of_one_arm(here, named)]


def _of_one_arm(here: Sequence[Point], named: Sequence[Sequence[Point]]) -> list[Point]:
    """named: by each selector; of several arms that one names, that with the least beside it, as in a report."""
    found = next((own for each in named if (own := [point for point in here if point in each])), here[:1])
    arm = min(map(_arm, found), key=len)
    return [point for point in here if _arm(point) == arm]


def _arm(point: Point) -> list[str]:
    return [word for word in point if key_of(word) != "seed"]


def _with(point: Point, override: str) -> list[str]:
    return [*(word for word in point if key_of(word) != key_of(override)), override]


def _seed(point: Point, usual: Usual) -> int:
    return int(next((w.partition("=")[2] for w in reversed(point) if key_of(w) == "seed"), str(usual("seed"))))


def _fresh(points: Sequence[Point], point: Point, usual: Usual) -> int:
    """A seed that no point has: the numbers after the largest, in the order of the arm's own."""
    largest = max(_seed(each, usual) for each in points)
    own = sorted({_seed(each, usual) for each in points if _arm(each) == _arm(point)})
    return largest + 1 + own.index(_seed(point, usual))
