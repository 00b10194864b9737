from dataclasses import replace

import pytest
import torch

from rlvr.loss.clip_cov import clip_cov, dropped
from rlvr.loss.grpo import grpo
from rlvr.objective.batch import Batch, Policy
from tests.loss.by_hand import column, gradient
from tests.loss.test_laws import equipped, usual
from tests.support.factories import one_token_batch

KNOBS = {"fraction": 0.2, "low": 0.1, "high": 1.0, "clip_low": 1.0, "clip_high": 1.0}


def line() -> tuple[Batch, Policy]:
    """Five one-token responses; A = ±2, Ā = 0.4, mean logp −3: covariances 1.6·2, 1.6·1, 1.6·0, −2.4·−1, −2.4·−2."""
    A, logp = column([2.0, 2.0, 2.0, -2.0, -2.0])[:, 0], column([-1.0, -2.0, -3.0, -4.0, -5.0])
    batch = one_token_batch(5, advantage=A, logp_old=logp, noise=column([0.5, 0.3, 0.1, 0.2, 0.4]))
    return batch, Policy(logp.clone().requires_grad_())


@pytest.mark.parametrize(
    ("fraction", "low", "high", "chosen"),
    [
        (0.2, 1.0, 5.0, [3]),  # covariances 3.2, 1.6, 0, 2.4, 4.8: all but the third; the least noise is 0.2
        (0.1, 1.0, 5.0, [3]),  # one at least
        (0.4, 1.0, 5.0, [1, 3]),
        (1.0, 1.0, 5.0, [0, 1, 3, 4]),  # no more than there are
        (0.4, 3.0, 5.0, [0, 4]),
        (0.4, 5.0, 9.0, []),
    ],
)
def test_choice_by_hand(fraction: float, low: float, high: float, chosen: list[int]) -> None:
    batch, policy = line()
    is_dropped = dropped(policy, batch, fraction=fraction, low=low, high=high, clip_low=1.0, clip_high=1.0)
    assert is_dropped.flatten().nonzero().flatten().tolist() == chosen


def test_a_clipped_token_is_never_chosen() -> None:
    """The fourth token, A = −2 and r = ½ < 1 − 0.2, has no gradient to lose: the next in noise is the second."""
    batch, policy = line()
    batch = replace(batch, logp_old=batch.logp_old + torch.tensor([0, 0, 0, 2.0, 0]).log1p()[:, None])
    is_dropped = dropped(policy, batch, fraction=0.2, low=1.0, high=5.0, clip_low=0.2, clip_high=0.2)
    assert is_dropped.flatten().nonzero().flatten().tolist() == [1]


def test_dropped_tokens_are_zero_without_gradient_and_the_rest_is_the_surrogate() -> None:
    batch, policy = equipped(clip_cov, *usual(padding=0.0))
    gone = dropped(policy, batch, **KNOBS)
    assert int(gone.sum()) == 3  # ⌊16·0.2⌋
    terms = clip_cov(policy, replace(batch, extra=gone), **KNOBS)
    plain = grpo(policy, batch, clip_low=1.0, clip_high=1.0, dual_clip=None)
    assert torch.equal(terms.loss, torch.where(gone, 0.0, plain.loss))
    slope = gradient(terms, policy)
    assert not slope[gone].any()
    assert slope[batch.mask & ~gone].all()
    assert float(terms.metrics["dropped"].sum()) == 3


def test_agrees_with_a_plain_loop() -> None:
    batch, policy = equipped(clip_cov, *usual(padding=0.0))
    assert batch.noise is not None
    tokens = [(b, t) for b in range(6) for t in range(4) if batch.mask[b, t]]
    A = [float(batch.advantage[b]) for b, _ in tokens]
    logp = [float(policy.logp.detach()[b, t]) for b, t in tokens]
    cov = [(a - sum(A) / len(A)) * (x - sum(logp) / len(logp)) for a, x in zip(A, logp, strict=True)]
    candidates = [i for i, c in enumerate(cov) if 0.1 < c < 1.0]
    candidates.sort(key=lambda i: float(batch.noise[tokens[i]]))  # type: ignore[index]
    expected = {tokens[i] for i in candidates[: max(int(0.2 * len(tokens)), 1)]}
    assert {(b, t) for b, t in dropped(policy, batch, **KNOBS).nonzero().tolist()} == expected
