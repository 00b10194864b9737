"""Broadcast of new weights from the first rank's main memory to workers of Ray (rlvr/rollout/broadcast.py)."""

import contextlib
import logging
import os
import secrets
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist

from rlvr.ledger.attempt import STORE
from rlvr.ledger.cause import Cause
from rlvr.rollout.broadcast import LOOPBACK, BroadcastFailed, Group, ip_towards, meet, open_store
from rlvr.rollout.child import EngineLost
from rlvr.rollout.node import broadcast_number, gather_numbers, has_several_ranks
from rlvr.rollout.ray_node import ADDRESS
from rlvr.rollout.vllm_client import VllmClient
from rlvr.rollout.vllm_server import tensors

log = logging.getLogger(__name__)

CPU = torch.device("cpu")
TIMEOUT_S = 120.0  # for a member of the group to respond


class Broadcast:
    """Sends new weights from the first rank to the workers that take part. Its methods are called by all ranks."""

    def __init__(self, clients: Sequence[VllmClient], *, processes: int, device: torch.device) -> None:
        """clients: this rank's workers that take part. processes: of each, which are members of the group."""
        self._clients, self._processes = clients, processes
        self._threads = ThreadPoolExecutor(max(1, len(clients)), "broadcast")
        # A batch-invariant vLLM restricts NCCL to algorithms that the first rank does not use: they would wait for one
        # another.
        without_nccl = device.type != "cuda" or os.environ.get("VLLM_BATCH_INVARIANT", "0") != "0"
        self._devices = [CPU] if without_nccl else [device, CPU]  # the first on which a group can be formed is used
        self._group: Group | None = None  # on the first rank only

    def send(self, weights: dict[str, Any], version: int) -> None:
        """weights: what NodeWeights.write has returned. Raises EngineLost if a worker does not receive all of them."""
        if version == 1:
            self._form()
        header = {"do": "take", "tensors": weights["tensors"]}
        receiving = [self._threads.submit(client.take_weights, header, version) for client in self._clients]
        failures = list[str]()
        if self._group is not None:
            try:
                for _, tensor in tensors(weights):
                    self._group.broadcast(tensor.to(self._devices[0]))
            except BroadcastFailed as error:
                failures.append(str(error))
                self._leave()  # workers that wait for a tensor then fail
        for call in receiving:
            try:
                call.result()
            except EngineLost as lost:
                failures.append(str(lost).partition("\n")[0])
        if failures:
            raise EngineLost(f"new weights did not reach all workers of Ray: {'; '.join(failures)}")

    def close(self) -> None:
        """Called once the workers have ended: threads may still wait for them."""
        self._leave()
        self._threads.shutdown()

    def _leave(self) -> None:
        if self._group is not None:
            self._group.close()
            self._group = None

    def _form(self) -> None:
        """Form a group of the first rank and all workers. Raises EngineLost if they do not reach one another."""
        for client in self._clients:
            with client.connected():
                pass  # it is ready: members of a group wait for one another for a short time only
        counts = gather_numbers(len(self._clients) * self._processes)
        while sum(counts):
            failure = self._failure_to_meet(counts)
            if all(gather_numbers(not failure)):
                break
            self._leave()
            failure = failure or "other ranks or their workers did not join"
            log.warning("weights cannot be broadcast to workers of Ray on %s: %s", self._devices.pop(0).type, failure)
            if not self._devices:
                raise EngineLost(f"weights cannot be broadcast to workers of Ray: {failure}", Cause.ERROR)
        if self._group is not None:
            log.info("weights are broadcast to %d processes of vLLM by %s", sum(counts), self._group.name)

    def _failure_to_meet(self, counts: Sequence[int]) -> str:
        """Why this rank's members of a group did not meet the others; "" if they did. counts: members, by rank."""
        rank = dist.get_rank() if has_several_ranks() else 0
        first, total, device = 1 + sum(counts[:rank]), 1 + sum(counts), self._devices[0]
        with contextlib.ExitStack() as until_met:
            where, store = self._meeting(until_met)
            settings = {"where": where, "members": total, "on": device.type, "timeout_s": TIMEOUT_S}
            joining = [
                self._threads.submit(client.join, {**settings, "member": first + index * self._processes})
                for index, client in enumerate(self._clients)
            ]
            failure = ""
            if store is not None:
                try:
                    self._group = Group(store, 0, total, on=device, ip=_ip(where), timeout_s=TIMEOUT_S)
                except BroadcastFailed as error:
                    failure = str(error)
            return next(filter(None, [*(call.result() for call in joining), failure]), "")

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


def _ip(where: str) -> str:
    return ip_towards(where) if ":" in where else LOOPBACK
