"""The contribution of one micro-batch to the loss and the metrics of its optimiser mini-batch."""

from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from rlvr.objective import penalty, reduce
from rlvr.objective.batch import Batch, Loss, Policy, declared_needs, marks_of, terms_of

# What a loss may declare with `needs`. "solution" determines the batch itself, in rlvr/job/loop.py.
AVAILABLE = {"entropy", "value", "log_z", "candidates", "reference", "noise", "returns", "solution"}


@dataclass(frozen=True)
class Objective:
    """loss + kl · KL(π ‖ reference) − entropy · H, each averaged in the same way over the optimiser mini-batch.

    If rows have a kind, the loss is averaged over each kind separately and the averages are added; penalty, bonus and
    the metrics of the policy are those of kind 0, which the policy itself sampled.
    """

    loss: Loss
    aggregation: reduce.Mode
    kl: float
    kl_estimator: penalty.Penalty
    entropy: float
    max_tokens: int

    def __post_init__(self) -> None:
        missing = self.needs - AVAILABLE
        if missing:
            raise ValueError(
                f"the loss needs {', '.join(sorted(missing))}, which this trainer does not compute "
                f"(it has: {', '.join(sorted(AVAILABLE))}). Pass another loss."
            )

    @property
    def needs(self) -> frozenset[str]:
        return declared_needs(self.loss)

    @property
    def needs_reference(self) -> bool:
        return self.kl > 0 or "reference" in self.needs

    @property
    def needs_entropy_gradient(self) -> bool:
        return self.entropy != 0 or "entropy" in self.needs

    @property
    def needs_whole_groups(self) -> bool:
        return "whole_groups" in marks_of(self.loss)

    def visible(self, policy: Policy) -> Policy:
        """The policy without the fields that the loss does not declare with `needs`."""
        return policy if "entropy" in self.needs else replace(policy, entropy=None)

    def __call__(
        self, policy: Policy, logp_base: Tensor | None, batch: Batch, counts: Tensor, *, cut: bool = False
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """(contribution to the scalar to minimise, contributions to the metrics): their sums over micro-batches are the
        values of the mini-batch.

        Values per token are 0 at padding. policy: all fields, with entropy. counts: [K, 2] tokens and sequences of each
        kind in the whole mini-batch, on the batch's device. cut: whether a group also has rows in another micro-batch.
        """
        logp, entropy = policy.logp, policy.entropy
        assert entropy is not None
        sampled = reduce.of_stream(batch.mask, batch.kind, 0)
        average = partial(
            reduce.aggregate,
            mask=sampled,
            mode=self.aggregation,
            num_tokens=counts[0, 0],
            num_sequences=counts[0, 1],
            max_tokens=self.max_tokens,
        )
        terms = terms_of(self.loss, self.visible(policy), batch.with_cut_groups() if cut else batch)
        losses = weighed(terms.loss, batch.weight)
        total = reduce.aggregate_streams(
            losses, batch.mask, batch.kind, self.aggregation, counts=counts, max_tokens=self.max_tokens
        )
        if self.kl > 0:
            assert batch.logp_ref is not None
            divergence = penalty.kl_loss(
                logp, batch.logp_ref, self.kl_estimator, logp_old=batch.logp_old, mask=batch.mask
            )
            total = total + self.kl * average(weighed(divergence, batch.weight))
        if self.entropy != 0:
            total = total - self.entropy * average(weighed(entropy, batch.weight))
        with torch.no_grad():
            metrics = {"loss/total": total.detach(), **_policy_metrics(logp, entropy, logp_base, batch, counts)}
            for name, value in terms.metrics.items():
                key = "policy/clip_fraction" if name == "clip_fraction" else f"loss/{name}"
                # A metric that is 0 on the rows of all kinds but one becomes the mean over that kind.
                metrics[key] = reduce.aggregate_streams(
                    value.detach().float(), batch.mask, batch.kind, "token-mean", counts=counts, max_tokens=1
                )
        return total, metrics


def weighed(losses: Tensor, weight: Tensor | None) -> Tensor:
    """Losses [B, T] or [B] times the weights of tokens or responses. ValueError for losses [B] and weights [B, T]."""
    if weight is None:
        return losses
    if losses.dim() < weight.dim():
        raise ValueError(
            "rollout.importance and trainer.aggregation=prompt-mean weigh tokens and this loss has one term per "
            "response: pass rollout.importance=none or rollout.importance_level=sequence, another aggregation, and "
            "declare the loss with @per_response."
        )
    return losses * (weight if losses.dim() == weight.dim() else weight[:, None])


def _policy_metrics(
    logp: Tensor, entropy: Tensor, logp_base: Tensor | None, batch: Batch, counts: Tensor
) -> dict[str, Tensor]:
    """Means over response tokens of kind 0.

    kl_old estimates KL(old ‖ new) on the old policy's samples as r − 1 − log r (k3), kl_base KL(policy ‖ base) as
    b − 1 − log b with b = base / policy, on samples of the policy itself. Log-ratios are clamped to ±20.
    """
    measured = {
        "policy/entropy": entropy,
        "policy/kl_old": penalty.kl(batch.logp_old, logp, "k3", mask=batch.mask),
        "policy/abs_log_ratio": batch.log_ratio(logp).abs(),
        "advantage/abs_mean": batch.token_advantage.abs(),
    }
    if logp_base is not None:
        measured["policy/kl_base"] = penalty.kl(logp, logp_base, "k3", mask=batch.mask)
    mask = reduce.of_stream(batch.mask, batch.kind, 0)
    tokens, sequences = counts[0]
    return {
        name: reduce.aggregate(
            value.detach().float(), mask, "token-mean", num_tokens=tokens, num_sequences=sequences, max_tokens=1
        )
        for name, value in measured.items()
    }
