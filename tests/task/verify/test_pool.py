import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import pytest

import rlvr
from rlvr.task.verify import pool as pool_module
from rlvr.task.verify.pool import Pool, niceness_for
from tests.task.verify.looking import session_keyring

ROOT = Path(__file__).parents[3]
HANG = {"gold": "1", "answer": r"\boxed{(x+y+z+w+v+u)^{90}}"}  # is expanded for hours


def make_pool(workers: int = 2, timeout_s: float = 30.0) -> Pool:
    return Pool("rlvr.task.verify.math_answer", workers=workers, timeout_s=timeout_s, memory_gb=2.0)


def make_talking() -> Pool:
    return Pool("tests.task.verify.talking", workers=1, timeout_s=30.0, memory_gb=2.0)


def number(n: int, gold: int | None = None) -> dict[str, str]:
    return {"gold": str(n if gold is None else gold), "answer": f"\\boxed{{{n}}}"}


def running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def wait_for(fact: Callable[[], bool], seconds: float = 20.0) -> bool:
    end = time.monotonic() + seconds
    while not fact() and time.monotonic() < end:
        time.sleep(0.02)
    return fact()


def busy(pool: Pool) -> list[int]:
    return [w.process.pid for w in pool._workers if w.job is not None and not w.unsent]


@pytest.fixture
def pool() -> Iterator[Pool]:
    with make_pool() as pool:
        yield pool


@pytest.mark.slow
def test_replies_come_in_order_and_processes_are_reused(pool: Pool) -> None:
    requests = [number(n, gold=n // 2 * 2) for n in range(40)]  # even numbers are right
    expected = [{"outcome": "correct" if n % 2 == 0 else "wrong"} for n in range(40)]
    assert pool.ask(requests) == expected
    pids = pool.pids()
    assert (len(set(pids)), pool.ask(requests * 2), pool.pids(), pool.ask([])) == (2, expected * 2, pids, [])


@pytest.mark.slow
def test_a_hanging_answer_times_out_alone(pool: Pool) -> None:
    pool._timeout_s = 1.0
    pool.ask([number(1), number(2)])  # both are up
    start = time.monotonic()
    replies = pool.ask([number(1), HANG, *[number(n) for n in range(2, 20)]])
    assert time.monotonic() - start < 10
    assert [r["outcome"] for r in replies] == ["correct", "timeout", *["correct"] * 18]
    assert pool.ask([number(5)]) == [{"outcome": "correct"}]


@pytest.mark.slow
def test_a_process_killed_in_the_middle_costs_no_answer(pool: Pool) -> None:
    """An answer that takes a moment (an infinite sum) is judged again in another process."""
    slow = [{"gold": str(n), "answer": r"\boxed{\sum_{k=1}^{\infty} \frac{1}{k^2}}"} for n in range(4)]
    killed: list[int] = []

    def kill() -> None:
        if wait_for(lambda: bool(busy(pool))):
            killed.append(busy(pool)[0])
            os.kill(killed[0], signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    replies = pool.ask(slow + [number(n) for n in range(50)])
    thread.join()
    assert killed
    assert killed[0] not in pool.pids()
    assert [r["outcome"] for r in replies] == ["wrong"] * 4 + ["correct"] * 50


@pytest.mark.slow
def test_an_answer_that_kills_two_processes_is_an_error() -> None:
    with make_pool(workers=1) as pool:
        victims: set[int] = set()

        def kill() -> None:
            while len(victims) < 2:
                for pid in busy(pool):
                    victims.add(pid)
                    os.kill(pid, signal.SIGKILL)
                time.sleep(0.02)

        thread = threading.Thread(target=kill)
        thread.start()
        assert pool.ask([HANG]) == [{"outcome": "error"}]
        thread.join()
        assert (len(victims), pool.ask([number(1)])) == (2, [{"outcome": "correct"}])


@pytest.mark.parametrize(
    "sent", ["no JSON\n", "[1]\n", '{"outcome": "correct"}\n{"outcome": "correct"}\n', "[" * 99_999 + "\n"]
)
def test_what_is_no_reply_is_an_error_and_the_process_is_replaced(sent: str) -> None:
    """Code in an answer may have sent it: it must not end the trainer."""
    with make_talking() as pool:
        assert pool.ask([{"send": sent, "sleep_s": 5.0}, {}]) == [{"outcome": "error"}, {"outcome": "correct"}]


def test_a_reply_without_end_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "REPLY_BYTES", 2**20)
    with make_talking() as pool:
        assert pool.ask([{"flood": True}, {}]) == [{"outcome": "error"}, {"outcome": "correct"}]


@pytest.mark.slow
def test_processes_that_died_idle_are_replaced(pool: Pool) -> None:
    pool.ask([number(1), number(2)])
    before = pool.pids()
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    assert wait_for(lambda: not any(map(running, before)))
    assert pool.ask([number(n) for n in range(6)]) == [{"outcome": "correct"}] * 6
    assert not set(before) & set(pool.pids())


@pytest.mark.slow
def test_signals_meant_for_the_job_do_not_reach_the_verifier(pool: Pool) -> None:
    pool.ask([number(1), number(2)])
    before = pool.pids()
    assert all(os.getsid(pid) != os.getsid(0) for pid in before)
    for pid in before:
        for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            os.kill(pid, name)
    assert (pool.ask([number(3), number(4)]), pool.pids()) == ([{"outcome": "correct"}] * 2, before)


def test_a_stopped_process_does_not_block_a_large_request() -> None:
    with make_pool(workers=1, timeout_s=1.0) as pool:
        pool.ask([number(1)])
        os.kill(pool.pids()[0], signal.SIGSTOP)
        large = {"gold": "1", "answer": "x" * 4_000_000}  # many times what a pipe holds
        start = time.monotonic()
        assert pool.ask([large]) == [{"outcome": "timeout"}]
        assert time.monotonic() - start < 10


def test_large_requests_arrive_whole(pool: Pool) -> None:
    padding = "word " * 100_000
    assert pool.ask([{"gold": "7", "answer": f"{padding}\\boxed{{7}}"}]) == [{"outcome": "correct"}]


def test_a_verifier_that_cannot_start_is_an_error_with_its_reason() -> None:
    with (
        Pool("rlvr.task.verify.no_such_module", workers=2, timeout_s=5, memory_gb=1) as pool,
        pytest.raises(
            RuntimeError, match=r"did not start \(exit status 1\)(.|\n)*No module named 'rlvr.task.verify.no_such"
        ),
    ):
        pool.ask([number(1)])
    assert pool.pids() == []


def test_memory_too_small_to_start_is_an_error() -> None:
    pool = Pool("rlvr.task.verify.math_answer", workers=1, timeout_s=5, memory_gb=0.05)
    with pool, pytest.raises(RuntimeError, match="did not start"):
        pool.ask([number(1)])


@pytest.mark.slow
def test_an_interrupt_leaves_no_process_and_a_usable_pool(pool: Pool) -> None:
    pool.ask([number(1), number(2)])
    before = pool.pids()

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGUSR1, interrupt)
    timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGUSR1))
    try:
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            pool.ask([HANG])
    finally:
        timer.join()
        signal.signal(signal.SIGUSR1, previous)
    assert not any(map(running, before))
    assert pool.ask([number(3)]) == [{"outcome": "correct"}]


