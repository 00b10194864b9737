"""The trainer on a fake CUDA device (tests/support/fake_cuda) computes the same as on a CPU."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support import fake_cuda

pytestmark = [pytest.mark.slow, fake_cuda.needed()]

# In an optimiser step the host waits for the metrics and for the gradient's norm, whatever the number of micro-batches.
WAITS_PER_MICRO_BATCH, WAITS_PER_STEP = 0, 2


@pytest.fixture(scope="module", params=[1, 2], ids=["one rank", "two ranks"])
def seen(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    file: Path = tmp_path_factory.mktemp("twins") / "seen.json"
    fake_cuda.run("tests.trainer.cuda_twins", str(file), ranks=request.param)
    return json.loads(file.read_text())


@pytest.fixture
def alone(seen: dict[str, Any]) -> dict[str, Any]:
    """Results that only the process with one rank computes."""
    if seen["ranks"] > 1:
        pytest.skip("computed with one rank only")
    return seen


def test_every_configuration_learns_as_its_twin_on_the_cpu(seen: dict[str, Any]) -> None:
    """Operations that mix devices would fail. Sums in half precision differ by rounding: 8 bits of mantissa."""
    assert len(seen["twins"]) > 3
    for name, outcome in seen["twins"].items():
        half = any("float16" in kernel for kernel in outcome["kernels"])
        close = 0.05 if half else 1e-5
        assert max(outcome["logp"], outcome["gradient"]) < close, (name, outcome)
        assert outcome["metrics"] < close, (name, outcome)


def test_no_attention_in_half_precision_keeps_its_scores(seen: dict[str, Any]) -> None:
    kernels = {kernel for outcome in seen["twins"].values() for kernel in outcome["kernels"]}
    assert {"varlen torch.bfloat16", "varlen torch.float16"} <= kernels
    assert not {"math torch.bfloat16", "math torch.float16"} & kernels


def test_grouped_queries_in_float32_keep_no_scores(alone: dict[str, Any]) -> None:
    """CUDA's kernels for float32 do not support them: keys are repeated. A micro-batch without tokens is not packed."""
    for name in ("clipped, to the base policy", "padded"):  # packed sequences, padded rows
        assert alone["twins"][name]["kernels"] == ["efficient torch.float32"]


def test_a_frozen_copy_in_main_memory_leaves_the_gpu_after_each_micro_batch(seen: dict[str, Any]) -> None:
    held = seen["held of a copy in main memory"]
    assert len(held["learning"]) > 2
    assert set(held["learning"] + held["after"]) == {0}


def test_a_gpu_is_set_up_for_sequences_of_all_lengths(seen: dict[str, Any]) -> None:
    """cuDNN's attention, which plans for each shape, is off; products in half precision are summed in float32; the
    allocator's blocks can grow."""
    assert seen["settings"] == {
        "cudnn attention": False,
        "sums in bfloat16": False,
        "sums in float16": False,
        "float32 as TF32": False,
        "allocator": "expandable_segments:True",
    }


def test_the_host_waits_for_the_gpu_twice_in_an_optimiser_step(alone: dict[str, Any]) -> None:
    assert alone["waits"].keys() == {"float32", "bfloat16", "float16", "pacs", "log Z", "of one token"}
    for name, waits in alone["waits"].items():
        two, four = (sum(waits[number].values()) for number in ("2", "4"))
        assert (four - two) / 2 <= WAITS_PER_MICRO_BATCH, (name, waits["4"])
        assert two <= WAITS_PER_STEP, (name, waits["2"])
