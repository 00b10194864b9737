import math
import statistics
from itertools import product

import pytest
import torch
from torch import Tensor

from rlvr.loss.pacs import Score, Weight, pacs, pacs_actor
from rlvr.objective.batch import Batch, Policy, Terms
from tests.loss import by_hand
from tests.loss.test_laws import usual
from tests.support.factories import make_batch, make_policy, one_token_batch

SCORES: tuple[Score, ...] = ("rloo", "dr_grpo", "grpo", "naive")
WEIGHTS: tuple[Weight, ...] = ("balanced", "none", "only_positive", "only_negative")
EVERY = list(product(SCORES, WEIGHTS))


def one_token(reward: list[float], implicit: list[float], dtype: torch.dtype = torch.float64) -> tuple[Policy, Batch]:
    """A group whose responses have one token and the given log π/π_ref."""
    B = len(reward)
    batch = one_token_batch(
        B, dtype=dtype, reward=torch.tensor(reward, dtype=dtype), logp_ref=torch.full((B, 1), -1.0, dtype=dtype)
    )
    logp = torch.tensor(implicit, dtype=dtype)[:, None] - 1
    return Policy(logp.requires_grad_()), batch


def gradient(terms: Terms, policy: Policy) -> Tensor:
    return by_hand.gradient(terms, policy)[:, 0]


def test_numbers_worked_by_hand() -> None:
    """r̂ = β·(1, 0, 2) = (½, 0, 1), R = (1, 0, 0). rloo: ψ = (½ − ½, 0 − ¾, 1 − ¼) = (0, −¾, ¾).

    BCE: ln 2; softplus(−¾) = 0.386871; softplus(¾) = 1.136871. balanced: 3/(2·1) for the success, 3/(2·2) for the
    failures. dr_grpo: ψ = ⅔ of it, (0, −½, ½), mean r̂ = ½. grpo: std √((0 + ¼ + ¼)/2) = ½, ψ = (0, −1, 1)."""
    policy, batch = one_token([1, 0, 0], [1, 0, 2])
    softplus = [math.log(2), 0.386871, 1.136871]
    cases: list[tuple[Score, Weight, list[float]]] = [
        ("rloo", "balanced", [1.5 * softplus[0], 0.75 * softplus[1], 0.75 * softplus[2]]),
        ("rloo", "none", softplus),
        ("rloo", "only_positive", [softplus[0], 0, 0]),
        ("rloo", "only_negative", [0, *softplus[1:]]),
        ("dr_grpo", "none", [math.log(2), 0.474077, 0.974077]),  # softplus(∓½)
        ("grpo", "none", [math.log(2), 0.313262, 1.313262]),  # softplus(∓1)
        ("naive", "none", [0.474077, math.log(2), 1.313262]),  # softplus(−½), softplus(0), softplus(1)
    ]
    for score, weight, expected in cases:
        terms = pacs(policy, batch, beta=0.5, score=score, weight=weight, std_floor=0.1)
        torch.testing.assert_close(terms.loss, torch.tensor(expected, dtype=torch.float64), rtol=1e-5, atol=0)
        assert terms.metrics["implicit_reward"].tolist() == [0.5, 0, 1]
    # rloo: response 1 scores 0, no side; 2 is a failure below, 3 a failure above the others
    terms = pacs(policy, batch, beta=0.5, score="rloo", weight="none", std_floor=0.1)
    assert terms.metrics["score_accuracy"].tolist() == [0, 1, 0]


def test_gradient_flows_through_the_baseline_by_hand() -> None:
    """Two responses, r̂ = (0, 0), R = (1, 0): ψ = (r̂_1 − r̂_2, r̂_2 − r̂_1), σ(0) = ½.

    dL_1/dr̂ = (½ − 1)·(1, −1), dL_2/dr̂ = (½ − 0)·(−1, 1): together (−1, 1). Without the baseline's it were (−½, ½)."""
    policy, batch = one_token([1, 0], [0, 0])
    for beta in (1.0, 2.0):
        terms = pacs(policy, batch, beta=beta, score="rloo", weight="balanced", std_floor=0.1)
        assert gradient(terms, policy).tolist() == [-beta, beta]


