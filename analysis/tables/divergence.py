"""The divergence table: strict and weak f-divergences, averaged over η and at their best η (LAD, table 8)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pandas as pd

from analysis.frames.load import Frames
from analysis.report.table import Table, published, rows_of, with_notes
from analysis.scores.arms import STRICT, WEAK, Arm, inverse, rank
from analysis.scores.cells import Scores, combine, score, score_base
from analysis.scores.setting import Setting, comparisons, shown
from analysis.tables.eta import BASE, grpo_rows, label

QUESTION = "Which f-divergence should match the policy to LAD's target, and do strict ones beat weak ones?"
FAMILIES = {"strict": STRICT, "weak": WEAK}


@dataclass(frozen=True)
class Row:
    """A divergence (and variant): `over` averages the η that all share, `best` is its η with the highest avg@n."""

    name: str
    family: str
    over: Scores
    best: Scores
    best_eta: float
    etas: tuple[float, ...]
    scored: int  # arms with a result


@dataclass(frozen=True)
class Summary:
    rows: tuple[Row, ...]
    etas: tuple[float, ...]  # shared by every row, descending; empty if there is none

    def families(self, which: str) -> dict[str, Scores]:
        """{row label: mean of the family's rows}; `which` is "over" or "best". A family without runs is not there."""
        found = {}
        for family in FAMILIES:
            rows = [r for r in self.rows if r.family == family]
            if rows:
                name = f"{family} mean ({', '.join(r.name for r in rows)})"
                scores = [getattr(r, which) for r in rows]
                found[name] = {key: combine([s[key] for s in scores]) for key in scores[0]}
        return found


def table(frames: Frames) -> Table | None:
    """None if no LAD run has an η."""
    found = comparisons(frames)
    if not found:
        return None
    cells = [cell for setting in found for cell in _setting(frames, setting)]
    paper = published(
        "lad_table_8.csv",
        label="LAD (arXiv:2602.20132), table 8, Qwen2.5-7B, as printed, %",
        order=tuple(f"LAD-{d}" for d in ("TV", "HD", "JS", "KL", "rKL", "JF")),
    )
    made = Table(
        "divergence", "Divergence ablation", QUESTION, pd.DataFrame(cells), shown(found), _notes(found), (paper,)
    )
    return with_notes(made, frames)


def summarise(frames: Frames, setting: Setting) -> Summary:
    """Every divergence of one setting, strict family first."""
    groups: dict[tuple[str, str], list[Arm]] = {}
    for arm in sorted(setting.lad, key=lambda a: (rank(a.divergence), a.variant, -a.eta)):
        groups.setdefault((arm.divergence, arm.variant), []).append(arm)
    shared = set.intersection(*({a.eta for a in g} for g in groups.values()))
    etas = tuple(sorted(shared, reverse=True))
    return Summary(tuple(_row(frames, g, etas, setting) for g in groups.values()), etas)


def _row(frames: Frames, group: list[Arm], etas: tuple[float, ...], setting: Setting) -> Row:
    scores = {a.eta: score(frames, a, setting.sources, setting.metrics) for a in group}
    keys = list(next(iter(scores.values())))
    over = {key: combine([scores[eta][key] for eta in etas]) for key in keys}
    judge = (setting.shown[0], setting.overall)  # the widest avg@n, averaged over benchmarks
    have = [eta for eta in scores if math.isfinite(scores[eta][judge].mean)]
    best = max(have, key=lambda eta: scores[eta][judge].mean) if have else group[0].eta
    divergence = group[0].divergence
    family = next((f for f, members in FAMILIES.items() if divergence in members), "")
    return Row(
        label(divergence, group[0]), family, over, scores[best], best if have else math.nan, tuple(scores), len(have)
    )


def _setting(frames: Frames, setting: Setting) -> list[dict[str, Any]]:
    summary = summarise(frames, setting)
    base = score_base(frames, setting.arms, setting.sources, setting.metrics)
    cells: list[dict[str, Any]] = []
    for which, title in _blocks(summary).items():
        block = setting.titled(title)
        cells += [*rows_of(block, BASE, base), *grpo_rows(frames, setting, block)]
        cells += _family_rows(block, summary, which)
    return cells


def _blocks(summary: Summary) -> dict[str, str]:
    """{which: title}: with one η there is nothing to average or to choose."""
    every = {eta for row in summary.rows for eta in row.etas}
    if len(every) == 1:
        return {"over": f"1/η = {inverse(every.pop())}"}
    blocks = {}
    if summary.etas:
        blocks["over"] = f"Mean over 1/η = {', '.join(inverse(e) for e in summary.etas)}"
    return blocks | {"best": "Best 1/η of each (chosen by avg@n on these very samples: optimistic)"}


def _family_rows(block: str, summary: Summary, which: str) -> list[dict[str, Any]]:
    cells: list[dict[str, Any]] = []
    means = summary.families(which)
    for family in (*FAMILIES, ""):
        for row in (r for r in summary.rows if r.family == family):
            cells += rows_of(block, _name(row, which), getattr(row, which))
        for name, scores in means.items():
            if family and name.startswith(family):
                cells += rows_of(block, name, scores)
    return cells


def _name(row: Row, which: str) -> str:
    if which == "over" or math.isnan(row.best_eta):
        return row.name
    some = "" if row.scored == len(row.etas) else f", best of {row.scored} of {len(row.etas)}"
    return f"{row.name} (1/η = {inverse(row.best_eta)}{some})"


def _notes(found: list[Setting]) -> tuple[str, ...]:
    lad = [a for s in found for a in s.lad]
    notes = ["Runs count at their last evaluation; no checkpoint is selected."]
    etas = ",".join(f"{e:g}" for e in sorted({a.eta for a in lad}))
    for family, members in FAMILIES.items():
        absent = [d for d in members if d not in {a.divergence for a in lad}]
        if absent:
            command = f"python -m rlvr.run -m loss=lad divergence={','.join(absent)} eta={etas}"
            notes.append(f"Not in this study, {family} family: {', '.join(absent)}. Add them: `{command}`")
    return tuple(notes)
