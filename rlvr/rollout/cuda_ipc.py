"""Memory of a GPU that two processes share, by CUDA IPC.

Imports nothing of this package and no torch: vLLM's process loads this file, too. One process passes the other a
handle of 64 bytes, and nothing else. The functions call the library of the GPU's driver, in the CUDA context that
torch has made current; torch's own allocator does not manage this memory.
"""

from __future__ import annotations

import ctypes
import functools

LIBRARY = "libcuda.so.1"
HANDLE_BYTES = 64
UNIT = 2**21  # bytes, the driver's unit of allocation; a smaller allocation would share its handle with its neighbours
LAZY_PEER_ACCESS = 1


class NotShared(RuntimeError):
    """Raised when the driver is missing or a call of it fails."""


class Handle(ctypes.Structure):
    """CUipcMemHandle, which is passed by value."""

    _fields_ = [("reserved", ctypes.c_ubyte * HANDLE_BYTES)]


class SharedMemory:
    """`size` bytes of the current GPU at `address`: allocated by this process, or opened from another one's handle."""

    def __init__(self, address: int, size: int, *, owned: bool) -> None:
        self.address, self.size, self._owned = address, size, owned

    @classmethod
    def allocate(cls, size: int) -> SharedMemory:
        """Allocate at least `size` bytes. Raises NotShared without a driver, or if the GPU has too little memory."""
        size, address = -(-size // UNIT) * UNIT, ctypes.c_uint64()
        _call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        return cls(address.value, size, owned=True)

    @classmethod
    def open(cls, handle: bytes, size: int) -> SharedMemory:
        """Open the memory of another process of this machine, on the same GPU."""
        address = ctypes.c_uint64()
        _call(
            "cuIpcOpenMemHandle_v2",
            ctypes.byref(address),
            Handle.from_buffer_copy(handle),
            ctypes.c_uint(LAZY_PEER_ACCESS),
        )
        return cls(address.value, size, owned=False)

    def handle(self) -> bytes:
        """The handle by which another process opens this memory."""
        handle = Handle()
        _call("cuIpcGetMemHandle", ctypes.byref(handle), ctypes.c_uint64(self.address))
        return bytes(handle)

    def write(self, offset: int, source: int, count: int) -> None:
        """Copy `count` bytes from the address `source` of the same GPU to `offset`."""
        assert 0 <= offset <= offset + count <= self.size
        _copy(self.address + offset, source, count)

    def read(self, offset: int, target: int, count: int) -> None:
        """Copy `count` bytes at `offset` to the address `target` of the same GPU."""
        assert 0 <= offset <= offset + count <= self.size
        _copy(target, self.address + offset, count)

    def close(self) -> None:
        """Free or unmap the memory, once all copies are complete."""
        wait()
        _call("cuMemFree_v2" if self._owned else "cuIpcCloseMemHandle", ctypes.c_uint64(self.address))


def wait() -> None:
    """Wait until the GPU has done all work that this process has submitted."""
    _call("cuCtxSynchronize")


def _copy(target: int, source: int, count: int) -> None:
    if count:
        _call("cuMemcpyDtoD_v2", ctypes.c_uint64(target), ctypes.c_uint64(source), ctypes.c_size_t(count))


@functools.cache
def _driver() -> ctypes.CDLL:
    try:
        return ctypes.CDLL(LIBRARY)
    except OSError as error:
        raise NotShared(f"there is no GPU driver: {error}") from None


def _call(name: str, *arguments: object) -> None:
    driver = _driver()
    status = getattr(driver, name)(*arguments)
    if status:
        text = ctypes.c_char_p()
        driver.cuGetErrorName(status, ctypes.byref(text))
        raise NotShared(f"{name} failed: {(text.value or b'').decode()} ({status})")
