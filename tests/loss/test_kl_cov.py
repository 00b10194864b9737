from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor

from rlvr.loss.kl_cov import covariance, kl_cov, largest
from rlvr.objective.batch import Batch, Policy
from tests.loss.by_hand import gradient, responses
from tests.support.factories import make_batch, make_policy

KL_COV = partial(kl_cov, fraction=0.3, coefficient=1.0)


def pair() -> tuple[Batch, Policy]:
    """Tokens with (A, logp): (1, −1), (1, −3) | (−2, −2). Ā = 0, mean logp −2: covariances 1, −1 | 0."""
    batch, _ = responses([1.0, -2.0], [[0.0, 0.0], [0.0]])
    old, logp = (batch.logp_old.new_tensor(x) for x in ([[-1.5, -3.0], [-2.5, 0.0]], [[-1.0, -3.0], [-2.0, 0.0]]))
    return replace(batch, logp_old=old), Policy(logp.requires_grad_())


def test_covariance_choice_and_loss_by_hand() -> None:
    """Loss: −A·r, r = e^½, 1 | e^½; the first token is chosen and pays 2·½."""
    batch, policy = pair()
    assert covariance(policy, batch).tolist() == [[1.0, -1.0], [0.0, 0.0]]
    # ⌊3·0.1⌋ = 0, so one token; ⌊3·0.67⌋ = 2; 3
    for fraction, chosen in ((0.1, [[1, 0], [0, 0]]), (0.67, [[1, 0], [1, 0]]), (1.0, [[1, 1], [1, 0]])):
        assert largest(policy, batch, fraction=fraction).tolist() == chosen
    batch = replace(batch, extra=largest(policy, batch, fraction=0.1))
    terms = kl_cov(policy, batch, fraction=0.1, coefficient=2.0)
    root = torch.e**0.5
    assert terms.loss[0].tolist() == pytest.approx([1 - root, -1.0])
    assert float(terms.loss.detach()[1, 0]) == pytest.approx(2 * root)
    assert gradient(terms, policy).flatten().tolist() == pytest.approx([2 - root, -1.0, 2 * root, 0.0])
    assert terms.metrics["chosen"].tolist() == [[1, 0], [0, 0]]


def test_agrees_with_a_plain_loop() -> None:
    batch = make_batch(num_groups=3, num_samples=4, num_tokens=5, dtype=torch.float64)
    policy = make_policy(batch)
    tokens = [(b, t) for b in range(12) for t in range(5) if batch.mask[b, t]]
    A = [float(batch.advantage[b]) for b, _ in tokens]
    logp = [float(policy.logp.detach()[b, t]) for b, t in tokens]
    mean_a, mean_l = sum(A) / len(A), sum(logp) / len(logp)
    cov = [(a - mean_a) * (x - mean_l) for a, x in zip(A, logp, strict=True)]
    best = sorted(range(len(cov)), key=lambda i: -cov[i])[: int(0.3 * len(cov))]
    extra = largest(policy, batch, fraction=0.3)
    assert {tokens[i] for i in best} == {(int(b), int(t)) for b, t in extra.nonzero().tolist()}
    terms = KL_COV(policy, replace(batch, extra=extra))
    for i, (b, t) in enumerate(tokens):
        log_ratio = policy.logp.detach()[b, t] - batch.logp_old[b, t]
        expected = -A[i] * log_ratio.exp() + (log_ratio.abs() if i in best else 0.0)
        assert float(terms.loss.detach()[b, t]) == pytest.approx(float(expected), rel=1e-12)


def test_equals_share_the_places() -> None:
    def choice(advantage: Tensor) -> Tensor:
        batch = make_batch(num_groups=1, num_samples=4, num_tokens=2, lengths=[2] * 4, advantage=advantage)
        return largest(make_policy(batch), batch, fraction=0.5)

    # One advantage for all: every covariance is 0, and four places go to eight tokens.
    assert choice(torch.full((4,), 0.3)).tolist() == [[0.5, 0.5]] * 4
    assert float(choice(torch.tensor([1.0, -1.0, 0.5, 2.0])).sum()) == 4


def test_the_chosen_are_held_back() -> None:
    """The penalty's gradient points back to the old policy from either side."""
    for step in (0.4, -0.4):
        batch = make_batch(advantage=torch.zeros(6), lengths=[4] * 6)
        policy = make_policy(batch, log_ratio=step)
        terms = KL_COV(policy, replace(batch, extra=torch.ones(6, 4)))
        assert (gradient(terms, policy).sign() == (1 if step > 0 else -1)).all()


def test_rounding_of_the_first_update_is_no_gradient() -> None:
    """The policy that sampled is at no distance from itself: what is left is −A·r with r = 1, whatever was chosen."""
    batch = make_batch(advantage=torch.tensor([1.0, -2.0, 3.0, -4.0, 5.0, -6.0]), lengths=[4] * 6)
    for rounding in (2e-7, 0.0, -2e-7):
        policy = make_policy(batch, log_ratio=rounding)
        of_tokens = gradient(KL_COV(policy, replace(batch, extra=torch.ones(6, 4))), policy)
        assert of_tokens.flatten().tolist() == pytest.approx((-batch.advantage).repeat_interleave(4).tolist(), rel=1e-5)
