"""Broadcast of new weights from the first rank to workers of Ray, as they are gathered (rlvr/rollout/broadcast.py).

The weights are also in main memory, for the first version and for workers that replace lost ones.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from rlvr.ledger.attempt import STORE
from rlvr.rollout.broadcast import LOOPBACK, BroadcastFailed, Group, ip_towards, meet, open_store
from rlvr.rollout.node import broadcast_number, gather_numbers, has_several_ranks
from rlvr.rollout.ray_node import ADDRESS
from rlvr.rollout.vllm_client import VllmClient

log = logging.getLogger(__name__)

TIMEOUT_S = 120.0  # for a member of the group to respond


class Broadcast:
    """Transfers to the workers that take part, one after the other: `begin`, `through`, `finish`, called by all ranks.
    During a transfer these workers are not given other weights, nor replaced.
    """

    def __init__(
        self, clients: Sequence[VllmClient], *, processes: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        """clients: this rank's workers that may take part. processes: of each, which are members of the group."""
        self._clients, self._processes, self._device, self._dtype = clients, processes, device, dtype
        self._threads = ThreadPoolExecutor(max(1, len(clients)), "broadcast")
        self._members: list[VllmClient] = []  # the workers that take part
        # to the members, as of forming the group: a worker that was replaced does not belong to it
        self._connections: list[Any] = []
        self._group: Group | None = None  # on the first rank only
        self._formed, self._possible = False, True  # the same on all ranks; not possible once members did not connect
        self._receiving: list[Future[bool]] = []
        self._failure = ""

    def begin(self, tensors: Sequence[Any], version: int) -> bool:
        """Prepare a transfer: the workers then wait for the weights. Returns whether they will be broadcast.

        tensors: name, dtype, shape of each tensor, in the order in which they will be sent.
        """
        if not self._possible:
            return False
        answers = list(self._threads.map(VllmClient.answers, self._clients))
        responding = [client for client, answered in zip(self._clients, answers, strict=True) if answered]
        unchanged = [client.connection for client in responding] == self._connections
        if not (self._formed and all(gather_numbers(unchanged))) and not self._form(responding):
            return False
        self._failure = ""
        self._receiving = [self._threads.submit(client.take_broadcast, tensors, version) for client in self._members]
        return True

    def through(self, weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """The same (name, tensor) pairs, in vLLM's precision. All of them are yielded, even if workers are lost."""
        for name, tensor in weights:
            cast = tensor.detach().to(self._dtype).contiguous()
            if self._group is not None:
                try:
                    self._group.broadcast(cast)
                except BroadcastFailed as error:
                    self._failure = str(error)
                    self._close()  # members that wait for a tensor then fail
            yield name, cast
            del tensor, cast

    def finish(self) -> None:
        """End the transfer. A worker that lacks weights is ended; its successor loads them from main memory."""
        complete = [future.result() for future in self._receiving]
        self._receiving = []
        for client, has_all in zip(self._members, complete, strict=True):
            if not has_all:
                client.end()
        if not all(gather_numbers(not self._failure and all(complete))):
            self._dissolve(self._failure or "a worker was lost")

    def abandon(self) -> None:
        """End a transfer that was begun and cannot be finished. Called by a rank that fails."""
        self._close()
        self._formed = False
        for client in self._members:
            client.end()

    def close(self) -> None:
        """Called once the workers have ended: threads may still wait for them."""
        self._close()
        self._threads.shutdown()

    def _form(self, members: list[VllmClient]) -> bool:
        """Form a group of these workers of all ranks. Returns False if there are none, or if they cannot connect."""
        self._close()
        counts = gather_numbers(len(members) * self._processes)
        self._formed, self._members, self._connections = False, [], []
        if not sum(counts):
            return False
        rank, total = dist.get_rank() if has_several_ranks() else 0, 1 + sum(counts)
        with contextlib.ExitStack() as until_met:
            where, store = self._meeting(until_met)
            first = 1 + sum(counts[:rank])
            settings = {"where": where, "members": total, "timeout_s": TIMEOUT_S}
            joining = [
                self._threads.submit(client.join, {**settings, "member": first + index * self._processes})
                for index, client in enumerate(members)
            ]
            failure = ""
            if store is not None:
                try:
                    self._group = Group(store, 0, total, on=self._device, ip=_ip(where), timeout_s=TIMEOUT_S)
                except BroadcastFailed as error:
                    failure = str(error)
            failures = [failure, *(future.result() for future in joining)]
            failure = next(filter(None, failures), "")
            self._formed = self._possible = all(gather_numbers(not failure))
        if not self._formed:
            self._dissolve(failure or "another rank's workers did not join")
            return False
        self._members, self._connections = members, [client.connection for client in members]
        if self._group is not None:
            log.info("weights are broadcast to %d processes of vLLM by %s", total - 1, self._group.name)
        return True

    def _meeting(self, until_met: contextlib.ExitStack) -> tuple[str, Any]:
        """The place where members meet, and the store if this is the first rank."""
        first = not has_several_ranks() or dist.get_rank() == 0
        host = os.environ.get(ADDRESS, LOOPBACK).rpartition(":")[0] or LOOPBACK
        if host == LOOPBACK:  # on one node: a file that only this user can open
            file = os.environ.get(STORE) or until_met.enter_context(TemporaryDirectory()) + "/store"
            where = f"{file}-weights-{broadcast_number(secrets.randbits(31))}"
            return where, meet(where, TIMEOUT_S)[0] if first else None
        store, where = open_store(host, TIMEOUT_S) if first else (None, "0:0")
        return f"{host}:{broadcast_number(int(where.rpartition(':')[2]))}", store

    def _dissolve(self, reason: str) -> None:
        self._close()
        self._formed = False
        log.warning("weights go to workers of Ray through main memory: %s", reason)

    def _close(self) -> None:
        if self._group is not None:
            self._group.close()
            self._group = None


def takes_part(device: torch.device, *, is_remote: bool) -> bool:
    """Whether weights are broadcast to a worker. is_remote: whether the worker is on another node than its rank."""
    if device.type != "cuda":
        return is_remote  # workers on the rank's node read its memory directly
    # A batch-invariant vLLM restricts NCCL to algorithms that the first rank does not use: they would wait for one
    # another.
    return os.environ.get("VLLM_BATCH_INVARIANT", "0") == "0"


def _ip(where: str) -> str:
    return ip_towards(where) if ":" in where else LOOPBACK
