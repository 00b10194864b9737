"""Costs of hostile answers: their own time, and the slow-down of honest answers and of the trainer.

python -m tests.bench.hostile [NAMES] [--write-docs]   a table; put it into docs/reliability.md

A stand-in for the trainer computes hashes on every core, one verifying process judges honest answers, and two others
judge hostile ones of one kind without pause. Each kind is measured between two periods without hostile answers.
"""

import argparse
import contextlib
import multiprocessing
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from ctypes import c_bool, c_long
from dataclasses import dataclass, field
from hashlib import sha256
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Any

from rlvr.task.verify.pool import Pool, niceness_for
from tests.bench.__main__ import machine
from tests.bench.row import put_between
from tests.task.verify import hostile

DOCS = Path(__file__).parents[2] / "docs" / "reliability.md"
BEGIN, END = "<!-- hostile answers -->\n", "<!-- end -->"
STRETCH_S = 15.0
CPU_S, TIMEOUT_S, MEMORY_GB = 3, 60.0, 1.0
HOSTILE_WORKERS = 2
SUM = {"stdio": [["3 4\n", "7\n"], ["10 -4", "6"]]}
HONEST = "a, b = map(int, input().split())\nprint(a + b)"
KINDS: dict[str, dict[str, str]] = {
    "signals to others": hostile.SIGNALS,
    "sleeps": hostile.SLEEPS,
    "computes": {name: hostile.COMPUTES[name] for name in ("loop", "start programs for ever")},
    "fork bombs": {name: program for name, program in hostile.COMPUTES.items() if "fork" in name},
    "thread bomb": {"thread bomb": hostile.COMPUTES["thread bomb"]},
    "hoards memory": hostile.HOARDS,
    "fills /tmp": {"empty files": hostile.EMPTY_FILES},
    "tries what is forbidden": hostile.REFUSED,
}


@dataclass
class Counts:
    """Judged answers: the seconds that each took, and the outcomes."""

    seconds: list[float] = field(default_factory=list)
    outcomes: set[str] = field(default_factory=set)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.hostile", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"all of: {', '.join(KINDS)}")
    parser.add_argument("--write-docs", action="store_true", help=f"put the table into {DOCS.name}")
    options = parser.parse_args(arguments)
    if unknown := set(options.names) - set(KINDS):
        parser.error(f"{', '.join(sorted(unknown))}: not among {', '.join(KINDS)}")
    head = "| hostile answer | outcome | seconds (median, most) | honest answers | trainer |"
    lines = [head, "|---|---|---|---|---|"]
    print(*lines, sep="\n", flush=True)
    with trainer() as hashed, counting("honest", {"honest": HONEST}, workers=1) as honest:
        for name in options.names or KINDS:
            lines.append(row(name, hashed, lambda: len(honest.seconds)))
            print(lines[-1], flush=True)
    if options.write_docs:
        write(lines)
    return 0


def row(name: str, hashed: Callable[[], int], judged: Callable[[], int]) -> str:
    """The table's row of one kind: rates as shares of the mean of the rates before and after."""
    before = rates(hashed, judged)
    with counting(name, KINDS[name], workers=HOSTILE_WORKERS) as bad:
        time.sleep(1.0)
        during = rates(hashed, judged, until=lambda: len(bad.seconds) >= len(KINDS[name]))
    after = rates(hashed, judged)
    ratios = [2 * d / (b + a) for b, d, a in zip(before, during, after, strict=True)]
    seconds = f"{statistics.median(bad.seconds):.1f}, {max(bad.seconds):.1f}"
    return f"| {name} | {', '.join(sorted(bad.outcomes))} | {seconds} | {ratios[1]:.0%} | {ratios[0]:.0%} |"


def rates(*counts: Callable[[], int], until: Callable[[], bool] = lambda: True) -> list[float]:
    """Increments of the counts per second, over at least STRETCH_S and until `until` holds."""
    start, at_first = time.monotonic(), [count() for count in counts]
    while time.monotonic() - start < STRETCH_S or not until():
        time.sleep(0.1)
    seconds = time.monotonic() - start
    return [(count() - first) / seconds for count, first in zip(counts, at_first, strict=True)]


@contextlib.contextmanager
def counting(name: str, programs: dict[str, str], *, workers: int) -> Iterator[Counts]:
    """Context in which the programs are judged again and again, each time as a different answer."""
    counts, done = Counts(), threading.Event()

    def judge(first: int, pool: Pool) -> None:
        """One thread per pool: a shared pool that waits for a slow answer would leave its other workers idle."""
        n = first
        while not done.is_set():
            program = list(programs.values())[n % len(programs)] + f"\n# {n}\n"
            start = time.monotonic()
            tests = HELD if name in ("hoards memory", "fills /tmp") else REFUSAL if "forbidden" in name else SUM
            (reply,) = pool.ask([{"program": program, "tests": tests, "cpu_s": CPU_S}])
            counts.seconds.append(time.monotonic() - start)
            counts.outcomes.add(reply["outcome"])
            n += workers

    with contextlib.ExitStack() as stack:
        nice = niceness_for(HOSTILE_WORKERS + 1)
        limits: dict[str, Any] = {"timeout_s": TIMEOUT_S, "memory_gb": MEMORY_GB, "nice": nice}
        pools = [stack.enter_context(Pool("rlvr.task.verify.program", workers=1, **limits)) for _ in range(workers)]
        for pool in pools:
            pool.ask([{"program": HONEST, "tests": SUM, "cpu_s": CPU_S}])
        threads = [threading.Thread(target=judge, args=(first, pool)) for first, pool in enumerate(pools)]
        for thread in threads:
            thread.start()
        try:
            yield counts
        finally:
            done.set()
            for thread in threads:
                thread.join()


HELD = {"stdio": [["", "held"]]}
REFUSAL = {"stdio": [["", "refused"]]}


@contextlib.contextmanager
def trainer() -> Iterator[Callable[[], int]]:
    """Context with a process, in a session of its own, that keeps every core busy; yields its count of blocks done."""
    context = multiprocessing.get_context("spawn")
    done, stop = context.Value(c_long, 0), context.Value(c_bool, False)
    process = context.Process(target=train, args=(done, stop))
    process.start()
    try:
        while not done.value:
            time.sleep(0.1)
        yield lambda: done.value
    finally:
        stop.value = True
        process.join()


def train(done: "Synchronized[int]", stop: "Synchronized[bool]") -> None:
    os.setsid()
    block, parent = bytes(2**18), os.getppid()

    def work() -> None:
        while not stop.value and os.getppid() == parent:  # ends also if the benchmark is killed
            sha256(block).digest()  # without the interpreter's lock
            with done.get_lock():
                done.value += 1

    threads = [threading.Thread(target=work) for _ in os.sched_getaffinity(0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def write(lines: Sequence[str]) -> None:
    on = machine()
    caption = f"Measured on {on['cores']} cores of {on['cpu']} with `cpu_s={CPU_S}`, `memory_gb={MEMORY_GB}`."
    put_between(DOCS, BEGIN, END, "\n".join(lines) + f"\n\n{caption}\n")


if __name__ == "__main__":
    sys.exit(main())
