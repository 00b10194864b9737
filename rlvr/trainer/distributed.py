"""The processes of one run: several ranks, or a single process with a group of its own.

Ranks exchange tensors, JSON or bytes: nothing that is received through a socket is unpickled.
"""

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
from typing import Any, Literal, NoReturn, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import FileStore, HashStore, Store, TCPStore
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor

from rlvr.ledger.attempt import RAY_NETWORK, STORE

T = TypeVar("T")
LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")  # with these a user configures torch's allocator
# Ranks wait for one another while one of them judges answers or evaluates, which may take hours; the supervisor detects
# a rank that hangs.
TIMEOUT = timedelta(days=1)
MEET_LOOK_S = 0.05
MEET = timedelta(minutes=30)  # for all ranks to start, on the slowest of file systems
# Until one rank sees a file that another has written: NFS caches for a minute that a file does not exist.
VISIBLE_S, VISIBLE_LOOK_S = 120.0, 0.1
# No judging happens during collectives of GPUs: after this time a rank is lost. Restarting vLLM takes up to 30 minutes.
GPU_TIMEOUT = timedelta(minutes=40)


def join_group() -> tuple[int, int, torch.device]:
    """(rank, world size, device) of this process. Joins the group of its ranks (rlvr/job/ranks.py), or one of its own.

    Ranks of one node listen on the loopback device only. An existing group is kept: a process may execute several runs.
    """
    device = _device()
    if not dist.is_initialized():
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        number, count = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        file = os.environ.get(STORE)
        if count > 1 and file is None:  # several nodes: the address of the store is in the environment too
            host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
            store = TCPStore(host, port, count, number == 0, timeout=MEET, wait_for_workers=False)
        else:
            # NCCL chooses its interface once per process, and may have to reach workers of Ray on other nodes.
            libraries = ("GLOO",) if RAY_NETWORK in os.environ else ("GLOO", "NCCL")
            os.environ |= {f"{library}_SOCKET_IFNAME": LOOPBACK for library in libraries}
            store = HashStore() if file is None else FileStore(file, count)
        _await_all_ranks(store, number, count)
        dist.init_process_group(backend, store=store, rank=number, world_size=count, timeout=MEET)
        _set_timeouts(dist.group.WORLD, device)
    return rank(), world(), device


def _await_all_ranks(store: Store, number: int, count: int) -> None:
    """Wait until all ranks have started, where a signal to stop is handled: init_process_group would not handle it."""
    store.set(f"here/{number}", "1")
    deadline = time.monotonic() + MEET.total_seconds()
    while not store.check([f"here/{other}" for other in range(count)]):
        if time.monotonic() > deadline:
            raise RuntimeError(f"the {count} ranks of this run have not met within {MEET}")
        time.sleep(MEET_LOOK_S)


def _set_timeouts(group: dist.ProcessGroup | None, device: torch.device) -> None:
    """Set the timeouts of a group's collectives, once the ranks are connected (connecting is limited by MEET)."""
    assert group is not None
    for used_device in {torch.device("cpu"), device}:
        backend: Any = group._get_backend(used_device)
        backend._set_default_timeout(GPU_TIMEOUT if backend.name() == "nccl" else TIMEOUT)


def _device() -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    let_blocks_grow()
    torch.cuda.set_device(device)
    # cuDNN's attention builds a plan for each new shape, half a second each, and every micro-batch has another shape.
    torch.backends.cuda.enable_cudnn_sdp(False)
    # float32 stays float32, though containers may ask for TF32, which rounds to 10 bits, in the environment.
    torch.backends.cuda.matmul.allow_tf32 = False
    # Matrix products in half precision add up in float32.
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    return device


def let_blocks_grow() -> None:
    """Let torch's allocator use expandable segments: every micro-batch has another shape, and blocks of fixed size
    would become fragmented. A setting of the user's is kept. Not done by the environment variable, which torch may have
    read already when it was imported, and which vLLM must not inherit.
    """
    if not os.environ.keys() & set(ALLOCATOR):
        torch._C._accelerator_setAllocatorSettings("expandable_segments:True")


def leave_group() -> None:
    """Leave the group, if there is one."""
    if dist.is_initialized():
        dist.destroy_process_group()


def free_memory() -> None:
    """Release the GPU memory of a run that has ended, so that the next run of this process has all of it.

    Raises RuntimeError if this process can no longer use the GPU (after an illegal access or a fault of its memory): no
    later run could use it either, and the process has to end.
    """
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


def lost_a_rank(error: Exception) -> bool:
    """Whether the error only reports that another process of the group is gone. gloo has no error class for that."""
    return isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "/gloo/" in str(error))


