"""Memory of a GPU is shared with another process, by the driver's own functions.

vLLM is a stand-in, in a process of its own, that runs rlvr/rollout/vllm_server.py: its tensors are on the GPU if there
is a real one. tests/end_to_end/test_cuda.py runs these tests on the fake CUDA, too.
"""

import os
from pathlib import Path

import pytest
import torch

from rlvr.rollout import ipc_transfer
from rlvr.rollout.cuda_ipc import SharedMemory
from rlvr.trainer import distributed
from tests.rollout import cuda_weights
from tests.rollout.test_ipc_transfer import CLOSE, STAND_IN
from tests.rollout.test_native import make_model
from tests.support import fake_cuda

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def test_memory_keeps_the_bits_that_are_written_to_it() -> None:
    device = distributed.join_group()[2]
    written = torch.randn(1000).to(device, torch.bfloat16)
    read = torch.zeros_like(written)
    torch.cuda.synchronize()
    memory = SharedMemory.allocate(2 * 1064)
    memory.write(128, written.data_ptr(), 2000)
    memory.read(128, read.data_ptr(), 2000)
    memory.close()
    assert torch.equal(read.cpu(), written.cpu())


def test_another_process_reads_weights_from_this_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In several buckets, some of one large matrix; the process then samples from these weights."""
    monkeypatch.setenv("PYTHONPATH", f"{fake_cuda.ROOT}:{STAND_IN}")
    if not os.environ.get("CUDA_VISIBLE_DEVICES"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setattr(ipc_transfer, "BUCKET_BYTES", cuda_weights.FEW_BYTES)
    distributed.join_group()
    make_model(0, **cuda_weights.WIDE).save_pretrained(tmp_path)
    engine, model = cuda_weights.start(str(tmp_path)), make_model(1, **cuda_weights.WIDE)
    engine.sync(cuda_weights.weights(model))
    assert engine.within_gpu, "weights went through main memory: the log has the reason"
    assert cuda_weights.off_by(engine, model) < CLOSE
    engine.close()
