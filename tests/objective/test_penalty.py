"""KL estimators and entropy: by hand, in expectation, and their gradients."""

import math
from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlvr.objective.penalty import Estimator, entropy, kl, kl_loss, log_sum_exp_and_entropy


def test_numbers_worked_by_hand() -> None:
    """logp − logp_ref = ln ½ − ln ¼ = ln 2; k3: ¼ / ½ + ln 2 − 1."""
    expected = {"k1": math.log(2), "k2": math.log(2) ** 2 / 2, "k3": 0.5 + math.log(2) - 1}
    half, fourth = (torch.tensor([[math.log(p)]]) for p in (0.5, 0.25))
    assert {e: kl(half, fourth, e).item() for e in get_args(Estimator)} == pytest.approx(expected, rel=1e-6)


logits = st.lists(st.floats(-5, 5), min_size=4, max_size=4).map(lambda x: torch.tensor(x, dtype=torch.float64))


@given(p=logits, q=logits)
def test_k1_and_k3_are_unbiased_and_only_k2_and_k3_never_negative(p: torch.Tensor, q: torch.Tensor) -> None:
    """Σ π·k over all tokens is the KL divergence itself."""
    p, q = p.log_softmax(0), q.log_softmax(0)
    true = (p.exp() * (p - q)).sum().item()
    for estimator in ("k1", "k3"):
        assert (p.exp() * kl(p, q, estimator)).sum().item() == pytest.approx(true, abs=1e-12)
    assert (kl(p, q, "k2") >= 0).all()
    assert (kl(p, q, "k3") >= 0).all()


