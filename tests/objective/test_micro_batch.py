"""The objective of a mini-batch is the sum over its parts, and has its three terms in the given proportions."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from rlvr.objective import reduce
from rlvr.objective.batch import Batch, Policy, Terms, needs
from rlvr.objective.micro_batch import Objective
from rlvr.objective.penalty import Penalty
from tests.support.factories import make_batch, make_policy


def plain(policy: Policy, batch: Batch) -> Terms:
    return Terms(-batch.advantage[:, None] * policy.logp, {"clip_fraction": policy.logp, "own": policy.logp.square()})


def objective(loss: Any = plain, *, kl: float = 0.0, entropy: float = 0.0, estimator: Penalty = "k2") -> Objective:
    return Objective(loss, "token-mean", kl, estimator, entropy, max_tokens=4)


def part_of(policy: Policy, rows: slice) -> Policy:
    assert policy.entropy is not None
    return Policy(policy.logp[rows], policy.entropy[rows])


def test_parts_of_the_loss_and_of_every_metric_sum_to_the_whole() -> None:
    batch = make_batch(num_groups=3)
    policy = make_policy(batch)
    counts = reduce.counts(batch.mask)[None]
    expected, metrics = objective(kl=0.3, entropy=0.1)(policy, None, batch, counts)
    total, sums = torch.zeros(()), dict.fromkeys(metrics, 0.0)
    for group in range(3):
        rows = slice(3 * group, 3 * group + 3)
        part = batch.select(torch.tensor([group]))
        loss, measured = objective(kl=0.3, entropy=0.1)(part_of(policy, rows), None, part, counts)
        total = total + loss
        sums = {name: sums[name] + float(value) for name, value in measured.items()}
    assert total.item() == pytest.approx(expected.item(), rel=1e-5)
    assert sums == pytest.approx({name: float(value) for name, value in metrics.items()}, rel=1e-5, abs=1e-7)
    assert {"policy/clip_fraction", "loss/own", "policy/entropy"} <= metrics.keys()


@pytest.mark.parametrize("weighed", [False, True])
def test_penalty_and_bonus_are_added_with_their_coefficients(weighed: bool) -> None:
    """Token means by a plain loop: −A·logp + 0.3·½(logp_ref − logp)² − 0.1·H, times the weight of the response: what
    another policy has drawn estimates penalty and bonus of this one as it does the loss."""
    batch = make_batch()
    weights = torch.arange(1.0, 1 + len(batch.tokens)) if weighed else torch.ones(len(batch.tokens))
    batch = replace(batch, weight=weights) if weighed else batch
    policy = make_policy(batch)
    assert policy.entropy is not None
    assert batch.logp_ref is not None
    logps = policy.logp.detach()
    total, count = 0.0, 0
    for b, t in batch.mask.nonzero().tolist():
        logp, ref = float(logps[b, t]), float(batch.logp_ref[b, t])
        term = -float(batch.advantage[b]) * logp + 0.3 * (ref - logp) ** 2 / 2 - 0.1 * float(policy.entropy[b, t])
        total += float(weights[b]) * term
        count += 1
    loss, _ = objective(kl=0.3, entropy=0.1)(policy, None, batch, reduce.counts(batch.mask)[None])
    assert loss.item() == pytest.approx(total / count, rel=1e-5)


def test_the_penalty_with_the_ratio_is_over_the_policy_that_sampled() -> None:
    """The slope of the mean over N tokens by each log p: −A/N + 0.3·π/π_old·log(π/π_ref)/N."""
    batch = make_batch(dtype=torch.float64)
    policy = make_policy(batch)
    assert batch.logp_ref is not None
    loss, _ = objective(kl=0.3, estimator="k3_ratio")(policy, None, batch, reduce.counts(batch.mask)[None])
    (slope,) = torch.autograd.grad(loss, policy.logp)
    logp, N = policy.logp.detach(), int(batch.mask.sum())
    penalty = 0.3 * (logp - batch.logp_old).exp() * (logp - batch.logp_ref)
    expected = torch.where(batch.mask, penalty - batch.advantage[:, None], 0.0) / N
    torch.testing.assert_close(slope, expected, rtol=1e-9, atol=1e-12)


def test_a_loss_sees_entropy_only_if_it_asks_and_what_nobody_computes_is_refused() -> None:
    seen = list[bool]()

    def looks(policy: Policy, batch: Batch) -> Terms:
        seen.append(policy.entropy is not None)
        return plain(policy, batch)

    batch = make_batch()
    for loss in (looks, needs("entropy")(lambda policy, batch: looks(policy, batch))):
        objective(loss)(make_policy(batch), None, batch, reduce.counts(batch.mask)[None])
    assert seen == [False, True]
    with pytest.raises(ValueError, match="the loss needs clairvoyance, which this trainer does not compute"):
        objective(needs("clairvoyance")(lambda policy, batch: plain(policy, batch)))
    with pytest.raises(ValueError, match="plain needs candidates and has no knob `num_candidates`"):
        needs("candidates")(plain)
