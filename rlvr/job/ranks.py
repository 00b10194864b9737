"""The ranks of a run on one node: `python -m rlvr.job.ranks COUNT WORDS...` runs `python WORDS...` COUNT times at once.

Ranks of one node find one another through a file in a directory that only its user can enter, and communicate through
the loopback device. The store of `torchrun --standalone` would listen on all interfaces and unpickle what it receives.
On several nodes each node runs this, with `--nodes`, `--node` and `--meet`; their ranks find one another through a port
of the first node, and trust its network (SECURITY.md).

If the run samples with Ray, its nodes form one Ray cluster (rlvr/rollout/ray_node.py), on loopback if there is one
node. With several nodes the first one listens at the address of `--ray`; further nodes, for workers only, run this with
0 for COUNT. The nodes share a token, which is in the environment of each: RAY_AUTH_TOKEN.
"""

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

# Seconds for the other ranks to end by themselves once one has ended. After a stop with a save, they may still be
# saving. After a failure, no rank can finish a collective or a checkpoint any more, and a rank whose GPU is in a
# collective does not handle signals.
SAVED_S, FAILED_S = 600.0, 60.0
SAVED = {Cause.PREEMPTED.code, Cause.TIME_LIMIT.code, Cause.PRUNED.code}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the ranks. Ends as the first rank that failed did: with its exit code, or by the signal that killed it."""
    parser = argparse.ArgumentParser("python -m rlvr.job.ranks", description=__doc__)
    parser.add_argument("--nodes", type=int, default=1, metavar="N", help="nodes of the run (default: 1)")
    parser.add_argument("--node", type=int, default=0, metavar="K", help="number of this node, from 0")
    parser.add_argument("--meet", default="", metavar="HOST:PORT", help="with several nodes: a free port of the first")
    parser.add_argument("--ray", default="", metavar="IP:PORT", help="the same for Ray, if the run samples with it")
    parser.add_argument("--sampling", type=int, default=0, metavar="N", help="further nodes, for workers of Ray only")
    parser.add_argument("count", type=int, help="ranks of this node; 0: the node is for workers of Ray only")
    parser.add_argument("words", nargs=argparse.REMAINDER, help="arguments of Python, such as -m rlvr.job RUN_DIR")
    options = parser.parse_args(arguments)
    if options.nodes > 1 and not options.meet.rpartition(":")[0]:
        parser.error("several nodes need --meet HOST:PORT")
    workers = workers_of(options.words)
    if workers and options.nodes + options.sampling > 1 and not (options.ray and os.environ.get(TOKEN)):
        parser.error(f"several nodes that sample with Ray need --ray IP:PORT, and {TOKEN} in their environment")
    with tempfile.TemporaryDirectory(prefix="rlvr-ranks-") as directory, ray_of(workers, options) as ray:  # 0700
        if not options.count:
            sys.exit(_serve_ray(ray))
        environment = _rendezvous(options.nodes, options.meet, Path(directory))
        if ray is not None:
            environment[ADDRESS] = ray.address
        if options.ray and options.nodes == 1:
            environment |= {RAY_NETWORK: "1", **nccl_towards(options.ray)}
        status = Ranks(options.words, options.count, options.node, options.nodes, environment).wait(ray)
    if status < 0:
        if -status != signal.SIGKILL:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    sys.exit(status)


def _rendezvous(nodes: int, meet: str, directory: Path) -> dict[str, str]:
    if nodes == 1:
        return {STORE: str(directory / "store")}
    host, _, port = meet.rpartition(":")
    return {"MASTER_ADDR": host, "MASTER_PORT": port, **_interface(meet)}


def _interface(meet: str) -> dict[str, str]:
    """The environment variable for the network interface that gloo uses, unless the user has set it.

    By default gloo uses the interface of the host's name, which on many systems is the loopback device.
    """
    if "GLOO_SOCKET_IFNAME" in os.environ:
        return {}
    of_nccl = os.environ.get("NCCL_SOCKET_IFNAME")
    if of_nccl in psutil.net_if_addrs():  # NCCL also accepts prefixes of names, which gloo does not
        return {"GLOO_SOCKET_IFNAME": of_nccl}
    interface = interface_of(ip_towards(meet))
    return {"GLOO_SOCKET_IFNAME": interface} if interface else {}


def workers_of(words: Sequence[str]) -> int:
    """Number of Ray workers in the config of the run that the arguments `words` execute; 0 if they execute no run."""
    if list(words[:2]) != ["-m", "rlvr.job"]:
        return 0
    try:
        return int(read_config(Path(words[-1]))["rollout"]["engine"].get("workers", 0))
    except Unreadable:  # the ranks report it
        return 0


@contextlib.contextmanager
def ray_of(workers: int, options: argparse.Namespace) -> Iterator[RayNode | None]:
    """Context with this node's Ray, or None if the run has no workers; Ray is stopped on exit."""
    if not workers:
        yield None
        return
    os.environ.setdefault(TOKEN, new_token())  # not set only with a single node: no other node needs the token
    # On nodes without GPUs workers are spread evenly: over the nodes for workers only, or if there are none, over all.
    num_nodes = options.sampling or options.nodes
    places = 0 if options.sampling and options.count else -(-workers // num_nodes)
    ray = RayNode(options.ray or free_address(), options.node, options.count, places)
    try:
        yield ray
    finally:
        ray.close()


def _serve_ray(ray: RayNode | None) -> int:
    """On a node for workers only: run Ray until the first node is done or a stop signal comes. Returns an exit code."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    return 0 if ray is None else ray.serve(stop.is_set)


class Ranks:
    """Processes that end together: each gets SIGTERM for our SIGTERM or SIGINT, and if one fails, all are ended."""

    def __init__(self, words: Sequence[str], count: int, node: int, nodes: int, environment: Mapping[str, str]) -> None:
        """words: arguments of Python. environment: variables for all ranks, beside those of this process."""
        self._stopping = False
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_stop_signal)
        python = [sys.executable, "-u", *(["-P"] if sys.flags.safe_path else [])]
        for local in range(count):
            numbers = {"RANK": node * count + local, "WORLD_SIZE": nodes * count}
            numbers |= {"LOCAL_RANK": local, "LOCAL_WORLD_SIZE": count}
            of_rank = {**os.environ, **environment, **{key: str(number) for key, number in numbers.items()}}
            process = subprocess.Popen([*python, *words], env=of_rank, stdin=subprocess.DEVNULL)
            self._processes[process.pid] = process
        if self._stopping:  # the signal came before all processes had been started
            self._send(signal.SIGTERM)

    def wait(self, ray: RayNode | None = None, *, failed_s: float = FAILED_S) -> int:
        """Wait until all have ended. Returns the first status that is not 0 (negative: killed by that signal), or 0.

        ray: of this node. If it ends, ranks notice it themselves; the reason is printed here. failed_s: time for the
        other ranks to end after one has failed.
        """
        first, patience_s = 0, math.inf
        while self._processes:
            pid, status = os.wait()
            process = self._processes.pop(pid, None)
            if process is None:
                if ray is not None:
                    print(f"Ray of this node has ended: {ray.last_log_lines}", file=sys.stderr, flush=True)
                continue
            process.returncode = os.waitstatus_to_exitcode(status)
            if not process.returncode:
                continue
            if not first:
                first = process.returncode
                self._send(signal.SIGTERM)
            grace_s = SAVED_S if process.returncode in SAVED else failed_s
            if grace_s < patience_s:
                patience_s = grace_s
                timer = threading.Timer(patience_s, self._send, [signal.SIGKILL])
                timer.daemon = True
                timer.start()
        return first

    def _on_stop_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._stopping = True
        self._send(signal.SIGTERM)

    def _send(self, number: signal.Signals) -> None:
        for pid in list(self._processes):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)  # Popen.send_signal would reap a process that has just ended, before `wait` does


if __name__ == "__main__":
    main()
