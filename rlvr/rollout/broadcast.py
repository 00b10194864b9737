"""One sends tensors to many at once: NCCL between GPUs, gloo between CPUs.

Needs nothing of this package: the processes of vLLM read this file too. Nothing but tensors is sent.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:  # who asks for an address alone is spared torch
    from torch import Tensor, device
    from torch._C._distributed_c10d import Store

LOOPBACK = "127.0.0.1"
TRIAL_BYTES = 64


class Broken(RuntimeError):
    """A member is lost, or they cannot reach one another."""


class Group:
    """A member of a group: number 0 sends, the others receive."""

    def __init__(
        self, store: Store, member: int, members: int, *, on: device, ip: str = LOOPBACK, timeout_s: float
    ) -> None:
        """Once all members are there and have received a few bytes; Broken if they have not within twice `timeout_s`.

        store: where they meet. on: what the tensors lie on. ip: of this node, as the others reach it, for gloo. NCCL
        goes by its own environment, as it is when a process first uses it: `nccl_towards`.
        """
        self._backend: Any = None
        self._timeout = timedelta(seconds=timeout_s)
        came_of_it: list[Exception | None] = []

        def meet_and_try() -> None:
            try:
                self._meet(store, member, members, on, ip)
                self._try(on, member)
                came_of_it.append(None)
            except (RuntimeError, ImportError, OSError) as error:  # not every torch has NCCL
                came_of_it.append(error)

        # NCCL waits without a limit for members that do not come: then nobody waits for it.
        thread = threading.Thread(target=meet_and_try, daemon=True, name="broadcast")
        thread.start()
        thread.join(2 * timeout_s)
        if not came_of_it:
            raise Broken(f"{members} members have not connected within {2 * timeout_s:.0f} s")
        if error := came_of_it[0]:
            self.close()
            raise Broken(f"{members} members have not met: {error}") from error

    def _meet(self, store: Store, member: int, members: int, on: device, ip: str) -> None:
        """All are there before anybody connects: who waits for NCCL cannot be told that another does not come."""
        from torch.distributed import BroadcastOptions

        self._options = BroadcastOptions()
        self._options.rootRank = self._options.rootTensor = 0
        store.set(f"here/{member}", "1")
        store.wait([f"here/{each}" for each in range(members)], self._timeout)
        self._backend = (_nccl if on.type == "cuda" else _gloo)(store, member, members, ip, self._timeout)

    def _try(self, on: device, member: int) -> None:
        import torch

        sent = torch.arange(TRIAL_BYTES, dtype=torch.uint8)
        trial = (sent if member == 0 else torch.zeros_like(sent)).to(on)
        self.broadcast(trial)
        if not torch.equal(trial.cpu(), sent):
            raise Broken("other bytes came than were sent")

    @property
    def name(self) -> str:
        """Of the library that carries it."""
        return str(self._backend.name())

    def broadcast(self, tensor: Tensor) -> None:
        """Member 0 sends it, contiguous; the others receive it there. Back once it has been sent, or is there."""
        import torch

        try:
            self._backend.broadcast([tensor.view(-1).view(torch.uint8)], self._options).wait()
        except RuntimeError as error:
            raise Broken(str(error)) from error

    def close(self) -> None:
        """Members that wait for this one hear of it, by gloo at once, by NCCL at the end of their patience. Harmless
        when repeated.
        """
        backend, self._backend = self._backend, None
        if backend is not None:
            with contextlib.suppress(RuntimeError):  # what is broken may not end well
                backend.abort()


def _gloo(store: Store, member: int, members: int, ip: str, timeout: timedelta) -> Any:
    from torch.distributed import ProcessGroupGloo

    options = cast(Any, ProcessGroupGloo)._Options()
    options._devices = [ProcessGroupGloo.create_device(hostname=ip)]
    options._timeout = timeout
    return ProcessGroupGloo(store, member, members, options)


def _nccl(store: Store, member: int, members: int, _: str, timeout: timedelta) -> Any:
    """One of its own, in which to wait is to wait: left to itself torch ends a process whose peer is lost."""
    from torch.distributed import ProcessGroupNCCL

    options = ProcessGroupNCCL.Options()
    options._timeout = timeout
    before = os.environ.get("TORCH_NCCL_BLOCKING_WAIT")
    os.environ["TORCH_NCCL_BLOCKING_WAIT"] = "1"
    try:
        return ProcessGroupNCCL(store, member, members, options)
    finally:
        del os.environ["TORCH_NCCL_BLOCKING_WAIT"]
        if before is not None:
            os.environ["TORCH_NCCL_BLOCKING_WAIT"] = before


# --- where members meet ---


def open_store(host: str, timeout_s: float) -> tuple[Store, str]:
    """A store of this process that listens at this address alone, and its HOST:PORT for `meet`."""
    from torch._C._distributed_c10d import TCPStore

    listener = socket.create_server((host, 0))
    port = listener.getsockname()[1]
    settings = {"is_master": True, "wait_for_workers": False, "timeout": timedelta(seconds=timeout_s)}
    return TCPStore(host, port, **settings, master_listen_fd=listener.detach()), f"{host}:{port}"


def meet(where: str, timeout_s: float) -> tuple[Store, str]:
    """The store there, and this node's address towards it. where: HOST:PORT, or the path of a file of this node."""
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
        raise Broken(f"nobody answers at {where}: {error}") from error


def ip_towards(address: str) -> str:
    """The address that this node sends from when it sends to another, HOST:PORT."""
    host, _, port = address.rpartition(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as route:
        route.connect((host, int(port)))  # sends nothing
        return str(route.getsockname()[0])


def interface_of(ip: str) -> str:
    """The name of the network interface of this node that has the address; "" if none has."""
    import psutil

    found = [name for name, every in psutil.net_if_addrs().items() if ip in {each.address for each in every}]
    return found[0] if found else ""


def nccl_towards(address: str) -> dict[str, str]:
    """What has NCCL use the interface that is named in our environment, else the one that leads there, HOST:PORT."""
    if (named := os.environ.get("NCCL_SOCKET_IFNAME", "lo")) != "lo":
        return {"NCCL_SOCKET_IFNAME": named}
    found = interface_of(ip_towards(address))
    return {"NCCL_SOCKET_IFNAME": f"={found}"} if found else {}
