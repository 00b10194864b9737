"""The score_function figure of PACS: pass@k against k, a curve per `loss.score`."""

from __future__ import annotations

from matplotlib.figure import Figure

from analysis.frames.frames import Frames
from analysis.report import style
from analysis.report.lines import against_k
from analysis.scores.ablation import lines
from analysis.tables.score_function import KNOB

QUESTION = "Which score function of PACS wins at which k?"


def figure(frames: Frames) -> Figure | None:
    """None unless PACS ran with two values of the knob."""
    lines_by_setting = lines(frames, KNOB, losses=("pacs",))
    return style.with_style(lambda: against_k(frames, lines_by_setting, str)) if lines_by_setting else None
