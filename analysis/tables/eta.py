"""The η table: one block per divergence, one row per 1/η, beside the base policy and GRPO (LAD, table 6)."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from analysis.frames.frames import Frames
from analysis.paper.printed import published
from analysis.report.cells import BASE, Block, Row, columns, fill
from analysis.report.table import Table, with_notes
from analysis.scores.arm import Arm, grpo_command
from analysis.scores.comparable import Comparable, lad_settings, shown
from analysis.scores.words import inverse

QUESTION = "How does the temperature η of LAD's target e^{A/η} change accuracy (avg@k) and coverage (pass@k)?"
NEEDS = "two values of η of LAD, evaluated on problems"
GRPO = "GRPO"


def table(frames: Frames) -> Table | None:
    """None without NEEDS."""
    settings = lad_settings(frames, etas=2)
    if not settings:
        return None
    cells = pd.concat([fill(frames, _blocks(s), columns(s.metrics, s.sources)) for s in settings], ignore_index=True)
    paper = published("lad", 6)
    notes = ["Runs count at their last evaluation; no checkpoint is selected."]
    if all(len(s.sources) == 1 for s in settings):
        notes.append(f"One benchmark ({settings[0].sources[0]}): there is no average to take.")
    return with_notes(Table("eta", "η ablation", QUESTION, cells, shown(settings), tuple(notes), (paper,)), frames)


def _blocks(setting: Comparable) -> Iterable[Block]:
    """A block per divergence of one setting. Every block repeats the reference rows, so that it can be read alone."""
    for divergence in dict.fromkeys(a.divergence for a in setting.lad):
        references = reference_rows(setting)
        arms = sorted((a for a in setting.lad if a.divergence == divergence), key=lambda a: (1 / a.eta, a.variant))
        rows = [Row(label(f"1/η = {inverse(a.eta)}", a), (a,), against=reference(setting)) for a in arms]
        yield Block(setting.titled(f"LAD, divergence {divergence}"), (*references, *rows))


def reference_rows(setting: Comparable) -> list[Row]:
    """The rows of the base policy and of GRPO; without a GRPO run, an empty row with the command that starts one."""
    grpo = [Row(label(GRPO, arm), (arm,)) for arm in setting.grpo]
    absent = Row(GRPO, hint=grpo_command(setting.lad))
    return [Row(BASE, setting.arms, base=True), *(grpo or [absent])]


def reference(setting: Comparable) -> str:
    """The label of the GRPO row that others are compared to: the one without variants, else the only one, else ""."""
    names = [label(GRPO, arm) for arm in setting.grpo]
    if GRPO in names:
        return GRPO
    return names[0] if len(names) == 1 else ""


def label(name: str, arm: Arm) -> str:
    """The name, with the variant of the arm in parentheses where there is one."""
    return f"{name} ({arm.variant})" if arm.variant else name
