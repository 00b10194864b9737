"""The η table: one block per divergence, one row per 1/η, beside the base policy and GRPO (LAD, table 6)."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from analysis.frames.frames import Frames
from analysis.paper.printed import published
from analysis.report.layout import BASE, Block, Row, columns, fill
from analysis.report.table import Table, with_notes
from analysis.scores.arm import Arm, grpo_command
from analysis.scores.comparable import Comparable, lad_settings, shown
from analysis.scores.words import inverse

QUESTION = "How does the temperature η of LAD's target e^{A/η} change accuracy (avg@k) and coverage (pass@k)?"
GRPO = "GRPO"


def table(frames: Frames) -> Table | None:
    """None unless LAD runs have two η to compare."""
    found = lad_settings(frames, etas=2)
    if not found:
        return None
    cells = pd.concat([fill(frames, _blocks(s), columns(s.metrics, s.sources)) for s in found], ignore_index=True)
    paper = published("lad", 6)
    notes = ["Runs count at their last evaluation; no checkpoint is selected."]
    if all(len(s.sources) == 1 for s in found):
        notes.append(f"One benchmark ({found[0].sources[0]}): there is no average to take.")
    return with_notes(Table("eta", "η ablation", QUESTION, cells, shown(found), tuple(notes), (paper,)), frames)


def _blocks(setting: Comparable) -> Iterable[Block]:
    """Blocks of one setting. The reference rows stand in every block: a block can be read alone."""
    for divergence in dict.fromkeys(a.divergence for a in setting.lad):
        first = reference_rows(setting)
        arms = sorted((a for a in setting.lad if a.divergence == divergence), key=lambda a: (1 / a.eta, a.variant))
        rows = [Row(label(f"1/η = {inverse(a.eta)}", a), (a,), against=reference(setting)) for a in arms]
        yield Block(setting.titled(f"LAD, divergence {divergence}"), (*first, *rows))


def reference_rows(setting: Comparable) -> list[Row]:
    """The base policy and GRPO; where there is no such run, a row that says what to type."""
    grpo = [Row(label(GRPO, arm), (arm,)) for arm in setting.grpo]
    absent = Row(GRPO, hint=grpo_command(setting.lad))
    return [Row(BASE, setting.arms, base=True), *(grpo or [absent])]


def reference(setting: Comparable) -> str:
    """The label of the GRPO row that others stand against: the one with nothing else about it."""
    names = [label(GRPO, arm) for arm in setting.grpo]
    return GRPO if GRPO in names else names[0] if len(names) == 1 else ""


def label(name: str, arm: Arm) -> str:
    return f"{name} ({arm.variant})" if arm.variant else name
