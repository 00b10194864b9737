"""Transfer of weights from the trainer to a vLLM on the same GPU: copied within the GPU, not through main memory."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from rlvr.rollout.child import Process, ProcessLost
from rlvr.rollout.cuda_ipc import NotShared, SharedMemory

BUCKET_BYTES = 2**29
ALIGNMENT = 64  # bytes
PROBE_BYTES = 16


class IpcTransfer:
    """One transfer of weights to vLLM by CUDA IPC: `through` sends them; `arrived`: vLLM has loaded all of them.

    Tensors are copied into a buffer in the GPU's memory, which vLLM's process opens by a handle. When it is full, that
    process copies its contents, confirms this, and loads them while the buffer is filled again.
    """

    def __init__(self, child: Process, version: int, *, dtype: torch.dtype, timeout_s: float) -> None:
        """version: of the weights to be sent. dtype: vLLM's precision. Raises ProcessLost if the child is lost."""
        self._child, self._version, self._dtype, self._timeout_s = child, version, dtype, timeout_s
        self._buffer: SharedMemory | None = None
        self._descriptions, self._filled = list[Any](), 0
        self.arrived, self.failure = False, ""
        child.send({"do": "load", "to_version": version}, {}, timeout_s)

    def through(self, weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """The same (name, tensor) pairs, in vLLM's precision: all of them, even if the process is lost, since other
        ranks need this one to gather the next tensor.
        """
        try:
            for name, tensor in weights:
                cast = tensor.detach().to(self._dtype).contiguous()
                self._try(self._add, name, cast)
                yield name, cast
                del tensor, cast
            self._try(self._finish)
        finally:
            self._free()

    def _try(self, work: Callable[..., None], *arguments: Any) -> None:
        """Call `work`, unless an earlier call has failed; record the failure."""
        if self.failure:
            return
        try:
            work(*arguments)
        except (ProcessLost, NotShared) as error:
            self.failure = str(error)

    def _add(self, name: str, tensor: Tensor) -> None:
        size = tensor.numel() * tensor.element_size()
        if self._buffer is None or self._filled + size > self._buffer.size:
            self._flush()
        if self._buffer is None or size > self._buffer.size:
            self._free()
            self._buffer = SharedMemory.allocate(max(BUCKET_BYTES, size))
        torch.cuda.current_stream().synchronize()  # the tensor has been computed
        self._buffer.write(self._filled, tensor.data_ptr(), size)
        self._descriptions.append([name, str(self._dtype).split(".")[1], list(tensor.shape), self._filled])
        self._filled += -(-size // ALIGNMENT) * ALIGNMENT

    def _flush(self) -> None:
        if not self._descriptions:
            return
        assert self._buffer is not None
        torch.cuda.synchronize()
        self._send({"handle": self._buffer.handle().hex(), "size": self._buffer.size, "tensors": self._descriptions})
        self._child.receive(self._timeout_s)
        self._descriptions, self._filled = [], 0

    def _finish(self) -> None:
        """Confirm the last tensors. The child then allocates its cache, for which this process frees its memory."""
        self._flush()
        self._free()
        torch.cuda.empty_cache()
        self._send({"tensors": []})
        answer, _ = self._child.receive(self._timeout_s)
        if answer["version"] != self._version:
            raise ProcessLost(f"it answers from weights {answer['version']}, it was sent {self._version}")
        self.arrived = True

    def _send(self, header: dict[str, Any]) -> None:
        self._child.send(header, {}, self._timeout_s)

    def _free(self) -> None:
        if self._buffer is not None:
            self._buffer.close()
            self._buffer = None


def refusal(child: Process, timeout_s: float) -> str:
    """Why the child process cannot read memory of this GPU; "" if it can. Raises ProcessLost if it is lost."""
    written = torch.frombuffer(bytearray(secrets.token_bytes(PROBE_BYTES)), dtype=torch.uint8)
    source = written.cuda()
    torch.cuda.current_stream().synchronize()
    try:
        memory = SharedMemory.allocate(PROBE_BYTES)
    except NotShared as error:
        return str(error)
    try:
        memory.write(0, source.data_ptr(), PROBE_BYTES)
        torch.cuda.synchronize()
        child.send({"do": "probe", "handle": memory.handle().hex(), "size": PROBE_BYTES}, {}, timeout_s)
        answer, read = child.receive(timeout_s)
    except NotShared as error:
        return str(error)
    finally:
        memory.close()
    if answer["why"]:
        return str(answer["why"])
    if read["bytes"].tobytes() != written.numpy().tobytes():
        return "it reads other bytes than were written"
    return ""
