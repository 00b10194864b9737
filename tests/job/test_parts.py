"""How much of a GPU's memory is taken to be free. There is no GPU here: what a driver reports is given."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf

from rlvr.config import published
from rlvr.job import parts
from rlvr.trainer import distributed

GB = 2**30


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """GB that the driver of a GPU of 80 reports as free, the last one again and again; a second passes between two."""
    free, now = list[int](), [0.0]

    def report(_: torch.device) -> tuple[int, int]:
        return (free.pop(0) if len(free) > 1 else free[0]) * GB, 80 * GB

    monkeypatch.setattr(torch.cuda, "mem_get_info", report)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 2 * GB)  # by torch, for this process
    monkeypatch.setattr(parts.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(parts.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    return free


@pytest.fixture(autouse=True)
def group() -> Iterator[None]:
    distributed.join_group()
    yield
    torch.distributed.destroy_process_group()


def test_memory_of_processes_that_are_ending_is_waited_for(reports, caplog):
    reports += [20, 45, 77, 78]
    with caplog.at_level(logging.WARNING, "rlvr"):
        assert parts._free_on_gpus(torch.device("cuda")) == 79 * GB
    assert not caplog.records


def test_memory_that_others_keep_is_told(reports, caplog):
    reports += [50]
    with caplog.at_level(logging.WARNING, "rlvr"):
        assert parts._free_on_gpus(torch.device("cuda")) == 52 * GB
    assert [r.getMessage() for r in caplog.records] == [
        "other processes use 28 of this GPU's 80 GB: vLLM's cache is smaller by it"
    ]


def test_the_cache_of_an_evaluation_leaves_room_for_its_policy(reports: list[int], tmp_path: Path) -> None:
    """A checkpoint has no config.json, the policy made of it has. Qwen2.5-7B on 79 GB, of which 75.05 are filled: 14.19
    of weights, 2.5 at work, 12 bytes for each of 512 sequences and 152064 tokens, 0.87, and 3 for no tensor."""
    reports += [77]
    base = tmp_path / "stage"
    base.mkdir()
    (base / "config.json").write_text(json.dumps(published.MODELS["Qwen/Qwen2.5-7B"]))
    engine = {"dtype": "bfloat16", "max_cache_gb": None, "max_batch_sequences": 512}
    policy = {"path": str(tmp_path / "step-00000004")}
    config = OmegaConf.create({"model": None, "policy": policy, "trainer": None, "rollout": {"engine": engine}})
    room = parts._room_for_cache(config, torch.device("cuda"), base)
    assert room["max_cache_gb"] == pytest.approx(75.05 - 14.19 - 2.5 - 0.87 - 3, abs=0.02)
