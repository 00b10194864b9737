"""Frozen copies of the policy: the base policy, and the reference that a loss keeps near to."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from rlvr.trainer import lora
from rlvr.trainer.logprob import Actor, Seen
from rlvr.trainer.pack import Layout
from rlvr.trainer.shard import release, shard
from rlvr.trainer.sharded_load import fill, is_empty


class Frozen:
    """What the policy was. Made before the policy itself is sharded; only what is asked for is held."""

    def __init__(
        self,
        actor: Actor,
        mesh: DeviceMesh,
        dtype: torch.dtype,
        *,
        base: bool,
        reference: bool,
        every: int | None,
        offload: bool,
    ) -> None:
        """base, reference: whether each is asked for. every: steps between resets of the reference; None: never, and
        the two are one copy. offload: they rest in main memory. A policy of adapters needs no copy: without them it is
        the base policy. Raises ValueError for resets of a reference that nothing asks for, or of adapters.
        """
        if every is not None and (every < 1 or not reference):
            reason = "must be 1 or more" if reference else "has no effect: neither the loss nor trainer.kl uses one"
            raise ValueError(f"trainer.reference_every={every} {reason}. Pass trainer.reference_every=null.")
        adapted = any(lora.is_adapter(name) for name, _ in actor.named_parameters())
        if adapted and (every is not None or offload):
            what = "reference_every" if every is not None else "reference_offload"
            raise ValueError(f"trainer.{what} has no use with trainer.lora_rank: no copy is made. Drop one of them.")
        self.every = every

        def without_adapters(layout: Layout) -> Seen:
            with lora.off(actor):
                return actor(layout)

        def frozen() -> Actor:
            made = Actor(copy.deepcopy(actor.model).requires_grad_(False), actor.temperature)
            for parameter in made.parameters():  # in the precision that mixed precision computes with anyway
                parameter.data = parameter.data.to(dtype)
            shard(made, mesh, dtype, offload=offload)
            if is_empty(made):
                fill(made, made.model, torch.device("cpu" if offload else mesh.device_type))
            return made

        base = base or (reference and every is None)
        self.base: Callable[[Layout], Seen] | None = (without_adapters if adapted else frozen()) if base else None
        self.moving = frozen() if reference and every is not None else None
        self.reference = self.base if every is None else self.moving

    def due(self, step: int) -> bool:
        """Whether the reference becomes the policy before `step` (the first is 0, where it already is)."""
        return self.every is not None and step > 0 and step % self.every == 0

    @torch.no_grad()
    def reset(self, actor: Actor) -> None:
        """The reference becomes the policy of now."""
        if self.moving is None:
            return
        release(actor)
        release(self.moving)
        for old, new in zip(self.moving.model.parameters(), actor.model.parameters(), strict=True):
            _local(old).copy_(_local(new))

    @torch.no_grad()
    def logp(self, layout: Layout, *, base: bool, reference: bool) -> tuple[Tensor | None, Tensor | None]:
        """([n] under the base policy, [n] under the reference): of each, if asked for."""
        of_base = self.base(layout).logp if self.base is not None and base else None
        if not reference:
            return of_base, None
        if of_base is not None and self.reference is self.base:
            return of_base, of_base
        assert self.reference is not None
        return of_base, self.reference(layout).logp

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint must hold of them: a base policy is made again, a reference that moved is not."""
        if self.moving is None:
            return {}
        release(self.moving)
        return {name: p.detach() for name, p in self.moving.model.named_parameters()}


def _local(parameter: Tensor) -> Tensor:
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter
