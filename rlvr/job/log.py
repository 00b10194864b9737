"""The log of an attempt: all log records, prints and warnings, and the summary of a step in one line."""

import contextlib
import faulthandler
import logging
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO

from rlvr.metrics import EVALUATION, VALIDATION

SHOWN = ("reward/accuracy", "policy/entropy", "loss/total")  # beside evaluations


@contextlib.contextmanager
def logging_to(path: Path) -> Iterator[IO[str]]:
    """Context in which log records, prints and warnings go to the attempt's own file.

    On SIGQUIT, which the supervisor sends to a run that hangs, the stacks of all threads are written there too.
    """
    with path.open("a", buffering=1, encoding="utf-8") as file:
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


class _Share(logging.Handler):
    def __init__(self, report: Callable[[float], None]) -> None:
        super().__init__()
        self._report = report

    def emit(self, record: logging.LogRecord) -> None:
        if (share := getattr(record, "share", None)) is not None:
            self._report(share)


@contextlib.contextmanager
def share_of_base_policy(report: Callable[[float], None]) -> Iterator[None]:
    """Context in which the share of a base policy's pre-training that is done is reported, whenever it is logged."""
    logger, handler = logging.getLogger("rlvr.model.pretrain"), _Share(report)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def brief(metrics: Mapping[str, float]) -> str:
    """The metrics of a step that its log line shows."""
    names = [name for name in metrics if name.startswith((EVALUATION, VALIDATION)) or name in SHOWN]
    return " ".join(f"{name}={metrics[name]:.4g}" for name in names)
