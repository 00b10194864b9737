"""What this machine has, and how many runs it has room for."""

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlvr.rollout.gpu_names import named_gpus


def available_cores() -> int:
    """CPU cores this process may use: affinity, and the quota of its control group (containers)."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with contextlib.suppress(OSError, ValueError):  # no control groups here, or "max": no quota
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        cores = min(cores, max(1, round(int(quota) / int(period))))
    return cores


def available_gpus() -> list[str]:
    """GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them: those of NVIDIA's and AMD's drivers, and the
    one of WSL. Without torch, which would initialise them.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return named_gpus(visible)
    of_amd = list(Path("/dev/dri").glob("renderD*")) if Path("/dev/kfd").exists() else []
    num = len(list(Path("/dev").glob("nvidia[0-9]*"))) + len(of_amd) + Path("/dev/dxg").exists()
    return [str(index) for index in range(num)]


def computes_bfloat16() -> bool:
    """Whether the CPU multiplies bfloat16 in hardware. True where the kernel does not list what the CPU can do."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return True
    abilities = {word for line in lines if line.lower().startswith(("flags", "features")) for word in line.split()}
    return not abilities or bool(abilities & {"avx512_bf16", "amx_bf16", "bf16"})  # two of x86, one of ARM


def check_here(nodes: int, gpus: int) -> None:
    """ValueError for runs that need several nodes, or more GPUs than this machine has."""
    if nodes > 1:
        raise ValueError(
            f"cluster.nodes={nodes} needs SLURM, and this launch is for this machine. Pass cluster.nodes=1."
        )
    num_gpus = len(available_gpus())
    if gpus > num_gpus:
        raise ValueError(
            f"cluster.gpus={gpus}, and this machine has {num_gpus or 'no'} GPU{'s' * (num_gpus > 1)}. Pass "
            f"cluster.gpus={num_gpus}, or cluster=slurm where there is one."
        )


def at_once(workers: int | None, threads: int, ranks: int, gpus_each: int) -> int:
    """Runs at a time on this machine: `workers`, or as many as its cores and, if it has any, its GPUs suffice for.

    gpus_each: GPUs of a run. Raises ValueError if the machine has GPUs, but fewer than that.
    """
    gpus = len(available_gpus())
    if 0 < gpus < gpus_each:
        raise ValueError(
            f"a run of this launch has {gpus_each} processes with a GPU each (cluster.ranks, rollout.engine.workers), "
            f"and this machine shows {gpus}. Pass fewer, or CUDA_VISIBLE_DEVICES= to train on its CPU."
        )
    room = max(1, available_cores() // (threads * ranks))
    return workers or (min(room, gpus // gpus_each) if gpus else room)


def gpus_of(config: Any) -> int:
    """GPUs of a run with this config on this machine: one for each rank, and those of its engine workers."""
    from rlvr.config.engine import gpus_of_workers  # imports OmegaConf, which `python -m sweeps` does not need

    return config["cluster"]["ranks"] + gpus_of_workers(config["rollout"]["engine"])


def share_of(gpus: Sequence[str], number: int, gpus_each: int) -> str | None:
    """CUDA_VISIBLE_DEVICES of worker `number`, which shares GPUs with others only if there are not enough for all; None
    if there are no GPUs.
    """
    if not gpus:
        return None
    first = (number % (len(gpus) // gpus_each)) * gpus_each
    return ",".join(gpus[first : first + gpus_each])
