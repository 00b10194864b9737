"""How much of the base policy training keeps (DPH-RL, arXiv:2509.07430): solved prompts, and the styles of answers."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from analysis.frames.frames import Frames, RunRow
from analysis.frames.samples import STYLES
from analysis.scores.arm import Arm, arms
from analysis.scores.cell import Cell, gravest, last_points, why_absent
from analysis.scores.comparable import Comparable, by_setting
from analysis.scores.contrast import Scores
from analysis.scores.measured import Whole, avg_values, pass_values
from analysis.scores.metric import Kind, Metric

Array = NDArray[np.float64]

BASE = "base policy"
PENALTY = "trainer.kl"  # the coefficient of the reverse KL that any loss can have
SURVIVES = 0.05  # of correct responses, a quarter of an equal share of five
NAMES = {  # from no penalty over reverse to forward KL
    "dph_none": "none",
    "dph_reverse_kl": "reverse KL",
    "dph_reverse_kl_pef": "reverse KL, D_pef",
    "grpo": "reverse KL (grpo)",
    "dph_alpha": "α",
    "dph_js": "JS",
    "dph_js_definition": "JS, definition",
    "dph_forward_kl": "forward KL",
}
KEEP, EXPLORE, SURVIVING, EFFECTIVE = "keep rate", "exploration rate", "styles surviving", "styles, effective"


@dataclass(frozen=True)
class Retention:
    """One arm at the last evaluation of its finished runs, or the base policy. cells: by column; shares: mean share of
    each style; setting: of which it is, "" if there is only one."""

    label: str
    coef: float
    cells: dict[str, Cell]
    shares: dict[str, float] = field(default_factory=dict[str, float])
    setting: str = ""

    @property
    def strong(self) -> bool:
        """Whether the penalty is of the size of the objective; the paper's coefficients are 0.01 and, for JS, 0.2."""
        return self.coef >= 1


@dataclass(frozen=True)
class _Evaluation:
    seed: int
    problems: tuple[tuple[str, str], ...]
    values: dict[str, Array]
    numbers: dict[str, float]
    shares: dict[str, float]


def retentions(frames: Frames) -> list[Retention]:
    """By setting the base policy, then the arms of DPH-RL's losses and, for comparison, of GRPO with a KL penalty, by
    coefficient and divergence; [] without an arm of DPH-RL's losses."""
    compared = [a for a in arms(frames) if (a.loss.startswith("dph_") or _penalised(a)) and not a.control]
    settings = [] if frames.judgements.empty else by_setting(frames, compared)
    return [r for s in settings if not all(map(_penalised, s.arms)) for r in _of_setting(frames, s)]


def _of_setting(frames: Frames, setting: Comparable) -> list[Retention]:
    sources, metrics = setting.sources, setting.shown
    by_arm = {arm: _of_arm(frames, arm, sources, metrics) for arm in setting.arms}
    num_alike = Counter((retention.label, retention.coef) for retention in by_arm.values())
    of_arms: list[Retention] = []
    for arm, retention in sorted(by_arm.items(), key=lambda item: _order(item[1])):
        details = (arm.variant,) if num_alike[retention.label, retention.coef] > 1 else ()
        label = ", ".join(filter(None, (retention.label, *details)))
        of_arms.append(replace(retention, label=label, setting=setting.name))
    runs = [run for arm in setting.arms for run in arm.runs]
    first = {run.seed: run for run in reversed(runs) if _judged(frames, run, 0, sources)}
    base = [_evaluation(frames, run, 0, sources, metrics) for _, run in sorted(first.items())]
    cells = _cells(base, len({run.seed for run in runs}))
    cells = {name: cell for name, cell in cells.items() if name not in (KEEP, EXPLORE)}
    return [*([Retention(BASE, math.nan, cells, _mean_shares(base), setting.name)] if base else []), *of_arms]


def _penalised(arm: Arm) -> bool:
    return arm.loss == "grpo" and bool(arm.first.knob(PENALTY))


def _order(retention: Retention) -> tuple[bool, int, float, str, float]:
    """Sort key: weak coefficients first, then in the order of NAMES."""
    name, _, number = retention.label.partition(" = ")
    rank = next((i for i, known in enumerate(NAMES.values()) if known == name), len(NAMES))
    coef = 0.0 if math.isnan(retention.coef) else retention.coef
    return (retention.strong, rank, float(number or 0), retention.label, coef)


