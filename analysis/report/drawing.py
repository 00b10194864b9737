"""Every figure that a study has, here or in a process beside this one: drawing takes as long as all the tables."""

from __future__ import annotations

import importlib
import multiprocessing
import pkgutil
import sys
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from types import ModuleType
from typing import TYPE_CHECKING, Any

from analysis import figures as room
from analysis.frames.frames import Frames

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass
class Drawn:
    """A figure, or the files of one that another process has drawn."""

    name: str
    question: str
    figure: Figure | None = None
    files: dict[str, bytes] = field(default_factory=dict[str, bytes])

    def encoded(self, kind: str) -> bytes:
        """As "png" or "pdf"."""
        if kind not in self.files:
            from analysis.report import style  # matplotlib takes a third of a second, and only figures need it

            assert self.figure is not None
            self.files[kind] = style.encode(self.figure, kind)
        return self.files[kind]


def available(room: Any) -> dict[str, ModuleType]:
    """The tables or figures there are: every module of the folder. Adding one is adding a file."""
    names = sorted(m.name for m in pkgutil.iter_modules(room.__path__))
    return {name: importlib.import_module(f"{room.__name__}.{name}") for name in names}


def draw(frames: Frames) -> list[Drawn]:
    """Those that have runs, by name."""
    found = ((name, module, module.figure(frames)) for name, module in available(room).items())
    return [Drawn(name, module.QUESTION, figure) for name, module, figure in found if figure is not None]


class Beside:
    """Figures that a process beside this one draws, from `start` on."""

    def __init__(self, frames: Frames) -> None:
        # A fork has the frames already. Elsewhere than on Linux it is not safe with what numpy links.
        self._frames = frames
        self._process = None
        if sys.platform == "linux":
            context = multiprocessing.get_context("fork")
            self._answer, send = context.Pipe(duplex=False)
            self._process = context.Process(target=_send, args=(frames, send), daemon=True)
            self._process.start()
            send.close()

    def figures(self) -> list[Drawn]:
        """All of them, once they are drawn."""
        if self._process is None:
            return draw(self._frames)
        try:
            found: list[Drawn] = self._answer.recv()
        except EOFError:  # it died: whatever was wrong shows here
            found = draw(self._frames)
        self._process.join()
        return found


def _send(frames: Frames, answer: Connection) -> None:
    found = draw(frames)
    for drawn in found:
        drawn.files = {kind: drawn.encoded(kind) for kind in ("png", "pdf")}
        drawn.figure = None
    answer.send(found)
