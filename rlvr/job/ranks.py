"""The ranks of a run on one node: `python -m rlvr.job.ranks COUNT WORDS...` runs `python WORDS...` COUNT times at once.

On one node they meet in a file of a directory that only its user can enter, and talk through the loopback device. The
store of `torchrun --standalone` would listen on all interfaces and unpickle what anybody sends. Of several nodes each
runs this, with `--nodes`, `--node` and `--meet`; their ranks find one another through a port of the first node, and
trust its network (SECURITY.md).

If the run samples with Ray, its nodes have one together (rlvr/rollout/ray_node.py), on loopback if there is one node.
Of several the first listens where `--ray` says; further nodes, of workers alone, run this with 0 for COUNT. The nodes
share a token, which is in the environment of each: RAY_AUTH_TOKEN.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType

import psutil

from rlvr.ledger.attempt import RAY_NETWORK, STORE
from rlvr.ledger.cause import Cause
from rlvr.ledger.runs import Unreadable, read_config
from rlvr.rollout.broadcast import interface_of, ip_towards, nccl_towards
from rlvr.rollout.ray_node import ADDRESS, TOKEN, RayNode, free_address, new_token

# Seconds for the other ranks to end by themselves once one has. If it was told to stop and has saved, they may be at
# it still. If it failed, no other can finish a collective any more, nor a checkpoint; and one whose GPU is in one hears
# no signal.
SAVED_S, FAILED_S = 600.0, 60.0
SAVED = {Cause.PREEMPTED.code, Cause.TIME_LIMIT.code, Cause.PRUNED.code}


def main(arguments: Sequence[str] | None = None) -> None:
    """Ends as the first rank did that failed: with its exit code, or by the signal that killed it."""
    parser = argparse.ArgumentParser("python -m rlvr.job.ranks", description=__doc__)
    parser.add_argument("--nodes", type=int, default=1, metavar="N", help="of the run (default: 1)")
    parser.add_argument("--node", type=int, default=0, metavar="K", help="number of this one, from 0")
    parser.add_argument("--meet", default="", metavar="HOST:PORT", help="of several nodes: free, on the first of them")
    parser.add_argument("--ray", default="", metavar="IP:PORT", help="the same for Ray, if the run samples with it")
    parser.add_argument("--sampling", type=int, default=0, metavar="N", help="further nodes, of workers of Ray alone")
    parser.add_argument("count", type=int, help="ranks of this node; 0: it is for workers of Ray alone")
    parser.add_argument("words", nargs=argparse.REMAINDER, help="what Python runs, such as -m rlvr.job RUN_DIR")
    options = parser.parse_args(arguments)
    if options.nodes > 1 and not options.meet.rpartition(":")[0]:
        parser.error("several nodes need --meet HOST:PORT")
    workers = workers_of(options.words)
    if workers and options.nodes + options.sampling > 1 and not (options.ray and os.environ.get(TOKEN)):
        parser.error(f"several nodes that sample with Ray need --ray IP:PORT, and {TOKEN} in their environment")
    with tempfile.TemporaryDirectory(prefix="rlvr-ranks-") as directory, ray_of(workers, options) as ray:  # 0700
        if not options.count:
            sys.exit(_serve(ray))
        place = _meeting(options.nodes, options.meet, Path(directory))
        place |= {} if ray is None else {ADDRESS: ray.address}
        if options.ray and options.nodes == 1:
            place |= {RAY_NETWORK: "1", **nccl_towards(options.ray)}
        status = Ranks(options.words, options.count, options.node, options.nodes, place).wait(ray)
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
    return {"MASTER_ADDR": host, "MASTER_PORT": port, **_interface(meet)}


def _interface(meet: str) -> dict[str, str]:
    """By which gloo of other nodes reaches this one, if it is not named. Left to itself gloo takes that of the host's
    name, which on many systems is the loopback device.
    """
    if "GLOO_SOCKET_IFNAME" in os.environ:
        return {}
    named = os.environ.get("NCCL_SOCKET_IFNAME")
    if named in psutil.net_if_addrs():  # NCCL takes beginnings of names, too
        return {"GLOO_SOCKET_IFNAME": named}
    found = interface_of(ip_towards(meet))
    return {"GLOO_SOCKET_IFNAME": found} if found else {}


def workers_of(words: Sequence[str]) -> int:
    """Workers of Ray that the run of these words has, by its config."""
    if list(words[:2]) != ["-m", "rlvr.job"]:
        return 0
    try:
        return int(read_config(Path(words[-1]))["rollout"]["engine"].get("workers", 0))
    except Unreadable:  # its ranks say why
        return 0


@contextlib.contextmanager
def ray_of(workers: int, options: argparse.Namespace) -> Iterator[RayNode | None]:
    """This node's Ray, if the run has workers; gone when this is left."""
    if not workers:
        yield None
        return
    os.environ.setdefault(TOKEN, new_token())  # of one node: nobody else needs to know it
    # Without GPUs a node has as many places as another: those for workers alone, if there are some, else all.
    of_workers = options.sampling or options.nodes
    places = 0 if options.sampling and options.count else -(-workers // of_workers)
    ray = RayNode(options.ray or free_address(), options.node, options.count, places)
    try:
        yield ray
    finally:
        ray.close()


def _serve(ray: RayNode | None) -> int:
    """Of a node for workers alone: until the first node is done, or a signal says stop. Returns the exit code."""
    told = threading.Event()
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, lambda *_: told.set())
    return 0 if ray is None else ray.serve(told.is_set)


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

    def wait(self, ray: RayNode | None = None, *, failed_s: float = FAILED_S) -> int:
        """Until all have ended. Returns the first status that is not 0 (negative: killed by that signal), or 0.

        ray: of this node. Ranks see for themselves that it has ended; why it has is said here. failed_s: patience with
        the others when one has failed.
        """
        first, patience_s = 0, math.inf
        while self._processes:
            pid, status = os.wait()
            if (process := self._processes.pop(pid, None)) is None:
                if ray is not None:
                    print(f"Ray of this node has ended: {ray.last_words}", file=sys.stderr, flush=True)
                continue
            process.returncode = os.waitstatus_to_exitcode(status)
            if not process.returncode:
                continue
            if not first:
                first = process.returncode
                self._tell(signal.SIGTERM)
            shortest_s = min(patience_s, SAVED_S if process.returncode in SAVED else failed_s)
            if shortest_s < patience_s:
                patience_s = shortest_s
                self._kill_after(patience_s)
        return first

    def _kill_after(self, patience_s: float) -> None:
        timer = threading.Timer(patience_s, self._tell, [signal.SIGKILL])
        timer.daemon = True
        timer.start()

    def _hear(self, _number: int, _frame: FrameType | None) -> None:
        self._told = True
        self._tell(signal.SIGTERM)

    def _tell(self, number: signal.Signals) -> None:
        for pid in list(self._processes):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)  # not by Popen, which would take the end of one that has just ended from `wait`


if __name__ == "__main__":
    main()
