"""Weights pass from the trainer to a vLLM on the same GPU: copied there, never through main memory."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from rlvr.rollout.child import Lost, Process
from rlvr.rollout.cuda_ipc import NotShared, SharedMemory

BUCKET_BYTES = 2**29
ALIGNMENT = 64  # bytes
PROBE_BYTES = 16


class Passage:
    """One transfer of weights to vLLM by CUDA IPC: `through` sends them, `arrived` is true once vLLM has loaded all.

    Tensors are copied into a piece of the GPU's memory, which vLLM's process opens by a handle. When the next one does
    not fit, that process copies what is there, says so, and loads it while the next ones come.
    """

    def __init__(self, child: Process, version: int, *, dtype: torch.dtype, timeout_s: float) -> None:
        """version: of the weights that come. dtype: of vLLM. Raises Lost if the child is."""
        self._child, self._version, self._dtype, self._timeout_s = child, version, dtype, timeout_s
        self._memory: SharedMemory | None = None
        self._described, self._filled = list[Any](), 0
        self.arrived, self.failure = False, ""
        child.send({"do": "load", "to_version": version}, {}, timeout_s)

    def through(self, weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """The same (name, tensor) pairs, in vLLM's precision.

        All of them come whatever becomes of the child: to gather the next one other ranks need this one.
        """
        try:
            for name, tensor in weights:
                cast = tensor.detach().to(self._dtype).contiguous()
                self._unless_failed(self._put, name, cast)
                yield name, cast
                del tensor, cast
            self._unless_failed(self._finish)
        finally:
            self._free()

    def _unless_failed(self, work: Any, *arguments: Any) -> None:
        if self.failure:
            return
        try:
            work(*arguments)
        except (Lost, NotShared) as error:
            self.failure = str(error)

    def _put(self, name: str, tensor: Tensor) -> None:
        size = tensor.numel() * tensor.element_size()
        if self._memory is None or self._filled + size > self._memory.size:
            self._flush()
        if self._memory is None or size > self._memory.size:
            self._free()
            self._memory = SharedMemory.allocate(max(BUCKET_BYTES, size))
        torch.cuda.current_stream().synchronize()  # it has been computed
        self._memory.write(self._filled, tensor.data_ptr(), size)
        self._described.append([name, str(self._dtype).split(".")[1], list(tensor.shape), self._filled])
        self._filled += -(-size // ALIGNMENT) * ALIGNMENT

    def _flush(self) -> None:
        """Let the child copy what is there."""
        if not self._described:
            return
        assert self._memory is not None
        torch.cuda.synchronize()
        self._send({"handle": self._memory.handle().hex(), "size": self._memory.size, "tensors": self._described})
        self._child.receive(self._timeout_s)
        self._described, self._filled = [], 0

    def _finish(self) -> None:
        """The child wakes its cache at the end: none of this process's memory that holds weights may be in its way."""
        self._flush()
        self._free()
        torch.cuda.empty_cache()
        self._send({"tensors": []})
        answer, _ = self._child.receive(self._timeout_s)
        if answer["version"] != self._version:
            raise Lost(f"it answers from weights {answer['version']}, it was given {self._version}")
        self.arrived = True

    def _send(self, header: dict[str, Any]) -> None:
        self._child.send(header, {}, self._timeout_s)

    def _free(self) -> None:
        if self._memory is not None:
            self._memory.close()
            self._memory = None


def refusal(child: Process, timeout_s: float) -> str:
    """Why the child cannot read this GPU's memory; nothing if it can. Raises Lost if it is."""
    written = torch.frombuffer(bytearray(secrets.token_bytes(PROBE_BYTES)), dtype=torch.uint8)
    there = written.cuda()
    torch.cuda.current_stream().synchronize()
    try:
        memory = SharedMemory.allocate(PROBE_BYTES)
    except NotShared as error:
        return str(error)
    try:
        memory.write(0, there.data_ptr(), PROBE_BYTES)
        torch.cuda.synchronize()
        child.send({"do": "probe", "handle": memory.handle().hex(), "size": PROBE_BYTES}, {}, timeout_s)
        answer, read = child.receive(timeout_s)
    except NotShared as error:
        return str(error)
    finally:
        memory.close()
    if answer["why"]:
        return str(answer["why"])
    return "" if read["bytes"].tobytes() == written.numpy().tobytes() else "it reads other bytes than were written"
