"""The error that ends a run whose loss or gradient is not finite, or whose metrics pass a limit of its config."""

from __future__ import annotations

from collections.abc import Mapping

from rlvr.ledger.cause import Cause


class Diverged(ArithmeticError):
    """Raised when training cannot or should not go on; the message has the step and the reason."""

    cause = Cause.DIVERGED


def check_limits(metrics: Mapping[str, float], step: int, *, min_entropy: float | None, max_kl: float | None) -> None:
    """Raises Diverged if a step's metrics are beyond a limit (nats per token); None: no limit.

    Entropy collapse: the policy has become deterministic, all samples of a group are alike. KL blow-up: the policy has
    moved so far from the base policy that it will not return.
    """
    entropy, kl = metrics.get("policy/entropy"), metrics.get("policy/kl_base")
    if min_entropy is not None and entropy is not None and not entropy >= min_entropy:
        raise Diverged(f"entropy collapse at step {step}: policy/entropy is {entropy:.4g}, min_entropy={min_entropy:g}")
    if max_kl is not None and kl is not None and not kl <= max_kl:
        raise Diverged(f"KL blow-up at step {step}: policy/kl_base is {kl:.4g}, max_kl={max_kl:g}")
