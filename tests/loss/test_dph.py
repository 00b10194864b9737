import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlvr.loss import dph
from rlvr.loss.grpo import grpo
from rlvr.objective.batch import Batch, Loss, Policy, Terms, declared_needs
from rlvr.objective.reduce import aggregate_streams, counts_of_streams
from tests.loss.by_hand import gradient
from tests.support.factories import make_batch, make_policy, one_token_batch

CLIP = {"clip_low": 0.2, "clip_high": 0.28}
F: dict[str, Callable[[float], float]] = {  # f(u), written as in the papers
    "forward_kl": lambda u: u - 1 - math.log(u),
    "js": lambda u: u * math.log(u) - (u + 1) * math.log((u + 1) / 2),
    "alpha=0.2": lambda u: (u**0.8 - 0.8 * u - 0.2) / (0.2 * -0.8),
    "alpha=0.5": lambda u: (u**0.5 - 0.5 * u - 0.5) / (0.5 * -0.5),
    "alpha=0.8": lambda u: (u**0.2 - 0.2 * u - 0.8) / (0.8 * -0.2),
    "reverse_kl": lambda u: 1 / u - 1 + math.log(u),
    "reverse_kl_pef": lambda u: u * math.log(u) - u + 1,
    "js_definition": lambda u: -math.log((1 + u) / 2),
}
SLOPE: dict[str, Callable[[float], float]] = {  # u·f'(u)
    "forward_kl": lambda u: u - 1,
    "js": lambda u: u * math.log(2 * u / (u + 1)),
    "alpha=0.2": lambda u: (u - u**0.8) / 0.2,
    "alpha=0.5": lambda u: (u - u**0.5) / 0.5,
    "alpha=0.8": lambda u: (u - u**0.2) / 0.8,
    "reverse_kl": lambda u: 1 - 1 / u,
    "reverse_kl_pef": lambda u: u * math.log(u),
    "js_definition": lambda u: -u / (1 + u),
}
NAMES = sorted(F)


def loss_of(name: str, coef: float = 0.3) -> Loss:
    function, _, a = name.partition("=")
    knobs: dict[str, Any] = {**CLIP, "coef": coef, **({"alpha": float(a)} if a else {})}
    return partial(getattr(dph, function), **knobs)


def two_streams(**knobs: Any) -> Batch:
    """Group 0 explores, group 1 rehearses."""
    batch = make_batch(dtype=torch.float64, **knobs)
    return replace(batch, kind=batch.group.clamp(max=1))


def rehearsed(name: str, log_u: list[float], dtype: torch.dtype = torch.float64) -> tuple[Terms, Policy]:
    batch = one_token_batch(len(log_u), dtype=dtype, kind=torch.ones(len(log_u), dtype=torch.int64))
    policy = make_policy(batch, log_ratio=torch.tensor(log_u, dtype=torch.float64)[:, None])
    return loss_of(name)(policy, batch), policy


@pytest.mark.parametrize("name", NAMES)
def test_rehearsed_tokens_cost_what_the_paper_writes(name: str) -> None:
    ratios = [0.01, 0.5, 1.0, 1.5, 8.0]
    terms, policy = rehearsed(name, [math.log(u) for u in ratios])
    assert terms.loss[:, 0].tolist() == pytest.approx([0.3 * F[name](u) for u in ratios], rel=1e-9, abs=1e-12)
    slopes = gradient(terms, policy)[:, 0].tolist()
    assert slopes == pytest.approx([0.3 * SLOPE[name](u) for u in ratios], rel=1e-9, abs=1e-12)
    assert terms.metrics["rehearse"][:, 0].tolist() == pytest.approx([F[name](u) for u in ratios], rel=1e-9, abs=1e-12)


def test_numbers_worked_by_hand() -> None:
    """u = 2: forward 2 − 1 − 0.693147; js 2·0.693147 − 3·ln 1.5 = 1.386294 − 1.216395; α = ½: −4(1.414214 − 1.5)."""
    values = {name: rehearsed(name, [math.log(2)])[0].loss.item() / 0.3 for name in ("forward_kl", "js", "alpha=0.5")}
    assert values == pytest.approx({"forward_kl": 0.306853, "js": 0.169899, "alpha=0.5": 0.343146}, abs=1e-6)


@given(
    st.sampled_from(["forward_kl", "js", "alpha=0.2", "alpha=0.5", "alpha=0.8", "reverse_kl", "reverse_kl_pef"]),
    st.lists(st.floats(-6, 6), min_size=2, max_size=6),
    st.lists(st.floats(-6, 6), min_size=2, max_size=6),
)
def test_over_a_distribution_each_generator_is_its_divergence(name: str, p: list[float], q: list[float]) -> None:
    """Σ π_ref(y) f(π(y)/π_ref(y)) is never negative, 0 at equality, and for these a known divergence."""
    size = min(len(p), len(q))
    ref, policy = (torch.tensor(x[:size], dtype=torch.float64).log_softmax(0) for x in (p, q))
    total = float((ref.exp() * rehearsed(name, (policy - ref).tolist())[0].metrics["rehearse"][:, 0]).sum())
    assert total >= -1e-12
    assert float(rehearsed(name, [0.0])[0].loss) == 0
    middle = torch.logaddexp(ref, policy) - math.log(2)
    known = {
        "forward_kl": ref.exp() * (ref - policy),
        "js": ref.exp() * (ref - middle) + policy.exp() * (policy - middle),
        "alpha=0.5": 4 * (ref.exp() - (0.5 * (ref + policy)).exp()),
        "reverse_kl": (2 * ref - policy).exp() - ref.exp() - ref.exp() * (ref - policy),  # k3 of π where π_ref sampled
        "reverse_kl_pef": policy.exp() * (policy - ref),
    }
    if name in known:
        assert total == pytest.approx(float(known[name].sum()), rel=1e-9, abs=1e-9)


