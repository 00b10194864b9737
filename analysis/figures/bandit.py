"""The bandit figure: learned density over the arms against LAD's target, a panel per method (LAD, figure 1)."""

import textwrap

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from analysis.frames.frames import Frames
from analysis.report import style
from analysis.report.looks import lighter
from analysis.scores.labels import inverse
from analysis.tables.bandit import Match, matches

QUESTION = "Which methods learn the target density over the arms, and which collapse onto one mode?"


def figure(frames: Frames) -> Figure | None:
    """None if no run stored a bandit policy."""
    all_matches = matches(frames)
    return style.with_style(lambda: _draw(all_matches)) if all_matches else None


def _draw(all_matches: list[Match]) -> Figure:
    columns = min(len(all_matches), 3)
    drawing, grid = style.sheet(len(all_matches), columns, height=1.9, more=0.4)
    for axes, match in zip(grid, all_matches, strict=True):
        _panel(axes, match)
    for axes in grid[::columns]:
        axes.set_ylabel("probability")
    for axes in grid[-columns:]:  # the lowest of each column
        axes.set_xlabel("arm")
    handles = [Patch(color="#D0D0D0"), Line2D([], [], color="#333333"), Patch(color=lighter(style.COLOURS["js"], 0.7))]
    drawing.legend(
        handles,
        [r"target $P_A \propto e^{A/\eta}$", r"learned $P_\pi = (\pi/\pi_{old})/Z$", "lowest to highest seed"],
        loc="outside lower center",
        ncols=3,
    )
    return drawing


def _panel(axes: Axes, match: Match) -> None:
    title = textwrap.fill(f"{match.method}, 1/η = {inverse(match.eta)}", 36)  # panels are narrow
    axes.set_title(title, loc="left", fontsize=8)
    axes.grid(visible=False, axis="x")
    if not len(match.learned):
        state = match.states[0] if match.states else "missing"
        axes.text(0.5, 0.5, state, transform=axes.transAxes, ha="center", color=style.BASE)
        return
    arms = np.arange(match.learned.shape[1])
    axes.bar(arms, match.target.mean(axis=0), width=1.0, color="#D0D0D0")
    name = match.method.removeprefix("lad-").split(",")[0]
    colour = style.COLOURS.get(name, style.GRPO)
    axes.fill_between(arms, match.learned.min(0), match.learned.max(0), color=colour, alpha=0.2, linewidth=0)
    axes.plot(arms, match.learned.mean(axis=0), color=colour, linewidth=1.3)
    tv, modes = match.total_variation, match.modes_covered
    text = f"TV {tv.mean():.3f}" + (f" (worst {tv.max():.3f})" if len(tv) > 1 else "")
    text += f"\nmodes {modes.mean():.3g} of {match.num_modes}" + (f"\n{len(tv)} seeds" if len(tv) > 1 else "\n1 seed")
    axes.text(0.98, 0.97, text, transform=axes.transAxes, ha="right", va="top", fontsize=7)
    axes.set_ylim(0, 1.45 * max(match.target.mean(axis=0).max(), match.learned.max()))
