"""Transfer of weights from the trainer to a vLLM on the same GPU: copied within the GPU, not through main memory."""

import secrets
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from rlvr.rollout.connection import Topic
from rlvr.rollout.cuda_ipc import NotShared, SharedMemory
from rlvr.rollout.vllm_client import wrong_weights

BUCKET_BYTES = 2**29
ALIGNMENT = 64  # bytes
PROBE_BYTES = 16


class IpcTransfer:
    """One transfer of weights to vLLM by CUDA IPC.

    Tensors are copied into a buffer in the GPU's memory, which vLLM's process opens by a handle. When it is full, that
    process copies its contents, confirms this, and loads them while the buffer is filled again.
    """

    def __init__(self, topic: Topic, version: int, dtype: torch.dtype, timeout_s: float) -> None:
        """version: of the weights to be sent. dtype: vLLM's precision. Raises ProcessLost if vLLM is lost."""
        self._topic, self._version, self._dtype, self._timeout_s = topic, version, dtype, timeout_s
        self._buffer: SharedMemory | None = None
        self._descriptions, self._filled = list[Any](), 0
        self._send({"do": "load", "to_version": version})

    def through(self, weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """Send (name, tensor) pairs; yields each in vLLM's precision. Raises ProcessLost or NotShared."""
        try:
            for name, tensor in weights:
                cast = tensor.detach().to(self._dtype).contiguous()
                self._add(name, cast)
                yield name, cast
                del tensor, cast
            self._finish()
        finally:
            self._free()

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
        self._topic.receive(self._timeout_s)
        self._descriptions, self._filled = [], 0

    def _finish(self) -> None:
        """Confirm the last tensors. The child then allocates its cache, for which this process frees its memory."""
        self._flush()
        self._free()
        torch.cuda.empty_cache()
        self._send({"tensors": []})
        answer, _ = self._topic.receive(self._timeout_s)
        if answer["version"] != self._version:
            raise wrong_weights(answer["version"], self._version)

    def _send(self, header: dict[str, Any]) -> None:
        self._topic.send(header, {}, self._timeout_s)

    def _free(self) -> None:
        if self._buffer is not None:
            self._buffer.close()
            self._buffer = None


def refusal(topic: Topic, timeout_s: float) -> str:
    """Why vLLM cannot read memory of this GPU, or a buffer has no room; "" if it can. Raises ProcessLost."""
    written = torch.frombuffer(bytearray(secrets.token_bytes(PROBE_BYTES)), dtype=torch.uint8)
    source = written.cuda()
    torch.cuda.current_stream().synchronize()
    try:
        memory = SharedMemory.allocate(BUCKET_BYTES)
    except NotShared as error:
        return str(error)
    try:
        memory.write(0, source.data_ptr(), PROBE_BYTES)
        torch.cuda.synchronize()
        topic.send({"do": "probe", "handle": memory.handle().hex(), "size": PROBE_BYTES}, {}, timeout_s)
        answer, read = topic.receive(timeout_s)
    except NotShared as error:
        return str(error)
    finally:
        memory.close()
    if answer["why"]:
        return str(answer["why"])
    if read["bytes"].tobytes() != written.numpy().tobytes():
        return "it reads other bytes than were written"
    return ""
