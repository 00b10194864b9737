"""FSDP2: which modules are sharded, how gradients are summed, and when full weights are let go."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.utils.checkpoint import checkpoint

from rlvr.model.structure import decoder_layers, layers_of
from rlvr.trainer.actor import Actor


@dataclass(frozen=True)
class Sharding:
    """How an actor lies on the ranks, and how its layers are computed."""

    mesh: DeviceMesh
    dtype: torch.dtype  # of forward and backward passes; heads compute in float32, weights stay in their own precision
    checkpointing: bool = False  # a layer's activations are computed anew in the backward pass
    compiled: bool = False  # layers by torch.compile, but for packed attention
    offload: bool = False  # shards rest in main memory


def shard(actor: Actor, sharding: Sharding) -> None:
    """Shard the layers of decoders and the heads one by one and the rest (embeddings, which may be tied) as the root.

    Gradients are a true sum over ranks, in float32: the loss is already divided by counts of the whole mini-batch.
    """
    single = sharding.mesh.size() == 1
    policy = MixedPrecisionPolicy(param_dtype=sharding.dtype, reduce_dtype=torch.float32)
    # One rank has nothing to free: keep the weights between forward and backward. Shards that rest in main memory are
    # there to leave the GPU's: then even the root, by default kept, goes back after each forward pass.
    reshard = True if sharding.offload else False if single else None
    options: dict[str, Any] = {
        "mesh": sharding.mesh,
        "mp_policy": policy,
        "reshard_after_forward": reshard,
        "offload_policy": CPUOffloadPolicy() if sharding.offload else OffloadPolicy(),
    }
    critic = [] if actor.critic is None else layers_of(actor.critic.decoder)
    for layer in (*decoder_layers(actor.model), *critic):
        if sharding.compiled:  # shapes differ from micro-batch to micro-batch
            layer.forward = torch.compile(layer.forward, dynamic=True)
        if sharding.checkpointing:
            layer.forward = functools.partial(checkpoint, layer.forward, use_reentrant=False, preserve_rng_state=False)
        fully_shard(layer, **options)
    exact = MixedPrecisionPolicy(param_dtype=torch.float32, reduce_dtype=torch.float32)
    for head in actor.heads.values():
        fully_shard(head, **{**options, "mp_policy": exact})
    fully_shard(actor, **options)
    for module in _sharded(actor):  # the factor is a module's own: set on the root alone, layers would still average
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)
        # A rank may route no token to some expert: it still takes part in every sum.
        module.set_reduce_scatter_unused_params(True)


def before_backward(actor: nn.Module, *, last: bool, single: bool) -> None:
    """Say whether a backward pass is the last one before the optimiser step.

    On one rank only the last one hands gradients over. On several each does, so that no rank ever holds all of them.
    """
    if single and isinstance(actor, FSDPModule):
        actor.set_requires_gradient_sync(last)
        actor.set_reshard_after_backward(last)


def release(actor: nn.Module) -> None:
    """Go back to the shards, the parameters that the optimiser knows. Needed after a forward pass without backward:
    full weights that stay would be used again by the next forward pass, stale after an optimiser step in between.
    """
    for module in _sharded(actor):
        module.reshard()


def _sharded(actor: nn.Module) -> Iterator[FSDPModule]:
    return (m for m in actor.modules() if isinstance(m, FSDPModule))
