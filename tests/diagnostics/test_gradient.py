"""A replay's measurements, against plain autograd over one sequence at a time and against numbers worked by hand."""

import numpy as np
import pytest
import torch
from torch import Tensor

from rlvr.diagnostics.gradient import Effect, cosines, effect, inner, norms
from rlvr.loss.reinforce import reinforce
from rlvr.objective.batch import Batch, Loss
from tests.trainer import tiny


def on_policy(seed: int = 0) -> Batch:
    """A batch whose old policy is the tiny model itself."""
    batch = tiny.batch(seed=seed)
    logp = torch.zeros(batch.tokens.shape)
    for row, values in enumerate(tiny.plain_logp(tiny.qwen2(), batch)):
        logp[row, : len(values)] = values.detach()
    return Batch(**{**vars(batch), "logp_old": logp})


def measured(loss: Loss, batch: Batch, **knobs: object) -> Effect:
    return effect(tiny.make_trainer(loss=loss, **knobs), batch)


def effect_of_gradient(gradient: Tensor) -> Effect:
    nothing = np.zeros(1)
    return Effect({}, gradient, nothing, nothing, nothing)


def test_cosines_by_hand() -> None:
    # (3, 4)·(4, 3) = 24, lengths 5 and 5; (−3, −4) is opposite to (3, 4); a gradient of zero has no direction
    vectors = [torch.tensor(v) for v in ([3.0, 4.0], [4.0, 3.0], [-3.0, -4.0], [0.0, 0.0])]
    matrix = cosines([effect_of_gradient(v) for v in vectors])
    assert np.allclose(matrix[:3, :3], [[1, 0.96, -1], [0.96, 1, -0.96], [-1, -0.96, 1]])
    assert np.isnan(matrix[3]).all()
    assert np.isnan(matrix[:, 3]).all()


def test_inner_product_does_not_lose_small_parts() -> None:
    # 2^20 products of 2^-13 · 2^-13 and one of 2^13 · 2^13: float32 would drop the small ones, 2^-6 in all
    a = torch.full((2**20 + 1,), 2.0**-13)
    a[0] = 2.0**13
    assert inner(a, a) == pytest.approx(2.0**26 + 2.0**-6, abs=1e-6)


@pytest.mark.parametrize("budget", [1, 16384])
def test_gradient_and_weights_equal_a_plain_loop(budget: int) -> None:
    """Whatever the micro-batches: REINFORCE by autograd over one sequence at a time."""
    batch = on_policy()
    model = tiny.qwen2()
    N = int(batch.mask.sum())
    total = torch.zeros(())
    for row, logp in enumerate(tiny.plain_logp(model, batch)):
        total = total - batch.advantage[row] * logp.sum() / N
    total.backward()
    expected = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    effect_ = measured(reinforce, batch, token_budget=budget)
    assert torch.allclose(effect_.gradient, expected, atol=1e-5 * float(expected.abs().max()))
    assert effect_.norm == pytest.approx(float(expected.double().norm()), rel=1e-4)
    assert effect_.metrics["loss/total"] == pytest.approx(float(total.detach()), rel=1e-4)
    # −∂/∂logp of −Σ A logp/N, summed over the n tokens of a response, is A·n/N
    assert np.allclose(effect_.weight, (batch.advantage * batch.mask.sum(1) / N).numpy(), atol=1e-6)


def test_norms_of_prompts_alone_equal_a_plain_loop_and_move_nothing() -> None:
    """REINFORCE on each of three prompts by itself. A measurement afterwards is as if there had been none before."""
    batch, model = on_policy(), tiny.qwen2()
    logp = tiny.plain_logp(model, batch)
    prompts, expected = list[Batch](), list[float]()
    for number in range(3):
        rows = (batch.group == number).nonzero().flatten()
        fields = {
            k: v[rows] if torch.is_tensor(v) and len(v) == len(batch.group) else v for k, v in vars(batch).items()
        }
        only = slice(number, number + 1)
        fields |= {"group": rows * 0, "prompt": batch.prompt[only], "prompt_mask": batch.prompt_mask[only]}
        prompts.append(Batch(**fields))
        model.zero_grad()
        count = int(batch.mask[rows].sum())
        torch.stack([-batch.advantage[row] * logp[row].sum() / count for row in rows]).sum().backward(retain_graph=True)
        expected.append(
            sum(float(p.grad.double().square().sum()) for p in model.parameters() if p.grad is not None) ** 0.5
        )
    assert len({round(norm, 6) for norm in expected}) == 3
    trainer = tiny.make_trainer(loss=reinforce)
    assert norms(trainer, prompts) == pytest.approx(expected, rel=1e-4)
    assert torch.equal(effect(trainer, batch).gradient, measured(reinforce, batch).gradient)


def test_the_penalty_is_part_of_the_weight() -> None:
    """k1 adds kl·(logp − logp_ref) with k2's derivative, as much per token: each response loses its sum."""
    batch = on_policy()
    assert batch.logp_ref is not None
    N = int(batch.mask.sum())
    n = batch.mask.sum(1)
    beyond = torch.where(batch.mask, batch.logp_old - batch.logp_ref, 0.0).sum(1)
    with_penalty = measured(reinforce, batch, kl=0.5, kl_estimator="k1")
    assert np.allclose(with_penalty.weight, ((batch.advantage * n - 0.5 * beyond) / N).numpy(), atol=1e-6)


def test_a_loss_that_is_not_finite_is_shown_as_such() -> None:
    batch = on_policy()
    broken = Batch(**{**vars(batch), "advantage": torch.full_like(batch.advantage, torch.inf)})
    effect_ = measured(reinforce, broken)
    assert not effect_.metrics
    assert np.isnan(effect_.norm)