def _of_arm(frames: Frames, arm: Arm, sources: Sequence[str], metrics: Sequence[Metric]) -> Retention:
    alpha, coef = arm.first.knob("loss.alpha"), arm.first.knob(PENALTY if _penalised(arm) else "loss.coef")
    label = f"α = {float(alpha):g}" if arm.loss == "dph_alpha" and alpha is not None else NAMES.get(arm.loss, arm.loss)
    points = last_points(frames, arm)
    ends = {run: points[run.run_id].after for run in arm.runs if run.run_id in points}
    done = {run: step for run, step in ends.items() if _judged(frames, run, step, sources)}
    runs = [_evaluation(frames, run, step, sources, metrics) for run, step in done.items()]
    cells = _cells(runs, len(arm.runs))
    names = [*map(str, metrics), KEEP, EXPLORE]
    state = gravest(why_absent(arm, [run.run_id for run in done]))
    empty = {name: Cell(planned=len(arm.runs), state=state) for name in names}
    return Retention(label, math.nan if coef is None else float(coef), cells or empty, _mean_shares(runs))


def _judged(frames: Frames, run: RunRow, step: int, sources: Sequence[str]) -> bool:
    return any(frames.problem_counts(run.run_id, step, source) for source in sources)


def _mean_shares(runs: Sequence[_Evaluation]) -> dict[str, float]:
    shares = Counter[str]()
    for run in runs:
        shares.update({style: share / len(runs) for style, share in run.shares.items()})
    return dict(shares)


def _cells(runs: Sequence[_Evaluation], planned: int) -> dict[str, Cell]:
    if not runs:
        return {}
    seeds = tuple(run.seed for run in runs)
    problems = runs[0].problems
    benchmark = np.zeros(len(problems), dtype=np.int64)  # a share of all prompts, as the paper counts
    columns = {
        name: Scores(seeds, problems, np.stack([run.values[name] for run in runs]), benchmark)
        for name in runs[0].values
    }
    columns |= {name: Scores.of_runs(seeds, [run.numbers[name] for run in runs]) for name in runs[0].numbers}
    return {name: Cell.of(scores, planned) for name, scores in columns.items()}


def _evaluation(
    frames: Frames, run: RunRow, step: int, sources: Sequence[str], metrics: Sequence[Metric]
) -> _Evaluation:
    now = [judged for source in sources if (judged := frames.problem_counts(run.run_id, step, source)) is not None]
    n, c = np.concatenate([judged.n for judged in now]), np.concatenate([judged.c for judged in now])
    problems = tuple(p for judged in now for p in judged.problems)
    values = {str(m): avg_values(n, c) if m.kind == Kind.AVG else pass_values(n, c, m.k, m.least) for m in metrics}
    values |= rates(_correct_at_first(frames, run, sources, problems), n, c)
    if run.task != STYLES:
        return _Evaluation(run.seed, problems, values, {}, {})
    shares = styles(frames, run.run_id, step, sources)
    numbers = {
        SURVIVING: float(sum(s >= SURVIVES for s in shares.values())) if shares else math.nan,
        EFFECTIVE: math.exp(-sum(s * math.log(s) for s in shares.values())) if shares else math.nan,
    }
    return _Evaluation(run.seed, problems, values, numbers, shares)


def rates(before: Array, n: Whole, c: Whole) -> dict[str, Array]:
    """By DPH-RL's rates, whether problems [P] are solved: those that the base policy solves, and the others; else NaN.

    before: by problem, the number of correct samples of the base policy, NaN where it is not known. n, c: samples that
    were judged now, and correct ones; without any it is not known whether a problem is solved."""
    solved = np.where(n > 0, c > 0, np.nan)
    return {KEEP: np.where(before > 0, solved, np.nan), EXPLORE: np.where(before == 0, solved, np.nan)}


def _correct_at_first(
    frames: Frames, run: RunRow, sources: Sequence[str], problems: Sequence[tuple[str, str]]
) -> Array:
    """By problem, the number of correct samples of the base policy; NaN if none of its samples was judged."""
    first = [judged for source in sources if (judged := frames.problem_counts(run.run_id, 0, source)) is not None]
    rows = [row for judged in first for row in zip(judged.problems, judged.n.tolist(), judged.c.tolist(), strict=True)]
    correct = {problem: right for problem, judged, right in rows if judged}
    return np.array([correct.get(p, math.nan) for p in problems], float)


def styles(frames: Frames, run_id: str, step: int, sources: Sequence[str]) -> dict[str, float]:
    """Share of each style, the first word, among the correct responses of an evaluation; {} if none is available."""
    counts = Counter[str]()
    for source in sources:
        counts.update(frames.text_summary(STYLES, run_id, step, source))
    return {style: count / counts.total() for style, count in sorted(counts.items())}
