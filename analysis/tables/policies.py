"""Evaluations of policies (`python -m rlvr.evaluate`): accuracy, pass@k, majority, what is kept of the base policy."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from analysis.frames.counts import ProblemCounts
from analysis.frames.frames import Frames, RunRow
from analysis.report.cells import cells_frame, row_records
from analysis.report.table import Format, Table, interval_notes, seeds_of
from analysis.scores.arm import Arm, settings
from analysis.scores.cell import Cell, cell, last_points
from analysis.scores.contrast import Scores, first_enough
from analysis.scores.metric import Kind, Metric, benchmarks, pass_at
from analysis.scores.policy_evaluations import BASE, evaluations, label, policy_of
from analysis.scores.retention import EXPLORE, KEEP, rates
from analysis.scores.selection import as_arm, ordered, reference_of
from analysis.tables.comparison import ComparisonOptions
from rlvr.metrics import pass_at_k

QUESTION = "What does each policy solve, and with how many samples?"
NEEDS = "policies that `python -m rlvr.evaluate` sampled"
MOST_SIZES = 6  # columns of pass@k
DISTINCT = "different right"
NOT_REACHED = "not reached"  # instead of a number
REACH, REACH_REFERENCE = "samples to reach the base", "samples to reach the reference"


def table(frames: Frames, ask: ComparisonOptions | None = None) -> Table | None:
    """None without NEEDS. ask: the options of the comparison, of which `against` applies here too."""
    evaluated = evaluations(frames)
    if not evaluated:
        return None
    against = as_arm(ask.against) if ask else ""
    records = []
    references: dict[str, None] = {}
    unjudged: dict[str, tuple[int, int]] = {}
    for setting, of_setting in settings(evaluated).items():
        setting_arms = ordered(of_setting, frames.swept)
        sources, metrics = benchmarks(frames, [i for arm in setting_arms for i in arm.run_ids])
        bases = [arm for arm in setting_arms if policy_of(arm.first) == BASE]
        base = bases[0] if len(bases) == 1 else None
        reference = reference_of(setting_arms, against, frames.baseline)
        references |= {label(arm): None for arm in reference.values() if arm is not base}
        for source in sources:
            title = ", ".join(part for part in (setting, source) if part)
            unjudged[title] = _unjudged(frames, setting_arms, source)
            for arm in setting_arms:
                cells = _cells(frames, arm, base, reference.get(arm.group_id), source, metrics)
                records += row_records(title, label(arm), cells)
    cells = cells_frame(records)
    notes = (
        "pass@k is the unbiased estimate; at all samples of a problem it is coverage, the share of problems that some "
        "sample solves. maj@n: the most frequent answer is right, ties broken at random.",
        "Keep rate: of the problems that the base policy solves in some of its samples, the share still solved; "
        "exploration rate: of those it does not, the share solved now; both at equal numbers of samples. Samples to "
        "reach the base: the fewest k at which pass@k reaches the coverage of all samples of the base policy.",
        *_note_on_references(references),
        *(
            f"{title}: these rates leave out {num_left_out} of {num_problems} problems, of which some policy has no "
            "judged sample."
            for title, (num_left_out, num_problems) in unjudged.items()
            if num_left_out
        ),
        "Differences and what decides them: the table Comparison.",
        *interval_notes(seeds_of(cells)),
    )
    formats = {name: Format(1.0, 0, "", -1) for name in (REACH, REACH_REFERENCE)} | {DISTINCT: Format(1.0, 2, "")}
    return Table("policies", "Policies", QUESTION, cells, ("",), notes, formats=formats)


def _note_on_references(references: Iterable[str]) -> Iterable[str]:
    policies = ", ".join(references)
    if policies:
        yield (
            f"Samples to reach the reference: the same for {policies}. The reference's number of samples over it is "
            "the speed-up of sampling until a verifier finds a right answer (MaxRL, arXiv:2602.02710, Figure 5)."
        )


def sizes(metrics: Iterable[Metric]) -> list[int]:
    """The k of every pass@k, ascending."""
    return sorted({metric.k for metric in metrics if metric.kind == Kind.PASS})


def _cells(
    frames: Frames, arm: Arm, base: Arm | None, reference: Arm | None, source: str, metrics: Sequence[Metric]
) -> dict[str, Cell]:
    shown = [size for size in sizes(metrics) if size > 1]
    shown = sorted({shown[round(i)] for i in np.linspace(0, len(shown) - 1, MOST_SIZES)}) if shown else []
    wanted = [*(m for m in metrics if m.kind == Kind.AVG), *map(pass_at, shown)]
    cells = {str(metric): cell(frames, arm, metric, (source,)) for metric in wanted}
    n = max((m.k for m in metrics if m.kind == Kind.AVG), default=0)
    for name, key in ((f"maj@{n}", f"maj_at_{n}"), (DISTINCT, f"distinct_correct_at_{n}")):
        logged = f"evaluation/{source}/{key}"
        if any(logged in frames.digest.names(run_id) for run_id in arm.run_ids):
            cells[name] = _logged(frames, arm, logged)
    return cells | _against(frames, arm, base, reference, source)


def _against(frames: Frames, arm: Arm, base: Arm | None, reference: Arm | None, source: str) -> dict[str, Cell]:
    """What an arm keeps of the base policy, and the samples it needs to reach the base policy and the reference."""
    with_base = _pairs(frames, arm, base, source) if base else []
    with_reference = _pairs(frames, arm, reference, source) if reference and reference is not base else []
    planned = len(arm.runs)
    cells = _kept(with_base, planned) if with_base else {}
    reached = ((REACH, with_base), (REACH_REFERENCE, with_reference))
    return cells | {name: _reached(pairs, planned) for name, pairs in reached if pairs}


@dataclass(frozen=True)
class Pair:
    """Counts of a run (`now`) and of a run of another arm (`first`): of the same seed, or of any if that is missing."""

    seed: int
    first: ProblemCounts
    now: ProblemCounts


def _pairs(frames: Frames, arm: Arm, other: Arm, source: str) -> list[Pair]:
    """A pair per evaluated run of `arm`. [] if `arm` is `other`, and where the two have different problems."""
    before = {run.seed: judged for run, judged in _judged(frames, other, source)}
    if not before or arm is other:
        return []
    any_seed = next(iter(before.values()))
    pairs = [Pair(run.seed, before.get(run.seed, any_seed), now) for run, now in _judged(frames, arm, source)]
    return pairs if all(pair.first.problems == pair.now.problems for pair in pairs) else []


def _kept(pairs: Sequence[Pair], planned: int) -> dict[str, Cell]:
    """The keep and exploration rates, in which `first` stands for the base policy."""
    seeds, problems = tuple(pair.seed for pair in pairs), pairs[0].now.problems
    benchmark = np.zeros(len(problems), dtype=np.int64)
    of_pairs = [rates(np.where(p.first.n > 0, p.first.c, np.nan), p.now.n, p.now.c) for p in pairs]
    values = {name: np.stack([of_pair[name] for of_pair in of_pairs]) for name in (KEEP, EXPLORE)}
    scores = {name: Scores(seeds, problems, of_rate, benchmark) for name, of_rate in values.items()}
    return {name: Cell.of(of_rate, planned, NOT_REACHED) for name, of_rate in scores.items()}


def _unjudged(frames: Frames, arms: Iterable[Arm], source: str) -> tuple[int, int]:
    counted = [judged for arm in arms for _, judged in _judged(frames, arm, source)]
    unjudged = {p for judged in counted for p, n in zip(judged.problems, judged.n, strict=True) if n == 0}
    return len(unjudged), len({p for judged in counted for p in judged.problems})


def _reached(pairs: Sequence[Pair], planned: int) -> Cell:
    """The number of samples with which an arm covers the share of problems that all samples of the other arm cover."""
    values = []
    for pair in pairs:
        known = (pair.first.n > 0) & (pair.now.n > 0)  # [P] both have judged samples of a problem
        now = replace(pair.now, n=pair.now.n[known], c=pair.now.c[known])
        target = float((pair.first.c[known] > 0).mean()) if known.any() else math.nan
        values.append(_samples_to_reach(now, target))
    reached = sum(map(math.isfinite, values))
    if 0 < reached < len(values):  # a mean over those that reached it would leave out the others
        return Cell(planned=planned, state=f"reached by {reached} of {len(values)}")
    return Cell.of(Scores.of_runs([pair.seed for pair in pairs], values), planned, NOT_REACHED)


def _samples_to_reach(judged: ProblemCounts, target: float) -> float:
    """The fewest k with pass@k of at least `target`; NaN if all samples cover less."""

    def covers(k: int) -> bool:
        return float(pass_at_k(judged.n, judged.c, k).mean()) >= target - 1e-12

    most = int(judged.n.min()) if judged.n.size else 0
    fewest = first_enough(covers, 1, most) if most else None
    return math.nan if fewest is None else float(fewest)


def _judged(frames: Frames, arm: Arm, source: str) -> list[tuple[RunRow, ProblemCounts]]:
    """The counts of the last evaluation of each run that has them."""
    counted = {i: frames.problem_counts(i, point.after, source) for i, point in last_points(frames, arm).items()}
    return [(run, judged) for run in arm.runs if (judged := counted.get(run.run_id)) is not None]


def _logged(frames: Frames, arm: Arm, name: str) -> Cell:
    """A cell of one number per run, which its last evaluation logged under this name."""
    values = {
        frames.seeds[i]: frames.digest.logged(i, name, point.after) for i, point in last_points(frames, arm).items()
    }
    known = {seed: value for seed, value in values.items() if math.isfinite(value)}
    if not known:
        return Cell(planned=len(arm.runs), state="not evaluated")
    return Cell.of(Scores.of_runs(known, [*known.values()]), len(arm.runs), NOT_REACHED)
