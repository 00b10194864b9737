"""Evaluations of policies (`python -m rlvr.evaluate`): accuracy, pass@k, majority, what is kept of the base policy."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from analysis.frames.counts import Judged
from analysis.frames.frames import Frames
from analysis.frames.run import Run
from analysis.report.layout import frame, written
from analysis.report.table import Format, Table, interval_notes
from analysis.scores.arm import Arm, settings
from analysis.scores.cell import Cell, cell, last_points, mean_of
from analysis.scores.contrast import Scores
from analysis.scores.evaluated import BASE, evaluations, label, policy_of
from analysis.scores.metric import Kind, Metric, benchmarks, pass_at
from analysis.scores.selection import ordered
from analysis.scores.study import swept
from rlvr.metrics import pass_at_k

QUESTION = "What does each policy solve, and with how many samples?"
MOST = 6  # columns of pass@k
KEEP, EXPLORE, REACH, DISTINCT = "keep rate", "exploration rate", "samples to reach the base", "different right"


def table(frames: Frames) -> Table | None:
    """None without an evaluation."""
    found = evaluations(frames)
    if not found:
        return None
    records = []
    for setting in settings(found):
        here = ordered([arm for arm in found if arm.setting == setting], swept(frames))
        sources, metrics = benchmarks(frames, [i for arm in here for i in arm.run_ids])
        base = next((arm for arm in here if policy_of(arm.first) == BASE), None)
        for source in sources:
            title = ", ".join(part for part in (setting, source) if part)
            for arm in here:
                records += written(title, label(arm), _cells(frames, arm, base, source, metrics))
    seeds = max((len(arm.runs) for arm in found), default=1)
    notes = (
        "pass@k is the unbiased estimate; at all samples of a problem it is coverage, the share of problems that some "
        "sample solves. maj@n: the most frequent answer is right, ties broken at random.",
        "Keep rate: of the problems that the base policy solves in some of its samples, the share still solved; "
        "exploration rate: of those it does not, the share solved now; both at equal numbers of samples. Samples to "
        "reach the base: the fewest k at which pass@k is what all samples of the base policy cover.",
        "Differences and what decides them: the table Comparison.",
        *interval_notes(seeds),
    )
    formats = {REACH: Format(1.0, 0, "", -1), DISTINCT: Format(1.0, 2, "")}
    return Table("policies", "Policies", QUESTION, frame(records), ("",), notes, formats=formats)


def sizes(metrics: Iterable[Metric]) -> list[int]:
    """k of every pass@k."""
    return sorted({metric.k for metric in metrics if metric.kind == Kind.PASS})


def _cells(frames: Frames, arm: Arm, base: Arm | None, source: str, metrics: Sequence[Metric]) -> dict[str, Cell]:
    """By column."""
    shown = [size for size in sizes(metrics) if size > 1]
    shown = sorted({shown[round(i)] for i in np.linspace(0, len(shown) - 1, MOST)}) if shown else []
    wanted = [*(m for m in metrics if m.kind == Kind.AVG), *map(pass_at, shown)]
    cells = {str(metric): cell(frames, arm, metric, (source,)) for metric in wanted}
    n = max((m.k for m in metrics if m.kind == Kind.AVG), default=0)
    for name, key in ((f"maj@{n}", f"maj_at_{n}"), (DISTINCT, f"distinct_correct_at_{n}")):
        logged = f"evaluation/{source}/{key}"
        if any(logged in frames.digest.names(run_id) for run_id in arm.run_ids):
            cells[name] = _numbers(
                frames, arm, lambda run, step, key=logged: frames.digest.logged(run.run_id, key, step)
            )
    return cells | (_against(frames, arm, base, source) if base else {})


def _against(frames: Frames, arm: Arm, base: Arm, source: str) -> dict[str, Cell]:
    """What is kept of the base policy, by seed: a seed of which the base was not evaluated stands against another."""
    before = {run.seed: judged for run, judged in _judged(frames, base, source)}
    if not before or arm is base:
        return {}
    any_seed = next(iter(before.values()))
    kept: dict[str, list[np.ndarray]] = {KEEP: [], EXPLORE: []}
    seeds: list[int] = []
    reached: list[float] = []
    problems: tuple[tuple[str, str], ...] = ()
    for run, now in _judged(frames, arm, source):
        first = before.get(run.seed, any_seed)
        if first.problems != now.problems:
            return {}
        problems, solved = now.problems, (now.c > 0).astype(float)
        seeds.append(run.seed)
        kept[KEEP].append(np.where(first.c > 0, solved, np.nan))
        kept[EXPLORE].append(np.where(first.c == 0, solved, np.nan))
        reached.append(_samples_to_reach(now, float((first.c > 0).mean())))
    if not seeds:
        return {}
    benchmark = np.zeros(len(problems), dtype=np.int64)
    planned = len(arm.runs)
    cells = {
        name: _cell(Scores(tuple(seeds), problems, np.stack(values), benchmark), planned)
        for name, values in kept.items()
    }
    return {**cells, REACH: _cell(Scores(tuple(seeds), ("",), np.array(reached)[:, None]), planned)}


def _samples_to_reach(judged: Judged, target: float) -> float:
    """The fewest k with pass@k of at least `target`; NaN if all samples cover less."""
    low, high = 1, int(judged.n.min())

    def covers(k: int) -> bool:
        return float(pass_at_k(judged.n, judged.c, k).mean()) >= target - 1e-12

    if high < 1 or not covers(high):
        return math.nan
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if covers(middle) else (middle + 1, high)
    return float(low)


def _judged(frames: Frames, arm: Arm, source: str) -> list[tuple[Run, Judged]]:
    points = last_points(frames, arm)
    found = [
        (run, frames.judged(run.run_id, points[run.run_id].after, source)) for run in arm.runs if run.run_id in points
    ]
    return [(run, judged) for run, judged in found if judged is not None]


def _numbers(frames: Frames, arm: Arm, read: Callable[[Run, int], float]) -> Cell:
    points = last_points(frames, arm)
    done = [run for run in arm.runs if run.run_id in points]
    if not done:
        return Cell(planned=len(arm.runs), state="not evaluated")
    values = np.array([[read(run, points[run.run_id].after)] for run in done])
    return _cell(Scores(tuple(run.seed for run in done), ("",), values), len(arm.runs))


def _cell(scores: Scores, planned: int) -> Cell:
    mean = mean_of(scores)
    state = "ok" if len(scores.seeds) == planned else "partial"
    return Cell(mean, scores, planned, 0, state if math.isfinite(mean) else "not reached")
