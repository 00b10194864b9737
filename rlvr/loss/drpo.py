"""The policy gradient with a quadratic pull towards the probability of the policy that sampled."""

from pydantic import PositiveFloat

from rlvr.objective.batch import Batch, Policy, Terms


def drpo(policy: Policy, batch: Batch, *, delta: PositiveFloat) -> Terms:
    """−A·r + |A|·q·(r − 1)²/(2·delta) per token [B, T], q = π_old of the token (DRPO, arXiv:2606.09821).

    The gradient in logp is −A·r·(1 − sign(A(r − 1))·|p − q|/delta): it changes its sign where the token's probability p
    has moved by more than delta. As |p − q| ≤ 1, the default 12.5 only damps. log r is clamped to ±20.
    """
    ratio = batch.log_ratio(policy.logp).clamp(-20, 20).exp()
    advantage, q = batch.token_advantage, batch.logp_old.exp().where(batch.mask, batch.logp_old.new_zeros(()))
    return Terms(loss=-advantage * ratio + advantage.abs() * q * (ratio - 1).square() / (2 * delta))
