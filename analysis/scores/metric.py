"""The metric of a table's column: its name, the source of its values, its unit, and whether more is better."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction
from typing import TYPE_CHECKING

from rlvr.metrics import EVALUATION, OF_SAMPLES, VALIDATION

if TYPE_CHECKING:
    from analysis.frames.frames import Frames
    from analysis.scores.crossed import Interval

TIMES = ("hours", "time/", "throughput/")  # what names of times and of rates begin with
RESIDUE = 1e-9  # as a printed difference: smaller ones are rounding
AVERAGE = "Average"  # stands for the mean of the benchmarks where a benchmark's name is expected


class Kind(StrEnum):
    AVG = "avg"  # c/n per problem
    PASS = "pass"  # unbiased pass@k per problem, or that more than one of k samples is right, or its area over k
    TEXT = "text"  # of the responses to a problem
    EVALUATION = "evaluation"  # a number per run, logged by an evaluation
    TRAINING = "training"  # a number per run, logged at every step
    REACH = "reach"  # a number per run: when its avg@n first reached a level
    HOURS = "hours"  # a number per run: time spent up to an evaluation
    POLICY = "policy"  # a number per run: a property of a bandit's last policy


@dataclass(frozen=True)
class Metric:
    """key: the name under which runs log the metric; for AVG and PASS the part after `evaluation/<benchmark>/`, empty
    if they do not. least: of PASS, how many of k samples must be right; 0: the area over k. level: of REACH."""

    kind: Kind
    name: str
    key: str = ""
    k: int = 0
    least: int = 1
    unit: str = ""
    better: int = 0  # 1: more is better, −1: less, 0: neither
    level: float = math.nan

    def __str__(self) -> str:
        return self.name

    @property
    def scale(self) -> float:
        """The factor from values to printed numbers: shares are printed in per cent, their differences in points."""
        return 100.0 if self.unit == "%" else 1.0

    @property
    def possible(self) -> tuple[float, float]:
        """The range of its values: shares lie between 0 and 1."""
        return (0.0, 1.0) if self.unit == "%" else (-math.inf, math.inf)

    @property
    def of_differences(self) -> str:
        """The unit of differences."""
        return "points" if self.unit == "%" else self.unit

    def difference(self, effect: float, interval: Interval) -> str:
        """A difference as it is printed: `+1.2 [−0.3, 2.7] points`, or `+1.2 points without a spread` without an
        interval. What only rounding has left of equal scores is +0.
        """
        most = self.possible[1] - self.possible[0]
        possible = interval.within(most)
        size, low, high = (self.scale * value for value in (effect, possible.low, possible.high))
        number = f"{0.0 if abs(size) < RESIDUE else size:+.3g}"
        parts = [number, self.of_differences, "without a spread"]
        if not math.isnan(low):
            parts = [number, f"[{low:.3g}, {high:.3g}]", self.of_differences]
        return " ".join(filter(None, parts)).replace("-", "−")

    @property
    def is_of_time(self) -> bool:
        """Whether the values are times of a clock, or rates by it."""
        return self.kind == Kind.HOURS or self.key.startswith(TIMES)

    @property
    def per_problem(self) -> bool:
        return self.kind in (Kind.AVG, Kind.PASS, Kind.TEXT)


def avg(n: int) -> Metric:
    return Metric(Kind.AVG, f"avg@{n}", f"avg_at_{n}", n, unit="%", better=1)


def pass_at(k: int) -> Metric:
    return Metric(Kind.PASS, f"pass@{k}", f"pass_at_{k}", k, unit="%", better=1)


def computed(name: str, judged: Iterable[Metric]) -> Metric | None:
    """The metrics that are computed and not logged; None for other names. judged: those that evaluations report.

    `pass@K`; `pass^K`: all of K samples are right (Yao et al. 2024, arXiv:2406.12045); `g-pass@K_τ`: at least τK of
    them are (Liu et al. 2024, arXiv:2412.13147, Eq. 2), 0 < τ ≤ 1; `pass-area@K`, K a power of two: the mean of pass@k
    over log k from 1 to K; `steps-to-X`, `tokens-to-X`: of training, until avg@n, the widest, first reaches X per cent.
    """
    kind, _, rest = name.partition("@" if "@" in name else "^" if "^" in name else "-to-")
    number, _, share = rest.partition("_")
    if kind in ("steps", "tokens") and re.fullmatch(r"\d+(\.\d+)?", rest) and 0 < float(rest) <= 100:
        of = [m for m in widest(judged) if m.kind == Kind.AVG]
        return Metric(Kind.REACH, name, k=of[0].k, unit=kind, better=-1, level=float(rest) / 100) if of else None
    if not re.fullmatch(r"[1-9]\d*", number):
        return None
    k = int(number)
    if name == f"pass@{k}":
        return pass_at(k)
    of_samples = Metric(Kind.PASS, name, k=k, unit="%", better=1)
    if name == f"pass^{k}":
        return replace(of_samples, least=k)
    if name == f"pass-area@{k}" and k > 1 and k.bit_count() == 1:
        return replace(of_samples, least=0)
    is_share = kind == "g-pass" and re.fullmatch(r"0?\.\d+|1(?:\.0+)?", share) and float(share)
    return replace(of_samples, least=math.ceil(k * Fraction(share))) if is_share else None


ENTROPY = Metric(Kind.TRAINING, "entropy", "policy/entropy", unit="nats")
LENGTH = Metric(Kind.TRAINING, "length", "response/length", unit="tokens")
HOURS = Metric(Kind.HOURS, "hours", unit="hours", better=-1)
RIGHT_ANSWERS = Metric(Kind.TEXT, "right answers", unit="per problem", better=1)

# Of a bandit's policy, compared to the target at the run's own η (density.py).
TOTAL_VARIATION = Metric(Kind.POLICY, "total variation", better=-1)
MODES_COVERED = Metric(Kind.POLICY, "modes covered", better=1)


def distinct(n: int) -> Metric:
    """distinct-n of the words of a problem's responses (Li et al. 2016)."""
    return Metric(Kind.TEXT, f"distinct-{n}", k=n, unit="%", better=1)


