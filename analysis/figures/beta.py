"""The β figure: pass@k as a heat map over β and k (PACS, figure 4)."""

from __future__ import annotations

import math
import textwrap

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.frames.frames import Frames
from analysis.report import style
from analysis.scores.ablation import Line, base, metrics, overall
from analysis.scores.comparable import Comparable
from analysis.scores.metric import Kind
from analysis.tables.ablations import BETA

QUESTION = "At which β and k is PACS best?"


def figure(frames: Frames) -> Figure | None:
    """None unless PACS ran with two β."""
    panels = [(setting, line) for setting, setting_lines in BETA.lines(frames) for line in setting_lines]
    return style.with_style(lambda: _draw(frames, panels)) if panels else None


def _draw(frames: Frames, panels: list[tuple[Comparable, Line]]) -> Figure:
    """A row per line: pass@k on the left, its gain over the base policy on the right."""
    height = max(1.9, 0.34 * max(len(line.values) for _, line in panels) + 1.0)
    figure = Figure(figsize=(style.WIDTH, height * len(panels)), layout="constrained")
    grid = figure.subplots(len(panels), 2, squeeze=False)
    for (left, right), (setting, line) in zip(grid, panels, strict=True):
        shown = list(metrics(setting).values())
        values = np.array([[overall(frames, a, m, setting).mean for m in shown] for a in line.arms]) * 100
        base_scores = np.array([base(frames, m, setting).mean for m in shown]) * 100
        ks = [1 if m.kind == Kind.AVG else m.k for m in shown]
        _heat(left, values, line, ks, cmap="viridis")
        title = setting.titled(f"{line.name}, {setting.overall}: pass@k, %")
        left.set_title(textwrap.fill(title, 48), loc="left")
        largest = float(np.nanmax(np.abs(values - base_scores))) if np.isfinite(values - base_scores).any() else 1.0
        _heat(right, values - base_scores, line, ks, cmap="RdBu", span=max(largest, 1e-9))
        right.set_title("gain over the base policy, points", loc="left")
    return figure


def _heat(axes: Axes, values: np.ndarray, line: Line, ks: list[int], *, cmap: str, span: float | None = None) -> None:
    """Draw a heat map. values: [β, k], in per cent; span: colours reach from -span to span, or over all values."""
    low, high = (None, None) if span is None else (-span, span)
    image = axes.imshow(values, aspect="auto", cmap=cmap, vmin=low, vmax=high)
    for (i, j), value in np.ndenumerate(values):
        if not math.isfinite(value):
            axes.text(j, i, "–", ha="center", va="center", color=style.BASE)
            continue
        red, green, blue, _ = image.cmap(image.norm(value))
        light = 0.3 * red + 0.59 * green + 0.11 * blue > 0.55
        text, shade = f"{value:.1f}" if span is None else f"{value:+.1f}", "#222222" if light else "white"
        axes.text(j, i, text, ha="center", va="center", fontsize=7, color=shade)
    axes.set_xticks(range(len(ks)), [str(k) for k in ks])
    axes.set_yticks(range(len(line.values)), [f"{v:g}" for v in line.values])
    axes.set_xlabel("k")
    axes.set_ylabel("β")
    axes.grid(visible=False)
