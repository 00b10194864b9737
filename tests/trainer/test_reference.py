"""Hard resets of the reference: when, to what, with or without the optimiser's memory, and across a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rlvr.objective.batch import Batch, Policy, Terms, first_pass, first_pass_of, needs
from tests.trainer.losses import SELECTIVE
from tests.trainer.tiny import batch, frozen_gathered, gradients, surrogate, trainer, weights

SEEN = list[Tensor]()


@needs("reference")
def looks(policy: Policy, batch: Batch) -> Terms:
    assert batch.logp_ref is not None
    SEEN.append(batch.logp_ref.clone())
    return surrogate(policy, batch)


@pytest.mark.parametrize(("every", "last_reset"), [(None, 0), (1, 3), (2, 2), (5, 0)])
def test_reference_is_the_policy_of_the_last_reset(every: int | None, last_reset: int) -> None:
    data = batch(logp_ref=None)
    made = trainer(loss=looks, lr=0.05, reference_every=every, base_kl=True)
    policies = []
    for _ in range(4):
        policies.append(made.logp(data))
        metrics = made.learn(data)
    assert torch.allclose(SEEN[-1], policies[last_reset], atol=1e-6)
    # The base policy stays what it was: k3 by hand between the policy before the last update and the first.
    d = (policies[0] - policies[3])[data.mask].double()
    assert metrics["policy/kl_base"] == pytest.approx(float((d.exp() - d - 1).mean()), rel=1e-4)


@pytest.mark.parametrize("steps", ["learn learn nothing learn", "learn nothing learn"])
def test_a_step_without_a_batch_is_a_step_for_the_reference(steps: str) -> None:
    """Before the third of them it becomes the policy, which has learned since the first."""
    data = batch(logp_ref=None)
    made = trainer(loss=looks, lr=0.05, reference_every=2)
    policies = list[Tensor]()
    for step in steps.split():
        policies.append(made.logp(data))
        made.learn(data) if step == "learn" else made.learn_nothing()
    assert torch.allclose(SEEN[-1], policies[2], atol=1e-6)
    assert not torch.allclose(SEEN[-1], policies[0], atol=1e-3)


def test_optimiser_forgets_at_a_reset_if_told_to() -> None:
    """The update after a reset is AdamW's first: lr times the sign of the gradient, where eps is negligible."""
    knobs: dict[str, Any] = {"loss": looks, "lr": 0.01, "reference_every": 1, "betas": (0.9, 0.99), "eps": 1e-12}
    moved = {}
    for resets in (True, False):
        made = trainer(**knobs, reference_resets_optimiser=resets)
        made.learn(batch(logp_ref=None, seed=1))
        before = weights(made)
        made.learn(batch(logp_ref=None, seed=2))
        sizes = torch.cat([(w - before[name]).abs().flatten() for name, w in weights(made).items()])
        moved[resets] = sizes[sizes > 0]
    assert float((moved[True] - 0.01).abs().max()) < 1e-4
    assert float((moved[False] - 0.01).abs().max()) > 1e-3


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_continued_training_is_bitwise_uninterrupted_training(tmp_path: Path, dtype: str) -> None:
    knobs: dict[str, Any] = {
        "loss": looks,
        "lr": 0.01,
        "betas": (0.9, 0.99),
        "kl": 0.1,
        "base_kl": True,
        "dtype": dtype,
        "reference_every": 2,
        "reference_resets_optimiser": True,
        "updates": 2,
    }
    data = [batch(seed=s, logp_ref=None) for s in range(6)]
    whole = trainer(**knobs)
    expected = [whole.learn(each) for each in data]
    first = trainer(**knobs)
    found = [first.learn(each) for each in data[:3]]
    first.save(tmp_path / "a", {})
    second = trainer(**knobs)
    second.load(tmp_path / "a")
    found += [second.learn(each) for each in data[3:]]
    assert found == expected
    assert all(torch.equal(weights(second)[name], w) for name, w in weights(whole).items())
    assert all(torch.equal(gradients(second)[name], g) for name, g in gradients(whole).items())


@pytest.mark.parametrize("knobs", [{"base_kl": True}, {"kl": 0.1}, {"kl": 0.1, "reference_every": 1, "base_kl": True}])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_full_weights_of_frozen_copies_are_let_go_of_once_they_were_used(dtype: str, knobs: dict[str, Any]) -> None:
    """One rank: while it learns a copy is held in full beside its shard, 5008 weights, for all micro-batches."""
    held = list[int]()

    def looks(policy: Policy, batch: Batch) -> Terms:
        held.append(frozen_gathered(made))
        return surrogate(policy, batch)

    made = trainer(loss=looks, dtype=dtype, token_budget=1, **knobs)
    made.learn(batch(logp_ref=None))
    num_copies = 2 if "reference_every" in knobs else 1
    assert held == [num_copies * 5008 * (4 if dtype == "float32" else 2)] * 8  # rows with tokens
    assert frozen_gathered(made) == 0
    made.policy_of(batch())
    assert frozen_gathered(made) == 0


def test_a_reference_that_only_the_first_pass_read_is_not_held_in_full_while_the_policy_learns() -> None:
    held = list[int]()

    @needs("reference", "noise", "entropy")
    @first_pass(first_pass_of(SELECTIVE))
    def looks(policy: Policy, batch: Batch) -> Terms:
        held.append(frozen_gathered(made))
        return SELECTIVE(policy, batch)

    made = trainer(loss=looks, token_budget=1)
    made.learn(batch(logp_ref=None))
    assert held == [0] * 8
