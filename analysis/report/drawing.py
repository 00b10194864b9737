"""Draws every figure of a study, in this process and a second one: figures take as long as all the tables."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import pkgutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from types import ModuleType
from typing import TYPE_CHECKING, Any

from analysis import figures as figure_package
from analysis.frames.forked import end_with_parent
from analysis.frames.frames import Frames

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass
class RenderedFigure:
    """A figure of a report: as a matplotlib figure, or as encoded files where another process has drawn it."""

    name: str
    question: str
    figure: Figure | None = None
    files: dict[str, bytes] = field(default_factory=dict[str, bytes])

    def encoded(self, kind: str) -> bytes:
        """The bytes of the figure as "png" or "pdf", encoded once."""
        if kind not in self.files:
            from analysis.report import style  # matplotlib takes a third of a second, and only figures need it

            assert self.figure is not None
            self.files[kind] = style.encode(self.figure, kind)
        return self.files[kind]


def available(package: Any) -> dict[str, ModuleType]:
    """Every module of a package of tables or figures, by name: a new file is a new table or figure."""
    names = sorted(m.name for m in pkgutil.iter_modules(package.__path__))
    return {name: importlib.import_module(f"{package.__name__}.{name}") for name in names}


def draw(frames: Frames, skip: Sequence[str] = ()) -> list[RenderedFigure]:
    """The figures that have runs, in the order of their names, except those named in `skip`."""
    modules = {name: module for name, module in available(figure_package).items() if name not in skip}
    drawn = (_draw(name, module, frames) for name, module in modules.items())
    return [figure for figure in drawn if figure is not None]


def _draw(name: str, module: ModuleType, frames: Frames) -> RenderedFigure | None:
    figure = module.figure(frames)
    return None if figure is None else RenderedFigure(name, module.QUESTION, figure)


class FigureProcess:
    """Draws the figures in a second process from construction on; `figures` draws along until all are done."""

    def __init__(self, frames: Frames) -> None:
        # A forked process has the frames already. Except on Linux, forking is not safe with the libraries that numpy
        # links; there this process draws all figures itself.
        self._frames = frames
        self._process = None
        if sys.platform == "linux":
            self._queue, queue_end = os.pipe()  # one byte per figure: the process that reads its number draws it
            os.write(queue_end, bytes(range(len(available(figure_package)))))
            os.close(queue_end)
            context = multiprocessing.get_context("fork")
            self._receiver, sender = context.Pipe(duplex=False)
            self._process = context.Process(
                target=_send_drawn, args=(frames, self._queue, sender, os.getpid()), daemon=True
            )
            self._process.start()
            sender.close()

    def figures(self) -> list[RenderedFigure]:
        """Every figure, in the order of names; returns once all are drawn."""
        if self._process is None:
            return draw(self._frames)
        drawn_here = _draw_from_queue(self._frames, self._queue)
        os.close(self._queue)
        try:
            drawn_there: list[RenderedFigure] = self._receiver.recv()
        except EOFError:  # the second process was killed or failed: an error of a figure is raised here
            drawn_there = draw(self._frames, skip=[figure.name for figure in drawn_here])
        self._process.join()
        return sorted([*drawn_here, *drawn_there], key=lambda figure: figure.name)


def _draw_from_queue(frames: Frames, queue: int) -> list[RenderedFigure]:
    """Draw and encode figures until the queue is empty. queue: the end of the pipe from which numbers are read."""
    modules = list(available(figure_package).items())
    rendered: list[RenderedFigure] = []
    while number := os.read(queue, 1):
        figure = _draw(*modules[number[0]], frames)
        if figure is not None:
            figure.files = {kind: figure.encoded(kind) for kind in ("png", "pdf")}
            figure.figure = None  # the files alone are sent to the other process
            rendered.append(figure)
    return rendered


def _send_drawn(frames: Frames, queue: int, connection: Connection, parent: int) -> None:
    end_with_parent(parent)
    connection.send(_draw_from_queue(frames, queue))
