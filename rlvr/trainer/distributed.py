"""The processes of one run: several ranks, or a single one with a private group of its own.

What they tell one another is tensors, JSON or bytes: nothing that comes through a socket is unpickled.
"""

from __future__ import annotations

import atexit
import gc
import itertools
import json
import logging
import os
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import FileStore, HashStore, Store, TCPStore
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor

from rlvr.ledger.attempt import RAY_NETWORK, STORE

T = TypeVar("T")
LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")  # of torch: how a user sets it
# Ranks wait for one another while one of them judges answers or evaluates, which may take hours; a hung rank is the
# supervisor's to find.
TIMEOUT = timedelta(days=1)
MEET_LOOK_S = 0.05
MEET = timedelta(minutes=30)  # for all ranks to have started, on the slowest of file systems
# For what one rank has written to be seen by another: NFS caches for a minute that a file is not there.
VISIBLE_S, VISIBLE_LOOK_S = 120.0, 0.1
# Nobody judges while GPUs talk: this long, a rank is lost. A vLLM that is started again takes up to 30.
GPU_TIMEOUT = timedelta(minutes=40)


def join_group() -> tuple[int, int, torch.device]:
    """(rank, world size, device) of this process. Joins the group of its ranks (rlvr/job/ranks.py), or makes one of a
    single process.

    Those of one node listen on the loopback device alone. Safe to call again: a group that exists is kept, so a process
    can run one run after another.
    """
    device = _device()
    if not dist.is_initialized():
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        file = os.environ.get(STORE)
        if world > 1 and file is None:  # of several nodes: where to meet is in the environment too
            host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
            store = TCPStore(host, port, world, rank == 0, timeout=MEET, wait_for_workers=False)
        else:
            # NCCL chooses once per process, and may have to reach workers of Ray on other nodes.
            carried = ("GLOO",) if RAY_NETWORK in os.environ else ("GLOO", "NCCL")
            os.environ |= {f"{each}_SOCKET_IFNAME": LOOPBACK for each in carried}
            store = HashStore() if file is None else FileStore(file, world)
        _meet(store, rank, world)
        dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=MEET)
        _set_patience(device)
    return dist.get_rank(), dist.get_world_size(), device


def _meet(store: Store, rank: int, world: int) -> None:
    """Wait until all ranks are there, where a signal is heard: in init_process_group it would not be, and one of them
    may have ended before it came.
    """
    store.set(f"here/{rank}", "1")
    deadline = time.monotonic() + MEET.total_seconds()
    while not store.check([f"here/{each}" for each in range(world)]):
        if time.monotonic() > deadline:
            raise RuntimeError(f"the {world} ranks of this run have not met within {MEET}")
        time.sleep(MEET_LOOK_S)


def _set_patience(device: torch.device) -> None:
    """Of what carries tensors between ranks, once they are connected."""
    world = dist.group.WORLD
    assert world is not None
    for each in {torch.device("cpu"), device}:
        backend: Any = world._get_backend(each)
        backend._set_default_timeout(GPU_TIMEOUT if backend.name() == "nccl" else TIMEOUT)


def _device() -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    let_blocks_grow()
    torch.cuda.set_device(device)
    # It builds a plan for every new shape, half a second each, and no two micro-batches are of one shape.
    torch.backends.cuda.enable_cudnn_sdp(False)
    # Sums of products in half precision are float32 sums.
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    return device


def let_blocks_grow() -> None:
    """Of the allocator: they lose nothing to fragments where no two micro-batches are of one shape. What a user has set
    stays. Not by its variable, which may be read as torch is imported, and which vLLM must not see.
    """
    if not os.environ.keys() & set(ALLOCATOR):
        torch._C._accelerator_setAllocatorSettings("expandable_segments:True")


def leave_group() -> None:
    """Leave the group, if there is one."""
    if dist.is_initialized():
        dist.destroy_process_group()


def free_memory() -> None:
    """Give back what a run held on the GPU: one that ran out of memory must not press the next in its process.

    Raises RuntimeError where the GPU does not answer this process any more (an illegal access, a fault of its memory):
    none that comes could use it, and the process is to end.
    """
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


def lost_a_rank(error: Exception) -> bool:
    """Does the error say only that another process of the group is gone? gloo has no class of its own for that."""
    return isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "/gloo/" in str(error))


def end_process(code: int, *, alone: bool = False) -> NoReturn:
    """Leave the group and end this process with `code`, without tearing the interpreter down if there were several.

    alone: the other ranks may not be ending. The group is then not left, which on GPUs would wait until the collective
    that they are in times out; they hear of it as this process ends.

    gloo's threads outlive `destroy_process_group`: one that lets go of its last tensor while the interpreter is being
    torn down aborts the process (SIGABRT), and a finished run would be called failed.
    """
    several = dist.is_initialized() and dist.get_world_size() > 1
    if not (several and alone):
        leave_group()
    if several:
        atexit._run_exitfuncs()
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def mesh(device: torch.device) -> DeviceMesh:
    """All processes in one line: parameters are sharded over it."""
    return init_device_mesh(device.type, (dist.get_world_size(),))


