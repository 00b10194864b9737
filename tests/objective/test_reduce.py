"""Aggregation by hand, its independence of how a mini-batch is split, and its deafness to padding."""

import math
from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from rlvr.objective.reduce import Mode, aggregate, aggregate_streams, counts, counts_of_streams, weights

MODES = get_args(Mode)
TERMS = torch.tensor([[1.0, 2.0, 3.0], [10.0, math.nan, math.inf], [math.nan, math.nan, math.nan]])
MASK = torch.tensor([[1, 1, 1], [1, 0, 0], [0, 0, 0]]).bool()
# N = 4 tokens, S = 2 sequences (the third row is empty), longest response allowed 5
BY_HAND = {
    "token-mean": 4.0,  # (1 + 2 + 3 + 10) / 4
    "seq-mean-token-mean": 6.0,  # (6/3 + 10/1) / 2
    "seq-mean-token-sum": 8.0,  # (6 + 10) / 2
    "seq-mean-token-sum-norm": 1.6,  # 8 / 5
    "prompt-mean": 4.0,  # as token-mean: its weights are apart
}


def aggregate_all(terms: Tensor, mask: Tensor, mode: Mode, max_tokens: int = 5) -> Tensor:
    num_tokens, num_sequences = counts(mask)
    return aggregate(terms, mask, mode, num_tokens=num_tokens, num_sequences=num_sequences, max_tokens=max_tokens)


def test_counts_tokens_and_non_empty_sequences() -> None:
    assert counts(MASK).tolist() == [4, 2]


@pytest.mark.parametrize("mode", MODES)
def test_numbers_worked_by_hand(mode: Mode) -> None:
    assert aggregate_all(TERMS, MASK, mode).item() == pytest.approx(BY_HAND[mode])
    plain = aggregate(TERMS, MASK, mode, num_tokens=4, num_sequences=2, max_tokens=5)
    assert plain.item() == pytest.approx(BY_HAND[mode])
    assert aggregate_all(torch.tensor([1.0, 4.0, math.nan]), MASK, mode).item() == 2.5  # per sequence: (1 + 4) / 2


def test_weights_make_the_mean_over_tokens_one_over_problems_of_each_kind() -> None:
    mask = torch.tensor([[1, 1, 1], [1, 0, 0], [1, 1, 0], [0, 0, 0], [1, 1, 1]]).bool()
    group, terms = torch.tensor([0, 0, 1, 2, 3]), torch.arange(15.0).reshape(5, 3)
    by_hand = ((0 + 1 + 2 + 3) / 4 + (6 + 7) / 2 + (12 + 13 + 14) / 3) / 3  # the third problem has no tokens
    for kind, expected in ((None, by_hand), (torch.tensor([0, 0, 0, 0, 1]), (1.5 + 6.5) / 2 + 13)):
        factor = weights("prompt-mean", mask, group, kind)
        assert factor is not None
        num = counts_of_streams(mask, kind)
        total = aggregate_streams(terms * factor, mask, kind, "prompt-mean", counts=num, max_tokens=5)
        assert total.item() == pytest.approx(expected, rel=1e-6)
    assert weights("token-mean", mask, group, None) is None


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("per_token", [True, False])
def test_gradient_ignores_padding(mode: Mode, per_token: bool) -> None:
    terms = (TERMS if per_token else torch.tensor([1.0, 4.0, math.nan])).clone().requires_grad_()
    aggregate_all(terms, MASK, mode).backward()
    assert terms.grad is not None
    assert terms.grad.isfinite().all()
    real = MASK if per_token else MASK.any(-1)
    assert (terms.grad[~real] == 0).all()
    assert (terms.grad[real] > 0).all()


@pytest.mark.parametrize("mode", MODES)
@given(data=st.data(), lengths=st.lists(st.integers(0, 4), min_size=1, max_size=7))
def test_value_and_gradient_do_not_depend_on_the_split(mode: Mode, data: st.DataObject, lengths: list[int]) -> None:
    mask = torch.arange(4) < torch.tensor(lengths)[:, None]
    terms = torch.arange(mask.numel(), dtype=torch.float64).reshape(mask.shape).sin().requires_grad_()
    expected = aggregate_all(terms, mask, mode)
    (gradient,) = torch.autograd.grad(expected, terms)

    order = torch.tensor(data.draw(st.permutations(range(len(lengths)))))
    chunk = data.draw(st.integers(1, len(lengths)))
    total = torch.stack([counts(mask[rows]) for rows in order.split(chunk)]).sum(0)  # what ranks would all-reduce
    parts = [
        aggregate(terms[rows], mask[rows], mode, num_tokens=total[0], num_sequences=total[1], max_tokens=5)
        for rows in order.split(chunk)
    ]
    got = torch.stack(parts).sum()
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(torch.autograd.grad(got, terms)[0], gradient, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("mode", MODES)
@given(padding=st.integers(0, 3), value=st.sampled_from([0.0, 1e30, math.inf, math.nan]))
def test_value_does_not_depend_on_the_width_of_the_padding(mode: Mode, padding: int, value: float) -> None:
    terms = torch.cat([TERMS, torch.full((3, padding), value)], dim=1)
    mask = torch.cat([MASK, torch.zeros((3, padding), dtype=torch.bool)], dim=1)
    assert aggregate_all(terms, mask, mode) == aggregate_all(TERMS, MASK, mode)


@pytest.mark.parametrize("mode", MODES)
def test_a_batch_without_tokens_gives_zero(mode: Mode) -> None:
    for terms in (torch.full((2, 3), math.nan), torch.full((2,), math.nan), torch.zeros(0, 3), torch.zeros(0)):
        assert aggregate_all(terms, torch.zeros((len(terms), 3), dtype=torch.bool), mode).item() == 0


def test_half_precision_terms_are_summed_in_float32() -> None:
    """4096 ones: bfloat16 stops counting at 256."""
    ones = torch.ones((1, 4096), dtype=torch.bfloat16)
    assert aggregate_all(ones, ones.bool(), "seq-mean-token-sum").item() == 4096
