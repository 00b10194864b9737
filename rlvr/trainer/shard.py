"""FSDP2: which modules are sharded, how gradients are summed, and when full weights are freed."""

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.utils.checkpoint import checkpoint

from rlvr.model.structure import decoder_layers, is_empty, layers_of
from rlvr.trainer.actor import Actor

# A rank may route no token to some expert: it must still take part in every sum. torch 2.13 has it.
SUMS_UNUSED = hasattr(FSDPModule, "set_reduce_scatter_unused_params")


@dataclass(frozen=True)
class Sharding:
    """How an actor is distributed over the ranks, and how its layers are computed."""

    mesh: DeviceMesh
    dtype: torch.dtype  # of forward and backward passes; heads compute in float32, weights stay in their own precision
    checkpointing: bool = False  # a layer's activations are computed again in the backward pass
    compiled: bool = False  # layers (but not packed attention) and the head's softmax, by torch.compile
    offload: bool = False  # shards are kept in main memory


def shard(actor: Actor, sharding: Sharding) -> None:
    """Shard the layers of decoders and the heads one by one, and all else (embeddings, which may be tied) as the root.

    Gradients are summed over ranks, not averaged, in float32: the loss is already divided by counts of the whole
    mini-batch. A single rank that computes in float32 on a CPU has nothing to shard, to sum, to cast or to move: FSDP
    would only copy its weights, and take a tenth of a small model's step. Its model stays as it is.

    Raises ValueError for a mixture of experts on several ranks if this torch cannot sum what a rank did not use.
    """
    single = sharding.mesh.size() == 1
    if not (single or SUMS_UNUSED):
        _refuse_experts(actor)
    policy = MixedPrecisionPolicy(param_dtype=sharding.dtype, reduce_dtype=torch.float32)
    # With offload all full weights are freed after each forward pass, even the root's, which FSDP keeps by default. A
    # single rank saves nothing by freeing them: it keeps them for the backward pass.
    reshard = None
    if single:
        reshard = False
    if sharding.offload:
        reshard = True
    options: dict[str, Any] = {
        "mesh": sharding.mesh,
        "mp_policy": policy,
        "reshard_after_forward": reshard,
        "offload_policy": CPUOffloadPolicy() if sharding.offload else OffloadPolicy(),
    }
    critic = [] if actor.critic is None else layers_of(actor.critic.decoder)
    layers = (*decoder_layers(actor.model), *critic)
    actor.compiled = sharding.compiled
    for layer in layers:
        if sharding.compiled:  # shapes differ from micro-batch to micro-batch
            layer.forward = torch.compile(layer.forward, dynamic=True)
        if sharding.checkpointing:
            layer.forward = functools.partial(checkpoint, layer.forward, use_reentrant=False, preserve_rng_state=False)
    on_cpu = sharding.mesh.device_type == "cpu"
    if single and on_cpu and sharding.dtype == torch.float32 and not is_empty(actor):
        return
    for layer in layers:
        fully_shard(layer, **options)
    exact = MixedPrecisionPolicy(param_dtype=torch.float32, reduce_dtype=torch.float32)
    for head in actor.heads.values():
        fully_shard(head, **{**options, "mp_policy": exact})
    fully_shard(actor, **options)
    for module in _sharded(actor):  # each module has a factor of its own: set on the root only, layers would average
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)
        if SUMS_UNUSED:
            module.set_reduce_scatter_unused_params(True)


def _refuse_experts(actor: Actor) -> None:
    if any(name.endswith("experts") for name, _ in actor.named_modules()):
        raise ValueError(
            f"torch {torch.__version__} cannot sum gradients of experts over ranks, of which one may use none of them: "
            "install torch 2.13, or train on one rank."
        )


def before_backward(actor: nn.Module, *, last: bool, single: bool) -> None:
    """Prepare FSDP for a backward pass. last: the last one before the optimiser step.

    A single rank reduces gradients in the last pass only. Several ranks do so in each pass, so that no rank ever holds
    the gradients of all parameters; nodes with a copy of the weights each add up their sums in the last pass.
    """
    if not isinstance(actor, FSDPModule):
        return
    if single:
        actor.set_requires_gradient_sync(last)
        actor.set_reshard_after_backward(last)
    else:
        actor.set_requires_all_reduce(last)


def release(actor: nn.Module) -> None:
    """Free the full weights, so that only the shards remain, which the optimiser updates.

    Needed after a forward pass without a backward pass: otherwise the next forward pass would use the same full
    weights, which are stale if there was an optimiser step in between.
    """
    for module in _sharded(actor):
        module.reshard()


def forget_passes(actor: nn.Module) -> None:
    """Empty FSDP's record of forward passes, which grows until a backward pass empties it.

    Only for an actor without gradients: sums of gradients over ranks that are under way would be lost.
    """
    if not isinstance(actor, FSDPModule) or not actor._get_fsdp_state()._is_root:  # set by the first forward pass
        return
    if hasattr(actor, "reset_iter_state"):  # torch 2.13
        actor.reset_iter_state()
        return
    release(actor)
    actor._get_fsdp_state()._comm_ctx.post_forward_order.clear()
    states: list[Any] = [module._get_fsdp_state() for module in _sharded(actor)]
    for group in (state._fsdp_param_group for state in states if state._fsdp_param_group):
        group._post_forward_indices.clear()


def _sharded(actor: nn.Module) -> Iterator[FSDPModule]:
    return (m for m in actor.modules() if isinstance(m, FSDPModule))
