"""The log of an attempt: everything that is logged, printed or warned, and what a line says of a step."""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

from rlvr.metrics import EVALUATION, VALIDATION

SHOWN = ("reward/accuracy", "policy/entropy", "loss/total")  # and evaluations


@contextlib.contextmanager
def logging_to(path: Path) -> Iterator[IO[str]]:
    """Log records, prints and warnings of this attempt go to its own file.

    On SIGQUIT the stacks of all threads go there too, written in C: the supervisor sends it to a run that hangs.
    """
    with path.open("a", buffering=1) as file:
        handler = logging.StreamHandler(file)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        root = logging.getLogger()
        root.addHandler(handler)
        root.setLevel(logging.INFO)
        faulthandler.register(signal.SIGQUIT, file=file, all_threads=True)
        try:
            with contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
                yield file
        finally:
            faulthandler.unregister(signal.SIGQUIT)
            root.removeHandler(handler)


def brief(metrics: Mapping[str, float]) -> str:
    """The few numbers of a step that a log line has room for."""
    names = [name for name in metrics if name.startswith((EVALUATION, VALIDATION)) or name in SHOWN]
    return " ".join(f"{name}={metrics[name]:.4g}" for name in names)
