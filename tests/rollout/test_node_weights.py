import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import os, sys
import torch, torch.distributed as dist
from rlvr.rollout.node_weights import NodeWeights
from rlvr.rollout.vllm_server import tensors

rank, folder = int(sys.argv[1]), sys.argv[2]
os.environ |= {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2"}
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
weights = NodeWeights()
for version in (1, 2):
    numbers = [torch.full((3, i + 1), float(version * i)) for i in range(5)]
    # Values that only the other rank may write are replaced by NaN.
    pairs = ((f"w{i}", n if i % 2 == rank else n * torch.nan) for i, n in enumerate(numbers))
    written = weights.write(pairs, torch.bfloat16)
    print(*[f"{name} {tuple(t.shape)} {t.unique().tolist()}" for name, t in tensors(written)], sep="; ")
    dist.barrier()
weights.close()
print(sum("rlvr-weights" in os.readlink(f"/proc/self/fd/{file}") for file in os.listdir("/proc/self/fd")[:-1]))
os._exit(0)
"""


@pytest.mark.slow
def test_each_rank_of_a_node_writes_a_part_of_the_weights(tmp_path: Path) -> None:
    command = [sys.executable, "-u", "-c", SCRIPT]
    started = [subprocess.Popen([*command, str(r), str(tmp_path)], stdout=subprocess.PIPE, text=True) for r in (0, 1)]
    outputs = [process.communicate(timeout=280)[0].splitlines() for process in started]
    expected = ["; ".join(f"w{i} (3, {i + 1}) [{float(version * i)}]" for i in range(5)) for version in (1, 2)]
    assert outputs == [[*expected, "0"]] * 2  # nothing stays open
