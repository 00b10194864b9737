"""The GPU benchmark runs, on a CPU with a tiny model and on a fake GPU. Its numbers are not tested."""

from __future__ import annotations

import json
import math
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf

from rlvr.config.memory import Architecture
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


def test_layers_count_in_the_work_and_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu.main(["decode", *TINY, "--layers", "1"]) == 0
    assert json.loads(capsys.readouterr().out)["layers"] == 1


@pytest.mark.parametrize(("name", "billions"), [("1.5b", 1.54), ("7b", 7.62)])
def test_architectures_have_the_published_number_of_weights(name: str, billions: float) -> None:
    model = gpu.make(name, None, torch.bfloat16, torch.device("meta"))
    assert sum(p.numel() for p in model.parameters()) / 1e9 == pytest.approx(billions, abs=0.005)


def test_the_predicted_step_trains_on_all_tokens_that_are_sampled(tmp_path: Path) -> None:
    """Qwen2.5-1.5B, 64 responses of 4096 tokens. Forward, backward and once more: 8 FLOPs for each of 1.31e9 parameters
    of layers and 0.233e9 of the head, 3.24e15; attention, 28 · 1536 · 4 · 2 · 4396 for each token, 3.97e14; over 0.4 ·
    989e12 they are 9.2 s, and the log-probabilities a quarter. Sampling: 4096 tokens, each of 3.09e9 bytes of weights
    and 64 · 63e6 of keys and values over 0.6 · 3.35e12, and 4 ms: 31 s.
    """
    config: Any = OmegaConf.to_container(lad_step._config(tmp_path, 4096, "h100", None))
    model = Architecture(28, 1536, 8960, 151936, 12, 2, 128, tied=True, qkv_bias=True)
    assert lad_step.predicted_s(config, model, 4096) == pytest.approx(9.2 * 5 / 4 + 31 + 1.6, rel=0.05)


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