@given(p=logits, q=logits)
def test_the_expected_gradient_of_k2_is_that_of_the_kl(p: torch.Tensor, q: torch.Tensor) -> None:
    """Sampled from π: E[∇k2] = E[(log π/π_ref) ∇log π] = ∇KL, while E[∇k1] = E[∇log π] = 0."""
    theta = p.clone().requires_grad_()
    logp, logp_ref = theta.log_softmax(0), q.log_softmax(0)
    (true,) = torch.autograd.grad((logp.exp() * (logp - logp_ref)).sum(), theta, retain_graph=True)
    sampled = logp.exp().detach()
    (k2,) = torch.autograd.grad((sampled * kl(logp, logp_ref, "k2")).sum(), theta, retain_graph=True)
    (k1,) = torch.autograd.grad((sampled * kl(logp, logp_ref, "k1")).sum(), theta)
    torch.testing.assert_close(k2, true, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(k1, torch.zeros_like(k1), rtol=0, atol=1e-12)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_gradient_agrees_with_differences(estimator: Estimator) -> None:
    logp = torch.linspace(-4, -0.1, 7, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: kl(x, torch.full_like(x, -1.0), estimator), logp)


@given(p=logits, q=logits)
def test_as_a_loss_each_estimator_has_its_own_value_and_k1_the_gradient_of_k2(p: torch.Tensor, q: torch.Tensor) -> None:
    logp, logp_ref = p.log_softmax(0).requires_grad_(), q.log_softmax(0)
    slopes = dict[str, torch.Tensor]()
    for estimator in get_args(Estimator):
        value = kl_loss(logp, logp_ref, estimator, logp_old=logp.detach(), mask=torch.ones(4, dtype=torch.bool))
        torch.testing.assert_close(value, kl(logp, logp_ref, estimator), rtol=1e-12, atol=1e-12)
        (slopes[estimator],) = torch.autograd.grad(value.sum(), logp)
    torch.testing.assert_close(slopes["k1"], slopes["k2"], rtol=0, atol=0)
    torch.testing.assert_close(slopes["k2"], (logp - logp_ref).detach(), rtol=1e-12, atol=1e-12)


@given(p=logits, q=logits, old=logits)
def test_with_the_ratio_the_expected_gradient_of_k3_is_that_of_the_kl_whatever_policy_sampled(
    p: torch.Tensor, q: torch.Tensor, old: torch.Tensor
) -> None:
    """Sampled from π_old: E[∇(π/π_old · k3)] = Σ π log(π/π_ref) ∇log π = ∇KL; per token π/π_old · log(π/π_ref)."""
    theta = p.clone().requires_grad_()
    logp, logp_ref, logp_old = theta.log_softmax(0), q.log_softmax(0), old.log_softmax(0)
    (true,) = torch.autograd.grad((logp.exp() * (logp - logp_ref)).sum(), theta, retain_graph=True)
    mask = torch.ones(4, dtype=torch.bool)
    value = kl_loss(logp, logp_ref, "k3_ratio", logp_old=logp_old, mask=mask)
    (expected,) = torch.autograd.grad((logp_old.exp() * value).sum(), theta, retain_graph=True)
    torch.testing.assert_close(expected, true, rtol=1e-9, atol=1e-11)
    (by_token,) = torch.autograd.grad(value.sum(), logp)
    ratio = (logp - logp_old).exp()
    torch.testing.assert_close(by_token, (ratio * (logp - logp_ref)).detach(), rtol=1e-9, atol=1e-11)


def test_the_term_with_the_ratio_by_hand() -> None:
    """π ½, π_ref ¼, π_old ⅔: ¾ · (½ + ln 2 − 1), with slope ¾ ln 2. k3 alone has slope 1 − ½: 4 % less on this token.
    A ratio of e^30 counts as e^20; padding has neither value nor slope."""
    half, quarter, old = (torch.tensor([[math.log(x), -1.0, math.nan]]).double() for x in (1 / 2, 1 / 4, 2 / 3))
    half.requires_grad_()
    old[0, 1] = -31.0
    mask = torch.tensor([[True, True, False]])
    value = kl_loss(half, quarter, "k3_ratio", logp_old=old, mask=mask)
    assert value.tolist()[0] == pytest.approx([0.75 * (math.log(2) - 0.5), 0.0, 0.0])
    value.sum().backward()
    assert half.grad is not None
    assert half.grad[0].tolist() == pytest.approx([0.75 * math.log(2), 0.0, 0.0])


def test_k3_is_clamped_at_20_nats_with_no_gradient_beyond() -> None:
    logp = torch.tensor([-100.0, -1.0], requires_grad=True)
    value = kl(logp, torch.tensor([-1.0, -100.0]), "k3")
    torch.testing.assert_close(value, torch.tensor([math.exp(20) - 21, math.exp(-20) + 19]))
    value.sum().backward()
    assert logp.grad is not None
    assert logp.grad.tolist() == [0, 0]


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_padding_does_not_leak(estimator: Estimator) -> None:
    logp = torch.tensor([[-1.0, math.nan]], requires_grad=True)
    mask = torch.tensor([[True, False]])
    value = kl(logp, torch.tensor([[-2.0, math.inf]]), estimator, mask=mask)
    value.sum().backward()
    assert logp.grad is not None
    assert (value[0, 1], logp.grad[0, 1]) == (0, 0)
    assert value.isfinite().all()
    assert logp.grad.isfinite().all()


def test_entropy_by_hand() -> None:
    # uniform over 4: ln 4; (½, ¼, ¼): ½ ln 2 + ½ ln 4 = 1.5 ln 2; a certain token: 0
    rows = [[0.0, 0.0, 0.0, 0.0], [math.log(2), 0.0, 0.0, -math.inf], [90.0, -90.0, -math.inf, -math.inf]]
    expected = torch.tensor([math.log(4), 1.5 * math.log(2), 0.0])
    torch.testing.assert_close(entropy(torch.tensor(rows)), expected)


@pytest.mark.parametrize("overwrite", [False, True])
def test_log_sum_exp_comes_with_the_entropy(overwrite: bool) -> None:
    """log(2 + 1 + 1) with entropy 1.5 ln 2; a certain token, shifted by 1,000: 1,000 with entropy 0."""
    z = torch.tensor([[math.log(2), 0.0, 0.0, -math.inf], [1000.0, 800.0, -math.inf, -math.inf]])
    before = z.clone()
    log_sum_exp, entropies = log_sum_exp_and_entropy(z, overwrite=overwrite)
    torch.testing.assert_close(log_sum_exp, torch.tensor([math.log(4), 1000.0]))
    torch.testing.assert_close(entropies, torch.tensor([1.5 * math.log(2), 0.0]))
    assert torch.equal(z, before) == (not overwrite)


def test_gradient_of_entropy_agrees_with_differences() -> None:
    z = torch.randn(3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    assert torch.autograd.gradcheck(entropy, z)


def test_gradient_of_entropy_survives_impossible_tokens() -> None:
    z = torch.tensor([0.0, 1.0, -math.inf], requires_grad=True)
    entropy(z).backward()
    assert z.grad is not None
    # dH/dz_i = −p_i (log p_i + H) with p = (0.268941, 0.731059), log p = (−1.313262, −0.313262), H = 0.582203
    torch.testing.assert_close(z.grad, torch.tensor([0.196612, -0.196612, 0.0]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shift", [0.0, 30.0, -1000.0])
def test_entropy_keeps_its_digits_however_large_the_logits_are(shift: float) -> None:
    """32,768 words, float32 against float64. The error of logsumexp(z) − Σ p·z is 2e-5, 1e-4 and 3e-2,
    that of −Σ p log p with PyTorch's log_softmax up to 2.5e-5, depending on the processor."""
    z = 4 * torch.randn(64, 32_768, generator=torch.Generator().manual_seed(0)) + shift
    exact = z.double().requires_grad_()
    log_p = exact.log_softmax(-1)
    expected = -(log_p.exp() * log_p).sum(-1)
    (slope,) = torch.autograd.grad(expected.sum(), exact)
    leaf = z.requires_grad_()
    result = entropy(leaf)
    (gradient,) = torch.autograd.grad(result.sum(), leaf)
    torch.testing.assert_close(result.double(), expected.detach(), rtol=0, atol=3e-6)
    torch.testing.assert_close(gradient.double(), slope, rtol=0, atol=1e-5 * float(slope.abs().max()))
