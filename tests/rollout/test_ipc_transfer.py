"""Transfers of weights within a GPU, on a fake CUDA: two processes share memory, as they would share a GPU's.

vLLM is a stand-in. Whether a real driver's memory can be opened, and how fast, only a run on a GPU can show.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support import fake_cuda

pytestmark = [pytest.mark.slow, fake_cuda.needed()]

STAND_IN = Path(__file__).parents[1] / "support" / "vllm_stand_in"
CLOSE = 1e-4  # nats, in float32
INSTEAD = "weights go to vLLM through main memory, not within the GPU:"


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    file: Path = tmp_path_factory.mktemp("weights") / "results.json"
    fake_cuda.run("tests.rollout.cuda_weights", str(file), PYTHONPATH=f"{fake_cuda.ROOT}:{STAND_IN}")
    return json.loads(file.read_text())


def test_weights_are_sent_within_the_gpu_to_an_awake_and_to_a_sleeping_vllm(results: dict[str, Any]) -> None:
    within = results["within"]
    assert within["route"] == "weights go to vLLM within the GPU, by CUDA IPC"
    assert within["again"] == ""  # logged only once
    assert not within["copied"]  # to main memory, too
    assert max(within["awake"], within["asleep"]) < CLOSE


def test_a_process_that_is_killed_amid_a_transfer_ends_the_attempt(results: dict[str, Any]) -> None:
    assert "was lost: it ended with exit status -9" in results["within"]["lost"]


def test_weights_go_through_main_memory_where_vllm_cannot_open_them(results: dict[str, Any]) -> None:
    assert results["without"]["route"].startswith(f"{INSTEAD} there is no GPU driver: libcuda.so.1")
    assert results["without"]["off"] < CLOSE


def test_an_error_of_the_driver_is_named(results: dict[str, Any]) -> None:
    assert results["refused"] == {
        "of its own": "cuIpcOpenMemHandle_v2 failed: CUDA_ERROR_INVALID_CONTEXT (201)",
        "of nobody": "cuIpcOpenMemHandle_v2 failed: CUDA_ERROR_INVALID_VALUE (1)",
    }
