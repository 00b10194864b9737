"""Arms against a reference: the difference of each, judged alone and in its family, and what would decide it."""

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

from analysis.frames.frames import Frames, grouped
from analysis.scores.arm import Arm
from analysis.scores.cell import Cell
from analysis.scores.contrast import Difference, Needed, detectable, difference, equivalent_within, needed
from analysis.scores.crossed import LEVEL
from analysis.scores.family import Judged, family

K = TypeVar("K", bound=Hashable)

# Marks of verdicts: decided in the family, or only alone.
DECIDED = ABOVE, BELOW = "▲", "▼"
PERHAPS_ABOVE, PERHAPS_BELOW = "△", "▽"
LUCKY = "runs of the better arm diverged, and the others were the luckier ones"


@dataclass(frozen=True)
class Compared:
    """An arm's difference to its reference. size: of its family; alpha: level of each test with which the family has
    1 − the level of `compare`. unfair: why the arms differ here by more than what is compared, so that their difference
    is shown and never decided; "": they do not.
    """

    difference: Difference
    judged: Judged
    size: int
    alpha: float
    samples: int  # per problem; 0: numbers per run
    unfair: str = ""
    most: float = math.inf  # the largest difference that is possible
    more_problems: bool = True  # whether the task has others than those that were measured

    @property
    def effect(self) -> float:
        return self.difference.effect

    @property
    def decided(self) -> bool:
        """Whether the difference is decided in the family."""
        return not self.unfair and self.judged.simultaneous.excludes(0)

    @property
    def mark(self) -> str:
        if self.decided:
            return ABOVE if self.effect > 0 else BELOW
        if not self.unfair and self.judged.plain.excludes(0):
            return PERHAPS_ABOVE if self.effect > 0 else PERHAPS_BELOW
        return ""

    @cached_property
    def needed(self) -> Needed:
        """Seeds, problems or samples that would decide a difference of this size within the family."""
        if self.unfair:
            return Needed(None, None, None)
        counts = needed(self.judged.summary, self.difference.sampling, self.samples, alpha=self.alpha)
        return counts if self.more_problems else replace(counts, problems=None)

    @property
    def detectable(self) -> float:
        """The smallest difference that would be decided in the family with 80 % chance."""
        return detectable(self.judged.summary, alpha=self.alpha)

    def record(self) -> dict[str, Any]:
        """The difference as columns of a table's data."""
        left_out = self.difference.left_out
        plain, simultaneous = (interval.within(self.most) for interval in (self.judged.plain, self.judged.simultaneous))
        return {
            "difference": self.effect,
            "difference_low": simultaneous.low,
            "difference_high": simultaneous.high,
            "plain_low": plain.low,
            "plain_high": plain.high,
            "p": self.judged.p,
            "p_family": self.judged.p_family,
            "family": self.size,
            "verdict": self.mark,
            "unfair": self.unfair,
            "paired_seeds": len(self.difference.seeds),
            "paired_problems": self.difference.summary.num_problems,
            "unpaired_seeds": " ".join(map(str, (*left_out.arm_seeds, *left_out.reference_seeds))),
            "unpaired_problems": left_out.problems,
            "per_seed": " ".join(f"{d:.6g}" for d in self.difference.per_seed),
            "improvement": self.difference.improvement,
            "detectable": self.detectable,
            "same_within": min(equivalent_within(self.judged.summary), self.most),
            "needed_seeds": self.needed.seeds,
            "needed_problems": self.needed.problems,
            "needed_samples": self.needed.samples,
        }


def study_level(frames: Frames) -> float:
    """The level of confidence of this study's intervals: 95 %, more with `--spend`; or under a stopping rule the level
    of its newest look, over all differences that share it, if that is more.
    """
    rule = frames.stopping_rule
    sides = 2 if rule and "best" in rule else 1  # its tests are to one side, intervals to two
    looked = rule["parts"] * rule["looks"][-1]["level"] / sides if rule and rule["looks"] else 1.0
    return 1 - min(looked, frames.alpha)


def more_problems(arms: Iterable[Arm]) -> bool:
    """Whether more problems can be had for the asking: the task makes as many as `task.test_problems` says, or only
    `evaluation.problems` of its problems were measured. A file of problems has no others; of imports nothing is known.
    """
    knobs = ("task.test_problems", "evaluation.problems")
    runs = [run for arm in arms for run in arm.runs]
    return any(not any(key.startswith("task.") for key in run.config) or any(map(run.knob, knobs)) for run in runs)


