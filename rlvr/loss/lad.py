"""LAD (arXiv:2602.20132): move the policy towards π_old·e^{A/η} under an f-divergence."""

from typing import Literal

from pydantic import PositiveFloat

from rlvr.objective.batch import Batch, Divergence, Policy, Terms, value_and_derivative

Ratio = Literal["token", "sequence", "sequence_geomean"]


def lad(policy: Policy, batch: Batch, *, divergence: Divergence, eta: PositiveFloat, ratio: Ratio) -> Terms:
    """w·f(r/w) with w = e^{A/η} and r = π/π_old (LAD, arXiv:2602.20132).

    divergence: a function of `rlvr.objective.divergence`. eta: > 0, the paper's η; a small η means a sharp target.
    ratio: the definition of r, which the paper leaves open. `token`: r of each token, terms [B, T]; `sequence`: the
    product of a response's ratios (ℓ = Σ_t ℓ_t); `sequence_geomean`: their geometric mean (ℓ = mean_t ℓ_t). The last
    two have terms [B] and require an advantage [B]; by the chain rule the gradient of each token of a response is then
    d value/dℓ, under `sequence_geomean` divided by the response's length.

    The loss has the divergence's value and exactly its derivative, both in closed form: automatic differentiation of
    the value would give inf · 0 where w overflows. metrics["divergence"]: the value, in nats, [B, T] or [B].
    Raises ValueError for an advantage per token with a ratio per sequence.
    """
    log_ratio, advantage = batch.log_ratio(policy.logp), batch.token_advantage
    if ratio != "token":
        length = 1 if ratio == "sequence" else batch.mask.sum(-1).clamp(min=1)
        log_ratio, advantage = log_ratio.sum(-1) / length, batch.advantage
        if advantage.dim() == 2:
            raise ValueError(
                f"loss.ratio={ratio} takes one advantage per response and got one per token. "
                "Pass loss.ratio=token, or an advantage that does not differ between tokens."
            )
    value, derivative = value_and_derivative(divergence, log_ratio.detach(), advantage / eta)
    return Terms(loss=value + derivative * (log_ratio - log_ratio.detach()), metrics={"divergence": value})
