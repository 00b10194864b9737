"""The tables of ablations along one knob: a block per line of arms that differ by it alone, a row per value of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from analysis.frames.frames import Frames
from analysis.paper.printed import published
from analysis.report.cells import BASE, Block, MetricColumn, Row, fill
from analysis.report.table import Table, with_notes
from analysis.scores.ablation import Line, lines, metrics
from analysis.scores.comparable import Comparable

NOTE = "Runs count at their last evaluation; no checkpoint is selected. avg@n is pass@1."


@dataclass(frozen=True)
class Ablation:
    """A table, with the names that a module of one table has.

    knob: a config key. losses: only their arms; () for those of all. label: the text of a row, from its value of the
    knob. paper: the paper, and the numbers of its tables, that print the same; () for none.
    """

    name: str
    title: str
    QUESTION: str
    NEEDS: str
    knob: str
    losses: tuple[str, ...] = ()
    label: Callable[[Any], str] = str
    paper: tuple[Any, ...] = ()

    def lines(self, frames: Frames) -> list[tuple[Comparable, list[Line]]]:
        """Every setting with its lines along the knob; [] without NEEDS."""
        return lines(frames, self.knob, losses=self.losses)

    def table(self, frames: Frames) -> Table | None:
        """A block per line: the base policy, then a row per value of the knob. Columns: avg@n and every pass@k over all
        benchmarks. None without NEEDS."""
        lines_by_setting = self.lines(frames)
        if not lines_by_setting:
            return None
        cells = pd.concat([self._cells(frames, *of_setting) for of_setting in lines_by_setting], ignore_index=True)
        cells = cells.assign(column=cells["metric"], metric="")  # all metrics stand side by side in one grid
        papers = (published(*self.paper),) if self.paper else ()
        return with_notes(Table(self.name, self.title, self.QUESTION, cells, ("",), (NOTE,), papers), frames)

    def _cells(self, frames: Frames, setting: Comparable, of_setting: Sequence[Line]) -> pd.DataFrame:
        columns = [MetricColumn(metric, setting.sources, "") for metric in metrics(setting).values()]
        blocks: list[Block] = []
        for line in of_setting:
            rows = [Row(self.label(value), (arm,)) for value, arm in zip(line.values, line.arms, strict=True)]
            title = setting.titled(f"{line.name}, {setting.overall}")
            blocks.append(Block(title, (Row(BASE, setting.arms, base=True), *rows)))
        return fill(frames, blocks, columns)


BETA = Ablation(
    "beta",
    "β of PACS",
    "How does the scale β of PACS's implicit reward β·log π/π_ref change pass@k?",
    "two values of β of PACS, evaluated on problems",
    "loss.beta",
    ("pacs",),
    lambda beta: f"β = {beta:g}",
)
ROLLOUT_SCALING = Ablation(
    "rollout_scaling",
    "Rollouts per prompt",
    "Do more rollouts per prompt N buy accuracy and pass@k, and for which objective longest?",
    "two numbers of rollouts per prompt of one objective, evaluated on problems",
    "rollout.samples",
    label=lambda number: f"N = {number:g}",
    paper=("maxrl", 3),
)
SCORE_FUNCTION = Ablation(
    "score_function",
    "Score function of PACS",
    "How should PACS compare the implicit rewards of a group: RLOO, GRPO, Dr. GRPO, or not at all?",
    "two values of loss.score of PACS, evaluated on problems",
    "loss.score",
    ("pacs",),
    paper=("pacs", 9, 10, 11, 12, 13),
)
WEIGHTING = Ablation(
    "weighting",
    "Weights of PACS",
    "Must PACS weigh right and wrong responses alike, and what does either of them teach alone?",
    "two values of loss.weight of PACS, evaluated on problems",
    "loss.weight",
    ("pacs",),
    paper=("pacs", 6),
)
SEVERAL = {ablation.name: ablation for ablation in (BETA, ROLLOUT_SCALING, SCORE_FUNCTION, WEIGHTING)}
