"""Policies that were only sampled, not trained (`python -m rlvr.evaluate`): their arms, names and diversity."""

import numpy as np
import pandas as pd

from analysis.frames.frames import Frames, RunRow
from analysis.scores.arm import Arm, arms
from analysis.scores.cell import Cell
from analysis.scores.contrast import Scores
from rlvr.ledger import layout

BASE = "base"  # the name of the policy from which the others started


def evaluations(frames: Frames) -> list[Arm]:
    """The arms that were only sampled, not trained."""
    return [arm for arm in arms(frames) if is_evaluation(arm.first)]


def is_evaluation(run: RunRow) -> bool:
    return bool(run.knob("policy.digest"))


def label(arm: Arm) -> str:
    """The name of an arm's policy, and the other knobs that were swept."""
    others = [f"{key}={value}" for key, value in arm.knobs.items() if key != "policy"]
    return " ".join([policy_of(arm.first), *others])


def policy_of(run: RunRow) -> str:
    """The policy that a run evaluates, as it was named at the launch."""
    return next((word.partition("=")[2] for word in run.typed if word.startswith("policy=")), run.name)


def diversity(frames: Frames, arm: Arm) -> dict[str, dict[str, Cell]]:
    """By benchmark and measure, the results of `python -m rlvr.diagnostics.diversity` on an evaluation's runs."""
    if frames.home is None:
        return {}
    files = {run.seed: layout.diversity(layout.run(frames.home, run.run_id)) for run in arm.runs}
    parts = [pd.read_parquet(file).assign(seed=seed) for seed, file in files.items() if file.exists()]
    if not parts:
        return {}
    cells: dict[str, dict[str, Cell]] = {}
    for (source, measure), rows in pd.concat(parts).groupby(["source", "measure"], sort=False):
        cells.setdefault(str(source), {})[str(measure)] = _cell(rows, len(arm.runs))
    return cells


def _cell(rows: pd.DataFrame, planned: int) -> Cell:
    values = rows.pivot_table(index="seed", columns="problem_id", values="value", dropna=False, sort=False)
    problems = tuple((str(rows["source"].iloc[0]), str(problem)) for problem in values.columns)
    of_problems = values.columns.tolist() != [""]
    benchmark = np.zeros(len(problems), dtype=np.int64) if of_problems else None
    scores = Scores(
        tuple(int(s) for s in values.index), problems if of_problems else ("",), values.to_numpy(float), benchmark
    )
    return Cell.of(scores, planned)
