"""Time that tracking adds to a training step: that of `JournalWriter.record` with 50 metrics. Prints one JSON line.

python -m tests.bench.tracker
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from pathlib import Path

from rlvr.ledger.journal import JournalWriter

METRICS, STEPS, TARGET_MS = 50, 2000, 0.1


def main() -> None:
    seconds: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        tracker = JournalWriter(Path(folder), 1)
        for step in range(STEPS):
            metrics = {f"group/metric_{i}": (step + 1) / (i + 3) for i in range(METRICS)}
            start = time.perf_counter()
            tracker.record(step, metrics)
            seconds.append(time.perf_counter() - start)
        start = time.perf_counter()
        tracker.flush()
        flush_ms = 1e3 * (time.perf_counter() - start)
        tracker.close()
    seconds.sort()
    median_ms = 1e3 * statistics.median(seconds)
    report = {
        "bench": "tracker.record",
        "metrics": METRICS,
        "steps": STEPS,
        "median_ms": median_ms,
        "p99_ms": 1e3 * seconds[int(0.99 * STEPS)],
        "max_ms": 1e3 * seconds[-1],
        "flush_ms": flush_ms,
        "target_ms": TARGET_MS,
        "met": median_ms < TARGET_MS,
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