def cheapest(compared: Compared, run_hours: float, evaluation_hours: float) -> str:
    """The kind of `needed` that costs the least time: `seeds`, `problems` or `samples`. More seeds train both arms
    again; more problems or samples only evaluate the trained policies again. "" if the difference is decided, nothing
    would decide it, or times are not known."""
    counts, S, P = compared.needed, len(compared.difference.seeds), compared.difference.summary.num_problems
    evaluation = evaluation_hours * 2 * S  # of all runs of both arms
    hours = {
        "seeds": ((counts.seeds or math.nan) - S) * 2 * (run_hours + evaluation_hours),
        "problems": ((counts.problems or math.nan) / P - 1) * evaluation if P else math.nan,
        "samples": ((counts.samples or math.nan) / compared.samples - 1) * evaluation if compared.samples else math.nan,
    }
    known = {kind: cost for kind, cost in hours.items() if not math.isnan(cost)}
    return "" if compared.decided or not known else min(known, key=lambda kind: known[kind])


def compare(
    cells: Mapping[K, Cell],
    references: Mapping[K, Cell],
    level: float = LEVEL,
    *,
    samples: int = 0,
    unfair: str = "",
    more_problems: bool = True,
    survivors: bool = False,
) -> dict[K, Compared]:
    """Each arm against its reference, one for all or one for each arm. Arms without common results are left out.

    Differences over one seed, which hold for single runs, and over several are separate families. samples: per problem.
    level: of the intervals of each difference alone, and of the family. unfair, more_problems: of every difference.
    Unfair is also one for which the better arm has diverged runs, as its mean is over the others; of numbers that are
    not shares of problems, of which either end may be the lucky one, if either has; not if `survivors` are asked for.
    """
    pairs = {key: (cell.scores, references[key].scores) for key, cell in cells.items() if key in references}
    differences = {key: difference(a, b) for key, (a, b) in pairs.items() if a is not None and b is not None}
    known = {key: d for key, d in differences.items() if d is not None and math.isfinite(d.effect)}
    compared: dict[K, Compared] = {}
    for part in grouped(known, lambda key: len(known[key].seeds) == 1).values():
        one_reference = len({id(references[key].scores) for key in part}) == 1
        of_family = family([known[key] for key in part], level, one_reference=one_reference)
        for key, judged in zip(part, of_family.judged, strict=True):
            d = known[key]
            num_samples = samples if d.benchmark is not None else 0
            least, most = cells[key].possible
            room = most - least
            own, other = cells[key].diverged, references[key].diverged
            lucky = own + other if d.benchmark is None else own if d.effect > 0 else other
            why = unfair or (LUCKY if lucky and not survivors else "")
            compared[key] = Compared(d, judged, len(part), of_family.alpha, num_samples, why, room, more_problems)
    return {key: compared[key] for key in cells if key in compared}


def against_best(
    cells: Mapping[K, Cell], left: Sequence[K], better: int, level: float, unfair: str = ""
) -> tuple[K, dict[K, Compared]]:
    """(the best of the arms that are left, the difference of each other arm to it). The best has the highest mean, or
    where `better` is −1 the lowest, of those without diverged runs if there are any; or is decidedly better than that
    one on the problems of both, where some scores are missing, by the interval of the one difference, as arms are
    dropped. level, unfair: as in `compare`."""

    def place(key: K) -> tuple[bool, bool, float]:
        return (not cells[key].empty, not cells[key].diverged, better * cells[key].mean)

    def to_best(best: K) -> dict[K, Compared]:
        others = {key: cell for key, cell in cells.items() if key != best}
        return compare(others, dict.fromkeys(others, cells[best]), level, unfair=unfair)

    best = max(left, key=place)
    compared = to_best(best)
    ahead_of_it = {key: of for key, of in compared.items() if key in left and of.judged.plain.excludes(0)}
    gains = {key: better * of.effect for key, of in ahead_of_it.items()}
    ahead = max(gains, key=gains.__getitem__, default=best)
    return (ahead, to_best(ahead)) if gains.get(ahead, 0.0) > 0 else (best, compared)
