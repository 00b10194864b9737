"""Broadcast of tensors from one process to many: NCCL between GPUs, gloo between CPUs.

Imports nothing of this package: the processes of vLLM load this file, too. Nothing but tensors is sent.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:  # callers that need an address alone do not import torch
    from torch import Tensor, device
    from torch._C._distributed_c10d import Store

LOOPBACK = "127.0.0.1"
TRIAL_BYTES = 64


class BroadcastFailed(RuntimeError):
    """Raised when a member is lost, or members cannot reach one another."""


class Group:
    """One member of a broadcast group: member 0 sends, the others receive."""

    def __init__(
        self, store: Store, member: int, members: int, *, on: device, ip: str = LOOPBACK, timeout_s: float
    ) -> None:
        """Returns once all members have received a few bytes. Raises BroadcastFailed after twice `timeout_s`.

        store: through which the members meet. on: the device of the tensors. ip: of this node, as the others reach
        it, for gloo. NCCL reads its own environment variables when a process first uses it: see `nccl_towards`.
        """
        self._backend: Any = None
        self._timeout = timedelta(seconds=timeout_s)
        outcome: list[Exception | None] = []

        def connect() -> None:
            try:
                self._connect(store, member, members, on, ip)
                self._check(on, member)
                outcome.append(None)
            except (RuntimeError, ImportError, OSError) as error:  # not every build of torch has NCCL
                outcome.append(error)

        # NCCL waits without a limit for missing members: a daemon thread can be abandoned.
        thread = threading.Thread(target=connect, daemon=True, name="broadcast")
        thread.start()
        thread.join(2 * timeout_s)
        if not outcome:
            raise BroadcastFailed(f"{members} members have not connected within {2 * timeout_s:.0f} s")
        if error := outcome[0]:
            self.close()
            raise BroadcastFailed(f"{members} members have not met: {error}") from error

    def _connect(self, store: Store, member: int, members: int, on: device, ip: str) -> None:
        """Wait for all members first: one that waits inside NCCL cannot learn that another one does not come."""
        from torch.distributed import BroadcastOptions

        self._options = BroadcastOptions()
        self._options.rootRank = self._options.rootTensor = 0
        store.set(f"here/{member}", "1")
        store.wait([f"here/{number}" for number in range(members)], self._timeout)
        self._backend = (_nccl if on.type == "cuda" else _gloo)(store, member, members, ip, self._timeout)

    def _check(self, on: device, member: int) -> None:
        import torch

        sent = torch.arange(TRIAL_BYTES, dtype=torch.uint8)
        trial = (sent if member == 0 else torch.zeros_like(sent)).to(on)
        self.broadcast(trial)
        if not torch.equal(trial.cpu(), sent):
            raise BroadcastFailed("other bytes came than were sent")

    @property
    def name(self) -> str:
        """The name of the library that transfers the tensors."""
        return str(self._backend.name())

    def broadcast(self, tensor: Tensor) -> None:
        """Member 0 sends the contiguous tensor, the others receive into it. Returns once it is sent or received."""
        import torch

        try:
            self._backend.broadcast([tensor.view(-1).view(torch.uint8)], self._options).wait()
        except RuntimeError as error:
            raise BroadcastFailed(str(error)) from error

    def close(self) -> None:
        """Leave the group. Members that wait for this one fail, with gloo at once, with NCCL after their timeout.
        Closing again does nothing.
        """
        backend, self._backend = self._backend, None
        if backend is not None:
            with contextlib.suppress(RuntimeError):  # aborting a broken group may fail
                backend.abort()


def _gloo(store: Store, member: int, members: int, ip: str, timeout: timedelta) -> Any:
    from torch.distributed import ProcessGroupGloo

    options = cast(Any, ProcessGroupGloo)._Options()
    options._devices = [ProcessGroupGloo.create_device(hostname=ip)]
    options._timeout = timeout
    return ProcessGroupGloo(store, member, members, options)


def _nccl(store: Store, member: int, members: int, _: str, timeout: timedelta) -> Any:
    """A group whose `wait` blocks and raises: by default torch ends a process whose peer is lost."""
    from torch.distributed import ProcessGroupNCCL

    options = ProcessGroupNCCL.Options()
    options._timeout = timeout
    previous = os.environ.get("TORCH_NCCL_BLOCKING_WAIT")
    os.environ["TORCH_NCCL_BLOCKING_WAIT"] = "1"
    try:
        return ProcessGroupNCCL(store, member, members, options)
    finally:
        del os.environ["TORCH_NCCL_BLOCKING_WAIT"]
        if previous is not None:
            os.environ["TORCH_NCCL_BLOCKING_WAIT"] = previous


# --- where members meet ---


def open_store(host: str, timeout_s: float) -> tuple[Store, str]:
    """A store of this process that listens on this address alone, and its HOST:PORT for `meet`."""
    from torch._C._distributed_c10d import TCPStore

    listener = socket.create_server((host, 0))
    port = listener.getsockname()[1]
    settings = {"is_master": True, "wait_for_workers": False, "timeout": timedelta(seconds=timeout_s)}
    return TCPStore(host, port, **settings, master_listen_fd=listener.detach()), f"{host}:{port}"


def meet(where: str, timeout_s: float) -> tuple[Store, str]:
    """The store at `where` (HOST:PORT, or the path of a file here), and this node's address on the way to it."""
    from torch._C._distributed_c10d import FileStore, TCPStore

    timeout = timedelta(seconds=timeout_s)
    if where.startswith("/"):
        file = FileStore(where)
        file.set_timeout(timeout)
        return file, LOOPBACK
    host, _, port = where.rpartition(":")
    try:
        return TCPStore(host, int(port), is_master=False, timeout=timeout), ip_towards(where)
    except RuntimeError as error:
        raise BroadcastFailed(f"no answer from {where}: {error}") from error


def ip_towards(address: str) -> str:
    """The address that this node uses when it sends to `address`, HOST:PORT."""
    host, _, port = address.rpartition(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as route:
        route.connect((host, int(port)))  # sends nothing
        return str(route.getsockname()[0])


def interface_of(ip: str) -> str:
    """The name of this node's network interface with the address `ip`; "" if there is none."""
    import psutil

    for name, addresses in psutil.net_if_addrs().items():
        if ip in {entry.address for entry in addresses}:
            return name
    return ""


def nccl_towards(address: str) -> dict[str, str]:
    """Environment for NCCL: the interface named in ours, else the one that leads to `address`, HOST:PORT."""
    configured = os.environ.get("NCCL_SOCKET_IFNAME", "lo")
    if configured != "lo":
        return {"NCCL_SOCKET_IFNAME": configured}
    interface = interface_of(ip_towards(address))
    return {"NCCL_SOCKET_IFNAME": f"={interface}"} if interface else {}