DIVERSITY = (distinct(3), distinct(4))  # as in LAD, table 4


def benchmarks(frames: Frames, run_ids: Iterable[str]) -> tuple[tuple[str, ...], list[Metric]]:
    """(benchmarks, metrics) that evaluations of these runs report: every avg@n, then every pass@k, by k."""
    return _judged_metrics(evaluation_names(frames, run_ids))


def _judged_metrics(evaluations: Iterable[str]) -> tuple[tuple[str, ...], list[Metric]]:
    """(benchmarks, metrics) as in `benchmarks`, from the names that evaluations logged."""
    matches = [re.fullmatch(r"evaluation/(.+)/(avg|pass)_at_(\d+)", name) for name in evaluations]
    parts = [(m[1], m[2], int(m[3])) for m in matches if m]
    metrics = {avg(k) if kind == "avg" else pass_at(k) for _, kind, k in parts}
    return tuple(sorted({source for source, _, _ in parts})), sorted(metrics, key=lambda m: (m.kind, m.k))


def widest(metrics: Iterable[Metric]) -> list[Metric]:
    """The avg@n and the pass@k with the largest n and k, which papers print."""
    by_kind = {m.kind: m for m in sorted(metrics, key=lambda m: m.k)}
    return [by_kind[kind] for kind in (Kind.AVG, Kind.PASS) if kind in by_kind]


def default_metrics(frames: Frames, run_ids: Iterable[str]) -> list[Metric]:
    """The columns that a table has by default: of the usual metrics those that some run measured."""
    ids = list(run_ids)
    _, judged = benchmarks(frames, ids)
    is_elsewhere = re.compile(rf"/((avg|pass|maj|coverage)_at_\d+|{'|'.join(OF_SAMPLES)})$")
    others = [_evaluation(key) for key in evaluation_names(frames, ids) if not is_elsewhere.search(key)]
    logged = training_names(frames, ids)
    hours = [HOURS] if "time/step_s" in logged else []
    bandit = [] if frames.policy.empty else [TOTAL_VARIATION, MODES_COVERED]
    return [*widest(judged), *others, *bandit, *(m for m in (ENTROPY, LENGTH) if m.key in logged), *hours]


def evaluation_names(frames: Frames, run_ids: Iterable[str]) -> list[str]:
    """The names of metrics that evaluations of these runs logged."""
    return sorted(n for n in _names(frames, run_ids) if n.startswith(EVALUATION))


def possible(name: str) -> tuple[float, float]:
    """The least and the largest value of a logged metric, as far as its name tells."""
    return (0.0, 1.0) if name.endswith(("accuracy", "fraction")) else (-math.inf, math.inf)


