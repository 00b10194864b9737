"""Whole runs on a CUDA that is not there (tests/support/fake_cuda)."""

import json
import shutil
from pathlib import Path

import pytest

from rlvr.ledger import layout
from tests.end_to_end import cuda_run
from tests.job.test_loop import recorded as recorded_by
from tests.support import fake_cuda

pytestmark = [pytest.mark.slow, fake_cuda.needed()]

STAND_IN = Path(__file__).parents[1] / "support" / "vllm_stand_in"
VLLM = [
    *("rollout=vllm", "trainer.dtype=bfloat16", "rollout.importance=truncate", "trainer.kl=0.1"),
    "trainer.activation_checkpointing=true",
]


def recorded(directory: Path) -> dict[int, dict[str, float]]:
    return recorded_by(directory / "runs" / "x")


def last_checkpoint(directory: Path) -> Path:
    return layout.checkpoint(layout.checkpoints(directory / "runs" / "x"), 2)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of two steps: on the CPU, on the GPU, and on the GPU from the CPU's first checkpoint; one that samples with
    vLLM, of which only a stand-in is there."""
    path = tmp_path_factory.mktemp("runs")
    cuda_run.train(path / "cpu")
    shutil.copytree(path / "cpu", path / "moved")
    shutil.rmtree(last_checkpoint(path / "moved"))
    jobs = [[str(path / "gpu")], [str(path / "moved")], [str(path / "vllm"), *VLLM]]
    fake_cuda.run("tests.end_to_end.cuda_run", json.dumps(jobs), PYTHONPATH=f"{fake_cuda.ROOT}:{STAND_IN}")
    return path


def test_a_run_on_a_gpu_records_what_it_records_on_a_cpu(directory: Path) -> None:
    cpu, gpu = recorded(directory / "cpu"), recorded(directory / "gpu")
    assert list(cpu) == list(gpu) == [0, 1, 2]
    for step, expected in cpu.items():
        assert gpu[step] == pytest.approx(expected, rel=1e-4, abs=1e-6), step


def test_a_run_goes_on_on_a_gpu_from_a_checkpoint_of_a_cpu(directory: Path) -> None:
    cpu, moved = recorded(directory / "cpu"), recorded(directory / "moved")
    assert moved[2] == pytest.approx(cpu[2], rel=1e-4, abs=1e-6)
    assert last_checkpoint(directory / "moved").is_dir()


def test_a_run_that_samples_with_vllm_sleeps_syncs_and_agrees_in_half_precision(directory: Path) -> None:
    """The stand-in refuses to sample asleep, or from weights that it was not given; the canary compares the rest."""
    metrics = recorded(directory / "vllm")
    assert list(metrics) == [0, 1, 2]
    assert 0 < metrics[2]["mismatch/mean"] < 0.1


def test_two_ranks_share_a_vllm_on_their_gpus(tmp_path: Path, directory: Path) -> None:
    """The first asks it for both, each writes its part of the weights, and both wait until it sleeps. Samples are those
    of one rank alone, and so is what is learned."""
    job = [str(tmp_path), *VLLM, "rollout.engine.tensor_parallel=2"]
    fake_cuda.run("tests.end_to_end.cuda_run", json.dumps([job]), ranks=2, PYTHONPATH=f"{fake_cuda.ROOT}:{STAND_IN}")
    one, two = recorded(directory / "vllm"), recorded(tmp_path)
    assert (list(two), two[0]) == ([0, 1, 2], pytest.approx(one[0]))
    for name in ("reward/mean", "response/length", "tokens/used"):
        assert two[1][name] == one[1][name], name
    assert two[2]["mismatch/mean"] < 0.1


def test_the_tests_that_need_a_gpu_pass_on_the_one_that_is_not_there() -> None:
    """Not those of NCCL, which is not simulated."""
    files = ("tests/trainer/test_gpu.py", "tests/rollout/test_cuda_ipc.py")
    shown = fake_cuda.run("pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "-m", "gpu", *files)
    assert "32 passed" in shown
    assert "skipped" not in shown
