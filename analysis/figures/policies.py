"""pass@k against k, on a logarithmic axis: a line per evaluated policy, with its 95 % band."""

import re
import textwrap
from collections.abc import Sequence

from matplotlib.artist import Artist
from matplotlib.figure import Figure

from analysis.frames.frames import Frames
from analysis.report import style
from analysis.report.lines import axis_of_k, draw, legend
from analysis.report.looks import looks_of
from analysis.scores.arm import Arm, settings
from analysis.scores.cell import cell
from analysis.scores.metric import benchmarks, pass_at
from analysis.scores.policy_evaluations import evaluations, label
from analysis.scores.selection import ordered
from analysis.tables.policies import sizes

QUESTION = "How does coverage grow with the number of samples?"
COLUMNS = 3
TITLE = 32  # characters of a title that fit above a panel


def figure(frames: Frames) -> Figure | None:
    """None without an evaluation that has pass@k for more than one k."""
    panels = []
    for setting, of_setting in settings(evaluations(frames)).items():
        setting_arms = ordered(of_setting, frames.swept)
        sources, metrics = benchmarks(frames, [i for arm in setting_arms for i in arm.run_ids])
        panels += [(setting, source, setting_arms, sizes(metrics)) for source in sources if len(sizes(metrics)) > 1]
    return style.with_style(lambda: _draw(frames, panels)) if panels else None


def _draw(frames: Frames, panels: list[tuple[str, str, list[Arm], list[int]]]) -> Figure:
    drawing, grid = style.sheet(len(panels), min(COLUMNS, len(panels)), height=2.6, more=0.35)
    handles: dict[str, Artist] = {}
    titles = _titles([(source, setting) for setting, source, _, _ in panels])
    for axes, title, (_, source, setting_arms, ks) in zip(grid, titles, panels, strict=True):
        for arm, look in zip(setting_arms, looks_of(setting_arms, frames.baseline), strict=True):
            cells = [cell(frames, arm, pass_at(k), (source,)) for k in ks]
            if not all(score.empty for score in cells):
                handles[label(arm)] = draw(axes, ks, cells, look)
        axis_of_k(axes, ks)
        axes.set_title(title, loc="left")
    legend(drawing, handles)
    return drawing


def _titles(panels: Sequence[tuple[str, str]]) -> list[str]:
    """The titles of (benchmark, setting): of the setting what differs between panels, wrapped. Without `evaluation.k`,
    which follows from the samples, unless panels differ in nothing else.
    """
    parts = [[source, *filter(None, re.split(r", (?=[\w.]+=)", setting))] for source, setting in panels]
    own = [
        [part for part in of_panel if part == of_panel[0] or any(part not in p for p in parts)] for of_panel in parts
    ]
    short = [[part for part in of_panel if not part.startswith("evaluation.k=")] for of_panel in own]
    chosen = short if len(set(map(tuple, short))) == len(set(map(tuple, own))) else own
    return ["\n".join(textwrap.wrap(", ".join(of_panel), TITLE, break_on_hyphens=False)) for of_panel in chosen]
