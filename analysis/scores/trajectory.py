"""Arms along training: the point of each run at an equal accuracy, an equal number of tokens, an equal time.

At a fixed step diversity is confounded with speed: an arm that has not learned keeps the pass@k of its base policy. So
pass@k and entropy are also compared where both arms are equally accurate. Between two evaluations everything is
interpolated with the weight that puts the run at the level; scores problem by problem, so that they stay paired.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from analysis.frames.frames import Frames, remembered
from analysis.scores.arm import Arm
from analysis.scores.cell import Cell, cell_at, last_points, why_absent
from analysis.scores.claim import Where
from analysis.scores.comparable import Comparable, by_setting
from analysis.scores.crossed import LEAST_SEEDS
from analysis.scores.measured import Point, at, crossing, mean_of, scores
from analysis.scores.metric import Kind, Metric

LEAST = 3  # the fewest evaluations of a curve
TOKENS, SECONDS = "tokens/rollout", "time/step_s"


@dataclass(frozen=True)
class Level:
    """Where arms are compared: at `value` of the quantity that `where` names, which every run of them reaches.

    points: by group and run. why: the reason if there is no such level; then there are no points. caveat: the reason if
    interpolation or the load of machines makes the comparison unfair, else "". lowest: for an accuracy, the arm and
    seed of the run that reached no more.
    """

    where: Where
    value: float = math.nan
    points: Mapping[str, Mapping[str, Point]] = field(default_factory=dict[str, Mapping[str, Point]])
    why: str = ""
    caveat: str = ""
    lowest: str = ""


def level(frames: Frames, arms: Sequence[Arm], where: Where, judge: Metric, sources: tuple[str, ...]) -> Level:
    """The highest level that all finished runs of these arms reach, and each run's point there. judge: the avg@n by
    which accuracy is measured."""
    if where == Where.LAST:
        return Level(where, points={arm.group_id: last_points(frames, arm) for arm in arms})
    curves = {arm.group_id: _curves(frames, arm, where, judge, sources) for arm in arms}
    everything = [curve for of_arm in curves.values() for curve in of_arm.values()]
    empty = [arm.label for arm in arms if not curves[arm.group_id]]
    if empty:
        return Level(where, why=f"no finished, evaluated run of {' or '.join(empty)}")
    if not all(math.isfinite(x) for curve in everything for _, x in curve):
        return Level(where, why=f"{where} needs what some run did not log")
    value = min(max(x for _, x in curve) for curve in everything)
    begun = max(curve[0][1] for curve in everything)
    if value <= begun:
        slowest = min(arms, key=lambda a: min(max(x for _, x in c) for c in curves[a.group_id].values()))
        return Level(where, why=f"{slowest.label} has a run that never rises above where the others begin")
    crossings = {group: {i: crossing(curve, value) for i, curve in of_arm.items()} for group, of_arm in curves.items()}
    points = {
        group: {i: point for i, point in of_arm.items() if point is not None} for group, of_arm in crossings.items()
    }
    if where != Where.ACCURACY:
        shared = where == Where.SECONDS and not have_own_gpus(arms)
        early = _early_warning(arms, points, f"{value:,.0f} {where.removeprefix('equal ')}")
        return Level(where, value, points, caveat=SHARED_TIME if shared else early)
    runs = [(arm, run_id, curve) for arm in arms for run_id, curve in curves[arm.group_id].items()]
    highest = [(max(x for _, x in curve), f"{arm.label}, seed {frames.seeds[i]}") for arm, i, curve in runs]
    _, lowest = min(highest)
    caveat = _early_warning(arms, points, f"the {100 * value:.1f} % of {lowest}")
    return Level(where, value, points, caveat=caveat, lowest=lowest)


# Why times do not decide between arms that `have_own_gpus` is not true of.
SHARED_TIME = (
    "without GPUs that SLURM allocated to each run alone, time also depends on what else a machine did meanwhile"
)
OWN_GPUS = "cluster=slurm cluster.gpus=1 cluster.pack=1"  # what gives each run such GPUs


def caveat_of_time(metric: Metric, arms: Iterable[Arm]) -> str:
    """Why differences of these arms in a metric are not decided, if it is one of time; else ""."""
    return SHARED_TIME if metric.is_of_time and not have_own_gpus(arms) else ""


def have_own_gpus(arms: Iterable[Arm]) -> bool:
    """Whether SLURM allocated every run of these arms GPUs that no other run used. Elsewhere a difference of time may
    be one of the load: it changes between the runs of one seed, and may be the same for all seeds of an arm.
    """
    return all(run.own_gpus for arm in arms for run in arm.runs)


def _early_warning(arms: Sequence[Arm], points: Mapping[str, Mapping[str, Point]], reached: str) -> str:
    """A warning if the level lies between step 0 and the first evaluation after it. A straight line there cuts off the
    curve of an arm that learns in between: two arms with one frontier then seem to differ by a point and more, which
    the spread of seeds does not show. reached: the level in words.
    """
    early = [
        arm.label
        for arm in arms
        if any(p.before == 0 < p.after and p.weight < 1 for p in points[arm.group_id].values())
    ]
    if not early:
        return ""
    at = f"{' and '.join(early)} reached {reached}"
    return f"{at}, before the first evaluation after the base policy; evaluate more often"


def _curves(
    frames: Frames, arm: Arm, where: Where, judge: Metric, sources: tuple[str, ...]
) -> dict[str, list[tuple[int, float]]]:
    """By finished run, (step, x) at every evaluation. x: the quantity that `where` names."""
    return {
        run_id: [(step, _x(frames, run_id, step, where, judge, sources)) for step in frames.digest.steps(run_id)]
        for run_id in last_points(frames, arm)
    }


@remembered  # needed again for each arm with the same reference
def _x(frames: Frames, run_id: str, step: int, where: Where, judge: Metric, sources: tuple[str, ...]) -> float:
    if where == Where.ACCURACY:
        measured = scores(frames, judge, sources, {run_id: at(step)})
        return math.nan if measured is None else mean_of(measured)
    if step == 0:
        return 0.0
    if where == Where.TOKENS:
        return frames.digest.sum(run_id, TOKENS, step)
    return frames.digest.sum(run_id, SECONDS, step) * devices(frames, run_id)


def devices(frames: Frames, run_id: str) -> int:
    """Number of processes that train a run: its GPU-seconds per token, times tokens, over its seconds."""
    step = frames.digest.last(run_id)
    per_token = frames.digest.mean(run_id, "throughput/gpu_s_per_token", step)
    ratio = per_token * frames.digest.mean(run_id, TOKENS, step) / frames.digest.mean(run_id, SECONDS, step)
    return max(1, round(ratio)) if math.isfinite(ratio) else 1


def cell_of(frames: Frames, arm: Arm, metric: Metric, sources: tuple[str, ...], level: Level) -> Cell:
    """The score of an arm at a level. At the same points it is the same object: by it `compare` knows that several arms
    have one reference."""
    return _cell_at(frames, arm, metric, sources, tuple(level.points.get(arm.group_id, {}).items()))


@remembered
def _cell_at(
    frames: Frames, arm: Arm, metric: Metric, sources: tuple[str, ...], points: tuple[tuple[str, Point], ...]
) -> Cell:
    by_run = dict(points)
    return cell_at(frames, metric, sources, by_run, planned=len(arm.runs), reasons=why_absent(arm, by_run))


# --- curves ---


def settings_with_curves(frames: Frames, least: int = LEAST) -> list[Comparable]:
    """The settings in which some run has `least` evaluations or more."""
    return [
        s for s in by_setting(frames) if any(len(frames.digest.steps(i)) >= least for a in s.arms for i in a.run_ids)
    ]


@dataclass(frozen=True)
class Curve:
    """An arm's mean over its seeds at every evaluation that all its evaluated runs have, and its band over seeds."""

    steps: tuple[int, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...]  # NaN for fewer than three seeds
    high: tuple[float, ...]


