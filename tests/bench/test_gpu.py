"""The GPU benchmark runs, on a CPU with a tiny model and on a fake GPU. Its numbers are not tested."""

import json
import math
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf

from rlvr.config.memory import Architecture
from rlvr.trainer.logprob import token_logp
from rlvr.trainer.packer import Packer
from tests.bench import gpu, lad_step
from tests.support import fake_cuda

TINY = ["--model", "tiny", "--tokens", "64", "--device", "cpu"]


@pytest.mark.parametrize("kind", gpu.ON_A_CPU)
def test_each_measurement_is_one_line_with_its_command(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu.main([kind, *TINY]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    row = json.loads(line)
    assert shlex.split(row["command"]) == ["python", "-m", "tests.bench.gpu", kind, *TINY]
    assert row["machine"]["device"] == "cpu"
    if kind == "logp":
        assert row["value"] is row["share"] is None  # memory of a CPU is not measured
    else:
        assert row["value"] > 0
        assert 0 < row["share"] < math.inf


def test_a_measurement_that_a_signal_ends_fails_the_benchmark(capfd: pytest.CaptureFixture[str]) -> None:
    """SIGTERM is 15, so that a shell's status is 128 + 15. The others are still measured."""
    scripts = ["pass", "import os; os.kill(os.getpid(), 15)", "exit(3)", "print('measured')"]
    commands = [[sys.executable, "-c", script] for script in scripts]
    assert gpu.run_each(commands) == 143
    output, errors = capfd.readouterr()
    assert output == "measured\n"
    first, second = errors.splitlines()
    assert first.startswith("failed with exit status 143: ")
    assert "os.kill" in first
    assert second.startswith("failed with exit status 3: ")
    assert gpu.run_each(commands[:1]) == 0


def test_logits_that_do_not_fit_at_once_leave_the_chunked_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    def fits(work: Callable[[], object], device: torch.device) -> float:
        """Peak memory of a small GPU, which has no room for all logits at once."""
        work()
        return 2.0

    def small(head: torch.nn.Linear, hidden: torch.Tensor, *inputs: Any, chunk: int, **options: Any) -> Any:
        if chunk == len(hidden) * head.out_features:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return token_logp(head, hidden, *inputs, chunk=chunk, **options)

    monkeypatch.setattr(gpu, "peak_gb", fits)
    monkeypatch.setattr(gpu, "token_logp", small)
    row = gpu.logp("tiny", 64, None, torch.device("cpu"))
    assert (row["value"], row["peer_value"], row["share"]) == (2.0, None, None)


def test_layers_count_in_the_work_and_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu.main(["decode", *TINY, "--layers", "1"]) == 0
    assert json.loads(capsys.readouterr().out)["layers"] == 1


def test_architectures_have_the_published_weights_and_decoding_reads_all_but_an_embedding_of_its_own() -> None:
    for name, billions, read in (("1.5b", 1.54, 1.54), ("7b", 7.62, 7.62 - 0.152064 * 3.584)):
        model = gpu.make(name, None, torch.bfloat16, torch.device("meta"))
        assert sum(p.numel() for p in model.parameters()) / 1e9 == pytest.approx(billions, abs=0.005), name
        assert gpu.bytes_read(model) / 2e9 == pytest.approx(read, abs=0.005), name


def test_layers_that_fit_into_80_gb_leave_room() -> None:
    """Qwen2.5-1.5B, 16384 tokens: a layer keeps 106,496 bytes a token and has 46.8e6 parameters of 18 bytes, 2.59e9
    bytes. Beside the layers 233e6 parameters of the head of 24 bytes, 1.6 GB of logits, 0.65 GB around the head and 3.2
    GB of contexts, 11.1e9. Of 85 % of 85.9e9 bytes 61.9e9 are left: 23 layers. A layer of Qwen2.5-7B keeps 232,448
    bytes a token and has 233e6 parameters, 8.00e9 bytes. Beside them 1.09e9 parameters of 18 bytes, 0.545e9 of the head
    of 6, and 6.4 GB as above, 29.2e9. 43.8e9 are left: 5 layers."""
    setting = gpu.memory.MemorySetting(tokens=gpu.TOKEN_BUDGET, beside_gb=gpu.memory.CONTEXT_GB)
    assert [gpu.fitting(name, setting, 80 * 2**30) for name in ("1.5b", "7b")] == [23, 5]
    assert gpu.fitting("1.5b", setting, math.inf) == 28
    with pytest.raises(SystemExit, match="not one layer of 7b can be trained in 2 GB"):
        gpu.fitting("7b", setting, 2 * gpu.memory.GB)


def test_micro_batches_of_the_train_row_are_full() -> None:
    """Four sequences of 4096 tokens, of which the last is not read: 16,380 of 16,384."""
    batch, packer = gpu.sequences("1.5b", 4096), Packer(True, "auto", 0, varlen=True)
    assert not packer.shares(batch)
    plan = packer.plan(batch, shared=False, budget=gpu.TOKEN_BUDGET, num_ranks=1, whole=False)
    assert [len(rows) for rows in plan[0]] == [4] * 4
    assert packer.layout(batch.select_rows(plan[0][0]), shared=False).input_ids.numel() == 4 * 4095


def test_padded_rows_are_refused_on_a_gpu() -> None:
    gpu.refuse_other_layouts(Packer(True, "auto", 0), torch.device("cpu"))
    with pytest.raises(RuntimeError, match="packed=False, varlen=False"):
        gpu.refuse_other_layouts(Packer(False, "auto", 0), torch.device("cuda"))


def test_the_predicted_step_trains_on_all_tokens_that_are_sampled(tmp_path: Path) -> None:
    """Qwen2.5-1.5B, 64 responses of 4096 tokens to 16 prompts of 150. Forward, backward, once more, and the
    log-probabilities: 5 passes of 2 FLOPs for each of 1.54e9 parameters and 264,544 tokens, 4.08e15 over 0.4 · 989e12:
    10.3 s. Sampling: 4096 tokens, each of 3.09e9 bytes of weights and 64 · 63e6 of keys and values over 0.6 · 3.35e12,
    and 4 ms: 30.9 s."""
    config: Any = OmegaConf.to_container(lad_step._config(tmp_path, 4096, "h100", None))
    model = Architecture(28, 1536, 8960, 151936, 12, 2, 128, tied=True, qkv_bias=True)
    assert lad_step.predicted_s(config, model, 4096) == pytest.approx(10.3 + 30.9, rel=0.01)


def test_the_error_without_a_gpu_has_a_command_for_a_cpu(capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(SystemExit):
        gpu.main(["all"])
    assert "--device cpu --model tiny --tokens 64" in capsys.readouterr().err


@pytest.mark.slow
@fake_cuda.needed()
def test_all_of_it_runs_on_a_fake_gpu_and_reports_no_value(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu.main(["all", "--fake"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["bench"] for row in rows] == [f"gpu_{kind}" for kind in gpu.KINDS]
    for row in rows:
        assert row["value"] is row["peer_value"] is row["share"] is row["peak_gb"] is None
        assert row["machine"]["device"] == "none: a fake GPU, whose numbers mean nothing"
        assert row["command"].endswith("--fake")
    columns = [tuple(row[name] for name in ("packed", "varlen", "compiled")) for row in rows[:2]]
    assert columns == [(True, True, False), (True, True, True)]
