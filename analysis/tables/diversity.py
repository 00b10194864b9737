"""What `python -m rlvr.diagnostics.diversity` measured of evaluations: words, embeddings, judges, cost."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from analysis.frames.frames import Frames
from analysis.report.layout import frame, written
from analysis.report.table import Format, Table, interval_notes, published
from analysis.scores.arm import Arm, settings
from analysis.scores.cell import Cell, mean_of
from analysis.scores.contrast import Scores
from analysis.scores.selection import ordered
from analysis.scores.study import swept
from analysis.tables.policies import evaluations, label
from rlvr.ledger import layout

QUESTION = "How different are the responses of each policy, and what does a right one cost?"
SHARES = ("distinct-", "percentile")  # printed in percent
COSTS = "tokens"


def table(frames: Frames) -> Table | None:
    """None where nothing was measured."""
    records = []
    names: dict[str, None] = {}
    found = evaluations(frames)
    for setting in settings(found):
        for arm in ordered([arm for arm in found if arm.setting == setting], swept(frames)):
            for source, cells in _cells(frames, arm).items():
                names |= dict.fromkeys(cells)
                records += written(", ".join(p for p in (setting, source) if p), label(arm), cells)
    if not records:
        return None
    formats = {name: Format() if name.startswith(SHARES) else Format(1.0, None, "", _better(name)) for name in names}
    notes = (
        "Of 16: of the first 16 samples of each problem. S_div: 1 - mean cosine of all pairs of embeddings, averaged "
        "over problems (PACS, Eq. 13 and 14). Rule and judge: LAD's scale of 1 (one approach) to 5 (none dominates).",
        *interval_notes(max((len(arm.runs) for arm in found), default=1)),
    )
    paper = (
        published("lad_table_4.csv", label="LAD (arXiv:2602.20132), table 4, AIME 24/25, Qwen2.5-7B, as printed"),
        published("pacs_table_3_4b.csv", label="PACS (arXiv:2509.02522), table 3, S_div, Qwen3-4B, as printed"),
        published("pacs_table_3_8b.csv", label="PACS (arXiv:2509.02522), table 3, S_div, Qwen3-8B, as printed"),
    )
    return Table("diversity", "Diversity", QUESTION, frame(records), ("",), notes, paper, formats=formats)


def _better(name: str) -> int:
    return -1 if name.startswith(COSTS) else 1


def _cells(frames: Frames, arm: Arm) -> dict[str, dict[str, Cell]]:
    """By benchmark and measure, over the runs of the arm that were measured."""
    if frames.home is None:
        return {}
    files = {run.seed: layout.diversity(layout.run(frames.home, run.run_id)) for run in arm.runs}
    parts = [pd.read_parquet(file).assign(seed=seed) for seed, file in files.items() if file.exists()]
    if not parts:
        return {}
    found: dict[str, dict[str, Cell]] = {}
    for (source, measure), rows in pd.concat(parts).groupby(["source", "measure"], sort=False):
        found.setdefault(str(source), {})[str(measure)] = _cell(rows, len(arm.runs))
    return found


def _cell(rows: pd.DataFrame, planned: int) -> Cell:
    values = rows.pivot_table(index="seed", columns="problem_id", values="value", dropna=False, sort=False)
    problems = tuple((str(rows["source"].iloc[0]), str(problem)) for problem in values.columns)
    of_problems = values.columns.tolist() != [""]
    benchmark = np.zeros(len(problems), dtype=np.int64) if of_problems else None
    scores = Scores(
        tuple(int(s) for s in values.index), problems if of_problems else ("",), values.to_numpy(float), benchmark
    )
    mean = mean_of(scores)
    state = "ok" if len(scores.seeds) == planned else "partial"
    return Cell(mean, scores, planned, 0, state if math.isfinite(mean) else "not evaluated")
