"""Transfers of weights within a GPU, on a fake CUDA: two processes share memory, as they would share a GPU's.

vLLM is a stand-in. Whether a real driver's memory can be opened, and how fast, only a run on a GPU can show.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support import fake_cuda

pytestmark = [pytest.mark.slow, fake_cuda.needed()]

STAND_IN = Path(__file__).parents[1] / "support" / "vllm_stand_in"
CLOSE = 1e-4  # nats, in float32
THIS_TIME = "weights go to vLLM through main memory this time, not within the GPU:"


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    file: Path = tmp_path_factory.mktemp("weights") / "results.json"
    fake_cuda.run("tests.rollout.cuda_weights", str(file), PYTHONPATH=f"{fake_cuda.ROOT}:{STAND_IN}")
    return json.loads(file.read_text())


def test_weights_are_sent_within_the_gpu_to_an_awake_and_to_a_sleeping_vllm(results: dict[str, Any]) -> None:
    within = results["within"]
    assert within["route"] == "weights go to vLLM within the GPU, by CUDA IPC"
    assert within["again"] == ""  # logged only once
    assert within["sent"]  # not once more through main memory
    assert max(within["awake"], within["asleep"]) < CLOSE


def test_a_process_that_replaces_another_samples_the_same_from_main_memory(results: dict[str, Any]) -> None:
    assert results["within"]["replaced"]


def test_a_process_that_was_lost_is_not_started_again_to_sleep(results: dict[str, Any]) -> None:
    """It would start for minutes while other ranks wait in the training step."""
    assert results["within"]["left"] is None


def test_a_process_killed_during_a_transfer_is_replaced_by_one_with_all_weights(results: dict[str, Any]) -> None:
    assert results["within"]["then"].startswith(f"{THIS_TIME} it ended")
    assert results["within"]["struck"] < CLOSE


def test_its_successor_takes_the_next_weights_within_the_gpu(results: dict[str, Any]) -> None:
    assert results["within"]["recovered by"] == "weights go to vLLM within the GPU, by CUDA IPC"
    assert results["within"]["recovered"] < CLOSE


def test_two_processes_killed_one_after_the_other_end_transfers_within_the_gpu(results: dict[str, Any]) -> None:
    first, second = results["within"]["struck twice"]
    assert first.startswith(f"{THIS_TIME} it ended")
    assert second.startswith("weights go to vLLM through main memory, not within the GPU: it ended")
    assert results["within"]["afterwards"] == ""
    assert results["within"]["given up"] < CLOSE


def test_weights_go_through_main_memory_where_vllm_cannot_open_them(results: dict[str, Any]) -> None:
    assert results["without"]["route"].startswith(
        "weights go to vLLM through main memory, not within the GPU: there is no GPU driver: libcuda.so.1"
    )
    assert results["without"]["off"] < CLOSE


def test_an_error_of_the_driver_is_named(results: dict[str, Any]) -> None:
    assert results["refused"] == {
        "of its own": "cuIpcOpenMemHandle_v2 failed: CUDA_ERROR_INVALID_CONTEXT (201)",
        "of nobody": "cuIpcOpenMemHandle_v2 failed: CUDA_ERROR_INVALID_VALUE (1)",
    }