@pytest.mark.parametrize(("score", "weight"), EVERY)
def test_agrees_with_a_plain_loop(score: Score, weight: Weight) -> None:
    batch = make_batch(num_groups=5, num_samples=4, num_tokens=6, dtype=torch.float64)
    policy = make_policy(batch)
    loss = pacs(policy, batch, beta=0.7, score=score, weight=weight, std_floor=0.3).loss
    assert batch.logp_ref is not None
    for g in range(5):
        rows = range(4 * g, 4 * g + 4)
        R = [batch.reward[b].item() for b in rows]
        implicit = [
            0.7 * sum(policy.logp[b, t].item() - batch.logp_ref[b, t].item() for t in range(int(batch.mask[b].sum())))
            for b in rows
        ]
        for i, b in enumerate(rows):
            psi = {
                "rloo": implicit[i] - statistics.fmean(implicit[:i] + implicit[i + 1 :]),
                "dr_grpo": implicit[i] - statistics.fmean(implicit),
                "grpo": (implicit[i] - statistics.fmean(implicit)) / (max(statistics.stdev(implicit), 0.3) + 1e-6),
                "naive": implicit[i],
            }[score]
            w = {
                "balanced": 4 / (2 * R.count(R[i])) if len(set(R)) == 2 else 1.0,
                "none": 1.0,
                "only_positive": R[i],
                "only_negative": 1 - R[i],
            }[weight]
            bce = math.log1p(math.exp(-psi if R[i] else psi))
            assert loss[b].item() == pytest.approx(w * bce, rel=1e-10)


def test_first_step_of_the_grpo_score_is_that_of_dr_grpo_over_the_floor() -> None:
    """Policy = reference: std 0. Divided by 1e-6 the gradient would be 1e5 times this one."""
    policy, batch = one_token([1, 0, 0, 1], [0.0] * 4)
    slopes = [
        gradient(pacs(policy, batch, beta=1.0, score=score, weight="none", std_floor=0.1), policy)
        for score in ("grpo", "dr_grpo")
    ]
    torch.testing.assert_close(slopes[0], slopes[1] / (0.1 + 1e-6))


def test_the_grpo_score_knows_no_scale_and_the_rloo_score_does_by_hand() -> None:
    """R = (1, 0, 0), log ratios c·(1, 0, 2). grpo: ψ = (0, −1, 1), e = σ(ψ) − R = (−½, 0.268941, 0.731059), and
    dL/dr̂_j = (e_j − mean e − ψ_j·Σ eψ/(G − 1))/std = (−⅔, ⅓, ⅓)/(c·β); in log ratios, times β, no β is left.

    rloo at c = 10: ψ = (0, −15, 15), e = (−½, 0, 1), dL/dr̂_j = 1.5·e_j − ½·Σ e = (−1, −¼, 5/4): inwards."""
    for c in (1.0, 10.0):
        policy, batch = one_token([1, 0, 0], [c, 0, 2 * c])
        for beta in (1.0, 5.0):
            slope = gradient(pacs(policy, batch, beta=beta, score="grpo", weight="none", std_floor=0.1), policy)
            assert slope.tolist() == pytest.approx([-2 / 3 / c, 1 / 3 / c, 1 / 3 / c], rel=1e-5)
    slope = gradient(pacs(policy, batch, beta=1.0, score="rloo", weight="none", std_floor=0.1), policy)
    assert slope.tolist() == pytest.approx([-1, -0.25, 1.25], rel=1e-5)


def test_only_scores_with_a_scale_draw_a_group_of_one_class_together_by_hand() -> None:
    """Three failures at (1, 0, 2). grpo: e = (½, 0.268941, 0.731059), e − ½ − ψ·0.231059 = 0.

    rloo: ψ = (0, −1.5, 1.5), e = (½, 0.182426, 0.817574), 1.5·e − 0.75 = (0, −0.476361, 0.476361)."""
    policy, batch = one_token([0, 0, 0], [1, 0, 2])
    cases: list[tuple[Score, list[float]]] = [("grpo", [0, 0, 0]), ("rloo", [0, -0.476361, 0.476361])]
    for score, expected in cases:
        slope = gradient(pacs(policy, batch, beta=1.0, score=score, weight="balanced", std_floor=0.1), policy)
        assert slope.tolist() == pytest.approx(expected, abs=1e-6)


