"""How a model reads a batch, and how much of it at once."""

from __future__ import annotations

import torch

from rlvr.trainer.packer import fitting


def test_a_cpu_takes_no_more_tokens_at_once_than_its_caches_like() -> None:
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert [fitting(tokens, cpu) for tokens in (100, 8192, 16384)] == [100, 8192, 8192]
    assert fitting(65536, gpu) == 65536