def end_process(code: int, *, alone: bool = False) -> NoReturn:
    """Leave the group and exit with `code`; of several ranks, without finalising the interpreter.

    alone: the other ranks may not be ending. The group is then not left, because on GPUs that would wait until the
    collective that the others are in times out; they get an error once this process has exited.

    gloo's threads outlive `destroy_process_group`: a thread that frees its last tensor while the interpreter is being
    finalised aborts the process (SIGABRT), and a finished run would count as failed.
    """
    several = world() > 1
    if not (several and alone):
        leave_group()
    if several:
        atexit._run_exitfuncs()
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def mesh(device: torch.device, shard_over: Literal["job", "node"] = "job") -> DeviceMesh:
    """The ranks as a mesh for FSDP. job: [ranks], sharded over. node: [nodes, ranks of a node], copies and shards."""
    if shard_over == "job":
        return init_device_mesh(device.type, (world(),))
    of_node = int(os.environ["LOCAL_WORLD_SIZE"])
    of_nodes = init_device_mesh(device.type, (world() // of_node, of_node), mesh_dim_names=("copy", "shard"))
    for group in of_nodes.get_all_groups():  # new ones, with torch's own timeout
        _set_timeouts(group, device)
    return of_nodes


def rank() -> int:
    """Number of this rank; 0 in a process without a group."""
    return dist.get_rank() if dist.is_initialized() else 0


def world() -> int:
    """Number of ranks; 1 in a process without a group."""
    return dist.get_world_size() if dist.is_initialized() else 1


def another_group() -> dist.ProcessGroup | None:
    """A second group of all ranks, for a second thread: collectives of two threads must not mix. Called by all ranks.

    None for a single rank.
    """
    if world() == 1:
        return None
    return cast("dist.ProcessGroup", dist.new_group(backend="gloo", timeout=TIMEOUT))  # int: no member


def gather(mine: list[T], group: dist.ProcessGroup | None = None) -> list[list[T]]:
    """Every rank's list of JSON values, in the order of ranks, on every rank."""
    if world() == 1:
        return [mine]
    return [json.loads(data) for data in gather_bytes(json.dumps(mine).encode(), group)]


def gather_bytes(mine: bytes, group: dist.ProcessGroup | None = None) -> list[bytes]:
    """Every rank's bytes, in the order of ranks, on every rank. Not for a single rank."""
    content = torch.frombuffer(bytearray(mine), dtype=torch.uint8) if mine else torch.empty(0, dtype=torch.uint8)
    sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(world())]
    dist.all_gather(sizes, torch.tensor([len(mine)]), group)
    lengths = [int(size) for size in sizes]
    padded = torch.nn.functional.pad(content, (0, max(lengths) - len(mine)))
    received = [torch.empty_like(padded) for _ in lengths]
    dist.all_gather(received, padded, group)
    return [of_rank[:length].numpy().tobytes() for of_rank, length in zip(received, lengths, strict=True)]


def of_first_rank(mine: T) -> T:
    """The first rank's JSON value, on every rank: values that ranks read from a disk or a clock may differ."""
    return gather([mine])[0][0]


def await_paths(paths: Sequence[Path], group: dist.ProcessGroup | None = None) -> None:
    """Wait until every rank sees these paths, which a network file system may show with a delay. Raises RuntimeError
    on all ranks, if one does not see them within VISIBLE_S.
    """
    if world() == 1:
        return
    deadline = time.monotonic() + VISIBLE_S
    while (hidden := _hidden(paths)) and time.monotonic() < deadline:
        time.sleep(VISIBLE_LOOK_S)
    for number, missing in enumerate(gather(hidden, group)):
        if missing:
            raise RuntimeError(
                f"rank {number} does not see {missing[0]}, which exists, within {VISIBLE_S:.0f} s: runs/ must be on a "
                "file system that all nodes of a run see."
            )


def _hidden(paths: Sequence[Path]) -> list[str]:
    """The paths that this rank does not see. Lists their directories: on NFS a listing is fresher than a stat."""
    names = {folder: _names_in(folder) for folder in {path.parent for path in paths}}
    return [str(path) for path in paths if path.name not in names[path.parent]]


def _names_in(folder: Path) -> set[str]:
    try:
        return {path.name for path in folder.iterdir()}
    except FileNotFoundError:
        return set()


def any_rank(fact: bool) -> bool:
    """True on every rank if `fact` is true on at least one of them."""
    return any(of_rank[0] for of_rank in gather([bool(fact)]))


def total(tensor: Tensor) -> Tensor:
    """Sum over ranks, in place."""
    if world() > 1:
        dist.all_reduce(tensor)
    return tensor


def total_of_names(mine: dict[str, float]) -> dict[str, float]:
    """Sum over ranks by name. A rank that had nothing to do has no names and adds nothing."""
    totals: dict[str, float] = {}
    for of_rank in gather([mine]):
        for name, value in of_rank[0].items():
            totals[name] = totals.get(name, 0.0) + value
    return totals


def local(parameter: Tensor) -> Tensor:
    """This rank's shard."""
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter


def full(tensor: Tensor) -> Tensor:
    """All ranks' shards together. Called by all ranks."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def barrier(group: dist.ProcessGroup | None = None) -> None:
    if world() > 1:
        dist.barrier(group)


class StoreBoard:
    """Short texts that the ranks of a run post and read without waiting for one another."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def post(self, name: str, value: str) -> None:
        self._store.set(name, value)

    def read(self, name: str) -> str | None:
        """The text posted under `name`; None if no rank has posted it yet."""
        return self._store.get(name).decode() if self._store.check([name]) else None


_boards = itertools.count()


def new_board() -> StoreBoard | None:
    """An empty board that all ranks share; None for a single rank. All ranks call this in the same order."""
    if world() == 1:
        return None
    store = dist.distributed_c10d._get_default_store()  # type: ignore[attr-defined]
    return StoreBoard(dist.distributed_c10d.PrefixStore(f"board-{next(_boards)}", store))
