"""Values that ranks exchange arrive unchanged and are never unpickled; the start of a group; the allocator."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

RANK = """
import json, os, pickle, sys
import torch.distributed as dist
from rlvr.trainer.distributed import gather, gather_bytes

def refuse(*_):
    raise AssertionError("something is unpickled")

rank, folder = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=3)
pickle.load = pickle.loads = pickle.Unpickler = refuse
lists = gather([["ä", rank], {"x": [0.1 + rank, None, float("inf")]}] if rank else [])
sent = gather_bytes(bytes(range(rank * 100)))
print(json.dumps([lists, [list(data) for data in sent]]), flush=True)
dist.barrier()
os._exit(0)
"""


ALONE = """
import signal, sys
from rlvr.trainer.distributed import join_group

signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
print("ready", flush=True)
join_group()
"""


BLOCKS = """
import torch
from rlvr.trainer.distributed import let_blocks_grow

let_blocks_grow()
print(torch._C._accelerator_getAllocatorSettings())
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("user_settings", "expected"),
    [
        ({}, "expandable_segments:True"),
        ({"PYTORCH_ALLOC_CONF": "max_split_size_mb:512"}, "max_split_size_mb:512"),
        ({"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:512"}, "max_split_size_mb:512"),
    ],
)
def test_blocks_of_the_allocator_grow_unless_a_user_has_set_it(user_settings: dict[str, str], expected: str) -> None:
    command = [sys.executable, "-c", BLOCKS]
    done = subprocess.run(command, env=os.environ | user_settings, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == expected


@pytest.mark.slow
def test_a_rank_that_waits_for_others_handles_a_signal(tmp_path: Path) -> None:
    environment = {**os.environ, "RANK": "1", "WORLD_SIZE": "2", "RLVR_STORE": str(tmp_path / "store")}
    with subprocess.Popen([sys.executable, "-c", ALONE], env=environment, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        time.sleep(1)
        process.terminate()
        assert process.wait(30) == 3


@pytest.mark.slow
def test_every_rank_gets_the_values_of_all_ranks(tmp_path: Path) -> None:
    started = [
        subprocess.Popen([sys.executable, "-c", RANK, str(rank), str(tmp_path)], stdout=subprocess.PIPE, text=True)
        for rank in range(3)
    ]
    outputs = [process.communicate(timeout=100)[0].strip() for process in started]
    lists = '[[], [["\\u00e4", 1], {"x": [1.1, null, Infinity]}], [["\\u00e4", 2], {"x": [2.1, null, Infinity]}]]'
    assert outputs == [f"[{lists}, [[], {list(range(100))}, {list(range(200))}]]"] * 3
