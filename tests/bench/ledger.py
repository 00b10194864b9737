"""Time of ledger operations: `python -m tests.bench.ledger [RUNS]`. States of a large sweep, heartbeats, leases."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from rlvr.ledger.attempt import Attempt
from rlvr.ledger.sweeps import Ledger


def timed(what: str, times: int, call: Callable[[], object]) -> None:
    began = time.perf_counter()
    call()
    seconds = time.perf_counter() - began
    print(f"{what:42} {seconds:8.3f} s   {seconds / times * 1e6:8.1f} us each")


def main(num_runs: int) -> None:
    with tempfile.TemporaryDirectory() as home:
        ledger = Ledger(home)
        ids = [f"{i:012x}" for i in range(num_runs)]
        manifest = [{"run_id": run_id} for run_id in ids]

        def create() -> None:
            for run_id in ids:
                ledger.create_run(run_id, "seed: 0\n", {"name": f"lad-{run_id}"})

        def open_attempts() -> None:
            for i, run_id in enumerate(ids):
                for cause in ("preempted", "ok")[: 1 + i % 2]:
                    with Attempt.open(ledger.run_dir(run_id)) as attempt:
                        attempt.heartbeat(1, 10, "train", 0.5)
                        attempt.close(cause)

        timed(f"create {num_runs} runs", num_runs, create)
        timed(f"attempts of {num_runs} runs (1 or 2 each)", num_runs, open_attempts)
        ledger.record_sweep("s", {}, manifest)
        timed(f"states of a sweep of {num_runs} runs", num_runs, lambda: ledger.states(ledger.sweep("s").run_ids))
        with Attempt.open(Path(ledger.run_dir(ids[0]))) as attempt:
            timed("1000 heartbeats, same phase", 1000, lambda: [attempt.heartbeat(i, 1, "a") for i in range(1000)])
            new_phases = lambda: [attempt.heartbeat(1, 1, str(i)) for i in range(1000)]  # noqa: E731
            timed("1000 heartbeats, a new phase each", 1000, new_phases)
            timed("1000 checks of the lease", 1000, lambda: [attempt.holds_lease() for _ in range(1000)])
            attempt.close("ok")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
