"""The table of baselines: every objective of a study on one task, with the diversity of its responses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.frames.frame import Frame
from analysis.frames.load import Frames
from analysis.report.table import Table, published, with_notes
from analysis.scores.arms import Arm, arms, settings
from analysis.scores.cells import Cell, benchmarks, score, score_base
from analysis.scores.knob import BASE, row
from analysis.scores.setting import Setting
from analysis.scores.stats import bootstrap, mean
from rlvr.ledger.cause import State
from rlvr.metrics import distinct_n

QUESTION = "Which objective ends where: accuracy, pass@k, diversity of its responses, entropy?"
LEAST = 4  # families of objectives that make a comparison of baselines
GRAMS = (3, 4)  # distinct-3 and distinct-4, as in LAD, table 4
ENTROPY = "entropy, nats"
LAST = 0.1  # share of the training steps whose mean entropy counts


@dataclass(frozen=True)
class Compared:
    setting: Setting
    rows: dict[str, dict[str, Cell]]  # by name; the base policy first, then by accuracy


def table(frames: Frames) -> Table | None:
    """None unless four families of objectives ran in one setting."""
    found = compared(frames)
    if not found:
        return None
    records = [r for c in found for name, cells in c.rows.items() for r in row(_block(c.setting), name, cells)]
    notes = (
        "Runs count at their last evaluation; no checkpoint is selected. Rows by avg@n.",
        "distinct-n: different n-grams over all n-grams of the words of a problem's responses, mean over problems: it "
        "falls with the number of responses, and a policy that is always right says the same thing often.",
        f"Entropy: of the policy on its training responses, mean over the last {LAST:.0%} of the steps and over seeds.",
    )
    paper = published("maxrl_table_3.csv", label="MaxRL (arXiv:2602.02710), table 3, maze 17x17, as printed, %")
    made = Table(
        "baselines",
        "All objectives",
        QUESTION,
        pd.DataFrame(records),
        ("",),
        notes,
        (paper,),
        column_scale={ENTROPY: 1.0},
        column_decimals={ENTROPY: 3},
    )
    return with_notes(made, frames)


def _block(setting: Setting) -> str:
    return setting.titled(setting.overall)


def compared(frames: Frames) -> list[Compared]:
    """Settings in which at least LEAST families of objectives ran, each row with all of its columns."""
    if "baselines" not in frames.cache:
        everything = arms(frames.runs)
        frames.cache["baselines"] = [
            made for name in settings(everything) if (made := _setting(frames, name, everything)) is not None
        ]
    return frames.cache["baselines"]


def _setting(frames: Frames, name: str, everything: Sequence[Arm]) -> Compared | None:
    here = tuple(a for a in everything if a.setting == name)
    setting = Setting(name, here, *benchmarks(frames, [i for a in here for i in a.run_ids]))
    if len({a.loss.split("_")[0] for a in here}) < LEAST or not setting.metrics:
        return None
    state = frames.runs.set_index("run_id")["state"]
    rows = {}
    for arm in here:
        finished = [i for i in arm.run_ids if state[i] == State.FINISHED]
        scores = score(frames, arm, setting.sources, setting.shown)
        rows[_name(arm)] = {
            **{str(m): scores[m, setting.overall] for m in setting.shown},
            **_distinct(frames, finished, arm, last=True),
            ENTROPY: _entropy(frames, finished, arm),
        }
    base = score_base(frames, here, setting.sources, setting.shown)
    first = {str(m): base[m, setting.overall] for m in setting.shown}
    at_zero = frames.evaluations.query("step == 0")["run_id"].drop_duplicates().tolist()
    some = next((a for a in here if a.run_ids[0] in at_zero), here[0])
    first |= {**_distinct(frames, [some.run_ids[0]], some, last=False), ENTROPY: Cell(state="not evaluated")}
    judge = str(setting.shown[0])
    order = sorted(rows, key=lambda n: -rows[n][judge].mean if math.isfinite(rows[n][judge].mean) else math.inf)
    return Compared(setting, {BASE: first, **{name: rows[name] for name in order}})


def _name(arm: Arm) -> str:
    return f"{arm.method} ({arm.variant})" if arm.variant else arm.method


def _distinct(frames: Frames, run_ids: Sequence[str], arm: Arm, *, last: bool) -> dict[str, Cell]:
    """distinct-n per problem, [seeds, problems], of the last evaluation of finished runs, or of the first."""
    found = {}
    for n in GRAMS:
        parts = [p for i in run_ids if (p := _per_problem(frames, i, n, last=last)) is not None]
        values = pd.DataFrame(parts).to_numpy(float)
        planned = len(arm.run_ids) if last else 1
        if not parts or not np.isfinite(values).any():
            found[f"distinct-{n}"] = Cell(planned=planned, state="not evaluated")
            continue
        state = "ok" if len(parts) == planned else "partial"
        found[f"distinct-{n}"] = Cell(mean(values), bootstrap(values), values.shape[1], len(parts), planned, 0, state)
    return found


def _per_problem(frames: Frames, run_id: str, n: int, *, last: bool) -> Frame | None:
    """distinct-n by (source, problem) of one run."""
    own = frames.responses[frames.responses["run_id"] == run_id]
    own = own[own["step"] == (own["step"].max() if last else 0)]
    if own.empty or "response" not in own or (last and own["step"].iloc[0] == 0):
        return None
    parts = own.groupby(["source", "problem_id"], observed=True)["response"]
    return parts.apply(lambda texts: distinct_n([text.split() for text in texts], n))


def _entropy(frames: Frames, run_ids: Sequence[str], arm: Arm) -> Cell:
    own = frames.metrics[(frames.metrics["name"] == "policy/entropy") & frames.metrics["run_id"].isin(list(run_ids))]
    if own.empty:
        return Cell(planned=len(arm.run_ids), state="not evaluated")
    end = own.groupby("run_id")["step"].transform("max")
    values = own[own["step"] > end * (1 - LAST)].groupby("run_id")["value"].mean().to_numpy(float)[:, None]
    replicates = bootstrap(values) if len(values) > 1 else None
    state = "ok" if len(values) == len(arm.run_ids) else "partial"
    return Cell(mean(values), replicates, 0, len(values), len(arm.run_ids), 0, state)
