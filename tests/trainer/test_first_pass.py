import functools
from dataclasses import fields
from typing import Any

import pytest
import torch
from torch import Tensor

from rlvr.objective.batch import Batch, Policy, Terms, declared_needs, first_pass, first_pass_of, needs
from tests.support.factories import make_batch
from tests.trainer.losses import SELECTIVE, centred, with_log_z
from tests.trainer.tiny import batch, gradients, learned, make_trainer, plain_logp, qwen2, surrogate, worst

CLOSE = 2e-6


def in_order(data: Batch, rows: Tensor, groups: Tensor) -> Batch:
    """The batch with rows [B] and prompts [P] in another order."""
    place = torch.zeros_like(groups)
    place[groups] = torch.arange(len(groups))
    moved: dict[str, Any] = {}
    for name in (f.name for f in fields(data)):
        value = getattr(data, name)
        moved[name] = value if value is None else value[groups if name.startswith("prompt") else rows]
    return Batch(**{**moved, "group": place[moved["group"]]})


@pytest.mark.parametrize("loss", [SELECTIVE, centred, with_log_z])
@pytest.mark.parametrize("knobs", [{"token_budget": 1}, {"packing": False}, {"shared_prompt": "always"}])
def test_micro_batches_and_layouts_do_not_change_it(loss: Any, knobs: dict[str, Any]) -> None:
    data = batch(logp_ref=None)
    whole, cut = make_trainer(loss=loss), make_trainer(loss=loss, **knobs)
    one, other = whole.learn(data), cut.learn(data)
    assert worst(gradients(cut), gradients(whole)) < CLOSE
    assert {k: v for k, v in one.items() if k != "tokens/train"} == pytest.approx(
        {k: v for k, v in other.items() if k != "tokens/train"}, rel=1e-5, abs=1e-6
    )


@pytest.mark.parametrize("loss", [SELECTIVE, centred, with_log_z])
def test_order_of_rows_and_groups_does_not_change_it(loss: Any) -> None:
    data = batch(logp_ref=None)
    moved = in_order(data, torch.tensor([8, 6, 7, 1, 0, 2, 3, 5, 4]), torch.tensor([2, 0, 1]))
    assert moved.group.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert worst(learned(data=moved, loss=loss), learned(data=data, loss=loss)) < CLOSE


def test_it_is_computed_from_the_policy_of_each_update() -> None:
    """Twice the log-probability of the whole mini-batch by hand, before the first and before the second step."""
    seen = list[Tensor]()

    def keep(policy: Policy, batch: Batch) -> Tensor:
        seen.append(policy.logp.clone())
        return batch.reward

    loss = first_pass(keep)(surrogate_copy())
    data = batch()
    trainer = make_trainer(loss=loss, epochs=2, lr=0.05, token_budget=1)
    expected = torch.cat(plain_logp(qwen2().eval(), data))
    trainer.learn(data)
    assert torch.allclose(seen[0][data.mask], expected, atol=2e-6)
    assert not torch.allclose(seen[1], seen[0], atol=1e-3)
    assert len(seen) == 2


def surrogate_copy() -> Any:
    def loss(policy: Policy, batch: Batch) -> Terms:
        assert batch.extra is not None
        assert torch.equal(batch.extra, batch.reward)
        return surrogate(policy, batch)

    return loss


def test_a_first_pass_gets_the_knobs_that_it_names_and_its_needs_count() -> None:
    @needs("noise")
    def before(policy: Policy, batch: Batch, *, b: int) -> Tensor:
        return torch.full((len(batch.tokens),), float(b))

    @first_pass(before)
    @needs("entropy")
    def loss(policy: Policy, batch: Batch, *, a: int, b: int) -> Terms:
        return Terms(policy.logp * a * b)

    bound = functools.partial(functools.partial(loss, a=1, b=2), b=3)
    assert declared_needs(bound) == {"noise", "entropy"}
    pass_function = first_pass_of(bound)
    assert pass_function is not None
    data = make_batch()
    assert pass_function(Policy(data.logp_old), data).tolist() == [3.0] * 6
    assert first_pass_of(surrogate) is None
