"""Two streams in one batch: each is averaged over its own tokens, however the batch is cut."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from rlvr.batch import Batch
from rlvr.loss import dph
from tests.trainer.tiny import batch, gradients, plain_logp, qwen2, trainer, worst

CLOSE = 2e-6  # float32 rounding
LOSS = partial(dph.forward_kl, clip_low=0.2, clip_high=0.2, coef=0.5)
KIND = torch.tensor([0, 1, 0, 0, 1]).repeat_interleave(3)


def data(**fields: Any) -> Batch:
    return batch(num_groups=5, logp_ref=None, kind=KIND, **fields)


def by_hand(model: PreTrainedModel, data: Batch, groups: list[int]) -> dict[str, Tensor]:
    """Gradient of L_exp + ½·L_pef over some groups in float64, one token at a time, each over its own tokens."""
    model = copy.deepcopy(model).double()
    explored, rehearsed = [], []
    for b, logp in enumerate(plain_logp(model, data)):
        for t in range(len(logp) if int(data.group[b]) in groups else 0):
            ratio = (logp[t] - data.logp_old[b, t].double()).exp()
            if KIND[b]:
                rehearsed.append(ratio - 1 - ratio.log())
            else:
                a = data.advantage[b].double()
                explored.append(-torch.minimum(ratio * a, ratio.clamp(0.8, 1.2) * a))
    (torch.stack(explored).mean() + 0.5 * torch.stack(rehearsed).mean()).backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(
    "knobs",
    [{}, {"token_budget": 1}, {"packing": False, "token_budget": 30}, {"shared_prompt": "always", "token_budget": 20}],
)
def test_the_gradient_is_the_sum_of_two_means(knobs: dict[str, Any]) -> None:
    expected = by_hand(qwen2(), data(), list(range(5)))
    made = trainer(loss=LOSS, **knobs)
    made.learn(data())
    assert worst(gradients(made), expected) < CLOSE


def test_every_mini_batch_counts_its_own_streams() -> None:
    """A step of 1e-30 changes nothing: the last of two updates sees the first weights, and groups 3 and 4 alone."""
    expected = by_hand(qwen2(), data(), [3, 4])
    made = trainer(loss=LOSS, updates=2, lr=1e-30)
    made.learn(data())
    assert worst(gradients(made), expected) < CLOSE


def test_metrics_are_means_over_their_own_stream() -> None:
    made = trainer(loss=LOSS)
    metrics = made.learn(data())
    logp = trainer(loss=LOSS).logp(data())
    ratio = (logp - data().logp_old)[data().mask]
    rehearsed = (KIND == 1)[:, None].expand_as(data().mask)[data().mask]
    u = ratio[rehearsed].exp()
    assert metrics["loss/rehearse"] == pytest.approx(float((u - 1 - u.log()).mean()), rel=1e-5)
    assert metrics["loss/rehearse_log_ratio"] == pytest.approx(float(-ratio[rehearsed].mean()), rel=1e-5)
    assert metrics["policy/abs_log_ratio"] == pytest.approx(float(ratio[~rehearsed].abs().mean()), rel=1e-5)
    assert metrics["tokens/used"] == float(data().mask.sum())


def test_penalty_and_bonus_stay_with_what_the_policy_sampled() -> None:
    """With the loss of rehearsed rows at 0, a penalty and a bonus give the gradient of the explored rows alone."""
    explored = batch(num_groups=5, logp_ref=None).select(torch.tensor([0, 2, 3]))
    none = partial(dph.none, clip_low=0.2, clip_high=0.2)
    knobs: dict[str, Any] = {"kl": 0.3, "entropy": 0.1}
    both, alone = trainer(loss=none, **knobs), trainer(loss=none, **knobs)
    both.learn(data())
    alone.learn(Batch(**{**vars(explored), "kind": torch.zeros(9, dtype=torch.int64)}))
    assert worst(gradients(both), gradients(alone)) < CLOSE


@pytest.mark.parametrize("mode", ["seq-mean-token-mean", "seq-mean-token-sum"])
def test_sequences_are_counted_by_stream_too(mode: str) -> None:
    whole, cut = (trainer(loss=LOSS, aggregation=mode, token_budget=b) for b in (16384, 1))
    for made in (whole, cut):
        made.learn(data())
    assert worst(gradients(cut), gradients(whole)) < CLOSE