@pytest.mark.slow
def test_close_ends_the_processes_and_ask_starts_new_ones(pool: Pool) -> None:
    pool.ask([number(1), number(2)])
    before = pool.pids()
    pool.close()
    pool.close()
    assert not any(map(running, before))
    assert pool.ask([number(1)]) == [{"outcome": "correct"}]


@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG is Linux's")
def test_busy_processes_die_with_a_killed_parent(tmp_path: Path) -> None:
    """From another directory, too: the child finds the package by itself."""
    code = (
        "import threading, time\n"
        "from rlvr.task.verify.pool import Pool\n"
        "pool = Pool('rlvr.task.verify.math_answer', workers=2, timeout_s=100, memory_gb=2)\n"
        "pool.ask([{'gold': '1', 'answer': '1'}, {'gold': '2', 'answer': '2'}])\n"
        "print(*pool.pids(), flush=True)\n"
        f"pool.ask([{HANG!r}, {{**{HANG!r}, 'gold': '2'}}])\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert parent.stdout is not None
    pids = [int(word) for word in parent.stdout.readline().split()]
    assert len(pids) == 2
    time.sleep(0.5)
    assert all(map(running, pids))
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert wait_for(lambda: not any(map(running, pids)), 10)


@pytest.mark.skipif(not Path("/proc/self/autogroup").exists(), reason="this kernel schedules no sessions")
def test_processes_yield_to_the_trainer_and_hold_no_key_of_ours() -> None:
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    with Pool("tests.task.verify.looking", workers=1, timeout_s=30, memory_gb=1, nice=3) as pool:
        (seen,) = pool.ask([{}])
    keyring = seen.pop("keyring")
    assert seen == {"nice": min(19, nice + 3), "session": True, "share": "3", "oom_score_adj": "900", "dumpable": 0}
    assert keyring > 0
    assert keyring != session_keyring()


@pytest.mark.parametrize(("workers", "nice"), [(1, 4), (2, 7), (8, 13), (32, 19), (1000, 19)])
def test_all_processes_together_weigh_half_of_one_that_is_not_nice(workers: int, nice: int) -> None:
    """A weight of 1 / 1.25^nice each: 2 workers at 7 are 0.42, at 6 they would be 0.52. 19 is the lowest there is."""
    assert niceness_for(workers) == nice
    assert workers / 1.25**nice <= 0.5 or nice == 19


def test_the_child_imports_this_checkout_and_no_other_install(tmp_path: Path) -> None:
    """A directory of PYTHONPATH, and so of an install, that has another rlvr."""
    (tmp_path / "rlvr").mkdir()
    (tmp_path / "rlvr" / "__init__.py").write_text("raise RuntimeError('the other one')")
    root = Path(rlvr.__file__).parents[1]
    child = [sys.executable, "-P", str(root / "rlvr/task/verify/child.py"), str(root), "rlvr.task.verify.math_answer"]
    done = subprocess.run(
        [*child, str(8 * 2**30), "0", str(os.getpid())],
        input="",
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "ready" in done.stdout, done.stderr


@pytest.mark.slow
def test_a_request_can_have_a_limit_of_its_own() -> None:
    """In either direction, and the next one has the pool's again."""
    with make_pool(workers=1, timeout_s=60.0) as pool:
        assert pool.ask([HANG], timeout_s=0.5) == [{"outcome": "timeout"}]
        assert pool.ask([number(1)]) == [{"outcome": "correct"}]
    with make_pool(workers=1, timeout_s=0.5) as pool:
        assert pool.ask([number(1)], timeout_s=200.0) == [{"outcome": "correct"}]
        began = time.monotonic()
        assert pool.ask([HANG]) == [{"outcome": "timeout"}]
        assert time.monotonic() - began < 100