def test_the_forward_kl_pulls_a_forgotten_answer_back_and_the_others_let_go() -> None:
    """At u = e^-20 the derivative is −1 for the forward KL, 0 for the others: mass covering in one number."""
    expected = {"forward_kl": -1, "js": 0, "alpha=0.2": 0, "reverse_kl_pef": 0}
    pulls = {n: float(gradient(*rehearsed(n, [-20.0]))) / 0.3 for n in expected}
    assert pulls == pytest.approx(expected, abs=1e-5)
    # k3 of the baseline, on what π_ref sampled, is no reverse KL: 1 − 1/u = 1 − e^20
    assert float(gradient(*rehearsed("reverse_kl", [-20.0]))) / 0.3 == pytest.approx(1 - math.exp(20), rel=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_explored_rows_have_the_clipped_surrogate_and_rehearsed_rows_nothing_of_it(name: str) -> None:
    batch = two_streams()
    policy = make_policy(batch)
    terms, plain = loss_of(name)(policy, batch), grpo(policy, batch, **CLIP, dual_clip=None)
    explored = plain.loss[:3].clone()
    assert batch.logp_ref is not None
    v, mask = (policy.logp - batch.logp_ref)[:3], batch.mask[:3]
    if name == "reverse_kl":
        explored = explored + torch.where(mask, 0.3 * ((-v).exp() - 1 + v), 0.0)
    if name == "js_definition":
        explored = explored + torch.where(mask, 0.3 * (math.log(2) - (1 + (-v).exp()).log()), 0.0)
    torch.testing.assert_close(terms.loss[:3], explored)
    assert batch.kind is not None
    other = replace(batch, advantage=batch.advantage + batch.kind)  # of rehearsed rows alone
    torch.testing.assert_close(loss_of(name)(policy, other).loss, terms.loss)
    torch.testing.assert_close(terms.metrics["clip_fraction"][:3], plain.metrics["clip_fraction"][:3])
    assert (terms.metrics["clip_fraction"][3:].abs().sum(), terms.metrics["rehearse"][:3].abs().sum()) == (0, 0)


def test_the_explored_half_of_js_has_the_gradient_of_its_expectation() -> None:
    """E over π_old of the derivative, by enumeration, is ∇ Σ π log(π/M): the policy's own samples move with it."""
    logits = torch.tensor([0.3, -1.0, 2.0, 0.1], dtype=torch.float64, requires_grad=True)
    ref = torch.tensor([1.0, 0.5, -0.5, 0.0], dtype=torch.float64).log_softmax(0)
    logp = logits.log_softmax(0)
    divergence = (logp.exp() * (logp - torch.logaddexp(logp, ref) + math.log(2))).sum()
    (expected,) = torch.autograd.grad(divergence, logits, retain_graph=True)
    nothing = torch.zeros(4, dtype=torch.float64)
    fields = {"logp_old": logp.detach()[:, None], "logp_ref": ref[:, None], "advantage": nothing}
    batch = one_token_batch(4, **fields, kind=nothing.long())
    terms = dph.js_definition(Policy(logp[:, None]), batch, **CLIP, coef=1.0)
    (slope,) = torch.autograd.grad((logp.detach().exp() * terms.loss[:, 0]).sum(), logits)
    torch.testing.assert_close(slope, expected)
    penalty = terms.metrics["explore_penalty"][:, 0] @ logp.detach().exp()
    torch.testing.assert_close(penalty, divergence.detach())
    logp = ref.clone().requires_grad_()  # where the policy is the reference, none of its samples pulls
    terms = dph.js_definition(Policy(logp[:, None]), replace(batch, logp_old=ref[:, None]), **CLIP, coef=1.0)
    torch.testing.assert_close(torch.autograd.grad(terms.loss.sum(), logp)[0], nothing)


def test_none_only_measures() -> None:
    batch = two_streams()
    policy = make_policy(batch)
    terms = dph.none(policy, batch, **CLIP)
    assert gradient(terms, policy)[3:].abs().sum() == 0
    assert terms.metrics["rehearse"][3:].sum() > 0
    torch.testing.assert_close(
        terms.metrics["rehearse_log_ratio"][3:], (batch.logp_old - policy.logp)[3:] * batch.mask[3:]
    )


def test_only_what_explored_rows_need_is_asked_for() -> None:
    needing = {name for name in [*NAMES, "none"] if "reference" in declared_needs(getattr(dph, name.partition("=")[0]))}
    assert needing == {"js_definition", "reverse_kl"}


def test_streams_averaged_apart_balance_the_halves_of_js_as_the_papers_coefficient_does() -> None:
    """App. C: one average over all rows, the half on D_exp times γ = rows of D_pef / rows of D_exp. That is our sum of
    two averages times (rows of D_pef) / (all rows), a factor that both halves share. 6 rows explore, 2 rehearse."""
    shape: dict[str, Any] = {"num_groups": 4, "num_samples": 2, "num_tokens": 3, "lengths": [3] * 8}
    batch = make_batch(**shape, dtype=torch.float64, advantage=torch.zeros(8, dtype=torch.float64))
    batch = replace(batch, kind=(batch.group == 3).long())
    policy = make_policy(batch)
    terms = dph.js_definition(policy, batch, **CLIP, coef=1.0)
    counts = counts_of_streams(batch.mask, batch.kind)
    ours = aggregate_streams(terms.loss, batch.mask, batch.kind, "token-mean", counts=counts, max_tokens=3)
    gamma = 2 / 6
    papers = (gamma * terms.loss[:6].sum() + terms.loss[6:].sum()) / (8 * 3)
    torch.testing.assert_close(papers, ours * 2 / 8)
