"""Weights pass within a GPU, on a CUDA that is not there: two processes share memory, as they would a GPU's.

vLLM is a stand-in. That a real driver's memory can be opened, and how fast it is, only a GPU can show.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support import fake_cuda

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not fake_cuda.can_build(), reason="needs g++")]

STAND_IN = Path(__file__).parents[1] / "support" / "vllm_stand_in"
CLOSE = 1e-4  # nats, in float32


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    file: Path = tmp_path_factory.mktemp("weights") / "seen.json"
    fake_cuda.run("tests.rollout.cuda_weights", str(file), PYTHONPATH=f"{fake_cuda.ROOT}:{STAND_IN}")
    return json.loads(file.read_text())


def test_weights_pass_within_the_gpu_to_a_vllm_that_is_awake_and_to_one_that_sleeps(seen: dict[str, Any]) -> None:
    within = seen["within"]
    assert within["route"] == "weights go to vLLM within the GPU, by CUDA IPC"
    assert within["again"] == ""  # the log says it once
    assert within["sent"]  # not once more through main memory
    assert max(within["awake"], within["asleep"]) < CLOSE


def test_a_process_that_replaces_another_samples_the_same_from_main_memory(seen: dict[str, Any]) -> None:
    assert seen["within"]["replaced"]


def test_a_process_that_dies_amid_a_handing_over_is_replaced_and_has_all_weights(seen: dict[str, Any]) -> None:
    assert seen["within"]["then"].startswith("weights go to vLLM through main memory, not within the GPU: it ended")
    assert seen["within"]["struck"] < CLOSE


def test_weights_go_through_main_memory_where_vllm_cannot_open_them(seen: dict[str, Any]) -> None:
    assert seen["without"]["route"].startswith(
        "weights go to vLLM through main memory, not within the GPU: there is no driver of a GPU: libcuda.so.1"
    )
    assert seen["without"]["off"] < CLOSE


def test_what_the_driver_refuses_is_named(seen: dict[str, Any]) -> None:
    assert seen["refused"] == {
        "of its own": "cuIpcOpenMemHandle_v2 failed: CUDA_ERROR_INVALID_CONTEXT (201)",
        "of nobody": "cuIpcOpenMemHandle_v2 failed: CUDA_ERROR_INVALID_VALUE (1)",
    }
