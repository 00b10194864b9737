"""Members in processes of their own, over gloo. NCCL, on GPUs, takes the same path."""

import multiprocessing
import os
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import psutil
import pytest
import torch

from rlvr.rollout.broadcast import LOOPBACK, BroadcastFailed, Group, interface_of, meet, nccl_towards, open_store
from rlvr.rollout.ray_node import free_address

CPU = torch.device("cpu")
SENT = [torch.arange(-3.0, 4.0), torch.full((2, 3), 1 / 3, dtype=torch.bfloat16), torch.tensor(7)]


def receive(where: str, member: int, count: int, report: Connection) -> None:
    """Receive the tensors as a member and report them; then the first leaves, others report the error of their wait."""
    store, ip = meet(where, 30)
    group = Group(store, member, count, on=CPU, ip=ip, timeout_s=60)
    received = [torch.empty_like(tensor) for tensor in SENT]
    for tensor in received:
        group.broadcast(tensor)
    listens = {c.laddr.ip for c in psutil.Process().net_connections() if c.status == psutil.CONN_LISTEN}
    report.send(([tensor.float().tolist() for tensor in received], listens))
    if member == 1:
        os._exit(1)
    try:
        send_until_broken(group)
    except BroadcastFailed as broken:
        report.send(str(broken))


def members(program: Callable[..., None], where: str, count: int) -> list[Connection]:
    """Start members 1 to `count` − 1 of a group as processes. Returns the pipes by which they report."""
    context, reports = multiprocessing.get_context("spawn"), list[Connection]()
    for member in range(1, count):
        ours, theirs = context.Pipe()
        context.Process(target=program, args=(where, member, count, theirs), daemon=True).start()
        reports.append(ours)
    return reports


def send_until_broken(group: Group) -> None:
    while True:
        group.broadcast(SENT[0].clone())


@pytest.mark.slow
@pytest.mark.parametrize("in_a_file", [False, True])
def test_all_members_receive_the_same_bits_and_fail_when_one_is_lost(tmp_path: Path, in_a_file: bool) -> None:
    where = str(tmp_path / "store")
    store, where = (meet(where, 30)[0], where) if in_a_file else open_store(LOOPBACK, 30)
    ends = members(receive, where, 3)
    group = Group(store, 0, 3, on=CPU, timeout_s=60)
    for tensor in SENT:
        group.broadcast(tensor)
    numbers = [[-3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0], [[0.333984375] * 3] * 2, 7.0]  # 1/3 in eight bits
    for end in ends:
        assert end.recv() == (numbers, {LOOPBACK})
    began = time.monotonic()
    with pytest.raises(BroadcastFailed):
        send_until_broken(group)
    group.close()
    assert ends[1].recv()  # not after 60 seconds
    assert time.monotonic() - began < 30
    group.close()


def test_a_missing_member_is_waited_for_until_the_timeout() -> None:
    store, where = open_store(LOOPBACK, 30)
    with pytest.raises(BroadcastFailed, match="2 members have not met"):
        Group(store, 0, 2, on=CPU, timeout_s=0.5)
    port = int(where.rpartition(":")[2])
    listening = {c.laddr for c in psutil.Process().net_connections() if c.status == psutil.CONN_LISTEN}
    assert (LOOPBACK, port) in listening
    with pytest.raises(BroadcastFailed, match=f"no answer from {(nowhere := free_address())}"):
        meet(nowhere, 0.5)


def test_an_interface_is_found_by_its_address_and_nccl_uses_the_configured_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (interface_of(LOOPBACK), interface_of("192.0.2.1")) == ("lo", "")
    monkeypatch.delenv("NCCL_SOCKET_IFNAME", raising=False)
    assert nccl_towards(f"{LOOPBACK}:1") == {"NCCL_SOCKET_IFNAME": "=lo"}
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "ib0")
    assert nccl_towards(f"{LOOPBACK}:1") == {"NCCL_SOCKET_IFNAME": "ib0"}


def receive_on_a_gpu(where: str, member: int, count: int, report: Connection) -> None:
    store, ip = meet(where, 30)
    gpu = torch.device("cuda", member)
    torch.cuda.set_device(gpu)
    group = Group(store, member, count, on=gpu, ip=ip, timeout_s=60)
    received = torch.empty(1000, dtype=torch.bfloat16, device=gpu)
    group.broadcast(received)
    report.send(received.float().sum().item())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_every_gpu_receives_by_nccl() -> None:
    """With a single GPU it only shows that a group can be formed."""
    store, where = open_store(LOOPBACK, 30)
    count = torch.cuda.device_count()
    ends = members(receive_on_a_gpu, where, count)
    group = Group(store, 0, count, on=torch.device("cuda", 0), timeout_s=60)
    group.broadcast(torch.full((1000,), 0.5, dtype=torch.bfloat16, device="cuda:0"))
    assert ([end.recv() for end in ends], group.name) == ([500.0] * (count - 1), "nccl")
    group.close()
