"""Draws a token from logits with one uniform number per row, and its log-probabilities."""

import torch
from torch import Tensor


def draw(logits: Tensor, uniform: Tensor, *, temperature: float, top_p: float) -> tuple[Tensor, Tensor, Tensor]:
    """Token [B], its log-probability under the policy, and under what it is drawn from, [B] float32 nats.

    logits: [B, V]. uniform: [B] float64 in (0, 1); the token is the inverse of the cumulative distribution at this
    number, with words in the order of their ids. The policy is softmax(logits / temperature). `top_p` keeps the most
    likely tokens until their probability reaches it (nucleus sampling, arXiv:1904.09751). temperature = 0 takes the
    most likely token: the policy is then that of temperature 1, and the distribution drawn from is a point.
    """
    z = logits.float() if temperature in (0, 1) else logits.float() / temperature
    log_policy = torch.log_softmax(z, dim=-1)
    if temperature == 0:
        token = log_policy.argmax(dim=-1)
        logp = log_policy.gather(1, token[:, None])[:, 0]
        return token, logp, torch.zeros_like(logp)
    probability = log_policy.double().exp_()
    if top_p < 1:
        probability = _nucleus(probability, top_p)
    cumulative = probability.cumsum(dim=-1)
    total = cumulative[:, -1:]
    # Rounding could put the target at the total, beyond the last word of positive probability.
    target = torch.minimum(uniform[:, None] * total, torch.nextafter(total, torch.zeros_like(total)))
    # Not-a-number sorts beyond the last word: the index is clamped here, and the engine detects the log-probability.
    token = torch.searchsorted(cumulative, target, right=True).clamp_(max=logits.shape[-1] - 1)
    logp = log_policy.gather(1, token)[:, 0]
    logp_sampling = logp - total[:, 0].log().float() if top_p < 1 else logp
    return token[:, 0], logp, logp_sampling


def _nucleus(probability: Tensor, top_p: float) -> Tensor:
    """[B, V] with the words outside the nucleus set to 0: those whose more likely words already reach `top_p`."""
    ordered, order = probability.sort(dim=-1, descending=True, stable=True)
    outside = ordered.cumsum(dim=-1) - ordered >= top_p
    return probability.masked_fill(torch.zeros_like(outside).scatter_(1, order, outside), 0.0)
