"""The choice between packed and padded sequences, and the tokens of a micro-batch."""

from __future__ import annotations

import json

import pytest
import torch

from rlvr.trainer.packer import fitting
from tests.support.ranks import start

RANK = """
import json, logging, os, sys
import torch
from rlvr.trainer import distributed, packer
from rlvr.trainer.actor import Actor
from tests.trainer.test_gradient import shifting
from tests.trainer.tiny import make_knobs, qwen2

logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
rank, _, device = distributed.join_group()
result = [rank]
for failing in ([], [1], [0]):  # the ranks on which the model, packed, has other hidden states
    actor = Actor(shifting() if rank in failing else qwen2(), 1.0)
    choice = packer.choose(actor, actor, make_knobs(), 0, device)
    result.append([choice.packing, actor.model.config._attn_implementation])
os.write(1, f"{json.dumps(result)}\\n".encode())
distributed.barrier()
distributed.end_process(0)
"""


def test_a_micro_batch_on_a_cpu_is_limited_by_its_caches() -> None:
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert [fitting(tokens, cpu) for tokens in (100, 8192, 16384)] == [100, 8192, 8192]
    assert fitting(65536, gpu) == 65536


@pytest.mark.slow
def test_sequences_are_packed_if_they_can_be_on_all_ranks() -> None:
    process = start(2, "-c", RANK)
    output, errors = process.communicate(timeout=200)
    packed, padded = [True, "rlvr_packed"], [False, "sdpa"]
    results = sorted(json.loads(line) for line in output.splitlines())
    assert results == [[rank, packed, padded, padded] for rank in (0, 1)], errors[-4000:]
    warnings = [line for line in errors.splitlines() if "sequences are padded, not packed" in line]
    assert len(warnings) == 4
    assert len(set(warnings)) == 1  # both ranks log the same difference
