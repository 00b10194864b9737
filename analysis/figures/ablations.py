"""The figures of ablations along one knob: pass@k against k, or metrics against the knob."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from matplotlib.figure import Figure

from analysis.frames.frames import Frames
from analysis.report import style
from analysis.report.lines import Axis, LinesBySetting, against_k, against_knob
from analysis.tables.ablations import BETA, ROLLOUT_SCALING, SCORE_FUNCTION, WEIGHTING, Ablation


@dataclass(frozen=True)
class AblationFigure:
    """The figure of an ablation, with the names that a module of one figure has."""

    ablation: Ablation
    QUESTION: str
    draw: Callable[[Frames, LinesBySetting], Figure]

    def figure(self, frames: Frames) -> Figure | None:
        """None where the ablation has no table."""
        lines_by_setting = self.ablation.lines(frames)
        return style.with_style(lambda: self.draw(frames, lines_by_setting)) if lines_by_setting else None


_FIGURES = (
    AblationFigure(BETA, "At which β and k is PACS best?", against_k),  # PACS, figure 4
    AblationFigure(
        ROLLOUT_SCALING,
        "Whose pass@k keeps growing with the number of rollouts per prompt?",
        partial(against_knob, axis=Axis("rollouts per prompt N")),
    ),
    AblationFigure(SCORE_FUNCTION, "Which score function of PACS wins at which k?", against_k),  # PACS, tables 9 to 13
    AblationFigure(WEIGHTING, "Which weights of PACS win at which k?", against_k),  # PACS, table 6
)
SEVERAL = {figure.ablation.name: figure for figure in _FIGURES}
