"""The scores of runs at a point of training: an array over seeds and problems, or a number per run."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray

from analysis.frames.frames import Frames, RunRow, check_seeds, grouped, remembered
from analysis.scores.contrast import Scores
from analysis.scores.crossed import by_benchmark
from analysis.scores.density import of_policy
from analysis.scores.metric import Kind, Metric, avg
from rlvr.ledger.cause import State
from rlvr.metrics import EVALUATION, pass_at_k

Array = NDArray[np.float64]
Whole = NDArray[np.int64]
Problem = tuple[str, str]  # benchmark, id


@dataclass(frozen=True)
class Point:
    """A point of training between two evaluations. weight: of the later one, in [0, 1]."""

    before: int
    after: int
    weight: float = 0.0

    @property
    def step(self) -> float:
        return (1 - self.weight) * self.before + self.weight * self.after

    @property
    def parts(self) -> list[tuple[int, float]]:
        """(step, weight) of the evaluations with a weight above 0."""
        both = ((self.before, 1 - self.weight), (self.after, self.weight))
        return [(step, weight) for step, weight in both if weight > 0]


def at(step: int) -> Point:
    """The point at an evaluation."""
    return Point(step, step)


def scores(frames: Frames, metric: Metric, sources: Sequence[str], points: Mapping[str, Point]) -> Scores | None:
    """One metric of runs of one arm, a row per run in the order of their seeds; None if some run lacks the metric.

    sources: the benchmarks, which have equal weights. points: by run. Raises LookupError if two runs share a seed.
    """
    run_ids = sorted(points, key=lambda i: (frames.seeds[i], i))
    seeds = tuple(frames.seeds[i] for i in run_ids)
    if not run_ids:
        return None
    if len(set(seeds)) < len(seeds):
        check_seeds(run for run in frames.rows if run.run_id in points)
    if metric.per_problem:
        by_problem = _of_problems(frames, metric, sources, {i: points[i] for i in run_ids})
        if by_problem is not None:
            return replace(by_problem, seeds=seeds)
        if metric.kind == Kind.TEXT:
            return None
        return _logged(frames, [f"evaluation/{source}/{metric.key}" for source in sources], seeds, run_ids, points)
    if metric.kind == Kind.EVALUATION:
        return _logged(frames, [metric.key], seeds, run_ids, points)
    if metric.kind == Kind.POLICY:
        return _of_runs(seeds, [_of_policies(frames).get(i, {}).get(metric.name, math.nan) for i in run_ids])
    if metric.kind == Kind.REACH:
        return _of_runs(seeds, [_reached(frames, metric, tuple(sources), i, points[i].after) for i in run_ids])

    def so_far(run_id: str, step: int) -> float:
        is_hours = metric.kind == Kind.HOURS
        return hours(frames, run_id, step) if is_hours else frames.digest.mean(run_id, metric.key, step)

    return _of_runs(seeds, [_between(points[i], lambda step, i=i: so_far(i, step)) for i in run_ids])


@remembered
def _reached(frames: Frames, metric: Metric, sources: tuple[str, ...], run_id: str, last: int) -> float:
    """Steps or sampled tokens until the metric's level is first reached, up to evaluation `last`, straight between two
    evaluations; else, and at most, its horizon: their mean is the restricted mean time."""

    def score(step: int) -> float:
        measured = scores(frames, avg(metric.k), sources, {run_id: at(step)})
        return math.nan if measured is None else mean_of(measured)

    curve = [(step, score(step)) for step in frames.digest.steps(run_id) if step <= last]
    if curve and curve[0][1] >= metric.level:
        return 0.0
    point = crossing(curve, metric.level) if curve else None
    longest = horizons(frames, metric.unit)[run_id]
    if point is None:
        return longest
    return min(longest, point.step if metric.unit == "steps" else _between(point, lambda s: _tokens(frames, run_id, s)))


@remembered
def horizons(frames: Frames, unit: str) -> dict[str, float]:
    """By run, the steps of the shortest run on the same problems, or the tokens of the finished one with the fewest."""

    def place(run: RunRow) -> str:
        return repr(sorted(p for p in run.config.items() if p[0].startswith(("task.", "model.", "evaluation."))))

    horizon: dict[str, float] = {}
    for runs in grouped(frames.rows, place).values():
        last = {run.run_id: max(frames.digest.steps(run.run_id), default=0) for run in runs}
        if unit == "steps":
            ends = [float(run.knob("steps") or last[run.run_id] or math.inf) for run in runs]
        else:
            ends = [_tokens(frames, run.run_id, last[run.run_id]) for run in runs if run.state == State.FINISHED]
        horizon |= dict.fromkeys(last, min(ends, default=math.nan))
    return horizon


def _tokens(frames: Frames, run_id: str, step: int) -> float:
    return frames.digest.sum(run_id, "tokens/rollout", step) if step else 0.0


def crossing(curve: Sequence[tuple[int, float]], value: float) -> Point | None:
    """The point at which a curve of (step, x) first reaches `value`; None if it never does, or begins above it."""
    if curve[0][1] >= value:
        return at(curve[0][0]) if curve[0][1] == value else None
    for (before, low), (after, high) in pairwise(curve):
        if high >= value:
            return Point(before, after, (value - low) / (high - low)) if high > low else at(after)
    return None


def mean_of(measured: Scores) -> float:
    """Mean over all defined values of each benchmark, benchmarks with equal weights; NaN if a benchmark has none."""
    parts = by_benchmark(measured.values, measured.benchmark)
    if not all(np.isfinite(part).any() for part in parts):
        return math.nan
    return float(np.mean([np.nanmean(part) for part in parts]))


@remembered
def _of_policies(frames: Frames) -> dict[str, dict[str, float]]:
    """`of_policy` of every run that stored a policy."""
    policies = {str(run_id): policy for run_id, policy in frames.policy.groupby("run_id")}
    return {run.run_id: of_policy(policies[run.run_id], run) for run in frames.rows if run.run_id in policies}


def _of_runs(seeds: tuple[int, ...], values: ArrayLike) -> Scores | None:
    """The scores of one number per run; None if some run lacks it."""
    return Scores.of_runs(seeds, values) if np.isfinite(values).all() else None


def _between(point: Point, read: Callable[[int], float]) -> float:
    return sum(weight * read(step) for step, weight in point.parts)


def _of_problems(frames: Frames, metric: Metric, sources: Sequence[str], points: Mapping[str, Point]) -> Scores | None:
    """Scores by problem, with 0, 1, … in place of the seeds, which the caller sets. None unless every run has the
    samples of every benchmark."""
    blocks: list[Scores] = []
    for number, source in enumerate(sources):
        rows = [_row(frames, metric, source, run_id, point) for run_id, point in points.items()]
        known = [row for row in rows if row is not None]
        if len(known) < len(rows):
            return None
        problems = known[0].problems
        if any(row.problems != problems for row in known):
            problems = tuple(dict.fromkeys(p for row in known for p in row.problems))
        values = _stacked([(row.problems, row.values) for row in known], problems)
        noise = _stacked([(row.problems, row.noise) for row in known], problems)
        blocks.append(Scores(tuple(range(len(rows))), problems, values, np.full(len(problems), number), noise))
    return joined(blocks)


@dataclass(frozen=True)
class _Judged:
    problems: tuple[Problem, ...]
    values: Array
    noise: Array


def _stacked(rows: Sequence[tuple[tuple[Problem, ...], Array]], problems: tuple[Problem, ...]) -> Array:
    """[S, P], NaN where a row lacks the problem. rows: of each its problems and its values."""
    if all(of_row == problems for of_row, _ in rows):
        return np.stack([values for _, values in rows])
    place = {p: i for i, p in enumerate(problems)}
    table = np.full((len(rows), len(problems)), np.nan)
    for i, (of_row, values) in enumerate(rows):
        table[i, [place[p] for p in of_row]] = values
    return table


def _row(frames: Frames, metric: Metric, source: str, run_id: str, point: Point) -> _Judged | None:
    """The scores of one run on one benchmark, interpolated if the point lies between two evaluations."""
    parts = [(weight, _evaluated(frames, metric, source, run_id, step)) for step, weight in point.parts]
    rows = [(weight, row) for weight, row in parts if row is not None]
    if len(rows) < len(parts) or any(row.problems != rows[0][1].problems for _, row in rows):
        return None
    if len(rows) == 1:
        return rows[0][1]
    values = sum((weight * row.values for weight, row in rows), np.zeros(len(rows[0][1].problems)))
    noise = sum((weight**2 * row.noise for weight, row in rows), np.zeros(len(rows[0][1].problems)))
    return _Judged(rows[0][1].problems, values, noise)


@remembered  # levels and curves read the same evaluations many times
def _evaluated(frames: Frames, metric: Metric, source: str, run_id: str, step: int) -> _Judged | None:
    if metric.kind == Kind.TEXT:
        return _texts(frames, metric, source, run_id, step)
    judged = frames.problem_counts(run_id, step, source)
    if judged is None:
        return None
    if metric.kind == Kind.AVG:
        return _Judged(judged.problems, avg_values(judged.n, judged.c), avg_noise(judged.n, judged.c))
    n, c, k, least = judged.n, judged.c, metric.k, metric.least
    return _Judged(judged.problems, pass_values(n, c, k, least), pass_noise(n, c, k, least))


def _texts(frames: Frames, metric: Metric, source: str, run_id: str, step: int) -> _Judged | None:
    by_problem = frames.text_summary(metric.name, run_id, step, source)
    if not by_problem:
        return None
    values = np.array(list(by_problem.values()), float)
    return _Judged(tuple((source, p) for p in by_problem), values, np.full(len(values), np.nan))


def joined(blocks: Sequence[Scores]) -> Scores:
    """The scores of the same runs on several benchmarks, side by side."""
    if len(blocks) == 1:
        return blocks[0]
    first = blocks[0]
    return Scores(
        first.seeds,
        tuple(p for block in blocks for p in block.problems),
        np.hstack([block.values for block in blocks]),
        np.concatenate([block.benchmark for block in blocks if block.benchmark is not None]),
        np.hstack([block.noise for block in blocks if block.noise is not None]),
    )


def _logged(
    frames: Frames, keys: Sequence[str], seeds: tuple[int, ...], run_ids: Sequence[str], points: Mapping[str, Point]
) -> Scores | None:
    read = frames.digest.logged
    values = [[_between(points[i], lambda step, i=i, key=key: read(i, key, step)) for key in keys] for i in run_ids]
    return _of_runs(seeds, np.array(values, float).mean(1))


def hours(frames: Frames, run_id: str, step: int) -> float:
    """Hours that the steps up to this one and their evaluations took, without set-up and steps that were repeated after
    a crash."""
    steps, evaluations = (frames.digest.sum(run_id, key, step) for key in ("time/step_s", "time/evaluation_s"))
    return (steps + (0.0 if math.isnan(evaluations) else evaluations)) / 3600


# --- from judged samples to a score per problem: n judged samples, c of them correct


def avg_values(n: Whole, c: Whole) -> Array:
    """c/n per problem; NaN where no sample was judged."""
    n, c = np.asarray(n), np.asarray(c)
    return np.divide(c, n, out=np.full(n.shape, np.nan), where=n > 0)


def pass_values(n: Whole, c: Whole, k: int, least: int = 1) -> Array:
    """Unbiased chance per problem that at least `least` of k samples are right, by default pass@k (Chen et al. 2021);
    NaN where fewer than k samples were judged."""
    return _looked_up(n, c, k, lambda size: _pass_by_count(size, k, least))


def _looked_up(n: Whole, c: Whole, k: int, of_size: Callable[[int], Array]) -> Array:
    """`of_size(n)[c]` per problem; NaN where fewer than k samples were judged."""
    n, c = np.asarray(n), np.asarray(c)
    value = np.full(n.shape, np.nan)
    for size in np.unique(n[n >= k]):
        value[n == size] = of_size(int(size))[c[n == size]]
    return value


@lru_cache(maxsize=64)
def _pass_by_count(n: int, k: int, least: int) -> Array:
    """[n + 1] the estimate for each count c of right samples of n: an upper tail of the hypergeometric distribution."""
    if least == 0:  # over 1, 2, 4, …, k by trapezoids
        values = [_pass_by_count(n, 2**i, 1) for i in range(k.bit_length())]
        return (sum(values, np.zeros(n + 1)) - (values[0] + values[-1]) / 2) / (len(values) - 1)
    if least == 1:
        return pass_at_k(np.full(n + 1, n), np.arange(n + 1), k)
    ways = [sum(math.comb(c, j) * math.comb(n - c, k - j) for j in range(least, k + 1)) for c in range(n + 1)]
    return np.array([way / math.comb(n, k) for way in ways])


def avg_noise(n: Whole, c: Whole) -> Array:
    """Variance of c/n from the draw of the samples, unbiased: c(n − c)/(n²(n − 1)); NaN for fewer than two samples."""
    n, c = np.asarray(n, float), np.asarray(c, float)
    return np.divide(c * (n - c), n**2 * (n - 1), out=np.full(n.shape, np.nan), where=n > 1)


def pass_noise(n: Whole, c: Whole, k: int, least: int = 1) -> Array:
    """Variance of the estimate of `pass_values` from the draw of the samples; NaN where fewer than k were judged.

    It is the variance under c' ~ Binomial(n, (c + ½)/(n + 1)), since no unbiased estimate exists unless n ≥ 2k.
    """
    return _looked_up(n, c, k, lambda size: _pass_noise(size, k, least))


@lru_cache(maxsize=64)
def _pass_noise(n: int, k: int, least: int) -> Array:
    """[n + 1] the variance for each count c of correct samples."""
    drawn = np.arange(n + 1)
    rate = (drawn + 0.5) / (n + 1)
    choose = np.cumsum(np.log(np.maximum(drawn, 1)))  # log of the factorials
    log_pmf = (choose[n] - choose - choose[::-1]) + np.outer(np.log(rate), drawn) + np.outer(np.log1p(-rate), n - drawn)
    pmf = np.exp(log_pmf)
    value = _pass_by_count(n, k, least)
    return pmf @ value**2 - (pmf @ value) ** 2


def last_logged(frames: Frames, run_id: str, metric: Metric, sources: Sequence[str]) -> float:
    """What the last evaluation of a run logged of an avg@n or pass@k, averaged over benchmarks; NaN if it did not."""
    steps = frames.digest.steps(run_id)
    if not steps or not sources:
        return math.nan
    values = [frames.digest.logged(run_id, f"{EVALUATION}{source}/{metric.key}", steps[-1]) for source in sources]
    return math.fsum(values) / len(values)