def training_names(frames: Frames, run_ids: Iterable[str]) -> list[str]:
    """The names of metrics that the training of these runs logged."""
    return sorted(n for n in _names(frames, run_ids) if not n.startswith((EVALUATION, VALIDATION)))


def _names(frames: Frames, run_ids: Iterable[str]) -> set[str]:
    return set[str]().union(*map(frames.digest.names, run_ids))


def _evaluation(key: str) -> Metric:
    of_rewards = key.endswith(("/expected_reward", "/mean_reward"))
    return Metric(Kind.EVALUATION, key.removeprefix(EVALUATION), key, better=1 if of_rewards else 0)


def parse(names: str, frames: Frames, run_ids: Iterable[str]) -> list[Metric]:
    """The metrics of `avg,pass@4,entropy,policy/kl_base`; of "" the usual ones. Raises LookupError for a metric that no
    run measured, with the names of those that were measured. A metric that is named twice (`avg,avg@8`) is one."""
    if not names:
        return default_metrics(frames, run_ids)
    metrics = [_named(name.strip(), frames, list(run_ids)) for name in names.split(",") if name.strip()]
    return list(dict.fromkeys(metrics))


def _named(name: str, frames: Frames, run_ids: list[str]) -> Metric:
    _, judged = benchmarks(frames, run_ids)
    steps, evaluations = training_names(frames, run_ids), evaluation_names(frames, run_ids)
    # Of a task whose problems have one answer, as of one that does not say which are the same, texts count spellings.
    several = [RIGHT_ANSWERS] if any("/distinct_correct_at_" in name for name in evaluations) else []
    known = {str(m): m for m in (*judged, ENTROPY, LENGTH, HOURS, *several, TOTAL_VARIATION, MODES_COVERED)}
    known |= {str(m.kind): m for m in widest(judged)} | {str(m): m for m in map(_evaluation, evaluations)}
    if name in known:
        return known[name]
    if match := re.fullmatch(r"distinct-(0*[1-9]\d*)", name):
        return distinct(int(match[1]))
    metric = computed(name, judged)
    if metric and 1 <= metric.k <= frames.judgements.most_samples:  # not logged, but computed from samples
        return metric
    if name in evaluations:
        return _evaluation(name)
    if name in steps:
        return Metric(Kind.TRAINING, name, name)
    kinds, of_texts = [str(m.kind) for m in widest(judged)], [*several, distinct(3)] if judged else []
    measured = [*kinds, *map(str, [*judged, *default_metrics(frames, run_ids), *of_texts]), *steps, *evaluations]
    raise _not_measured(name, measured)


def without_value(metric: Metric) -> LookupError:
    """The error for a metric of which no run has a value at its last evaluation."""
    needed = ""
    if metric.kind == Kind.TEXT:
        needed = f" It is measured on stored responses{f' of {metric.k} words or more' if metric.k else ''}."
    if metric.kind == Kind.POLICY:
        needed = " It is measured on the policies of a bandit whose loss has an η."
    return LookupError(f"--metrics {metric}: no run has a value of it at its last evaluation.{needed}")


def _not_measured(name: str, names: list[str]) -> LookupError:
    near = difflib.get_close_matches(name, dict.fromkeys(names), n=3)
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    return LookupError(f"--metrics {name}: no run measured it.{hint} Measured: {', '.join(dict.fromkeys(names))}.")


def check_ahead(name: str, evaluations: Sequence[str], samples: int) -> int:
    """Whether more of a metric ("": the usual one) is better: 1; less: −1; neither: 0. Raises LookupError for one that
    a run which has not begun will not measure. Names of training metrics, such as policy/kl_base, are not checked: only
    the first step shows which there are.

    evaluations: names that the run's evaluations log; samples: per problem.
    """
    if "/" in name and not name.startswith((EVALUATION, VALIDATION)):
        return 0
    _, judged = _judged_metrics(evaluations)
    of_task = [RIGHT_ANSWERS, *map(distinct, range(1, 10))] if judged else [TOTAL_VARIATION, MODES_COVERED]
    if not name:
        return next((m.better for m in (*widest(judged), *map(_evaluation, sorted(evaluations)))), 0)
    known = {str(m.kind): m for m in widest(judged)} | {str(m): m for m in (*judged, *of_task, ENTROPY, LENGTH, HOURS)}
    known |= {key: _evaluation(key) for key in evaluations}
    metric = known.get(name) or computed(name, judged)
    if name not in known and not (judged and metric and metric.k <= samples):
        raise _not_measured(name, list(known))
    return metric.better if metric else 0
