"""Chooses the layout in which a model reads batches: end to end or in padded rows, with prompts shared or not."""

import logging
import math
from dataclasses import dataclass
from typing import Literal

import torch

from rlvr.model.hugging_face import PreTrainedModel
from rlvr.model.load import small_copy
from rlvr.model.structure import num_embeddings
from rlvr.objective.batch import Batch
from rlvr.trainer import attention, distributed, pack
from rlvr.trainer.actor import Actor
from rlvr.trainer.knobs import Knobs
from rlvr.trainer.layout import Layout, empty

log = logging.getLogger("rlvr")

Sharing = Literal["auto", "always", "never"]
# Largest allowed difference of hidden states between packed and padded, as a fraction of the largest, in float32.
TOLERANCE = 1e-4
# The same in half precision, which rounds to 0.004. Attending to a token of another sequence changes more than this.
HALF_TOLERANCE = 0.05
CPU_TOKENS = 8192  # of a micro-batch: with more, activations leave the caches (steps take 5 to 10 % longer with 16384)


@dataclass(frozen=True)
class Packer:
    """The choice for one model. `shared_prompt="auto"` is decided for each mini-batch."""

    packing: bool
    shared_prompt: Sharing
    pad_token_id: int
    varlen: bool = False  # attention in one call a layer, for sequences of any lengths: half precision on a GPU

    def shares(self, batch: Batch) -> bool:
        """Whether the responses of this mini-batch share one copy of their prompt."""
        if not self.packing or self.shared_prompt == "never":
            return False
        if self.shared_prompt == "always":
            return True
        return pack.Lengths.of(batch).sharing_pays(longest=None if self.varlen else pack.MAX_SHARED)

    def plan(self, batch: Batch, *, shared: bool, budget: int, num_ranks: int, whole: bool) -> list[list[torch.Tensor]]:
        """Rows of each micro-batch of each rank. budget: tokens, padding included. whole: groups are never split."""
        lengths = pack.Lengths.of(batch)
        cost = lengths.cost(shared=shared)
        if not self.packing:
            widest = (lengths.prompt[lengths.group] + lengths.read).max()
            cost = torch.bincount(lengths.group, minlength=batch.num_groups) * widest
            padded_length = torch.full_like(lengths.response, int(widest) + 1)  # + 1: the last token is not read
            lengths = pack.Lengths(torch.zeros_like(lengths.prompt), padded_length, lengths.group)
        rows, tokens = pack.pieces(lengths, cost, budget=budget, shared=shared, whole=whole)
        plan = pack.plan(tokens, budget=budget, num_ranks=num_ranks)

        def rows_of(pieces: torch.Tensor) -> torch.Tensor:
            no_rows = torch.zeros(0, dtype=torch.int64)
            return torch.cat([no_rows, *(rows[piece] for piece in pieces.tolist())]).sort().values

        return [[rows_of(pieces) for pieces in of_rank] for of_rank in plan]

    def layout(self, part: Batch, *, shared: bool) -> Layout:
        if not bool(part.mask.any()):
            return empty(self.pad_token_id)
        if self.packing:
            return pack.pack(part, shared=shared, varlen=self.varlen)
        return pack.pad(part, pad_token_id=self.pad_token_id)


def fitting(token_budget: int, device: torch.device) -> int:
    """Tokens per micro-batch: limited by memory on a GPU, by the caches on a CPU."""
    return min(token_budget, CPU_TOKENS) if device.type == "cpu" else token_budget


def choose(actor: Actor, trial: Actor, knobs: Knobs, pad_token_id: int, device: torch.device) -> Packer:
    """Packed, if the model supports it and its hidden states are then the same as in padded rows; else padded rows,
    with a warning. The choice is the same on all ranks, whose devices may differ: all ranks must support it.

    trial: the actor itself or a small one like it, whose hidden states are compared; if `device` is a GPU, they are
    compared there too. Packing sets the model's attention. Raises ValueError if prompts must be shared and cannot be.
    """
    varlen = not distributed.any_rank(not attention.takes_varlen(actor.model, device, knobs.precision))
    why = "" if knobs.packing else "trainer.packing is false"  # why sequences are not packed
    if knobs.packing and not attention.can_pack(actor.model):
        why = f"{type(actor.model).__name__} has other than plain, full attention"
        if hasattr(actor.model.config.get_text_config(), "num_attention_heads"):
            log.warning("sequences are padded, not packed: %s", why)
    if not why:
        attention.register()
        actor.model.set_attn_implementation(attention.NAME)
        trial.model.set_attn_implementation(attention.NAME)
        difference, tolerance = packing_error(trial, pad_token_id % num_embeddings(trial.model)), TOLERANCE
        if difference <= tolerance and device.type == "cuda":
            on_gpu = Actor(small_copy(actor.model.config), trial.temperature).to(device, knobs.precision)
            on_gpu.model.set_attn_implementation(attention.NAME)
            tolerance = TOLERANCE if knobs.precision == torch.float32 else HALF_TOLERANCE
            difference = packing_error(on_gpu, pad_token_id % num_embeddings(on_gpu.model), varlen=varlen)
        too_large = [] if difference <= tolerance else [difference]
        of_all_ranks = [error for of_rank in distributed.gather(too_large) for error in of_rank]
        if not of_all_ranks:
            return Packer(True, knobs.shared_prompt, pad_token_id, varlen)
        actor.model.set_attn_implementation("sdpa")
        why = f"packed and padded sequences differ by {max(of_all_ranks):.2g} of the largest hidden state"
        log.warning("sequences are padded, not packed: %s", why)
    if knobs.shared_prompt == "always":
        raise ValueError(f"trainer.shared_prompt=always is impossible: {why}. Pass trainer.shared_prompt=auto.")
    attention.pad_for_kernels(actor.model, device, knobs.precision)
    return Packer(False, knobs.shared_prompt, pad_token_id)


@torch.no_grad()
def packing_error(actor: Actor, pad_token_id: int, *, varlen: bool = False) -> float:
    """Largest difference between packed and padded hidden states on a small batch, over their largest value; inf where
    packed attention cannot do the model's.
    """
    batch = _sample(actor.model)
    device = next(actor.model.parameters()).device

    def predicting(layout: Layout) -> torch.Tensor:
        """[n, h] hidden states of the tokens before response tokens."""
        layout = layout.to(device)
        return actor.hidden(layout).flatten(0, 1)[layout.predict]

    padded = predicting(pack.pad(batch, pad_token_id=pad_token_id))
    try:
        packed = [predicting(pack.pack(batch, shared=shared, varlen=varlen)) for shared in (False, True)]
    except attention.UnsupportedAttention:
        return math.inf
    largest = padded.abs().max()
    return max(float((hidden - padded).abs().max() / largest) for hidden in packed)


def _sample(model: PreTrainedModel) -> Batch:
    """Two groups of three responses, of random tokens; prompts and responses of unequal lengths."""
    generator = torch.Generator().manual_seed(0)
    size = num_embeddings(model)
    tokens = torch.randint(size, (6, 5), generator=generator)
    mask = torch.arange(5) < torch.tensor([5, 3, 1, 4, 5, 2])[:, None]
    nothing = torch.zeros(6, 5)
    prompt = torch.randint(size, (2, 7), generator=generator)
    prompt_mask = torch.arange(7) >= torch.tensor([0, 3])[:, None]
    group = torch.arange(2).repeat_interleave(3)
    return Batch(tokens, mask, nothing, nothing[:, 0], nothing[:, 0], group, prompt, prompt_mask)
