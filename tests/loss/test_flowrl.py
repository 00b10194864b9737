import math
from functools import partial
from typing import Any

import pytest
import torch

from rlvr.loss.flowrl import flowrl
from rlvr.objective.batch import Policy
from tests.loss.test_laws import equipped, usual
from tests.support.factories import make_batch, one_token_batch

KNOBS: dict[str, Any] = {"beta": 2.0, "weight": "clip", "clip_low": 0.2, "clip_high": 0.2}
FLOWRL = partial(flowrl, **KNOBS)
WEIGHTS = {"clip": 1.2, "cap": math.exp(0.9), "unclipped": math.exp(0.9), "none": 1.0}  # of a ratio e^{0.9}


@pytest.mark.parametrize("weight", WEIGHTS)
def test_numbers_worked_by_hand(weight: str) -> None:
    """log Z = ½, logp (−1, −2), old (−1.5, −2.4), ref (−1, −1), A = ½, β = 2: δ = ½ − 1.5 − 1 + 1 = −1.
    Ratio e^{0.5 + 0.4}. Loss w; d/dlog Z = −2w; d/dlogp = −2w/2 for each of two tokens."""
    w = WEIGHTS[weight]
    shape: dict[str, Any] = {"num_groups": 1, "num_samples": 1, "num_tokens": 3, "lengths": [2]}
    old, ref = (torch.tensor([row], dtype=torch.float64) for row in ([-1.5, -2.4, 0.0], [-1.0, -1.0, 0.0]))
    batch = make_batch(**shape, dtype=torch.float64, advantage=old.new_tensor([0.5]), logp_old=old, logp_ref=ref)
    logp = torch.tensor([[-1.0, -2.0, 0.0]], dtype=torch.float64, requires_grad=True)
    log_z = torch.tensor([0.5], dtype=torch.float64, requires_grad=True)
    terms = flowrl(Policy(logp, log_z=log_z), batch, **{**KNOBS, "weight": weight})
    assert terms.loss.tolist() == pytest.approx([w])
    of_logp, of_z = torch.autograd.grad(terms.loss.sum(), (logp, log_z))
    assert (of_logp[0].tolist(), of_z.tolist()) == (pytest.approx([-w, -w, 0.0]), pytest.approx([-2 * w]))
    assert terms.metrics["delta_abs"].tolist() == pytest.approx([1.0])
    assert terms.metrics["weight"].tolist() == pytest.approx([w])


@pytest.mark.parametrize("weight", ["clip", "cap", "none"])
def test_agrees_with_a_plain_loop(weight: str) -> None:
    batch, policy = equipped(FLOWRL, *usual(padding=0.0))
    assert policy.log_z is not None
    assert batch.logp_ref is not None
    loss = flowrl(policy, batch, **{**KNOBS, "weight": weight}).loss
    for b in range(6):
        n = int(batch.mask[b].sum())
        logp, ref = (float(x[b, :n].detach().mean()) for x in (policy.logp, batch.logp_ref))
        delta = float(policy.log_z.detach()[b]) + logp - 2 * float(batch.advantage[b]) - ref
        ratio = math.exp(float((policy.logp.detach() - batch.logp_old)[b, :n].sum()))
        w = {"clip": min(max(ratio, 0.8), 1.2), "cap": min(ratio, 10.0), "none": 1.0}[weight]
        assert float(loss.detach()[b]) == pytest.approx(w * delta**2, rel=1e-12)


def test_the_tilted_reference_is_the_optimum() -> None:
    """One-token responses: at π = π_ref·e^{βA}/Z with its log Z every δ is 0, and so is the gradient."""
    ref = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64).log()
    A = torch.tensor([1.0, -1.0, 0.5, 0.2], dtype=torch.float64)
    batch = one_token_batch(4, advantage=A, logp_old=ref[:, None], logp_ref=ref[:, None])
    tilted = ref + 2 * A
    log_z = tilted.logsumexp(0)
    logits = tilted.clone().requires_grad_()
    terms = FLOWRL(Policy(logits.log_softmax(0)[:, None], log_z=log_z.expand(4)), batch)
    assert float(terms.loss.detach().abs().max()) < 1e-25
    assert float(torch.autograd.grad(terms.loss.sum(), logits)[0].abs().max()) < 1e-12
