"""What training keeps of the base policy (DPH-RL, arXiv:2509.07430): solved prompts, and the styles of answers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from analysis.frames.frame import Frame
from analysis.frames.load import Frames
from analysis.scores.arms import Arm, arms
from analysis.scores.cells import REASONS, Cell
from analysis.scores.stats import Array, avg_values, bootstrap, mean, pass_values
from rlvr.ledger import layout
from rlvr.ledger.cause import State

TASK = "styles"  # the task whose responses name their style in the first word
SURVIVES = 0.05  # of correct responses, a quarter of an equal share of five
NAMES = {  # from no pull over reverse to forward KL
    "dph_none": "none",
    "dph_reverse_kl": "reverse KL",
    "dph_reverse_kl_pef": "reverse KL, D_pef",
    "dph_alpha": "α",
    "dph_js": "JS",
    "dph_js_definition": "JS, definition",
    "dph_forward_kl": "forward KL",
}
KEEP, EXPLORE, SURVIVING, EFFECTIVE = "keep rate", "exploration rate", "styles surviving", "styles, effective"


@dataclass(frozen=True)
class Kept:
    """One arm at the last evaluation of its finished runs. `cells` by column; shares: mean share of each style."""

    label: str
    coef: float
    cells: dict[str, Cell]
    shares: dict[str, float] = field(default_factory=dict[str, float])


def kept(frames: Frames) -> list[Kept]:
    """The base policy, then the arms of DPH-RL's losses by coefficient and divergence; [] without such an arm."""
    found = [a for a in arms(frames.runs) if a.loss.startswith("dph_")]
    if not found or frames.counts.empty:
        return []
    runs = frames.runs.set_index("run_id")
    columns = _columns(frames)
    made = [_arm(frames, runs, arm, columns) for arm in found]
    made.sort(key=lambda k: (_order(k), k.label, 0.0 if math.isnan(k.coef) else k.coef))
    first = next((i for a in found for i in a.run_ids if _problems(frames, i, 0) is not None), None)
    if first is None:
        return made
    values, shares = _values(frames, runs, first, 0, columns)
    cells = {name: _cell([v], 1, "ok") for name, v in values.items() if name not in (KEEP, EXPLORE)}
    return [Kept("base policy", math.nan, cells, shares), *made]


def _order(found: Kept) -> tuple[bool, int, float]:
    """The weak coefficients first, then from no pull over reverse to forward KL."""
    name, _, number = found.label.partition(" = ")
    rank = next((i for i, known in enumerate(NAMES.values()) if known == name), len(NAMES))
    return (strong(found), rank, float(number or 0))


def strong(found: Kept) -> bool:
    """Whether the pull is of the size of the objective; the paper's coefficients are 0.01 and, for JS, 0.2."""
    return found.coef >= 1


def _columns(frames: Frames) -> tuple[int, int]:
    """(n of avg@n, k of pass@k): the samples per problem, and the largest k that was logged."""
    names = frames.evaluations["name"].unique()
    sizes = {kind: [int(n.rpartition("_")[2]) for n in names if f"/{kind}_at_" in n] for kind in ("avg", "pass")}
    return max(sizes["avg"], default=1), max(sizes["pass"], default=1)


def _arm(frames: Frames, runs: Frame, arm: Arm, columns: tuple[int, int]) -> Kept:
    first = runs.loc[arm.run_ids[0]]
    alpha, coef = (first.get(f"config.loss.{knob}") for knob in ("alpha", "coef"))
    label = f"α = {float(alpha):g}" if arm.loss == "dph_alpha" and alpha is not None else NAMES.get(arm.loss, arm.loss)
    done = [i for i in arm.run_ids if runs.loc[i, "state"] == State.FINISHED and _last(frames, i)]
    states = [runs.loc[i, "state"] for i in arm.run_ids if i not in done]
    reason = next((r for r in REASONS if r in states), "not evaluated")
    state = reason if not done else "partial" if states else "ok"
    seeds = [_values(frames, runs, i, _last(frames, i), columns) for i in done]
    names = list(seeds[0][0]) if seeds else [f"avg@{columns[0]}", f"pass@{columns[1]}", KEEP, EXPLORE]
    cells = {name: _cell([v[name] for v, _ in seeds], len(arm.run_ids), state) for name in names}
    shares = Counter[str]()
    for _, own in seeds:
        shares.update({style: share / len(seeds) for style, share in own.items()})
    return Kept(label, math.nan if coef is None else float(coef), cells, dict(shares))


def _cell(values: Sequence[Array], planned: int, state: str) -> Cell:
    if not values or not np.isfinite(np.stack(values)).any():
        return Cell(planned=planned, state=state if not values else "not evaluated")
    stacked = np.stack(values)
    S, P = stacked.shape
    return Cell(mean(stacked), bootstrap(stacked) if max(S, P) > 1 else None, P if P > 1 else 0, S, planned, 0, state)


def _last(frames: Frames, run_id: str) -> int:
    steps = frames.counts.loc[frames.counts["run_id"] == run_id, "step"]
    return int(steps.max()) if len(steps) else 0


def _problems(frames: Frames, run_id: str, step: int) -> Frame | None:
    """n and correct by (benchmark, problem)."""
    c = frames.counts
    part = c[(c["run_id"] == run_id) & (c["step"] == step)]
    return None if part.empty else part.set_index(["source", "problem_id"])[["n", "correct"]].sort_index()


def _values(
    frames: Frames, runs: Frame, run_id: str, step: int, columns: tuple[int, int]
) -> tuple[dict[str, Array], dict[str, float]]:
    """Values per problem [P] (NaN: not counted) or of the run [1], and the share of each style."""
    now, base = _problems(frames, run_id, step), _problems(frames, run_id, 0)
    assert now is not None
    n, c = (now[name].to_numpy() for name in ("n", "correct"))
    values = {f"avg@{columns[0]}": avg_values(n, c), f"pass@{columns[1]}": pass_values(n, c, columns[1])}
    solved = (c > 0).astype(float)
    # keep_rate and exploration_rate of rlvr/metrics.py, kept apart by problem so that problems can be resampled.
    before = np.full(len(c), np.nan) if base is None else base["correct"].reindex(now.index).to_numpy(float)
    values[KEEP] = np.where(before > 0, solved, np.nan)
    values[EXPLORE] = np.where(before == 0, solved, np.nan)
    if runs.loc[run_id].get("config.choices.task") != TASK:
        return values, {}
    shares = styles(frames, run_id, step)
    values[SURVIVING] = np.array([sum(s >= SURVIVES for s in shares.values())], float)
    values[EFFECTIVE] = np.array([math.exp(-sum(s * math.log(s) for s in shares.values()))])
    return values, shares


def styles(frames: Frames, run_id: str, step: int) -> dict[str, float]:
    """Share of each style, the first word, among the correct responses of an evaluation; {} if none is at hand."""
    file = layout.evaluation(layout.run(frames.home or Path(), run_id), step)
    if not file.exists():
        return {}
    table = pq.read_table(file, columns=["response", "outcome"]).to_pylist()
    found = Counter(row["response"].partition(" ")[0] for row in table if row["outcome"] == "correct")
    return {style: count / found.total() for style, count in sorted(found.items())}
