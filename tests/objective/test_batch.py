"""A batch is whole groups: what is selected keeps its rows and says where they stood; what cannot be is refused."""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from rlvr.objective.batch import Batch, Policy, Terms, terms_of, value_and_derivative
from tests.support.factories import make_batch, make_policy


def test_selecting_groups_keeps_their_rows_and_renumbers_them() -> None:
    batch = replace(make_batch(num_groups=4, num_samples=2), row=torch.arange(8))
    part = batch.select(torch.tensor([1, 2, 3])).select(torch.tensor([0, 2]))
    for name in ("tokens", "mask", "logp_old", "advantage", "reward", "logp_ref", "row"):
        assert torch.equal(getattr(part, name), getattr(batch, name)[[2, 3, 6, 7]])
    assert torch.equal(part.prompt, batch.prompt[[1, 3]])
    assert part.group.tolist() == [0, 0, 1, 1]
    assert part.kind is None


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("group", torch.tensor([1, 1, 1, 0, 0, 0]), "groups stay whole"),
        ("group", torch.tensor([0, 0, 0, 2, 2, 2]), "groups stay whole"),
        ("reward", torch.zeros(5), r"Batch.reward has shape \[5\], expected \[6\]"),
        ("row", torch.arange(5), r"Batch.row has shape \[5\], expected \[6\]"),
        ("advantage", torch.zeros(6, 3), r"Batch.advantage has shape \[6, 3\], expected \[6\] or \[6, 4\]"),
        ("logp_ref", torch.zeros(6, 3), r"Batch.logp_ref has shape \[6, 3\], expected \[6, 4\]"),
    ],
)
def test_a_field_that_does_not_fit_is_refused(field: str, value: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(make_batch(), **{field: value})


def one_value(log_ratio: Tensor, a: Tensor, *, scale: float = 1.0) -> Tensor:
    return scale * (log_ratio - a)


@pytest.mark.parametrize("divergence", [one_value, partial(one_value, scale=2.0)])
@pytest.mark.parametrize("rows", [1, 2, 3])  # a tensor of two rows would unpack
def test_a_divergence_that_returns_one_value_is_named(divergence: Any, rows: int) -> None:
    message = r"the divergence .*test_batch\.one_value returned Tensor, not two tensors: the value .* its derivative"
    with pytest.raises(ValueError, match=message):
        value_and_derivative(divergence, torch.zeros(rows), torch.ones(rows))


def test_a_divergence_gives_its_value_and_its_derivative() -> None:
    value, derivative = value_and_derivative(lambda x, a: (x - a, x * a), torch.tensor([3.0]), torch.tensor([2.0]))
    assert (value.item(), derivative.item()) == (1.0, 6.0)


def reduced(policy: Policy, batch: Batch, *, value: Any) -> Any:
    return value


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (torch.zeros(6, 4), "returned Tensor, not Terms"),
        (Terms(torch.zeros(())), r"returned \[\] as Terms.loss, not \[6, 4\], one value per token, or \[6\]"),
        (Terms(torch.zeros(4)), r"returned \[4\] as Terms.loss"),
        (Terms(torch.zeros(6, 1)), r"returned \[6, 1\] as Terms.loss"),
        (Terms(torch.zeros(6), {"own": torch.zeros(())}), r"returned \[\] as Terms.metrics\['own'\]"),
        (Terms(torch.zeros(6), {"own": 3.0}), r"returned float as Terms.metrics\['own'\]"),  # type: ignore[dict-item]
    ],
)
def test_terms_that_are_not_one_per_token_or_response_are_refused_and_name_the_loss(value: Any, message: str) -> None:
    """They would broadcast, and be averaged as if there were one of each."""
    batch = make_batch()
    with pytest.raises(ValueError, match=rf"the loss .*test_batch\.reduced {message}"):
        terms_of(partial(reduced, value=value), make_policy(batch), batch)


def test_a_loss_that_writes_into_the_batch_is_named_with_what_it_writes() -> None:
    batch = make_batch()

    def halves(policy: Policy, batch: Batch) -> Terms:
        batch.reward.mul_(0.5)
        return Terms(-policy.logp)

    with pytest.raises(ValueError, match=r"halves changes batch\.reward in place"):
        terms_of(halves, make_policy(batch), batch)


def test_a_loss_that_reads_what_it_does_not_declare_is_named_with_what_is_none() -> None:
    batch = make_batch()
    policy = replace(make_policy(batch), entropy=None)
    message = (
        r"test_batch\..*reads_entropy raised TypeError: unsupported .* declare with @needs is None, here: entropy, "
    )
    with pytest.raises(ValueError, match=message):
        terms_of(reads_entropy, policy, batch)


def reads_entropy(policy: Policy, batch: Batch) -> Terms:
    return Terms(-policy.logp * policy.entropy)  # type: ignore[operator] - what is tested


def test_a_loss_without_gradient_is_named() -> None:
    batch = make_batch()
    policy = replace(make_policy(batch), logp=torch.zeros(batch.mask.shape, requires_grad=True))
    with pytest.raises(ValueError, match=r"test_batch\.reduced returned Terms\.loss without gradient"):
        terms_of(partial(reduced, value=Terms(torch.zeros(6))), policy, batch)
