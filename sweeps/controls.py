"""`controls=seeds,random,flipped,majority,still`: arms that show the effect of chance, of any reward, of no learning.

seeds      the reference again, under other seeds: the noise floor of a difference
random     every arm with random rewards (rollout.reward=random)
flipped    every arm with right and wrong exchanged (rollout.reward=flipped)
majority   every arm with agreement as its reward (rollout.reward=majority)
still      the reference with lr=0: the metrics of a policy that learns nothing

The analysis compares every arm with its controls (analysis/scores/controls.py).
"""

from collections.abc import Sequence

from rlvr.config.overrides import key_of, seed_of
from sweeps.grid import Usual, condition

SEEDS, STILL, REWARDS = "seeds", "still", ("random", "flipped", "majority")
KNOWN = (SEEDS, *REWARDS, STILL)
REPLACED = {**{reward: f"rollout.reward={reward}" for reward in REWARDS}, STILL: "lr=0"}
SETTING = ("task", "model", "evaluation", "steps")  # arms that differ in these are not compared

Point = Sequence[str]


def read(text: str) -> list[str]:
    """The controls that `text` lists. Raises ValueError for an unknown one."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if unknown := [name for name in names if name not in KNOWN]:
        raise ValueError(f"controls={text}: {unknown[0]} is unknown. Controls: {', '.join(KNOWN)}.")
    return names


def added(points: Sequence[Point], text: str, baseline: str, usual: Usual) -> list[tuple[list[str], str]]:
    """(overrides, control) of every point that the controls add.

    baseline: the knobs of the reference arm; "": GRPO or, without it, the first arm. Raises ValueError for an unknown
    control, and for a baseline that none of the points has.
    """
    added_points: list[tuple[list[str], str]] = []
    for control in read(text):
        for point in points if control in REWARDS else _references(points, baseline, usual):
            replacement = f"seed={_fresh_seed(points, point, usual)}" if control == SEEDS else REPLACED[control]
            kept = (word for word in point if key_of(word) != key_of(replacement))
            added_points.append(([*kept, replacement], control))
    return list({tuple(point): (point, control) for point, control in added_points}.values())


def _references(points: Sequence[Point], baseline: str, usual: Usual) -> list[Point]:
    """In each setting the points of one arm: the arm that `baseline` names, else GRPO, else the first."""
    from analysis.scores.labels import parse  # imports pandas, which `--help` does not need

    selectors = [" ".join(map("=".join, parse(text).items())) for text in (baseline, "loss=grpo") if text]
    rules = [condition("baseline", text, text) for text in selectors]
    named = [[point for point in points if rule.holds({key_of(word): word for word in point}, usual)] for rule in rules]
    if baseline and not named[0]:
        raise ValueError(
            f"baseline={baseline!r}: no point of the sweep has it, so controls cannot repeat it. Pass another."
        )
    by_setting: dict[tuple[str, ...], list[Point]] = {}
    for point in points:
        by_setting.setdefault(tuple(w for w in point if key_of(w).split(".")[0] in SETTING), []).append(point)
    return [point for in_setting in by_setting.values() for point in _points_of_one_arm(in_setting, named)]


def _points_of_one_arm(points: Sequence[Point], named: Sequence[Sequence[Point]]) -> list[Point]:
    """The points of the reference arm among `points`, which share a setting.

    named: for each selector, the points that it matches. The first selector that matches a point decides; of several
    arms that it matches, the arm with the fewest other overrides is taken, as in a report.
    """
    matched = list(points[:1])
    for matches in named:
        in_setting = [point for point in points if point in matches]
        if in_setting:
            matched = in_setting
            break
    arm = min(map(_arm, matched), key=len)
    return [point for point in points if _arm(point) == arm]


def _arm(point: Point) -> list[str]:
    return [word for word in point if key_of(word) != "seed"]


def _seed(point: Point, usual: Usual) -> int:
    return seed_of(next((word for word in reversed(point) if key_of(word) == "seed"), f"seed={usual('seed', {})}"))


def _fresh_seed(points: Sequence[Point], point: Point, usual: Usual) -> int:
    """A seed that no point has: the k-th seed of the arm becomes the k-th number after the largest seed of all."""
    largest = max(_seed(other, usual) for other in points)
    arm_seeds = sorted({_seed(other, usual) for other in points if _arm(other) == _arm(point)})
    return largest + 1 + arm_seeds.index(_seed(point, usual))
