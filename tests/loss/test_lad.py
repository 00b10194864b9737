import math
from collections.abc import Callable
from dataclasses import replace
from typing import get_args

import pytest
import torch
from torch import Tensor

from rlvr.loss.lad import Ratio, lad
from rlvr.objective import divergence
from rlvr.objective.batch import Policy
from rlvr.objective.divergence import js, kl
from tests.loss.by_hand import arms, gradient
from tests.loss.test_laws import DIVERGENCES
from tests.support.factories import make_batch, make_policy, one_token_batch

RATIOS: tuple[Ratio, ...] = get_args(Ratio)

# f(x), from the definition of each divergence
DEFINITIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "kl": lambda x: x * x.log(),
    "rkl": lambda x: -x.log(),
    "jf": lambda x: (x - 1) * x.log(),
    "tv": lambda x: (x - 1).abs(),
    "hd": lambda x: (x.sqrt() - 1) ** 2 / 2,
    "js": lambda x: (x * x.log() - (x + 1) * ((x + 1) / 2).log()) / 2,
}


def test_token_ratio_by_hand() -> None:
    """η = ½, A = (½ ln 2, 0): a = (ln 2, 0), w = (2, 1). r = (1, 2)."""
    batch, policy = arms([math.log(2) / 2, 0.0], [0.0, math.log(2)])
    terms = lad(policy, batch, divergence=kl, eta=0.5, ratio="token")
    # r(ℓ − a): 1·(0 − ln 2), 2·ln 2; slope r(ℓ − a + 1): 1 − ln 2, 2(ln 2 + 1)
    assert terms.loss.flatten().tolist() == pytest.approx([-0.693147, 1.386294], abs=1e-6)
    assert gradient(terms, policy).flatten().tolist() == pytest.approx([0.306853, 3.386294], abs=1e-6)
    terms = lad(policy, batch, divergence=js, eta=0.5, ratio="token")
    # row 1, r = 1, w = 2: ½[−ln 2 − 3(ln 1.5 − ln 2)] = ½[3 ln(4/3) − ln 2] = 0.084950; slope ½·ln(2/3) = −0.202733
    # row 2, r = 2, w = 1: ½[2 ln 2 − 3 ln 1.5] = 0.084950; slope ½·2·ln(4/3) = 0.287682
    assert terms.metrics["divergence"].flatten().tolist() == pytest.approx([0.084950] * 2, rel=1e-4)
    assert gradient(terms, policy).flatten().tolist() == pytest.approx([-0.202733, 0.287682], rel=1e-5)


@pytest.mark.parametrize(
    ("ratio", "log_ratio", "per_token"),
    [
        # ℓ = (ln 2, ln 4), a = 0. Sum ln 8: value 8 ln 8, slope 8(ln 8 + 1), the same for both tokens.
        ("sequence", math.log(8), 8 * (math.log(8) + 1)),
        # Mean 1.5 ln 2: r = 2√2, slope 2√2(1.5 ln 2 + 1), half of it for each of two tokens.
        ("sequence_geomean", 1.5 * math.log(2), math.sqrt(8) * (1.5 * math.log(2) + 1) / 2),
    ],
)
def test_sequence_ratios_by_hand(ratio: Ratio, log_ratio: float, per_token: float) -> None:
    batch = make_batch(num_groups=1, num_samples=1, num_tokens=3, lengths=[2], advantage=torch.zeros(1))
    policy = make_policy(batch, log_ratio=torch.tensor([[math.log(2), math.log(4), 9.0]]))
    terms = lad(policy, batch, divergence=kl, eta=1.0, ratio=ratio)
    torch.testing.assert_close(terms.loss.detach(), torch.tensor([math.exp(log_ratio) * log_ratio]))
    torch.testing.assert_close(gradient(terms, policy), torch.tensor([[per_token, per_token, 0.0]]))


