"""The error that ends a run whose loss or gradient is not finite, or whose metrics pass a limit of its config."""

from collections.abc import Mapping

from rlvr.ledger.cause import Cause

FIRST_KL = (
    0.1  # nats per token, after the first updates of a pretrained model: SmolLM2 learns at 0.005, is destroyed at 0.3
)


class Diverged(ArithmeticError):
    """Raised when training cannot or should not go on; the message has the step and the reason."""

    cause = Cause.DIVERGED


def check_limits(
    metrics: Mapping[str, float], step: int, *, min_entropy: float | None, max_kl: float | None, pretrained: bool
) -> None:
    """Raises Diverged if a step's metrics are beyond a limit (nats per token); None: no limit.

    Entropy collapse: the policy has become deterministic, all samples of a group are alike. KL blow-up: the policy has
    moved so far from the base policy that it will not return. pretrained: the base policy is a model from elsewhere, of
    which the first step must leave something. Its KL is seen in the later mini-batches of step 1, against the policy
    that sampled them, and in the samples of step 2, against the base policy.
    """
    entropy, kl = metrics.get("policy/entropy"), metrics.get("policy/kl_base")
    if min_entropy is not None and entropy is not None and not entropy >= min_entropy:
        raise Diverged(f"entropy collapse at step {step}: policy/entropy is {entropy:.4g}, min_entropy={min_entropy:g}")
    if max_kl is not None and kl is not None and not kl <= max_kl:
        raise Diverged(f"KL blow-up at step {step}: policy/kl_base is {kl:.4g}, max_kl={max_kl:g}")
    first = {1: "policy/kl_old", 2: "policy/kl_base"}.get(step, "")
    if max_kl is None and pretrained and first in metrics and not metrics[first] <= FIRST_KL:
        raise Diverged(
            f"KL blow-up: after the first updates {first} is {metrics[first]:.4g} nats per token, over {FIRST_KL:g}: "
            "the learning rate destroys the model. Pass a tenth of it (usual are lr=1e-6 for all weights, lr=2e-4 for "
            "adapters, trainer.lora_rank=16), or max_kl=100 to go on all the same"
        )