def another_group() -> dist.ProcessGroup | None:
    """All ranks once more, for a thread beside the main one: collectives of two threads must not mix. Called by all.

    None if there is one rank, which has nobody to talk to.
    """
    if dist.get_world_size() == 1:
        return None
    return cast("dist.ProcessGroup", dist.new_group(backend="gloo", timeout=TIMEOUT))  # else: not of the group


def gather(mine: list[T], group: dist.ProcessGroup | None = None) -> list[list[T]]:
    """Every rank's list of JSON values, in the order of ranks, on every rank."""
    if dist.get_world_size() == 1:
        return [mine]
    return [json.loads(each) for each in gather_bytes(json.dumps(mine).encode(), group)]


def gather_bytes(mine: bytes, group: dist.ProcessGroup | None = None) -> list[bytes]:
    """Every rank's bytes, in the order of ranks, on every rank of a run that has several."""
    own = torch.frombuffer(bytearray(mine), dtype=torch.uint8) if mine else torch.empty(0, dtype=torch.uint8)
    sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(dist.get_world_size())]
    dist.all_gather(sizes, torch.tensor([len(mine)]), group)
    lengths = [int(size) for size in sizes]
    padded = torch.nn.functional.pad(own, (0, max(lengths) - len(mine)))
    everyone = [torch.empty_like(padded) for _ in lengths]
    dist.all_gather(everyone, padded, group)
    return [each[:length].numpy().tobytes() for each, length in zip(everyone, lengths, strict=True)]


def of_first_rank(mine: T) -> T:
    """The JSON value of the first rank, on every rank: what each reads from a disk or a clock may differ."""
    return gather([mine])[0][0]


def await_paths(paths: Sequence[Path], group: dist.ProcessGroup | None = None) -> None:
    """Until every rank sees these paths, which one of them has written or seen: a network file system may keep the
    other nodes waiting. Raises RuntimeError, on all ranks, if one still does not see them after VISIBLE_S.
    """
    if dist.get_world_size() == 1:
        return
    deadline = time.monotonic() + VISIBLE_S
    while (hidden := _hidden(paths)) and time.monotonic() < deadline:
        time.sleep(VISIBLE_LOOK_S)
    for rank, missing in enumerate(gather(hidden, group)):
        if missing:
            raise RuntimeError(
                f"rank {rank} does not see {missing[0]}, which is there, within {VISIBLE_S:.0f} s: runs/ must be on a "
                "file system that all nodes of a run see."
            )


def _hidden(paths: Sequence[Path]) -> list[str]:
    """Those that this rank does not see. Lists their directories: on NFS that is fresher than a stat."""
    seen = {folder: _names_in(folder) for folder in {path.parent for path in paths}}
    return [str(path) for path in paths if path.name not in seen[path.parent]]


def _names_in(folder: Path) -> set[str]:
    try:
        return {path.name for path in folder.iterdir()}
    except FileNotFoundError:
        return set()


def any_rank(fact: bool) -> bool:
    """True on every rank if it is true on one of them."""
    return any(each[0] for each in gather([bool(fact)]))


def total(tensor: Tensor) -> Tensor:
    """Sum over ranks, in place."""
    if dist.get_world_size() > 1:
        dist.all_reduce(tensor)
    return tensor


def total_of_names(mine: dict[str, float]) -> dict[str, float]:
    """Sum over ranks by name. A rank that had nothing to do knows no names: the others' count."""
    summed: dict[str, float] = {}
    for each in gather([mine]):
        for name, value in each[0].items():
            summed[name] = summed.get(name, 0.0) + value
    return summed


def local(parameter: Tensor) -> Tensor:
    """This rank's shard."""
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter


def barrier(group: dist.ProcessGroup | None = None) -> None:
    if dist.is_initialized() and dist.get_world_size() > 1:
        dist.barrier(group)


class Board:
    """Short texts that ranks of a run post and read without waiting for one another."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def post(self, name: str, value: str) -> None:
        self._store.set(name, value)

    def read(self, name: str) -> str | None:
        """None: nobody has posted it yet."""
        return self._store.get(name).decode() if self._store.check([name]) else None


_boards = itertools.count()


def new_board() -> Board | None:
    """An empty one, the same for all ranks, which call this in the same order; None for a single rank."""
    if dist.get_world_size() == 1:
        return None
    store = dist.distributed_c10d._get_default_store()  # type: ignore[attr-defined]
    return Board(dist.distributed_c10d.PrefixStore(f"board-{next(_boards)}", store))
