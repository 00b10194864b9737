"""Exchanges between real processes, numbered as the ranks of two nodes: one rank on the first, two on the second."""

import subprocess
import sys
from pathlib import Path

import pytest

from rlvr.rollout.vllm_environment import visible_gpus

PLACES = [(0, 1), (0, 2), (1, 2)]  # of each rank: LOCAL_RANK, LOCAL_WORLD_SIZE
RANKS = """
import os, sys
import torch.distributed as dist
from rlvr.rollout.node import broadcast_on_node, gather_numbers, rank_on_node

rank, local, local_size, folder = *map(int, sys.argv[1:4]), sys.argv[4]
os.environ |= {"LOCAL_RANK": str(local), "LOCAL_WORLD_SIZE": str(local_size)}
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=3)
print(*rank_on_node(), *broadcast_on_node([7, rank] if rank_on_node()[0] == 0 else [0, 0]), *gather_numbers(10 * rank))
dist.barrier()
os._exit(0)
"""


@pytest.mark.slow
def test_numbers_of_the_first_rank_of_a_node_and_of_all_ranks_are_exchanged(tmp_path: Path) -> None:
    started = [
        subprocess.Popen(
            [sys.executable, "-u", "-c", RANKS, *map(str, (rank, *place)), str(tmp_path)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank, place in enumerate(PLACES)
    ]
    outputs = [process.communicate(timeout=100)[0].strip() for process in started]
    assert outputs == ["0 1 7 0 0 10 20", "0 2 7 1 0 10 20", "1 2 7 1 0 10 20"]


def test_gpus_are_named_as_they_were_made_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    for visible, expected in {
        "4, 6": ["4", "6"],
        "GPU-ab,MIG-cd": ["GPU-ab", "MIG-cd"],
        "-1": [],
        "NoDevFiles": [],
    }.items():
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert visible_gpus() == expected