@pytest.mark.parametrize("name", DIVERGENCES)
@pytest.mark.parametrize("ratio", RATIOS)
def test_agrees_with_autograd_of_the_definition_row_by_row(name: str, ratio: Ratio) -> None:
    batch = make_batch(num_groups=3, num_samples=4, num_tokens=5, dtype=torch.float64)
    policy = make_policy(batch)
    eta = 0.7
    terms = lad(policy, batch, divergence=getattr(divergence, name), eta=eta, ratio=ratio)
    naive = policy.logp.detach().clone().requires_grad_()
    expected = torch.zeros_like(terms.loss)
    for b in range(12):
        tokens = [naive[b, t] - batch.logp_old[b, t] for t in range(5) if batch.mask[b, t]]
        steps = {
            "token": tokens,
            "sequence": [torch.stack(tokens).sum()],
            "sequence_geomean": [torch.stack(tokens).mean()],
        }[ratio]
        w = (batch.advantage[b] / eta).exp()
        row = torch.stack([w * DEFINITIONS[name](step.exp() / w) for step in steps])
        if ratio == "token":
            expected[b, : len(row)] = row
        else:
            expected[b] = row[0]
    real = batch.mask if ratio == "token" else batch.mask.any(-1)
    torch.testing.assert_close(terms.loss[real], expected[real], rtol=1e-10, atol=1e-12)
    expected.sum().backward()
    torch.testing.assert_close(gradient(terms, policy), naive.grad, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", DIVERGENCES)
@pytest.mark.parametrize("ratio", RATIOS)
def test_target_is_stationary(name: str, ratio: Ratio) -> None:
    """All arms, weighted by π_old: the expected gradient vanishes at π ∝ π_old·e^{A/η}, where r/w = 1/E[e^{A/η}]."""
    logp_old = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64).log()
    advantage = torch.tensor([1.0, -1.0, 0.5, 2.0], dtype=torch.float64)
    batch = one_token_batch(4, advantage=advantage, logp_old=logp_old[:, None])

    def expected_gradient(logits: Tensor) -> Tensor:
        logits = logits.clone().requires_grad_()
        policy = Policy(logits.log_softmax(0)[:, None])
        terms = lad(policy, batch, divergence=getattr(divergence, name), eta=0.5, ratio=ratio)
        return torch.autograd.grad((logp_old.exp() * terms.loss.reshape(4)).sum(), logits)[0]

    target = logp_old + advantage / 0.5
    assert expected_gradient(target).abs().max() < 1e-12
    assert expected_gradient(logp_old).abs().max() > 0.01
    # From π_old, a step downhill raises the best arm and lowers the worst.
    downhill = -expected_gradient(logp_old)
    assert downhill[3] > 0 > downhill[1]


@pytest.mark.parametrize("name", DIVERGENCES)
@pytest.mark.parametrize("ratio", RATIOS)
def test_gradient_is_finite_where_w_overflows_float32(name: str, ratio: Ratio) -> None:
    """1/η = 32 and A = ±5.5: a = ±176, e^176 = 2.7e76."""
    batch = make_batch(advantage=torch.tensor([5.5, -5.5, 0.0, 5.5, -5.5, 1.0]), lengths=[4] * 6)
    for step in (0.0, 6.0, -6.0, 25.0, -25.0):
        policy = make_policy(batch, log_ratio=step)
        terms = lad(policy, batch, divergence=getattr(divergence, name), eta=1 / 32, ratio=ratio)
        slope = gradient(terms, policy)
        assert terms.loss.isfinite().all()
        assert slope.isfinite().all()
        if abs(step) < 25:  # four tokens of 25 nats make a response of 100
            assert slope.square().sum().isfinite()  # else clipping by the norm loses the step
        assert (slope[[0, 3]] <= 0).all()  # towards the good answer


def test_advantage_per_token_is_used_per_token() -> None:
    per_row = make_batch(dtype=torch.float64)
    per_token = replace(per_row, advantage=torch.where(per_row.mask, per_row.advantage[:, None], math.nan))
    policy = make_policy(per_row)
    a, b = (lad(policy, batch, divergence=js, eta=1.0, ratio="token").loss for batch in (per_row, per_token))
    torch.testing.assert_close(b[per_row.mask], a[per_row.mask], rtol=0, atol=0)
    assert torch.autograd.grad(b[per_row.mask].sum(), policy.logp)[0].isfinite().all()
