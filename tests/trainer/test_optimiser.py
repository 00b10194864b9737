import math
from pathlib import Path
from typing import Any

import pytest
import torch

from rlvr.trainer.optimiser import learning_rate
from tests.trainer.tiny import batch, gradients, make_knobs, make_trainer, weights


def rates(schedule: str, **knobs: Any) -> list[float]:
    all_knobs = make_knobs(lr=1.0, schedule=schedule, warmup_steps=2, steps=6, **knobs)
    return [learning_rate(n, all_knobs) for n in range(6)]


def test_schedules_by_hand() -> None:
    assert (rates("constant"), rates("linear")) == ([0.5, 1, 1, 1, 1, 1], [0.5, 1, 1, 0.75, 0.5, 0.25])
    half = [(1 + math.cos(math.pi * k / 4)) / 2 for k in range(4)]
    assert rates("cosine") == pytest.approx([0.5, 1, *half])


def test_warm_up_stable_decay_falls_over_the_last_steps_alone() -> None:
    assert rates("wsd", decay_steps=2) == [0.5, 1, 1, 1, 1, 0.5]
    assert rates("wsd", decay_steps=4) == rates("linear")
    assert rates("wsd", decay_steps=99) == rates("linear")  # it never falls before it has risen
    assert rates("wsd") == [0.5, 1, 1, 1, 1, 1]  # a tenth of 6 steps: one, which starts at the top


def test_schedules_end_at_the_final_rate() -> None:
    assert rates("linear", final_lr=0.5) == [0.5, 1, 1, 0.875, 0.75, 0.625]
    assert rates("wsd", decay_steps=2, final_lr=0.2) == [0.5, 1, 1, 1, 1, pytest.approx(0.6)]
    assert rates("cosine", final_lr=0.1)[4] == pytest.approx(0.1 + 0.9 / 2)
    falling = [
        make_knobs(lr=2.0, schedule=s, warmup_steps=2, steps=6, final_lr=0.1) for s in ("linear", "cosine", "wsd")
    ]
    end = [learning_rate(99, knobs) for knobs in falling]
    assert end == pytest.approx([0.2, 0.2, 0.2])


@pytest.mark.parametrize(("updates", "epochs"), [(1, 1), (3, 2)])
def test_the_schedule_counts_the_updates_of_steps_without_a_batch(updates: int, epochs: int, tmp_path: Path) -> None:
    """4 steps on a straight line from 0.01 to 0: the first and the third learn, the second and the fourth do not."""
    knobs: dict[str, Any] = {"steps": 4, "schedule": "linear", "lr": 0.01, "updates": updates, "epochs": epochs}
    n = updates * epochs
    trainer, resumed_trainer = make_trainer(**knobs), make_trainer(**knobs)
    first, before = trainer.learn(batch()), weights(trainer)
    assert trainer.learn_nothing() == {"tokens/train": 0, "tokens/used": 0}
    assert all(torch.equal(tensor, before[name]) for name, tensor in weights(trainer).items())
    assert (trainer.num_updates, trainer.num_learned, trainer.num_averaged) == (n, 2, n)
    trainer.save(tmp_path / "step-00000002", {})
    resumed_trainer.load(tmp_path / "step-00000002")
    for either in (trainer, resumed_trainer):
        third = either.learn(batch())
        either.learn_nothing()
        # The mean over n updates, of which the first is at the whole rate, and of the step that begins at a half.
        assert first["optim/lr"] == pytest.approx(0.01 * (1 - (n - 1) / (8 * n)))
        assert third["optim/lr"] == pytest.approx(0.01 * (0.5 - (n - 1) / (8 * n)))
        assert either.num_updates == 2 * n


def test_the_schedule_counts_the_updates_of_mini_batches_without_tokens(tmp_path: Path) -> None:
    """2 steps of 2 passes of 4 mini-batches, on a straight line from 0.08 to 0 over 16 updates. The first step has 2
    groups, of which the second was cut: one update a pass, at the places 0 and 4. The second step begins at place 8."""
    knobs: dict[str, Any] = {"steps": 2, "schedule": "linear", "lr": 0.08, "updates": 4, "epochs": 2}
    trainer, resumed_trainer = make_trainer(**knobs), make_trainer(**knobs)
    first = trainer.learn(batch(num_groups=2, lengths=[3, 2, 1, 0, 0, 0]))
    assert first["optim/lr"] == pytest.approx((0.08 + 0.06) / 2)
    trainer.save(tmp_path / "step-00000001", {})
    resumed_trainer.load(tmp_path / "step-00000001")
    for either in (trainer, resumed_trainer):
        second = either.learn(batch(num_groups=4, lengths=[2] * 12))
        assert second["optim/lr"] == pytest.approx(sum(0.005 * (16 - n) for n in range(8, 16)) / 8)
        assert either.num_updates == either.num_averaged == 10


def test_updates_follow_adamw_with_warm_up() -> None:
    trainer = make_trainer(betas=(0.0, 0.9), eps=1e-6, lr=0.01, weight_decay=0.1, warmup_steps=2)
    square: dict[str, torch.Tensor] = {}
    for n in (1, 2, 3):
        before = weights(trainer)
        learned = trainer.learn(batch())
        rate = [0.005, 0.01, 0.01][n - 1]
        assert learned["optim/lr"] == rate
        for name, g in gradients(trainer).items():
            square[name] = 0.9 * square.get(name, torch.zeros_like(g)) + 0.1 * g.square()
            step = g / ((square[name] / (1 - 0.9**n)).sqrt() + 1e-6)
            expected = before[name] * (1 - rate * 0.1) - rate * step
            assert torch.allclose(weights(trainer)[name], expected, atol=1e-6), name
