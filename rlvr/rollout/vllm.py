"""The vLLM engine: one vLLM per rank, or per few ranks, in a process of its own, on their GPUs or on the CPU.

vLLM has its own process because it takes over threads, random numbers and process groups, and because one that hangs in
the trainer could not be ended. The trainer never imports vLLM.
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from rlvr.model.load import parse_dtype
from rlvr.records import Completion, Progress, Request, Sampling, Supply, Tolerance
from rlvr.rollout.ipc_transfer import IpcTransfer, refusal
from rlvr.rollout.node import gather_numbers, rank_on_node
from rlvr.rollout.node_weights import NodeWeights
from rlvr.rollout.vllm_client import VllmClient, VllmKnobs

log = logging.getLogger(__name__)

TOLERANCE = {"float32": 1e-4, "bfloat16": 0.3, "float16": 0.1}  # nats


@dataclass(kw_only=True, eq=False)
class VllmEngine(VllmKnobs):
    """Samples with vLLM. Every rank has one, or each `tensor_parallel` ranks of a node share one: the first of them
    sends it requests, the others provide their GPUs. `sync` and `sleep` are called by all ranks.

    Several threads may sample, while one of them, or another, gives the engine new weights.
    """

    def __post_init__(self) -> None:
        self._node_weights, self.version = NodeWeights(), 0  # version: number of syncs so far
        rank, ranks = rank_on_node()
        if ranks > 1 and ranks % self.tensor_parallel:
            raise ValueError(
                f"rollout.engine.tensor_parallel={self.tensor_parallel} must divide the {ranks} ranks of a node"
            )
        self._shares_vllm = self.tensor_parallel > 1 and ranks > 1
        self.copies = int(rank % self.tensor_parallel == 0)
        self.tolerance = tolerance(self.dtype, self.canary)
        # Whether weights are sent by CUDA IPC, if that works: to a single process on this GPU alone.
        self.within_gpu = self.device.type == "cuda" and self.tensor_parallel == 1
        if self.copies:
            self.client = VllmClient(self, sleeps=True)

    def sync(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Take (Hugging Face parameter name, full tensor) pairs, in any float format. Called by all ranks together.

        A vLLM on the rank's own GPU receives them within the GPU's memory, if it can open it; any other reads them
        from the node's main memory.
        """
        if self.version == 0:
            self.sleep()  # frees the base policy's weights and the empty cache: neither is needed any more
        self._release_cached_memory()
        if self.version == 0 and self.within_gpu:
            self._test_transfer()
        self.version += 1
        if self.within_gpu:
            with self.client.connected() as connection, connection.topic() as topic:
                connection.version = self.version
                transfer = IpcTransfer(topic, self.version, parse_dtype(self.dtype), self.timeout_s)
                self._write(transfer.through(weights))
                connection.begins_with = self.version
        else:
            written = self._write(weights)
            self._release_cached_memory()  # the memory of the gathered weights
            if self.copies:
                self.client.take_weights({"do": "sync", **written}, self.version)

    def _write(self, weights: Iterable[tuple[str, Tensor]]) -> dict[str, Any]:
        """Write the weights to main memory, unless all ranks send them within their GPUs."""
        if not all(gather_numbers(self.within_gpu)):
            return self._node_weights.write(weights, parse_dtype(self.dtype))
        for _ in weights:
            pass
        return {}

    def _test_transfer(self) -> None:
        """Find out and log whether weights can be sent within the GPU."""
        with self.client.connected() as connection, connection.topic() as topic:
            reason = refusal(topic, self.timeout_s)
        self.within_gpu = not reason
        if reason:
            log.warning("weights go to vLLM through main memory, not within the GPU: %s", reason)
        else:
            log.info("weights go to vLLM within the GPU, by CUDA IPC")

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

    def sleep(self) -> None:
        """Give the GPU's memory back. The engine cannot sample until the next `sync`."""
        if self.device.type != "cuda":
            return
        if self.copies:
            self.client.sleep()
        if self._shares_vllm:
            dist.barrier()  # the memory of the other ranks' GPUs is free, too

    def close(self) -> None:
        if self.copies:
            self.client.end()
        self._node_weights.close()


def tolerance(dtype: str, canary: float | None) -> Tolerance:
    """Tolerated differences from the trainer's log-probabilities, in nats. canary: the limit; None: the dtype's own."""
    limit = TOLERANCE[dtype] if canary is None else canary
    return Tolerance.exact(limit) if dtype == "float32" else Tolerance.rounded(limit)
