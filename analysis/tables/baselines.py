"""The table of baselines: every objective of a study on one task, with the diversity of its responses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from analysis.frames.frames import Frames
from analysis.paper.printed import published
from analysis.report.layout import BASE, Block, Column, Row, fill, value
from analysis.report.table import Format, Table, with_notes
from analysis.scores.arm import Arm, arms, told_apart
from analysis.scores.comparable import Comparable, by_setting
from analysis.scores.metric import ENTROPY, Metric, distinct
from analysis.tables.eta import reference

QUESTION = "Which objective ends where: accuracy, pass@k, diversity of its responses, entropy?"
LEAST = 4  # families of objectives that make a comparison of baselines
GRAMS = (3, 4)  # distinct-3 and distinct-4, as in LAD, table 4
ENTROPY_NATS = "entropy, nats"


@dataclass(frozen=True)
class Ranking:
    """A setting and its rows, the base policy first, then by accuracy; columns by the name they are printed under."""

    setting: Comparable
    rows: tuple[Row, ...]
    columns: dict[str, Column]


def table(frames: Frames) -> Table | None:
    """None unless four families of objectives ran in one setting."""
    found = rankings(frames)
    if not found:
        return None
    parts = [_cells(frames, each) for each in found]
    notes = (
        "Runs count at their last evaluation; no checkpoint is selected. Rows by avg@n.",
        "distinct-n: different n-grams over all n-grams of the words of a problem's responses, mean over problems: it "
        "falls with the number of responses, and a policy that is always right says the same thing often.",
        "Entropy: of the policy on its training responses, mean over the last 10% of the steps and over seeds.",
    )
    paper = published("maxrl", 3)
    ours = Table(
        "baselines",
        "All objectives",
        QUESTION,
        pd.concat(parts, ignore_index=True),
        ("",),
        notes,
        (paper,),
        formats={ENTROPY_NATS: Format(1.0, 3, "%", better=0)},
    )
    return with_notes(ours, frames)


def _cells(frames: Frames, each: Ranking) -> pd.DataFrame:
    block = Block(each.setting.titled(each.setting.overall), each.rows)
    cells = fill(frames, [block], list(each.columns.values()))
    names = {str(column.metric): name for name, column in each.columns.items()}
    return cells.assign(column=cells["metric"].map(names), metric="")


def rankings(frames: Frames) -> list[Ranking]:
    """Settings in which at least LEAST families of objectives ran, each row with all of its columns; no controls."""
    if "baselines" not in frames.cache:
        ours = by_setting(frames, [arm for arm in arms(frames) if not arm.control])
        chosen = [s for s in ours if len({a.loss.split("_")[0] for a in s.arms}) >= LEAST]
        frames.cache["baselines"] = [_setting(frames, setting) for setting in chosen]
    return frames.cache["baselines"]


def _setting(frames: Frames, setting: Comparable) -> Ranking:
    metrics: Sequence[Metric] = (*setting.shown, *map(distinct, GRAMS), ENTROPY)
    columns = {
        ENTROPY_NATS if metric == ENTROPY else str(metric): Column(metric, tuple(setting.sources), "")
        for metric in metrics
    }
    judge = next(iter(columns.values()))
    names, grpo = told_apart({arm: _name(arm) for arm in setting.arms}), _reference(setting)
    rows = [Row(names[arm], (arm,), against="" if names[arm] == grpo else grpo) for arm in setting.arms]

    def first(row: Row) -> float:
        mean = value(frames, row, judge).mean
        return -mean if math.isfinite(mean) else math.inf

    return Ranking(setting, (Row(BASE, setting.arms, base=True), *sorted(rows, key=first)), columns)


def _reference(setting: Comparable) -> str:
    return reference(setting).replace("GRPO", "grpo")


def _name(arm: Arm) -> str:
    return f"{arm.method} ({arm.variant})" if arm.variant else arm.method
