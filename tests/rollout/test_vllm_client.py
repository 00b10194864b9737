"""What is said beside messages of vLLM 0.32 that name a setting which is no knob here, and a setting that we choose."""

import json
from pathlib import Path
from typing import Any

import pytest

from rlvr.rollout.vllm_client import advice
from rlvr.rollout.vllm_server import _longest

TAKEN = (
    "ValueError: Free memory on device cuda:0 (3.1/79.1 GiB) on startup is less than desired GPU memory utilization "
    "(0.01, 0.79 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes."
)
SMALL = (
    "ValueError: Cannot auto-fit max_model_len: not enough GPU memory available to serve even a single token. Try "
    "increasing `gpu_memory_utilization`."
)


def test_advice_names_what_a_user_can_change() -> None:
    for message, advised in {
        TAKEN: "Another process uses this GPU",
        SMALL: "raise rollout.engine.max_cache_gb",
        "torch.OutOfMemoryError: CUDA out of memory.": "Lower rollout.engine.max_cache_gb",
    }.items():
        assert advised in advice(message)
    assert advice("KeyError: 'x'") == ""


LONG_ROPE = {"rope_scaling": {"long_factor": [4.0]}, "original_max_position_embeddings": 64}


@pytest.mark.parametrize(
    ("config", "longest"), [({"rope_parameters": None}, -1), (LONG_ROPE, 64), ({"text_config": LONG_ROPE}, 64)]
)
def test_sequences_keep_to_the_short_factors_of_longrope(config: Any, longest: int, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert _longest(tmp_path) == longest
