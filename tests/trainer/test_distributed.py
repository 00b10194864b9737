import math
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.ranks import results

RANK = """
import json, os, pickle
from rlvr.trainer.distributed import barrier, end_process, gather, gather_bytes, join_group

def refuse(*_):
    raise AssertionError("something is unpickled")

rank = join_group()[0]
pickle.load = pickle.loads = pickle.Unpickler = refuse
lists = gather([["ä", rank], {"x": [0.1 + rank, None, float("inf")]}] if rank else [])
sent = gather_bytes(bytes(range(rank * 100)))
os.write(1, json.dumps([lists, [list(data) for data in sent]]).encode() + b"\\n")
barrier()
end_process(0)
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
def test_every_rank_gets_the_values_of_all_ranks() -> None:
    lists = [[], [["ä", 1], {"x": [1.1, None, math.inf]}], [["ä", 2], {"x": [2.1, None, math.inf]}]]
    assert results(3, "-c", RANK) == [[lists, [[], list(range(100)), list(range(200))]]] * 3
