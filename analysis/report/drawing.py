"""Draws every figure of a study."""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import dataclass, field
from types import ModuleType
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


def available(package: Any) -> dict[str, ModuleType]:
    """Every module of a package of tables or figures, by name: a new file is a new table or figure."""
    names = sorted(m.name for m in pkgutil.iter_modules(package.__path__))
    return {name: importlib.import_module(f"{package.__name__}.{name}") for name in names}


def draw(frames: Frames) -> list[RenderedFigure]:
    """The figures that have runs, in the order of their names."""
    drawn = {name: (module.QUESTION, module.figure(frames)) for name, module in available(figure_package).items()}
    return [RenderedFigure(name, question, figure) for name, (question, figure) in drawn.items() if figure is not None]
