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


def added(points: Sequence[Point], text: str, baseline: str, usual_seed: int) -> list[tuple[list[str], str]]:
    """(overrides, control) of every further point. baseline: the knobs of the reference, "" for GRPO or the first arm.

    usual_seed: of points that set none.
    """
    found: list[tuple[list[str], str]] = []
    for control in read(text):
        for point in points if control in (RANDOM, FLIPPED) else _references(points, baseline):
            if control == SEEDS:
                found.append((_with(point, f"seed={_fresh(points, point, usual_seed)}"), control))
            else:
                found.append((_with(point, REPLACED[control]), control))
    return list({tuple(words): (words, control) for words, control in found}.values())


def _references(points: Sequence[Point], baseline: str) -> list[Point]:
    """In each setting the points of one arm: that which the baseline names, else GRPO, else the first."""
    by_setting: dict[tuple[str, ...], list[Point]] = {}
    for point in points:
        by_setting.setdefault(tuple(w for w in point if key_of(w).split(".")[0] in SETTING), []).append(point)
    return [point for here in by_setting.values() for point in _of_one_arm(here, baseline)]


def _of_one_arm(here: Sequence[Point], baseline: str) -> list[Point]:
    for wanted in (baseline.split(), ["loss=grpo"]):
        named = [point for point in here if wanted and all(word in point for word in wanted)]
        if named:
            here = named
            break
    return [point for point in here if _arm(point) == _arm(here[0])]


def _arm(point: Point) -> list[str]:
    return [word for word in point if key_of(word) != "seed"]


def _with(point: Point, override: str) -> list[str]:
    return [*(word for word in point if key_of(word) != key_of(override)), override]


def _seed(point: Point, usual: int) -> int:
    return next((int(word.partition("=")[2]) for word in reversed(point) if key_of(word) == "seed"), usual)


def _fresh(points: Sequence[Point], point: Point, usual: int) -> int:
    """A seed that no point has: the numbers after the largest, in the order of the arm's own."""
    largest = max(_seed(each, usual) for each in points)
    own = sorted({_seed(each, usual) for each in points if _arm(each) == _arm(point)})
    return largest + 1 + own.index(_seed(point, usual))
