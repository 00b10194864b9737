"""Draws every figure of a study."""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from analysis import figures as figure_package
from analysis.frames.frames import Frames

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass
class RenderedFigure:
    """A figure of a report. files: encoded so far, by kind."""

    name: str
    question: str
    figure: Figure
    files: dict[str, bytes] = field(default_factory=dict[str, bytes])

    def encoded(self, kind: str) -> bytes:
        """The bytes of the figure as "png" or "pdf", encoded once."""
        if kind not in self.files:
            from analysis.report import style  # matplotlib takes a third of a second, and only figures need it

            self.files[kind] = style.encode(self.figure, kind)
        return self.files[kind]


def available(package: Any) -> dict[str, Any]:
    """Every table or figure of a package, by name, names sorted. A new file is a new one, or those that it names in
    SEVERAL; each has QUESTION and `table` or `figure`."""
    known: dict[str, Any] = {}
    for name in (m.name for m in pkgutil.iter_modules(package.__path__)):
        module = importlib.import_module(f"{package.__name__}.{name}")
        known |= vars(module).get("SEVERAL", {name: module})
    return dict(sorted(known.items()))


def draw(frames: Frames) -> list[RenderedFigure]:
    """The figures that have runs, in the order of their names."""
    drawn = {name: (module.QUESTION, module.figure(frames)) for name, module in available(figure_package).items()}
    return [RenderedFigure(name, question, figure) for name, (question, figure) in drawn.items() if figure is not None]
