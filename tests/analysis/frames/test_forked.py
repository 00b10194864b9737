"""The second processes of a report end with the first, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.analysis.ledger_factory import write_study

ROOT = Path(__file__).parents[3]
# Each prints the id of a forked process, and does not end by itself.
FIGURES = """
import sys, time
from pathlib import Path
from analysis.frames.load import load
from analysis.report.drawing import FigureProcess
second = FigureProcess(load(Path(sys.argv[1])))
print(second._process.pid, flush=True)
time.sleep(60)
"""
JOURNALS = """
import os, time
from analysis.frames.cache import MANY, in_processes
def parse(number):
    os.write(1, f"{os.getpid()}\\n".encode())
    time.sleep(60)
in_processes(parse, range(MANY))
"""


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is forked")
@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("code", [FIGURES, JOURNALS], ids=["figures", "journals"])
def test_a_forked_process_ends_with_its_parent(tmp_path: Path, code: str, signal_number: signal.Signals) -> None:
    write_study(tmp_path)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    line = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True, env=environment) as parent:
        assert parent.stdout is not None
        forked = int(parent.stdout.readline())
        assert running(forked)
        parent.send_signal(signal_number)
        parent.wait()
    deadline = time.monotonic() + 20
    while running(forked) and time.monotonic() < deadline:
        time.sleep(0.05)
    ended = not running(forked)
    if not ended:
        os.kill(forked, signal.SIGKILL)
    assert ended
