"""The vLLM engine: one vLLM per rank, or per few ranks, in a process of its own, on their GPUs or on the CPU.

vLLM has its own process because it takes over threads, random numbers and process groups, and because a process that
crashes or hangs can be replaced. The trainer never imports vLLM.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from rlvr.model.load import parse_dtype
from rlvr.records import Completion, Progress, Request, Sampling, Supply, Tolerance
from rlvr.rollout.child import ProcessLost
from rlvr.rollout.ipc_transfer import IpcTransfer, refusal
from rlvr.rollout.node import rank_on_node
from rlvr.rollout.node_weights import NodeWeights
from rlvr.rollout.vllm_client import Host, VllmClient, VllmKnobs

log = logging.getLogger(__name__)

TOLERANCE = {"float32": 1e-4, "bfloat16": 0.3, "float16": 0.1}  # nats


@dataclass(kw_only=True, eq=False)
class VllmEngine(VllmKnobs):
    """Samples with vLLM. Every rank has one, or each `tensor_parallel` ranks of a node share one: the first of them
    sends it requests, the others provide their GPUs. `sync` and `sleep` are called by all ranks.

    Several threads may sample, while one of them, or another, gives the engine new weights.
    """

    def __post_init__(self) -> None:
        """The process starts at once; the first use waits until it is ready."""
        self._node_weights = NodeWeights()
        rank, ranks = rank_on_node()
        if ranks > 1 and ranks % self.tensor_parallel:
            raise ValueError(
                f"rollout.engine.tensor_parallel={self.tensor_parallel} must divide the {ranks} ranks of a node"
            )
        self._shares_vllm = self.tensor_parallel > 1 and ranks > 1
        self._is_leader = rank % self.tensor_parallel == 0
        self.copies = int(self._is_leader)
        self.tolerance = tolerance(self.dtype, self.canary)
        # Whether weights are sent by CUDA IPC, unless that fails once: to a single process on this GPU alone.
        self.within_gpu = self.device.type == "cuda" and self.tensor_parallel == 1
        self._ipc_works = False  # whether it is known that they arrive
        self.client = VllmClient(self, Host(), sleeps=True)
        if self._is_leader:
            self.client.start()

    def sync(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Take (Hugging Face parameter name, full tensor) pairs, in any float format. Called by all ranks together.

        A vLLM on the rank's own GPU receives them within the GPU's memory, if it can open it. They also stay in the
        node's main memory until the next sync, for every other process and for one that replaces a lost process.
        """
        client = self.client
        client.synced = False
        if client.version == 0:
            self.sleep()  # frees the base policy's weights and the empty cache: neither is needed any more
        self._release_cached_memory()
        with client.start_lock:
            transfer = self._open_transfer()
            client.forget_weights()
            passing = weights if transfer is None else transfer.through(weights)
            written = self._node_weights.write(passing, parse_dtype(self.dtype))
            if transfer is not None:
                self._finish_transfer(transfer)
            client.announce_weights(written)
        self._release_cached_memory()  # the memory of the gathered weights
        if self._is_leader:
            client.take_weights()
        client.synced = True

    def _release_cached_memory(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[tuple[Completion, ...]]:
        """See VllmClient."""
        return self.client.generate(requests, sampling)

    def generate_until(self, requests: Sequence[Request], sampling: Sampling, progress: Progress) -> None:
        """See StoppingEngine."""
        self.client.generate_until(requests, sampling, progress)

    def generate_stream(self, supply: Supply) -> None:
        """See StreamingEngine."""
        self.client.generate_stream(supply)

    @property
    def version(self) -> int:
        """Number of syncs so far."""
        return self.client.version

    def sleep(self) -> None:
        """Give the GPU's memory back. The engine cannot sample until the next `sync`."""
        if self.device.type != "cuda":
            return
        self.client.sleep()
        if self._shares_vllm:
            dist.barrier()  # the memory of the other ranks' GPUs is free, too

    def close(self) -> None:
        self.client.end()
        self._node_weights.close()

    # --- weights within the GPU ---

    def _open_transfer(self) -> IpcTransfer | None:
        """The transfer of the next weights within the GPU; None: through main memory. Which one is logged once."""
        if not self.within_gpu:
            return None
        process, timeout_s = self.client.start(), self.timeout_s
        try:
            self.client.await_start(process)
        except ProcessLost:
            return None  # `take_weights` notices the loss, too
        try:
            if not self._ipc_works and (reason := refusal(process, timeout_s)):
                self._use_main_memory(reason)
                return None
            transfer = IpcTransfer(process, self.version + 1, dtype=parse_dtype(self.dtype), timeout_s=timeout_s)
        except ProcessLost as lost:
            self._use_main_memory(str(lost))
            return None
        if not self._ipc_works:
            log.info("weights go to vLLM within the GPU, by CUDA IPC")
            self._ipc_works = True
        return transfer

    def _finish_transfer(self, transfer: IpcTransfer) -> None:
        """After a failed transfer, end the process; its successor loads the weights from main memory."""
        if transfer.arrived:
            self.client.sent_version = self.version + 1
            return
        self._use_main_memory(transfer.failure)
        self.client.end()  # the process may have received a part of the weights

    def _use_main_memory(self, reason: str) -> None:
        log.warning("weights go to vLLM through main memory, not within the GPU: %s", reason)
        self.within_gpu = False


def tolerance(dtype: str, canary: float | None) -> Tolerance:
    """Tolerated differences from the trainer's log-probabilities, in nats. canary: the limit; None: the dtype's own."""
    limit = TOLERANCE[dtype] if canary is None else canary
    return Tolerance.exact(limit) if dtype == "float32" else Tolerance.rounded(limit)
