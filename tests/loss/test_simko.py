from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from rlvr.loss.grpo import grpo
from rlvr.loss.simko import simko
from tests.loss.by_hand import gradient
from tests.support.factories import make_batch, make_policy
from tests.trainer.tiny import batch, make_trainer, qwen2

CLIP = {"clip_low": 0.2, "clip_high": 0.2, "dual_clip": None}
KNOBS = {"num_candidates": 3, "quantile": 0.5, "share": 0.25, "penalty": 1.1, **CLIP}


def test_value_and_gradients_are_those_of_the_papers_ratio() -> None:
    """Per token max(−A·q, −A·clip(q)), in right responses q = (1 − α)·r + α/K·Σ_k sg(r)/(sg(r_k) + 1e-8)·r_k at tokens
    above the quantile of entropies, whatever the candidates' old probabilities (here −1, −2, −3 nats). The first token
    of each wrong response is its policy's most probable."""
    data = make_batch(num_groups=4, num_samples=4, num_tokens=6, dtype=torch.float64)
    data = replace(data, reward=(data.advantage > 0).double())
    policy = make_policy(data, log_ratio=torch.linspace(-0.1, 0.1, 6).double().expand(16, 6))
    best = policy.logp.detach()[..., None] + torch.tensor([0.3, 0.1, -0.2], dtype=torch.float64)
    best[:, 0, 0] = policy.logp.detach()[:, 0]
    policy = replace(policy, candidates=best.requires_grad_())
    terms = simko(policy, data, **KNOBS)
    of_logp, of_best = torch.autograd.grad(terms.loss[data.mask].sum(), [policy.logp, policy.candidates])
    assert policy.entropy is not None
    counts = {"shared": 0, "penalised": 0}
    for b, t in data.mask.nonzero().tolist():
        hot = policy.entropy[b, t] > np.quantile(policy.entropy[b][data.mask[b]].numpy(), 0.5)
        logp, logp_k = (x.detach().clone().requires_grad_() for x in (policy.logp[b, t], best[b, t]))
        r, r_k = (logp - data.logp_old[b, t]).exp(), (logp_k - torch.tensor([-1.0, -2.0, -3.0])).exp()
        alpha = 0.25 if hot and data.reward[b] == 1 else 0.0
        ratio = (1 - alpha) * r + alpha / 3 * (r.detach() / (r_k.detach() + 1e-8) * r_k).sum()
        scale = 1.1 if hot and t == 0 and data.advantage[b] < 0 else 1.0
        a = data.advantage[b] * scale
        loss = torch.maximum(-a * ratio, -a * ratio.clamp(0.8, 1.2))
        loss.backward()
        assert terms.loss[b, t].item() == pytest.approx(loss.item(), rel=1e-6)
        assert logp.grad is not None
        assert of_logp[b, t].item() == pytest.approx(logp.grad.item(), rel=1e-6)
        expected = torch.zeros(3) if logp_k.grad is None else logp_k.grad
        assert torch.allclose(of_best[b, t], expected.double(), rtol=1e-6)
        counts["shared"] += alpha > 0
        counts["penalised"] += scale > 1
    assert min(counts.values()) > 0


def test_without_a_share_and_a_penalty_it_is_grpo() -> None:
    data = make_batch(dtype=torch.float64)
    data = replace(data, reward=(data.advantage > 0).double())
    policy = replace(make_policy(data), candidates=torch.zeros(*data.mask.shape, 3).double())
    plain, off = grpo(policy, data, **CLIP), simko(policy, data, **{**KNOBS, "share": 0.0, "penalty": 1.0})
    assert torch.equal(off.loss, plain.loss)
    assert torch.equal(gradient(off, policy), gradient(plain, policy))


@pytest.mark.parametrize("knobs", [{}, {"packing": False, "token_budget": 10}])
def test_candidates_are_the_most_probable_tokens_of_the_models_logits(knobs) -> None:
    data = batch()
    trainer = make_trainer(loss=partial(simko, **KNOBS), temperature=0.7, **knobs)
    candidates = trainer.policy_of(data).candidates
    assert candidates is not None
    model = qwen2().eval()
    for b, row in enumerate(data.tokens):
        prompt = data.prompt[data.group[b]][data.prompt_mask[data.group[b]]]
        num_tokens = int(data.mask[b].sum())
        ids = torch.cat([prompt, row[:num_tokens]])[None]
        with torch.no_grad():
            logp = (model(input_ids=ids).logits[0, len(prompt) - 1 : -1] / 0.7).log_softmax(-1)
        assert torch.allclose(candidates[b, :num_tokens], logp.topk(3).values, atol=2e-6)
        assert not candidates[b, num_tokens:].any()
    trainer.learn(replace(data, reward=(data.advantage > 0).float()))
