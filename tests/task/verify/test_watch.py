import contextlib
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from rlvr.task.verify import watch

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")


@contextlib.contextmanager
def started(program: str) -> Iterator[subprocess.Popen[bytes]]:
    """A program with all that it starts, in a session of its own; it begins once it has written a line."""
    command = [sys.executable, "-c", "import os, signal, sys, time\n" + program]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def wait(program: str, *, seconds: float = 60.0, memory: float = math.inf) -> tuple[str | None, float]:
    """What it has used up, and the seconds until then."""
    with started("print(flush=True)\n" + program) as process:
        assert process.stdout is not None
        process.stdout.readline()
        start = time.monotonic()
        return watch.wait(process, seconds=seconds, memory=memory, begun=lambda: True), time.monotonic() - start


def test_an_end_is_seen_at_once() -> None:
    exhausted, took_s = wait("time.sleep(0.3)")
    assert exhausted is None
    assert took_s < 3


def test_sleep_counts() -> None:
    exhausted, took_s = wait("time.sleep(60)", seconds=1.0)
    assert exhausted == "time"
    assert 0.9 < took_s < 5


def test_sleep_before_it_has_begun_does_not_count() -> None:
    with started("time.sleep(1.5)") as process:
        assert watch.wait(process, seconds=1.0, memory=math.inf, begun=lambda: False) is None


def test_the_time_of_all_processes_counts_together() -> None:
    """Each of four needs 0.5 s."""
    program = "for _ in range(3): os.fork() or None\nwhile time.process_time() < 0.25: pass\ntime.sleep(60)"
    assert wait(program, seconds=1.5)[0] == "time"


@pytest.mark.slow
def test_the_time_of_processes_that_ended_counts() -> None:
    program = (
        "for _ in range(100):\n    pid = os.fork()\n    if pid == 0:\n"
        "        while time.process_time() < 0.03: pass\n        os._exit(0)\n    os.waitpid(pid, 0)"
    )
    assert wait(program, seconds=1.0)[0] == "time"


@pytest.mark.slow
def test_one_that_waits_for_another_is_not_asleep_while_that_one_computes() -> None:
    with started("time.sleep(60)") as waiting, started("while time.process_time() < 1.5: pass") as computing:
        assert watch.wait(computing, waiting, seconds=2.0, memory=math.inf, begun=lambda: True) is None


@pytest.mark.slow
def test_waiting_for_a_core_does_not_count() -> None:
    """Six that need 0.5 s each on one core: each takes about 3 s of the clock."""
    core = min(os.sched_getaffinity(0))
    program = f"os.sched_setaffinity(0, [{core}])\nwhile time.process_time() < 0.5: pass"
    with contextlib.ExitStack() as stack:
        processes = [stack.enter_context(started(program)) for _ in range(6)]
        for process in processes:
            assert watch.wait(process, seconds=1.0, memory=math.inf, begun=lambda: True) is None


@pytest.mark.parametrize(("memory", "exhausted"), [(150e6, "memory"), (300e6, None)])
def test_memory_of_all_processes_counts_together(memory: float, exhausted: str | None) -> None:
    """Three of 60 MB and their parent."""
    program = "for _ in range(3):\n    if os.fork() == 0:\n        x = b'x' * 60_000_000\n        break\ntime.sleep(2)"
    with started(program) as process:
        assert watch.wait(process, seconds=60.0, memory=memory, begun=lambda: False) == exhausted


def test_many_threads_weigh_as_much_as_one() -> None:
    """1.25 to the 7th is 4.8, to the 8th 6.0: the niceness of each of five rises by 8. They hash, without the GIL."""
    program = (
        "import hashlib, threading\ncompute = lambda: hashlib.pbkdf2_hmac('sha256', b'', b'', 10**9)\n"
        "for _ in range(4): threading.Thread(target=compute).start()\nprint(flush=True)\ncompute()"
    )
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    with started(program) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert watch.wait(process, seconds=0.5, memory=math.inf, begun=lambda: True) == "time"
        threads = [int(name) for name in os.listdir(f"/proc/{process.pid}/task")]  # noqa: PTH208
        raised = [os.getpriority(os.PRIO_PROCESS, thread) - nice for thread in threads]
    assert raised == [8 if nice <= 11 else 0] * 5  # beyond 19 it is another scheduler that lets them wait
