"""Real child processes that answer, end or hang; and a temporary environment."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psutil
import pytest

from rlvr.rollout import vllm_server
from rlvr.rollout.child import Child, ProcessLost, environment_with

# Doubles numbers; prints a message and exits on `die`, does not respond on `hang`.
SCRIPT = f"""
import json, os, signal, sys, time
sys.path.insert(0, {str(Path(vllm_server.__file__).parent)!r})
from vllm_server import _exactly, pack, receive

options = json.loads(sys.argv[1])
blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [])
while True:
    header, arrays = receive(_exactly)
    if header["do"] == "die":
        print("no memory left", file=sys.stderr)
        sys.exit(3)
    if header["do"] == "hang":
        time.sleep(60)
    answer = {{"parent": options["parent"], "name": options["name"], "blocked": signal.SIGUSR2 in blocked}}
    answer["path"], answer["files"] = os.environ["PATH"], os.environ["TMPDIR"]
    sys.stdout.buffer.write(pack(answer, {{"doubled": 2 * arrays["numbers"]}}))
    sys.stdout.buffer.flush()
"""


@pytest.fixture
def child(tmp_path: Path) -> Iterator[Child]:
    (tmp_path / "script.py").write_text(SCRIPT)
    started = Child(sys.executable, tmp_path / "script.py", {"name": "x"}, {**os.environ, "PATH": "/usr/bin"})
    yield started
    started.kill()


def test_arrays_arrive_unchanged_and_signals_to_stop_are_blocked_in_the_child(child: Child) -> None:
    numbers = np.arange(400_000, dtype=np.float32).reshape(2, -1)  # more than a pipe holds
    child.send({"do": "double"}, {"numbers": numbers}, 30)
    header, arrays = child.receive(30)
    (Path(header["files"]) / "left").touch()
    # programs of its environment (ninja) are found although that is not activated
    path = f"{Path(sys.executable).parent}:/usr/bin"
    assert header == {"parent": os.getpid(), "name": "x", "blocked": True, "path": path, "files": header["files"]}
    np.testing.assert_array_equal(arrays["doubled"], 2 * numbers, strict=True)
    child.kill()
    assert not Path(header["files"]).exists()


def test_a_child_that_exits_or_hangs_is_lost_and_can_be_killed(child: Child, tmp_path: Path) -> None:
    child.send({"do": "die"}, {}, 30)
    with pytest.raises(ProcessLost, match="it ended with exit status 3: no memory left"):
        child.receive(30)
    assert child.kill() == 3
    hanging = Child(sys.executable, tmp_path / "script.py", {"name": "x"}, dict(os.environ))
    hanging.send({"do": "hang"}, {}, 30)
    with pytest.raises(ProcessLost, match="it has sent nothing for 0 s"):
        hanging.receive(0.2)
    with pytest.raises(ProcessLost, match="not read its input for 1 s"):
        hanging.send({"do": "double"}, {"numbers": np.arange(30_000)}, timeout_s=1)
    assert hanging.kill() < 0


def test_long_messages_in_both_directions_at_once_do_not_wait_for_each_other(child: Child) -> None:
    numbers = np.arange(30_000)  # 240 kB; a pipe holds 64
    for _ in range(4):
        child.send({"do": "double"}, {"numbers": numbers}, timeout_s=20)
    for _ in range(4):
        _, arrays = child.receive(timeout_s=20)
        assert np.array_equal(arrays["doubled"], 2 * numbers)


def test_one_thread_sends_while_another_receives(child: Child) -> None:
    numbers = np.arange(30_000)
    with ThreadPoolExecutor(1) as other:
        received = other.submit(lambda: [child.receive(timeout_s=20)[1]["doubled"] for _ in range(20)])
        for factor in range(20):
            child.send({"do": "double"}, {"numbers": factor * numbers}, timeout_s=20)
        for factor, doubled in enumerate(received.result()):
            assert np.array_equal(doubled, 2 * factor * numbers)


def test_a_temporary_environment_is_restored_whatever_has_changed_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLVR_KEPT", "old")
    monkeypatch.delenv("RLVR_NEW", raising=False)
    before = dict(os.environ)
    with contextlib.suppress(KeyError), environment_with({"RLVR_KEPT": "new", "RLVR_NEW": "1"}):
        assert (os.environ["RLVR_KEPT"], os.environ["RLVR_NEW"]) == ("new", "1")
        os.environ["RLVR_ANOTHER"] = "of a library"
        del os.environ["PATH"]
        raise KeyError
    assert dict(os.environ) == before


FORKS = f"""
import os, sys, time
sys.path.insert(0, {str(Path(vllm_server.__file__).parent)!r})
from vllm_server import end_forks_with_us

end_forks_with_us()
if os.fork() == 0:
    if os.fork() == 0:
        time.sleep(60)  # the fork of a fork: a pool of compilers, which has its own parent
    print(os.getpid(), flush=True)
    time.sleep(60)
time.sleep(60)
"""


def test_what_a_killed_process_has_forked_ends_with_it() -> None:
    with subprocess.Popen([sys.executable, "-c", FORKS], stdout=subprocess.PIPE, text=True) as started:
        assert started.stdout is not None
        fork = psutil.Process(int(started.stdout.readline()))
        (of_fork,) = fork.children()
        started.kill()
        gone, _ = psutil.wait_procs([fork], timeout=20)
        assert gone == [fork]
        assert of_fork.is_running()
        of_fork.kill()