@remembered
def cells_along(frames: Frames, arm: Arm, metric: Metric, sources: tuple[str, ...]) -> list[tuple[int, Cell]]:
    """(step, score of an arm) at the steps at which all of its drawn runs that were evaluated at all were evaluated."""
    evaluated = {run.run_id: frames.digest.steps(run.run_id) for run in arm.drawn if frames.digest.steps(run.run_id)}
    shared = sorted(set.intersection(*map(set, evaluated.values()))) if evaluated else []
    along: list[tuple[int, Cell]] = []
    for step in shared:
        if metric.kind == Kind.TRAINING and step == 0:
            continue
        cell = cell_at(frames, metric, sources, dict.fromkeys(evaluated, at(step)), planned=len(arm.runs), reasons=[])
        if cell.scores is not None and not cell.empty:
            along.append((step, cell))
    return along


@remembered
def curve(frames: Frames, arm: Arm, metric: Metric, sources: tuple[str, ...]) -> Curve:
    """The curve of an arm."""
    rows = [(step, cell.mean, *over_seeds(cell)) for step, cell in cells_along(frames, arm, metric, sources)]
    steps, mean, low, high = zip(*rows, strict=True) if rows else ((), (), (), ())
    return Curve(steps, mean, low, high)


def over_seeds(cell: Cell) -> tuple[float, float]:
    """The ends of a 95 % t interval over seeds alone, for these problems.

    (NaN, NaN) for fewer than three seeds: the interval of two is 12.7 times as wide as they lie apart.
    """
    if cell.scores is None or cell.seeds < LEAST_SEEDS:
        return math.nan, math.nan
    return cell.ends(cell.scores.by_seed().summary().interval().half)
