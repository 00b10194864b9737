"""The divergence table: strict and weak f-divergences, averaged over η and at their best η (LAD, table 8)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pandas as pd

from analysis.arms import STRICT, WEAK, Arm, arms, grpo_command, inverse, settings
from analysis.cells import AVERAGE, Metric, Scores, benchmarks, combine, score, score_base
from analysis.load import Frames
from analysis.table import Table, blank_row, published, rows_of, shown, with_notes
from analysis.tables.eta import BASE, GRPO, label

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
    found = arms(frames.runs)
    lad = [a for a in found if a.loss == "lad" and a.eta > 0]
    sources, metrics = benchmarks(frames, frames.runs["run_id"])
    if not lad or not metrics:
        return None
    cells: list[dict[str, Any]] = []
    for setting in settings(lad):
        cells += _setting(frames, [a for a in found if a.setting == setting], sources, metrics)
    paper = published(
        "lad_table_8.csv", label="LAD (arXiv:2602.20132), table 8, Qwen2.5-7B, as printed, %",
        order=tuple(f"LAD-{d}" for d in ("TV", "HD", "JS", "KL", "rKL", "JF")),
    )  # fmt: skip
    made = Table(
        "divergence", "Divergence ablation", QUESTION, pd.DataFrame(cells), shown(metrics), _notes(lad), (paper,)
    )
    return with_notes(made, frames)


def summarise(frames: Frames, lad: list[Arm], sources: list[str], metrics: list[Metric]) -> Summary:
    """Every divergence of one setting, strict family first."""
    order = {d: i for i, d in enumerate((*STRICT, *WEAK))}
    groups: dict[tuple[str, str], list[Arm]] = {}
    for arm in sorted(lad, key=lambda a: (order.get(a.divergence, len(order)), a.divergence, a.variant, -a.eta)):
        groups.setdefault((arm.divergence, arm.variant), []).append(arm)
    shared = set.intersection(*({a.eta for a in g} for g in groups.values()))
    etas = tuple(sorted(shared, reverse=True))
    return Summary(tuple(_row(frames, g, etas, sources, metrics) for g in groups.values()), etas)


def _row(frames: Frames, group: list[Arm], etas: tuple[float, ...], sources: list[str], metrics: list[Metric]) -> Row:
    scores = {a.eta: score(frames, a, sources, metrics) for a in group}
    keys = list(next(iter(scores.values())))
    over = {key: combine([scores[eta][key] for eta in etas]) for key in keys}
    judge = _judge(metrics, sources)
    have = [eta for eta in scores if math.isfinite(scores[eta][judge].mean)]
    best = max(have, key=lambda eta: scores[eta][judge].mean) if have else group[0].eta
    divergence = group[0].divergence
    family = next((f for f, members in FAMILIES.items() if divergence in members), "")
    return Row(label(divergence, group[0]), family, over, scores[best], best if have else math.nan, tuple(scores),
               len(have))  # fmt: skip


def _judge(metrics: list[Metric], sources: list[str]) -> tuple[Metric, str]:
    """What chooses the best η: the widest avg@n, averaged over benchmarks."""
    widest = max(metrics, key=lambda m: (m.kind == "avg", m.k))
    return widest, AVERAGE if len(sources) > 1 else sources[0]


def _setting(frames: Frames, found: list[Arm], sources: list[str], metrics: list[Metric]) -> list[dict[str, Any]]:
    lad = [a for a in found if a.loss == "lad" and a.eta > 0]
    grpo = [a for a in found if a.loss == "grpo"]
    summary = summarise(frames, lad, sources, metrics)
    base = score_base(frames, found, sources, metrics)
    beside = {label(GRPO, a): score(frames, a, sources, metrics) for a in grpo}
    cells: list[dict[str, Any]] = []
    for which, title in _blocks(summary).items():
        block = ", ".join(x for x in (title, lad[0].setting) if x)
        cells += rows_of(block, BASE, base)
        for name, scores in beside.items():
            cells += rows_of(block, name, scores)
        if not beside:
            cells += blank_row(block, GRPO, base, hint=grpo_command(frames.runs, lad))
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


def _notes(lad: list[Arm]) -> tuple[str, ...]:
    notes = ["Runs count at their last evaluation; no checkpoint is selected."]
    etas = ",".join(f"{e:g}" for e in sorted({a.eta for a in lad}))
    for family, members in FAMILIES.items():
        absent = [d for d in members if d not in {a.divergence for a in lad}]
        if absent:
            command = f"python -m rlvr.run -m loss=lad divergence={','.join(absent)} eta={etas}"
            notes.append(f"Not in this study, {family} family: {', '.join(absent)}. Add: {command}")
    return tuple(notes)
