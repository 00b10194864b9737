"""The look of every figure: sizes for print, colours that colour-blind readers can distinguish, reproducible bytes."""

import io
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cbook import is_math_text
from matplotlib.figure import Figure
from matplotlib.mathtext import MathTextParser
from matplotlib.text import Text

from analysis.report.looks import DIVERGENCES, GRPO, NEUTRAL
from analysis.scores.comparable import Comparable
from analysis.scores.metric import AVERAGE, Metric

WIDTH = 7.0  # inches: the text width of most papers' two columns
DPI = 200

COLOURS = {name: colour for name, (colour, _) in DIVERGENCES.items()}
FAMILY = {"strict": "#0072B2", "weak": "#D55E00", "": NEUTRAL}
BASE = NEUTRAL
OTHER = "#8C6D31"
# The objectives (scores/objective.py) of the likelihood studies.
OBJECTIVES = {
    "cross_entropy": ("#009E73", "*"),
    "maxrl": ("#0072B2", "o"),
    "grpo": (GRPO, "D"),
    "rloo": ("#E69F00", "x"),
    "dr_grpo": ("#CC79A7", "+"),
    "reinforce": ("#D55E00", "s"),
    "reinforce_mean": ("#D55E00", "s"),
    "pkpo": ("#56B4E9", "^"),
}

_RC: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 8,
    "axes.titlesize": 9,
    "axes.labelsize": 8,
    "legend.fontsize": 7.5,
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "axes.grid": True,
    "grid.color": "#E3E3E3",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.5,
    "legend.frameon": False,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "pdf.fonttype": 42,
    "mathtext.fontset": "dejavusans",
}


def _style() -> AbstractContextManager[None]:
    defaults: Any = dict(matplotlib.rcParamsDefault)
    return matplotlib.rc_context({**defaults, "backend": "agg", **_RC})


def with_style(draw: Callable[[], Figure]) -> Figure:
    """Draw under this style, independently of the matplotlibrc of the machine."""
    with _style():
        return draw()


def divergence_look(divergence: str) -> tuple[str, str]:
    """Colour and marker of a divergence."""
    return DIVERGENCES.get(divergence, (OTHER, "X"))


def objective_look(objective: str) -> dict[str, Any]:
    """Colour and marker of an objective, as matplotlib's keywords."""
    colour, marker = OBJECTIVES.get(objective, (OTHER, "v"))
    return {"color": colour, "marker": marker}


def encode(figure: Figure, kind: str) -> bytes:
    """The figure as "png" or "pdf": the same figure gives the same bytes (no date, no version)."""
    metadata = {"Software": None} if kind == "png" else {"CreationDate": None, "Creator": None, "Producer": None}
    out = io.BytesIO()
    for text in figure.findobj(Text):
        if not all(map(_can_be_drawn, text.get_text().split("\n"))):
            text.set_parse_math(False)
    with _style():
        if figure.get_layout_engine() is not None:  # the layout is computed once: it takes as long as drawing
            figure.canvas = FigureCanvasAgg(figure)
            figure.set_dpi(DPI)
            figure.draw_without_rendering()
            figure.set_layout_engine("none")
        figure.savefig(out, format=kind, dpi=DPI, metadata=metadata)
    return out.getvalue()


def save(figure: Figure, path: Path) -> list[Path]:
    """Write `path` with the suffixes .png and .pdf."""
    path.parent.mkdir(parents=True, exist_ok=True)
    files = [path.with_name(f"{path.name}.{kind}") for kind in ("png", "pdf")]
    for file in files:
        file.write_bytes(encode(figure, file.suffix.removeprefix(".")))
    return files


def _can_be_drawn(line: str) -> bool:
    """Whether a line is no formula, or one that matplotlib can read. A name from a data set may just contain two $."""
    try:
        return not is_math_text(line) or bool(MathTextParser("agg").parse(line))
    except ValueError:
        return False


def sheet(number: int, columns: int, *, height: float, more: float) -> tuple[Figure, list[Axes]]:
    """(figure, its panels, row by row). height: of a row, more: of what is not in rows, both in inches."""
    rows = math.ceil(number / columns)
    figure = Figure(figsize=(WIDTH, height * rows + more), layout="constrained")
    every = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes in every[number:]:
        axes.set_visible(False)
    return figure, list(every[:number])


def panels(
    rows: Sequence[tuple[Comparable, Sequence[Metric]]], *, height: float
) -> tuple[Figure, list[tuple[Axes, Comparable, Metric]]]:
    """(figure, its panels as (axes, setting, metric)): a row per setting, a titled panel per metric.

    height: of a row, in inches.
    """
    figure = Figure(figsize=(WIDTH, height * len(rows) + 0.35), layout="constrained")
    columns = max(len(metrics) for _, metrics in rows)
    grid = figure.subplots(len(rows), columns, squeeze=False)
    placed = []
    for row, (setting, metrics) in zip(grid, rows, strict=True):
        for axes in row[len(metrics) :]:
            axes.set_visible(False)
        for axes, metric in zip(row, metrics, strict=False):
            axes.set_title(f"{metric}" + (f"  ({setting.name})" if setting.name else ""), loc="left")
            axes.set_ylabel("average over benchmarks, %" if setting.overall == AVERAGE else f"{setting.overall}, %")
            placed.append((axes, setting, metric))
    return figure, placed
