"""The ranks of a run on one node: `python -m rlvr.job.ranks COUNT WORDS...` runs `python WORDS...` COUNT times at once.

On one node they meet in a file of a directory that only its user can enter, and talk through the loopback device. The
store of `torchrun --standalone` would listen on all interfaces and unpickle what anybody sends. Of several nodes each
runs this, with `--nodes`, `--node` and `--meet`; their ranks find one another through a port of the first node, and
trust its network (SECURITY.md).
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType

STORE = "RLVR_STORE"  # in the environment of a rank: the file in which those of one node meet
FAREWELL_S = 3600.0  # for the others to end when one has failed: they may be writing a checkpoint


def main(arguments: Sequence[str] | None = None) -> None:
    """Ends as the first rank did that failed: with its exit code, or by the signal that killed it."""
    parser = argparse.ArgumentParser("python -m rlvr.job.ranks", description=__doc__)
    parser.add_argument("--nodes", type=int, default=1, metavar="N", help="of the run (default: 1)")
    parser.add_argument("--node", type=int, default=0, metavar="K", help="number of this one, from 0")
    parser.add_argument("--meet", default="", metavar="HOST:PORT", help="of several nodes: free, on the first of them")
    parser.add_argument("count", type=int, help="ranks of this node")
    parser.add_argument("words", nargs=argparse.REMAINDER, help="what Python runs, such as -m rlvr.job RUN_DIR")
    options = parser.parse_args(arguments)
    if options.nodes > 1 and not options.meet.rpartition(":")[0]:
        parser.error("several nodes need --meet HOST:PORT")
    with tempfile.TemporaryDirectory(prefix="rlvr-ranks-") as directory:  # 0700
        place = _meeting(options.nodes, options.meet, Path(directory))
        status = Ranks(options.words, options.count, options.node, options.nodes, place).wait()
    if status < 0:
        if -status != signal.SIGKILL:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    sys.exit(status)


def _meeting(nodes: int, meet: str, directory: Path) -> dict[str, str]:
    """What tells ranks how to find one another."""
    if nodes == 1:
        return {STORE: str(directory / "store")}
    host, _, port = meet.rpartition(":")
    return {"MASTER_ADDR": host, "MASTER_PORT": port}


class Ranks:
    """Processes that end together. SIGTERM and SIGINT ask each of them to end; one that fails ends the others."""

    def __init__(self, words: Sequence[str], count: int, node: int, nodes: int, place: Mapping[str, str]) -> None:
        self._told = False
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, self._hear)
        python = [sys.executable, "-u", *(["-P"] if sys.flags.safe_path else [])]
        for local in range(count):
            numbers = {"RANK": node * count + local, "WORLD_SIZE": nodes * count}
            numbers |= {"LOCAL_RANK": local, "LOCAL_WORLD_SIZE": count}
            environment = {**os.environ, **place, **{key: str(number) for key, number in numbers.items()}}
            process = subprocess.Popen([*python, *words], env=environment, stdin=subprocess.DEVNULL)
            self._processes[process.pid] = process
        if self._told:  # before all were there to hear it
            self._tell(signal.SIGTERM)

    def wait(self) -> int:
        """Until all have ended. Returns the first status that is not 0 (negative: killed by that signal), or 0."""
        first = 0
        while self._processes:
            pid, status = os.wait()
            if (process := self._processes.pop(pid, None)) is None:
                continue
            process.returncode = os.waitstatus_to_exitcode(status)
            if process.returncode and not first:
                first = process.returncode
                self._tell(signal.SIGTERM)
                patience = threading.Timer(FAREWELL_S, self._tell, [signal.SIGKILL])
                patience.daemon = True
                patience.start()
        return first

    def _hear(self, _number: int, _frame: FrameType | None) -> None:
        self._told = True
        self._tell(signal.SIGTERM)

    def _tell(self, number: signal.Signals) -> None:
        for process in list(self._processes.values()):
            process.send_signal(number)


if __name__ == "__main__":
    main()
