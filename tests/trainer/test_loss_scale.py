from dataclasses import replace
from typing import Any

import pytest
import torch

from rlvr.objective.batch import Batch, Policy, Terms
from rlvr.trainer import loss_scale
from rlvr.trainer.diverged import Diverged
from rlvr.trainer.loss_scale import LossScale
from tests.trainer.test_gradient import by_hand
from tests.trainer.tiny import batch, gradients, learned, make_trainer, qwen2, surrogate, weights, worst

HALF = 0.01  # of the largest gradient: 11 bits of mantissa, over a few dozen roundings; the largest seen is 0.002
STEEP = 2.0**8  # times the loss: a gradient that float16 holds, but not 65536 times


def steep(policy: Policy, batch: Batch) -> Terms:
    terms = surrogate(policy, batch)
    return replace(terms, loss=terms.loss * STEEP)


def flat(policy: Policy, batch: Batch) -> Terms:
    terms = surrogate(policy, batch)
    return replace(terms, loss=terms.loss * 2.0**-18)


def test_the_scale_falls_at_overflow_and_rises_after_a_while_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss_scale, "PATIENCE", 3)
    scale, seen = LossScale.of(torch.float16), list[float]()
    for finite in (False, True, True, False, True, True, True, True):
        scale.follow(finite=finite)
        seen.append(scale.value / 2**16)
    assert seen == [0.5, 0.5, 0.5, 0.25, 0.25, 0.25, 0.5, 0.5]
    fixed = LossScale.of(torch.bfloat16)
    fixed.follow(finite=False)
    assert (fixed.value, fixed.can_fall, fixed.metrics(finite=True)) == (1.0, False, {})


@pytest.mark.parametrize(
    "knobs",
    [
        {"token_budget": 1},
        {"packing": False},
        {"shared_prompt": "always", "activation_checkpointing": True},
        {"tied": False},
    ],
    ids=str,
)
def test_the_gradient_is_that_of_a_float64_loop_within_half_precision(knobs: dict[str, Any]) -> None:
    tied = knobs.get("tied", True)
    trainer = make_trainer(qwen2(tied=tied), dtype="float16", **{k: v for k, v in knobs.items() if k != "tied"})
    metrics = trainer.learn(batch())
    assert worst(gradients(trainer), by_hand(qwen2(tied=tied), batch())) < HALF
    assert (metrics["optim/loss_scale"], metrics["optim/skipped"]) == (65536, 0)
    assert all(p.dtype == torch.float32 for p in trainer.actor.parameters())


def test_small_gradients_do_not_underflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a loss that is 2^-18 times as large; without the scale most of it is 0 or a subnormal number."""
    expected = {name: g * 2.0**-18 for name, g in by_hand(qwen2(), batch()).items()}
    assert worst(learned(loss=flat, dtype="float16"), expected) < HALF
    monkeypatch.setattr(loss_scale, "FIRST", 1.0)
    assert worst(learned(loss=flat, dtype="float16"), expected) > 10 * HALF


def test_clipping_is_to_the_norm_without_the_scale() -> None:
    exact = by_hand(qwen2(), batch())
    norm = float(torch.stack([g.norm() for g in exact.values()]).norm())
    trainer = make_trainer(dtype="float16", clip_norm=norm / 8)
    assert trainer.learn(batch())["optim/grad_norm"] == pytest.approx(norm, rel=HALF)
    assert worst(gradients(trainer), {name: g / 8 for name, g in exact.items()}) < HALF


def test_an_update_that_overflows_changes_nothing_but_the_scale() -> None:
    trainer = make_trainer(loss=steep, dtype="float16", lr=0.01, schedule="linear", weight_decay=0.1)
    before, skipped = weights(trainer), 0
    while True:
        metrics = trainer.learn(batch())
        if not metrics["optim/skipped"]:
            break
        skipped += 1
        assert metrics["optim/loss_scale"] == 2.0 ** (17 - skipped)
        assert metrics["optim/lr"] == pytest.approx(0.01 * (1 - (skipped - 1) / 10))  # the schedule goes on
        assert "optim/grad_norm" not in metrics
        assert all(torch.equal(w, before[name]) for name, w in weights(trainer).items())
        assert not any(g.any() for g in gradients(trainer).values())
    assert 1 < skipped < 9
    assert (trainer.num_updates, trainer.num_averaged, trainer.loss_scale.finite) == (skipped + 1, 1, 1)
    expected = by_hand(qwen2(), batch())
    assert worst(gradients(trainer), {name: g * STEEP for name, g in expected.items()}) < HALF
    # Adam's first step, corrected for one average, is lr times the sign of the gradient, weights decayed before.
    rate = metrics["optim/lr"]
    name = "model.embed_tokens.weight"
    clear = expected[name].abs() > 0.1 * expected[name].abs().max()
    step = weights(trainer)[name] - before[name] * (1 - rate * 0.1)
    torch.testing.assert_close(step[clear], -rate * expected[name].sign().float()[clear], rtol=1e-3, atol=1e-6)


def test_a_gradient_that_no_scale_makes_finite_is_divergence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss_scale, "SMALLEST", 2.0**14)

    def broken(policy: Policy, batch: Batch) -> Terms:
        return Terms((policy.logp - policy.logp.detach()).clamp(min=0).sqrt())  # value 0, slope infinite

    trainer = make_trainer(loss=broken, dtype="float16")
    assert [trainer.learn(batch())["optim/skipped"] for _ in range(2)] == [1, 1]
    with pytest.raises(Diverged, match=r"the gradient norm is .* Try a lower lr. .*trainer.dtype=bfloat16"):
        trainer.learn(batch())
