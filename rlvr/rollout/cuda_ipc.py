"""Memory of a GPU that two processes see, by CUDA's IPC.

Needs nothing of this package and no torch: vLLM's process reads this file too. What one process tells the other is a
handle of 64 bytes, and nothing else. Calls go to the library of the GPU's driver, in the context that torch has made
current; torch's own allocator neither knows this memory nor gives it to anyone.
"""

from __future__ import annotations

import ctypes
import functools

LIBRARY = "libcuda.so.1"
HANDLE_BYTES = 64
UNIT = 2**21  # bytes: what the driver allocates at least; a smaller piece would share its handle with its neighbours
LAZY_PEER_ACCESS = 1


class NotShared(RuntimeError):
    """The driver cannot do it here."""


class Handle(ctypes.Structure):
    """CUipcMemHandle, which is given by value."""

    _fields_ = [("reserved", ctypes.c_ubyte * HANDLE_BYTES)]


class SharedMemory:
    """`size` bytes of the current GPU at `address`: our own, to be opened by others, or another process's."""

    def __init__(self, address: int, size: int, *, own: bool) -> None:
        self.address, self.size, self._own = address, size, own

    @classmethod
    def allocate(cls, size: int) -> SharedMemory:
        """At least `size` bytes. Raises NotShared without a driver, or without so much memory."""
        size, address = -(-size // UNIT) * UNIT, ctypes.c_uint64()
        _call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        return cls(address.value, size, own=True)

    @classmethod
    def open(cls, handle: bytes, size: int) -> SharedMemory:
        """That of another process of this machine, on the same GPU."""
        address = ctypes.c_uint64()
        _call(
            "cuIpcOpenMemHandle_v2",
            ctypes.byref(address),
            Handle.from_buffer_copy(handle),
            ctypes.c_uint(LAZY_PEER_ACCESS),
        )
        return cls(address.value, size, own=False)

    def handle(self) -> bytes:
        """What another process opens it by."""
        handle = Handle()
        _call("cuIpcGetMemHandle", ctypes.byref(handle), ctypes.c_uint64(self.address))
        return bytes(handle)

    def write(self, place: int, source: int, count: int) -> None:
        """Copy `count` bytes from the address `source` of the same GPU to `place`."""
        assert 0 <= place <= place + count <= self.size
        _copy(self.address + place, source, count)

    def read(self, place: int, target: int, count: int) -> None:
        """Copy `count` bytes at `place` to the address `target` of the same GPU."""
        assert 0 <= place <= place + count <= self.size
        _copy(target, self.address + place, count)

    def close(self) -> None:
        """Free it, or open it no more. What was copied is complete."""
        wait()
        _call("cuMemFree_v2" if self._own else "cuIpcCloseMemHandle", ctypes.c_uint64(self.address))


def wait() -> None:
    """Until the GPU has done everything that this process has asked of it."""
    _call("cuCtxSynchronize")


def _copy(target: int, source: int, count: int) -> None:
    if count:
        _call("cuMemcpyDtoD_v2", ctypes.c_uint64(target), ctypes.c_uint64(source), ctypes.c_size_t(count))


@functools.cache
def _driver() -> ctypes.CDLL:
    try:
        return ctypes.CDLL(LIBRARY)
    except OSError as error:
        raise NotShared(f"there is no driver of a GPU: {error}") from None


def _call(name: str, *arguments: object) -> None:
    driver = _driver()
    status = getattr(driver, name)(*arguments)
    if status:
        text = ctypes.c_char_p()
        driver.cuGetErrorName(status, ctypes.byref(text))
        raise NotShared(f"{name} failed: {(text.value or b'').decode()} ({status})")
