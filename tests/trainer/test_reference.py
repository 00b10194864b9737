from typing import Any

import pytest
import torch
from torch import Tensor

from rlvr.objective.batch import Batch, Policy, Terms, first_pass, first_pass_of, needs
from tests.trainer.losses import SELECTIVE
from tests.trainer.tiny import batch, frozen_gathered, frozen_passes, make_trainer, surrogate, weights

SEEN = list[Tensor]()


@needs("reference")
def looks(policy: Policy, batch: Batch) -> Terms:
    assert batch.logp_ref is not None
    SEEN.append(batch.logp_ref.clone())
    return surrogate(policy, batch)


@pytest.mark.parametrize(("every", "last_reset"), [(None, 0), (1, 3), (2, 2), (5, 0)])
def test_reference_is_the_policy_of_the_last_reset(every: int | None, last_reset: int) -> None:
    data = batch(logp_ref=None)
    trainer = make_trainer(loss=looks, lr=0.05, reference_every=every, base_kl=True)
    policies = []
    for _ in range(4):
        policies.append(trainer.logp(data))
        metrics = trainer.learn(data)
    assert torch.allclose(SEEN[-1], policies[last_reset], atol=1e-6)
    # The base policy stays what it was: k3 by hand between the policy before the last update and the first.
    d = (policies[0] - policies[3])[data.mask].double()
    assert metrics["policy/kl_base"] == pytest.approx(float((d.exp() - d - 1).mean()), rel=1e-4)


@pytest.mark.parametrize("steps", ["learn learn nothing learn", "learn nothing learn"])
def test_a_step_without_a_batch_is_a_step_for_the_reference(steps: str) -> None:
    """Before the third of them it becomes the policy, which has learned since the first."""
    data = batch(logp_ref=None)
    trainer = make_trainer(loss=looks, lr=0.05, reference_every=2)
    policies = list[Tensor]()
    for step in steps.split():
        policies.append(trainer.logp(data))
        trainer.learn(data) if step == "learn" else trainer.learn_nothing()
    assert torch.allclose(SEEN[-1], policies[2], atol=1e-6)
    assert not torch.allclose(SEEN[-1], policies[0], atol=1e-3)


def test_a_reset_also_resets_the_optimiser_if_configured() -> None:
    """The update after a reset is AdamW's first: lr times the sign of the gradient, where eps is negligible."""
    knobs: dict[str, Any] = {"loss": looks, "lr": 0.01, "reference_every": 1, "betas": (0.9, 0.99), "eps": 1e-12}
    moved = {}
    for resets in (True, False):
        trainer = make_trainer(**knobs, reference_resets_optimiser=resets)
        trainer.learn(batch(logp_ref=None, seed=1))
        before = weights(trainer)
        trainer.learn(batch(logp_ref=None, seed=2))
        sizes = torch.cat([(w - before[name]).abs().flatten() for name, w in weights(trainer).items()])
        moved[resets] = sizes[sizes > 0]
    assert float((moved[True] - 0.01).abs().max()) < 1e-4
    assert float((moved[False] - 0.01).abs().max()) > 1e-3


@pytest.mark.parametrize("knobs", [{"base_kl": True}, {"kl": 0.1}, {"kl": 0.1, "reference_every": 1, "base_kl": True}])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_full_weights_of_frozen_copies_are_freed_after_use(dtype: str, knobs: dict[str, Any]) -> None:
    """On one rank a full copy of 5008 weights exists beside its shard during all micro-batches, and not afterwards; in
    float32, where one rank has nothing to shard or to cast, never."""
    held = list[int]()

    def looks(policy: Policy, batch: Batch) -> Terms:
        held.append(frozen_gathered(trainer))
        return surrogate(policy, batch)

    trainer = make_trainer(loss=looks, dtype=dtype, token_budget=1, **knobs)
    trainer.learn(batch(logp_ref=None))
    num_copies = 2 if "reference_every" in knobs else 1
    assert held == [0 if dtype == "float32" else num_copies * 5008 * 2] * 8  # rows with tokens
    assert frozen_gathered(trainer) == 0
    trainer.policy_of(batch())
    assert frozen_gathered(trainer) == 0


def test_records_of_forward_passes_of_frozen_copies_do_not_grow_from_step_to_step() -> None:
    """FSDP has an entry in two lists for each pass of the two layers and of the root. Nine rows, two copies."""
    recorded = list[int]()

    def looks(policy: Policy, batch: Batch) -> Terms:
        recorded.append(frozen_passes(trainer))
        return surrogate(policy, batch)

    trainer = make_trainer(loss=looks, token_budget=1, dtype="bfloat16", kl=0.1, base_kl=True, reference_every=2)
    for _ in range(3):
        trainer.learn(batch(logp_ref=None))
        assert (recorded[-1], frozen_passes(trainer)) == (2 * 3 * 9 * 2, 0)
        trainer.policy_of(batch())
        assert frozen_passes(trainer) == 0


def test_a_reference_that_only_the_first_pass_read_is_not_held_in_full_while_the_policy_learns() -> None:
    held = list[int]()

    @needs("reference", "noise", "entropy")
    @first_pass(first_pass_of(SELECTIVE))
    def looks(policy: Policy, batch: Batch) -> Terms:
        held.append(frozen_gathered(trainer))
        return SELECTIVE(policy, batch)

    trainer = make_trainer(loss=looks, token_budget=1)
    trainer.learn(batch(logp_ref=None))
    assert held == [0] * 8
