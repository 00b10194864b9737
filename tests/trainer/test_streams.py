import copy
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from rlvr.loss import dph
from rlvr.objective.batch import Batch, Policy, Terms, first_pass, whole_groups
from tests.trainer.tiny import batch, learned, make_trainer, plain_logp, qwen2, worst

CLOSE = 2e-6  # float32 rounding
LOSS = partial(dph.forward_kl, clip_low=0.2, clip_high=0.2, coef=0.5)
KIND = torch.tensor([0, 1, 0, 0, 1]).repeat_interleave(3)
NUMBERED = torch.arange(15.0)  # rows by their number, in place of the advantage


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
    assert worst(learned(data=data(), loss=LOSS, **knobs), expected) < CLOSE


def test_every_mini_batch_counts_its_own_streams() -> None:
    """A step of 1e-30 changes nothing: the second of two updates has the first weights, and groups 3 and 4 only."""
    expected = by_hand(qwen2(), data(), [3, 4])
    assert worst(learned(data=data(), loss=LOSS, updates=2, lr=1e-30), expected) < CLOSE


def test_metrics_are_means_over_their_own_stream() -> None:
    trainer = make_trainer(loss=LOSS)
    metrics = trainer.learn(data())
    logp = make_trainer(loss=LOSS).logp(data())
    ratio = (logp - data().logp_old)[data().mask]
    rehearsed = (KIND == 1)[:, None].expand_as(data().mask)[data().mask]
    u = ratio[rehearsed].exp()
    assert metrics["loss/rehearse"] == pytest.approx(float((u - 1 - u.log()).mean()), rel=1e-5)
    assert metrics["loss/rehearse_log_ratio"] == pytest.approx(float(-ratio[rehearsed].mean()), rel=1e-5)
    assert metrics["policy/abs_log_ratio"] == pytest.approx(float(ratio[~rehearsed].abs().mean()), rel=1e-5)
    assert metrics["tokens/used"] == float(data().mask.sum())


def test_penalty_and_bonus_concern_explored_rows_only() -> None:
    """With the loss of rehearsed rows at 0, a penalty and a bonus give the gradient of the explored rows alone."""
    explored = batch(num_groups=5, logp_ref=None).select(torch.tensor([0, 2, 3]))
    none = partial(dph.none, clip_low=0.2, clip_high=0.2)
    knobs: dict[str, Any] = {"kl": 0.3, "entropy": 0.1}
    alone = Batch(**{**vars(explored), "kind": torch.zeros(9, dtype=torch.int64)})
    both = learned(data=data(), loss=none, **knobs)
    assert worst(both, learned(data=alone, loss=none, **knobs)) < CLOSE


@pytest.mark.parametrize("mode", ["seq-mean-token-mean", "seq-mean-token-sum"])
def test_sequences_are_counted_by_stream_too(mode: str) -> None:
    whole, cut = (learned(data=data(), loss=LOSS, aggregation=mode, token_budget=b) for b in (16384, 1))
    assert worst(cut, whole) < CLOSE


def among_their_kind(policy: Policy, batch: Batch) -> Tensor:
    """[B]: each row's log-probability less the mean of its stream; asserts that rows have the order of the batch."""
    assert batch.kind is not None
    assert len(batch.tokens) in (15, 9, 6)  # a whole mini-batch: all groups, or those of one of two updates
    assert bool((batch.advantage.diff() == 1).all())
    assert torch.equal(batch.kind, KIND[batch.advantage.long()])
    total = torch.where(batch.mask, policy.logp, 0.0).sum(1)
    return total - torch.stack([total[batch.kind == k].mean() for k in (0, 1)])[batch.kind]


@first_pass(among_their_kind)
@whole_groups
def differently(policy: Policy, batch: Batch, *, seen: list[Tensor]) -> Terms:
    """Another function of the first pass in each stream, so that exchanged rows change the gradient."""
    assert batch.kind is not None
    assert batch.extra is not None
    assert torch.equal(batch.kind, KIND[batch.advantage.long()])
    seen.append(batch.advantage.long())
    weight = torch.where(batch.kind == 0, batch.extra, batch.extra.square())
    return Terms(weight[:, None] * policy.logp, {"first": batch.extra})


def differently_by_hand(model: PreTrainedModel, data: Batch, rows: range) -> dict[str, Tensor]:
    """The gradient of `differently` over some rows in float64, one token at a time."""
    model = copy.deepcopy(model).double()
    logp = plain_logp(model, data)
    streams = list[Tensor]()
    for k in (0, 1):
        own = [b for b in rows if KIND[b] == k]
        total = {b: logp[b].detach().sum().item() for b in own}
        first = {b: total[b] - sum(total.values()) / len(own) for b in own}
        streams.append(torch.cat([first[b] ** (1 + k) * logp[b] for b in own]).mean())
    (streams[0] + streams[1]).backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("knobs", [{}, {"packing": False}, {"shared_prompt": "always"}])
@pytest.mark.parametrize("budget", [1, 10, 20, 40, 16384])
def test_a_first_pass_reaches_the_rows_of_its_stream_in_any_micro_batch(budget: int, knobs: dict[str, Any]) -> None:
    numbered, seen = data(advantage=NUMBERED), list[Tensor]()
    gradient = learned(data=numbered, loss=partial(differently, seen=seen), token_budget=budget, **knobs)
    assert worst(gradient, differently_by_hand(qwen2(), numbered, range(15))) < CLOSE
    assert torch.cat(seen).sort().values.tolist() == list(range(15))
    assert 1 <= len(seen) <= 5
    assert len(seen) == {1: 5, 16384: 1}.get(budget, len(seen))


def test_a_first_pass_sees_the_streams_of_its_own_mini_batch() -> None:
    """A step of 1e-30 changes nothing: the second of two updates has the first weights, and groups 3 and 4 only."""
    numbered = data(advantage=NUMBERED)
    gradient = learned(data=numbered, loss=partial(differently, seen=[]), updates=2, lr=1e-30, token_budget=1)
    assert worst(gradient, differently_by_hand(qwen2(), numbered, range(9, 15))) < CLOSE
