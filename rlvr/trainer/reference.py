"""Frozen copies of the policy: the base policy, and the reference policy that a loss reads."""

import copy
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from rlvr.model.structure import is_empty
from rlvr.trainer import distributed, lora
from rlvr.trainer.actor import Actor, ActorOutput
from rlvr.trainer.knobs import Knobs
from rlvr.trainer.layout import Layout
from rlvr.trainer.shard import Sharding, forget_passes, release, shard
from rlvr.trainer.sharded_load import fill


class FrozenPolicies:
    """The base policy and the reference, each only if it is needed. Created before the policy itself is sharded."""

    def __init__(self, actor: Actor, sharding: Sharding, knobs: Knobs, *, needs_reference: bool) -> None:
        """sharding: of the policy itself. A reference without resets is the base policy: one copy serves both. A policy
        with adapters needs no copy of the base policy: with its adapters off it is the base policy.
        """
        self.every = every = knobs.reference_every  # steps between resets of the reference; None: never
        adapted = any(lora.is_adapter(name) for name, _ in actor.named_parameters())
        of_frozen = replace(sharding, checkpointing=False, compiled=False, offload=knobs.reference_offload)

        def without_adapters(layout: Layout, *, with_entropy: bool) -> ActorOutput:
            with lora.off(actor):
                return actor(layout, with_entropy=with_entropy)

        self.base: Callable[..., ActorOutput] | None = None
        if knobs.base_kl or (needs_reference and every is None):
            self.base = without_adapters if adapted else _frozen_copy(actor, of_frozen)
        self.resettable = _frozen_copy(actor, of_frozen) if needs_reference and every is not None else None
        self.reference = self.base if every is None else self.resettable

    def due(self, step: int) -> bool:
        """Whether the reference is reset to the policy before `step` (the first is 0, where they are equal anyway)."""
        return self.every is not None and step > 0 and step % self.every == 0

    @torch.no_grad()
    def reset(self, actor: Actor) -> None:
        """Copy the current policy into the reference, if that is ever reset."""
        if self.resettable is None:
            return
        release(actor)
        release(self.resettable)
        for old, new in zip(self.resettable.model.parameters(), actor.model.parameters(), strict=True):
            distributed.local(old).copy_(distributed.local(new))

    @torch.no_grad()
    def logp(self, layout: Layout, *, base: bool, reference: bool) -> tuple[Tensor | None, Tensor | None]:
        """(log-probabilities [n] under the base policy, those under the reference), each None unless requested."""
        of_base = self.base(layout, with_entropy=False).logp if self.base is not None and base else None
        if not reference:
            return of_base, None
        if of_base is not None and self.reference is self.base:
            return of_base, of_base
        assert self.reference is not None
        return of_base, self.reference(layout, with_entropy=False).logp

    def release(self) -> None:
        """Free full weights and FSDP's record of passes: no backward pass does it, the engine needs memory."""
        for frozen in (self.base, self.resettable):
            if isinstance(frozen, Actor):  # else a function: the policy with its adapters off
                release(frozen)
                forget_passes(frozen)

    def tensors(self) -> dict[str, Tensor]:
        """The tensors that a checkpoint needs: of a reference with resets, which cannot be rebuilt."""
        if self.resettable is None:
            return {}
        release(self.resettable)
        return {name: p.detach() for name, p in self.resettable.model.named_parameters()}


def _frozen_copy(actor: Actor, sharding: Sharding) -> Actor:
    frozen = Actor(copy.deepcopy(actor.model).requires_grad_(False), actor.temperature)
    for parameter in frozen.parameters():  # stored in the precision in which forward passes compute anyway
        parameter.data = parameter.data.to(sharding.dtype)
    shard(frozen, sharding)
    if is_empty(frozen):
        fill(frozen, frozen.model, torch.device("cpu" if sharding.offload else sharding.mesh.device_type))
    return frozen
