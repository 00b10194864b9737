"""New weights go from the first rank to all workers of Ray as they are gathered (rlvr/rollout/broadcast.py).

They lie in main memory too: the first ones, and those of a worker that is replaced, come from there.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from rlvr.ledger.attempt import STORE
from rlvr.rollout.broadcast import LOOPBACK, Broken, Group, ip_towards, meet, open_store
from rlvr.rollout.node import of_all, of_first_rank, several
from rlvr.rollout.ray_node import ADDRESS

if TYPE_CHECKING:
    from rlvr.rollout.ray import RemoteVllm

log = logging.getLogger(__name__)

PATIENCE_S = 120.0  # with a member of the group
MOST_FAILURES = 3  # in a row, after which weights go through main memory for good


class Broadcast:
    """Transfers to the workers that take part, one after the other: `begin`, `through`, `finish`, called by all ranks.
    Meanwhile no worker of theirs is given other weights, nor replaced.
    """

    def __init__(
        self, workers: Sequence[RemoteVllm], *, processes: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        """workers: of this rank, those that could take part. processes: of a worker's vLLM, members each."""
        self._workers, self._processes, self._device, self._dtype = workers, processes, device, dtype
        self._threads = ThreadPoolExecutor(max(1, len(workers)), "broadcast")
        self._members: list[RemoteVllm] = []  # those that do
        self._conversations: list[Any] = []  # with them, as they are: one that is replaced is none of the group's
        self._group: Group | None = None  # of the first rank
        self._formed, self._failures = False, 0  # the same on all ranks
        self._coming: list[Future[bool]] = []
        self._failure = ""

    def begin(self, tensors: Sequence[Any], version: int) -> bool:
        """Whether weights come this way now: the workers then wait for them. tensors: name, dtype, shape of each, as
        they will come.
        """
        if self._failures == MOST_FAILURES:
            return False
        answers = self._threads.map(lambda worker: worker.answers(), self._workers)
        there = [worker for worker, its in zip(self._workers, answers, strict=True) if its]
        unchanged = [worker.conversation for worker in there] == self._conversations
        if not (self._formed and all(of_all(unchanged))) and not self._form(there):
            return False
        self._failure = ""
        self._coming = [self._threads.submit(worker.take_broadcast, tensors, version) for worker in self._members]
        return True

    def through(self, weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """The same (name, tensor) pairs, in vLLM's precision. All of them come, whatever becomes of the workers."""
        for name, tensor in weights:
            cast = tensor.detach().to(self._dtype).contiguous()
            if self._group is not None:
                try:
                    self._group.broadcast(cast)
                except Broken as error:
                    self._failure = str(error)
                    self._close()  # those that wait hear of it
            yield name, cast
            del tensor, cast

    def finish(self) -> None:
        """A worker that has not all of them is ended: its next one has them from main memory."""
        took = [each.result() for each in self._coming]
        self._coming = []
        for worker, has_all in zip(self._members, took, strict=True):
            if not has_all:
                worker.end()
        if all(of_all(not self._failure and all(took))):
            self._failures = 0
            return
        self._give_up(self._failure or "a worker was lost")

    def abandon(self) -> None:
        """What was begun and cannot be finished. Called by whoever fails."""
        self._close()
        self._formed = False
        for worker in self._members:
            worker.end()

    def close(self) -> None:
        """Once the workers are ended: threads may wait for them."""
        self._close()
        self._threads.shutdown()

    def _form(self, members: list[RemoteVllm]) -> bool:
        """A group of these, of all ranks. False if there are none, or they do not come together."""
        self._close()
        counts = of_all(len(members) * self._processes)
        self._formed, self._members, self._conversations = False, [], []
        if not sum(counts):
            return False
        rank, total = dist.get_rank() if several() else 0, 1 + sum(counts)
        with contextlib.ExitStack() as until_met:
            where, store = self._meeting(until_met)
            first = 1 + sum(counts[:rank])
            about = {"where": where, "members": total, "timeout_s": PATIENCE_S}
            joining = [
                self._threads.submit(worker.join, {**about, "member": first + index * self._processes})
                for index, worker in enumerate(members)
            ]
            why = ""
            if store is not None:
                try:
                    self._group = Group(store, 0, total, on=self._device, ip=_ip(where), timeout_s=PATIENCE_S)
                except Broken as error:
                    why = str(error)
            why = next(filter(None, [why, *(each.result() for each in joining)]), "")
            self._formed = all(of_all(not why))
        if not self._formed:
            self._give_up(why or "another rank's workers did not join")
            return False
        self._members, self._conversations = members, [worker.conversation for worker in members]
        if self._group is not None:
            log.info("weights are broadcast to %d processes of vLLM by %s", total - 1, self._group.name)
        return True

    def _meeting(self, until_met: contextlib.ExitStack) -> tuple[str, Any]:
        """Where members meet, and the store if this is the first rank."""
        first = not several() or dist.get_rank() == 0
        host = os.environ.get(ADDRESS, LOOPBACK).rpartition(":")[0] or LOOPBACK
        if host == LOOPBACK:  # on one node: a file where only this user can enter
            own = os.environ.get(STORE) or until_met.enter_context(TemporaryDirectory()) + "/store"
            where = f"{own}-weights-{of_first_rank(secrets.randbits(31))}"
            return where, meet(where, PATIENCE_S)[0] if first else None
        store, where = open_store(host, PATIENCE_S) if first else (None, "0:0")
        return f"{host}:{of_first_rank(int(where.rpartition(':')[2]))}", store

    def _give_up(self, why: str) -> None:
        """For now."""
        self._close()
        self._formed, self._failures = False, self._failures + 1
        log.warning("weights go to workers of Ray through main memory: %s", why)

    def _close(self) -> None:
        if self._group is not None:
            self._group.close()
            self._group = None


def takes_part(device: torch.device, *, afar: bool) -> bool:
    """Whether a worker is one that weights are broadcast to. afar: on another node than its rank."""
    if device.type != "cuda":
        return afar  # the memory of a node is as near to its workers as to its ranks
    # Such a vLLM has algorithms of NCCL that the first rank has not: they would wait for one another.
    return os.environ.get("VLLM_BATCH_INVARIANT", "0") == "0"


def _ip(where: str) -> str:
    return ip_towards(where) if ":" in where else LOOPBACK