def test_a_group_of_one_has_no_comparison_and_a_policy_equal_to_its_reference_predicts_nothing() -> None:
    """Where all log ratios are 0, so is every ψ: it has the sign of neither a right nor a wrong response."""
    alone, equal = one_token([1], [3.0]), one_token([1, *[0] * 9], [0] * 10)
    for score in SCORES:
        terms = pacs(*equal, beta=1.0, score=score, weight="balanced", std_floor=0.1)
        assert terms.metrics["score_accuracy"].tolist() == [0] * 10
        if score != "naive":
            terms = pacs(*alone, beta=1.0, score=score, weight="balanced", std_floor=0.1)
            assert terms.loss.item() == pytest.approx(math.log(2))
            assert gradient(terms, alone[0]).item() == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradient_is_finite_for_log_ratios_of_25_and_groups_of_one_class(dtype: torch.dtype) -> None:
    rewards = ([1.0, 0, 0, 1], [1.0] * 4, [0.0] * 4)
    log_ratios = ([25.0, -25, 25, -25], [25.0] * 4, [-25.0] * 4, [0.0] * 4)
    for (score, weight), reward, implicit in product(EVERY, rewards, log_ratios):
        policy, batch = one_token(reward, implicit, dtype)
        terms = pacs(policy, batch, beta=10.0, score=score, weight=weight, std_floor=0.1)
        assert terms.loss.isfinite().all(), (score, weight, reward, implicit)
        assert gradient(terms, policy).isfinite().all(), (score, weight, reward, implicit)


def test_the_actor_term_by_hand() -> None:
    """R = (1, 0), log ratios (1, −1), naive: BCE softplus(−1) = 0.313262 both. The actor adds that to each slope.

    Critic: −(1 − σ(1)) = −0.268941 for the success, σ(−1) = 0.268941 for the failure."""
    policy, batch = one_token([1, 0], [1, -1])
    terms = pacs_actor(policy, batch, beta=1.0, score="naive", weight="none", std_floor=0.1, actor=1.0)
    assert terms.loss.tolist() == pytest.approx([0.313262, 0.313262], rel=1e-5)
    assert gradient(terms, policy).tolist() == pytest.approx([-0.268941 + 0.313262, 0.268941 + 0.313262], abs=1e-6)
    half = pacs_actor(policy, batch, beta=1.0, score="naive", weight="none", std_floor=0.1, actor=0.5)
    assert gradient(half, policy).tolist() == pytest.approx([-0.268941 + 0.156631, 0.268941 + 0.156631], abs=1e-6)


@pytest.mark.parametrize(("score", "weight"), EVERY)
def test_without_its_coefficient_the_actor_is_gone(score: Score, weight: Weight) -> None:
    batch, policy = usual(padding=0.0)
    knobs = {"beta": 0.7, "score": score, "weight": weight, "std_floor": 0.1}
    plain, none = pacs(policy, batch, **knobs), pacs_actor(policy, batch, **knobs, actor=0.0)
    torch.testing.assert_close(none.loss, plain.loss)
    slope = by_hand.gradient(plain, policy)
    torch.testing.assert_close(slope, by_hand.gradient(none, policy))
    full = pacs_actor(policy, batch, **knobs, actor=1.0)
    added = torch.where(batch.mask, plain.loss.detach()[:, None], 0.0)  # each token's score, times the response's loss
    torch.testing.assert_close(by_hand.gradient(full, policy), slope + added)


def test_actor_and_critic_are_the_gradient_of_the_expected_cross_entropy() -> None:
    """Eq. 5 by enumeration: E over π of the loss's gradient is ∇ Σ π(o)·BCE(σ(β log π/π_ref), R)."""
    logits = torch.tensor([0.3, -1.0, 0.5, 2.0], dtype=torch.float64, requires_grad=True)
    ref = torch.tensor([1.0, 0.5, -0.5, 0.0], dtype=torch.float64).log_softmax(0)
    R = torch.tensor([1.0, 0.0, 0.0, 1.0], dtype=torch.float64)
    logp = logits.log_softmax(0)
    psi = 0.7 * (logp - ref)
    entropy = torch.nn.functional.binary_cross_entropy_with_logits(psi, R, reduction="none")
    (true,) = torch.autograd.grad((logp.exp() * entropy).sum(), logits, retain_graph=True)
    batch = one_token_batch(4, reward=R, logp_ref=ref[:, None])
    knobs = {"beta": 0.7, "score": "naive", "weight": "none", "std_floor": 0.1}
    terms = pacs_actor(Policy(logp[:, None]), batch, **knobs, actor=1.0)
    (got,) = torch.autograd.grad((logp.exp().detach() * terms.loss).sum(), logits, retain_graph=True)
    torch.testing.assert_close(got, true, rtol=1e-12, atol=1e-14)
    critic = pacs(Policy(logp[:, None]), batch, **knobs)
    (alone,) = torch.autograd.grad((logp.exp().detach() * critic.loss).sum(), logits)
    assert not torch.allclose(alone, true)
