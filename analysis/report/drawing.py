"""Every figure that a study has, here or in a process beside this one: drawing takes as long as all the tables."""

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


def draw(frames: Frames, besides: Sequence[str] = ()) -> list[Drawn]:
    """Those that have runs, by name, but for those of names in `besides`."""
    drawn = (_draw(name, module, frames) for name, module in available(room).items() if name not in besides)
    return [each for each in drawn if each is not None]


def _draw(name: str, module: ModuleType, frames: Frames) -> Drawn | None:
    figure = module.figure(frames)
    return None if figure is None else Drawn(name, module.QUESTION, figure)


class Beside:
    """Figures that a process beside this one draws, from `start` on; this one helps once it waits for them."""

    def __init__(self, frames: Frames) -> None:
        # A fork has the frames already. Elsewhere than on Linux it is not safe with what numpy links.
        self._frames = frames
        self._process = None
        if sys.platform == "linux":
            self._open, put = os.pipe()  # who reads the number of a figure draws it
            os.write(put, bytes(range(len(available(room)))))
            os.close(put)
            context = multiprocessing.get_context("fork")
            self._answer, send = context.Pipe(duplex=False)
            self._process = context.Process(target=_send, args=(frames, self._open, send), daemon=True)
            self._process.start()
            send.close()

    def figures(self) -> list[Drawn]:
        """All of them, once they are drawn."""
        if self._process is None:
            return draw(self._frames)
        own = _draw_open(self._frames, self._open)
        os.close(self._open)
        try:
            others: list[Drawn] = self._answer.recv()
        except EOFError:  # it died: whatever was wrong shows here
            others = draw(self._frames, besides=[drawn.name for drawn in own])
        self._process.join()
        return sorted([*own, *others], key=lambda drawn: drawn.name)


def _draw_open(frames: Frames, numbers: int) -> list[Drawn]:
    """The figures that nobody else has begun."""
    known, found = list(available(room).items()), list[Drawn]()
    while number := os.read(numbers, 1):
        drawn = _draw(*known[number[0]], frames)
        if drawn is not None:
            drawn.files = {kind: drawn.encoded(kind) for kind in ("png", "pdf")}
            drawn.figure = None
            found.append(drawn)
    return found


def _send(frames: Frames, numbers: int, answer: Connection) -> None:
    answer.send(_draw_open(frames, numbers))
