"""Time that tracking adds to a training step: that of `JournalWriter.record` with 50 metrics."""

import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path

from rlvr.ledger.journal import JournalWriter
from tests.bench.row import Row, row, timed

METRICS, STEPS, LIMIT_MS = 50, 2000, 0.1


def rows(*, quick: bool) -> Iterator[Row]:
    """Milliseconds of a step, beside their limit."""
    seconds: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        tracker = JournalWriter(Path(folder), 1)
        for step in range(200 if quick else STEPS):
            metrics = {f"group/metric_{i}": (step + 1) / (i + 3) for i in range(METRICS)}
            seconds.append(timed(lambda step=step, metrics=metrics: tracker.record(step, metrics))())
        tracker.close()
    median_ms = 1e3 * statistics.median(seconds)
    yield row("tracking 50 metrics", median_ms, "ms", "limit", LIMIT_MS, smaller=True, target=1.0)
