"""The schedule in numbers, and AdamW against its formula."""

from __future__ import annotations

import math

import pytest
import torch

from rlvr.trainer.optimiser import learning_rate
from tests.trainer.tiny import batch, gradients, trainer, weights


def rates(schedule: str) -> list[float]:
    return [
        learning_rate(n, lr=1.0, schedule=schedule, warmup_steps=2, total_steps=6)  # type: ignore[arg-type]
        for n in range(6)
    ]


def test_schedules_by_hand() -> None:
    assert rates("constant") == [0.5, 1, 1, 1, 1, 1]
    assert rates("linear") == [0.5, 1, 1, 0.75, 0.5, 0.25]
    half = [(1 + math.cos(math.pi * k / 4)) / 2 for k in range(4)]
    assert rates("cosine") == pytest.approx([0.5, 1, *half])


def test_unknown_schedule_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"trainer\.schedule=sine is unknown\. Pass constant, cosine or linear"):
        rates("sine")


def test_updates_follow_adamw_with_warm_up() -> None:
    made = trainer(betas=(0.0, 0.9), eps=1e-6, lr=0.01, weight_decay=0.1, warmup_steps=2)
    square: dict[str, torch.Tensor] = {}
    for n in (1, 2, 3):
        before = weights(made)
        learned = made.learn(batch())
        rate = [0.005, 0.01, 0.01][n - 1]
        assert learned["optim/lr"] == rate
        for name, g in gradients(made).items():
            square[name] = 0.9 * square.get(name, torch.zeros_like(g)) + 0.1 * g.square()
            step = g / ((square[name] / (1 - 0.9**n)).sqrt() + 1e-6)
            expected = before[name] * (1 - rate * 0.1) - rate * step
            assert torch.allclose(weights(made)[name], expected, atol=1e-6), name
