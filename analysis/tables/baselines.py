"""The table of baselines: every objective of a study on one task, with the diversity of its responses."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from analysis.frames.frames import Frames, remembered
from analysis.paper.printed import published
from analysis.report.cells import BASE, Block, MetricColumn, Row, fill, value
from analysis.report.table import Format, Table, with_notes
from analysis.scores.arm import arms, distinct_names
from analysis.scores.comparable import Comparable, by_setting
from analysis.scores.metric import DIVERSITY, ENTROPY, Metric
from analysis.tables.eta import reference

QUESTION = "Which objective ends where: accuracy, pass@k, diversity of its responses, entropy?"
NEEDS = "four families of objectives in one setting, evaluated on problems"
LEAST = 4  # families of objectives, without which there is no table
ENTROPY_NATS = "entropy, nats"


@dataclass(frozen=True)
class Ranking:
    """A setting and its rows: the base policy, then the arms by accuracy. columns: by the name that is printed."""

    setting: Comparable
    rows: tuple[Row, ...]
    columns: dict[str, MetricColumn]


def table(frames: Frames) -> Table | None:
    """None without NEEDS."""
    all_rankings = rankings(frames)
    if not all_rankings:
        return None
    parts = [_cells(frames, ranking) for ranking in all_rankings]
    notes = (
        "Runs count at their last evaluation; no checkpoint is selected. Rows by avg@n.",
        "distinct-n: different n-grams over all n-grams of the words of a problem's responses, mean over problems. It "
        "falls with the number of responses, and is low for a policy that is always right, which repeats itself.",
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


def _cells(frames: Frames, ranking: Ranking) -> pd.DataFrame:
    block = Block(ranking.setting.titled(ranking.setting.overall), ranking.rows)
    cells = fill(frames, [block], list(ranking.columns.values()))
    names = {str(column.metric): name for name, column in ranking.columns.items()}
    return cells.assign(column=cells["metric"].map(names), metric="")


@remembered
def rankings(frames: Frames) -> list[Ranking]:
    """The settings in which at least LEAST families of objectives ran; no controls."""
    candidates = by_setting(frames, [arm for arm in arms(frames) if not arm.control])
    chosen = [s for s in candidates if len({arm.loss.split("_")[0] for arm in s.arms}) >= LEAST]
    return [_ranking(frames, setting) for setting in chosen]


def _ranking(frames: Frames, setting: Comparable) -> Ranking:
    metrics: Sequence[Metric] = (*setting.shown, *DIVERSITY, ENTROPY)
    columns = {
        ENTROPY_NATS if metric == ENTROPY else str(metric): MetricColumn(metric, setting.sources, "")
        for metric in metrics
    }
    accuracy = next(iter(columns.values()))
    names = distinct_names({arm: arm.named(arm.method) for arm in setting.arms})
    grpo = reference(setting)
    rows = [Row(names[arm], (arm,), against="" if names[arm] == grpo else grpo) for arm in setting.arms]

    def sort_key(row: Row) -> float:
        mean = value(frames, row, accuracy).mean
        return -mean if math.isfinite(mean) else math.inf

    return Ranking(setting, (Row(BASE, setting.arms, base=True), *sorted(rows, key=sort_key)), columns)
