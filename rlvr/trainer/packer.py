"""Chooses how a model reads a batch: end to end or in padded rows, with prompts shared or not."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Literal

import torch
from transformers import PreTrainedModel

from rlvr.model.load import miniature
from rlvr.model.structure import num_embeddings
from rlvr.objective.batch import Batch
from rlvr.trainer import attention, distributed, pack
from rlvr.trainer.actor import Actor
from rlvr.trainer.knobs import Knobs
from rlvr.trainer.layout import Layout, empty

log = logging.getLogger("rlvr")

Sharing = Literal["auto", "always", "never"]
# Largest difference of hidden states between packed and padded, as a fraction of the largest, float32.
TOLERANCE = 1e-4
HALF_TOLERANCE = (
    0.05  # in half precision, which rounds to 0.004: a token that sees another's makes more of a difference
)
CPU_TOKENS = 8192  # of a micro-batch: with more, activations leave the caches (steps take 5 to 10 % longer with 16384)


@dataclass(frozen=True)
class Packer:
    """The choice made for one model. `shared_prompt="auto"` is decided anew for each mini-batch."""

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
        """Rows of each micro-batch of each rank. budget: tokens, padding included. whole: groups never split."""
        lengths = pack.Lengths.of(batch)
        cost = lengths.cost(shared=shared)
        if not self.packing:
            widest = (lengths.prompt[lengths.group] + lengths.read).max()
            cost = torch.bincount(lengths.group, minlength=batch.num_groups) * widest
            every_row = torch.full_like(lengths.response, int(widest) + 1)  # its last token is not read
            lengths = pack.Lengths(torch.zeros_like(lengths.prompt), every_row, lengths.group)
        rows, tokens = pack.pieces(lengths, cost, budget=budget, shared=shared, whole=whole)
        plan = pack.plan(tokens, budget=budget, num_ranks=num_ranks)
        none = torch.zeros(0, dtype=torch.int64)
        return [
            [torch.cat([none, *(rows[piece] for piece in part.tolist())]).sort().values for part in rank]
            for rank in plan
        ]

    def layout(self, part: Batch, *, shared: bool) -> Layout:
        if not bool(part.mask.any()):
            return empty(self.pad_token_id)
        if self.packing:
            return pack.pack(part, shared=shared, varlen=self.varlen)
        return pack.pad(part, pad_token_id=self.pad_token_id)


def fitting(token_budget: int, device: torch.device) -> int:
    """Tokens per micro-batch: memory is what limits a GPU, the caches a CPU."""
    return min(token_budget, CPU_TOKENS) if device.type == "cpu" else token_budget


def choose(actor: Actor, trial: Actor, knobs: Knobs, pad_token_id: int, device: torch.device) -> Packer:
    """Packed if the model can and gives the same hidden states as in padded rows; padded rows, with a warning, if not.
    The same on all ranks, though their devices may not be: what one of them cannot, none does.

    trial: what the numbers are compared on, the actor itself or a small one like it; they are compared again as they
    are computed on `device`, a GPU. Packing sets the model's attention function. Raises ValueError if prompts must be
    shared and cannot be.
    """
    varlen = not distributed.any_rank(not attention.takes_varlen(actor.model, device, knobs.precision))
    why = "" if knobs.packing else "trainer.packing is false"
    if knobs.packing and not attention.can_pack(actor.model):
        why = f"{type(actor.model).__name__} has other than plain, full attention"
        if hasattr(actor.model.config, "num_attention_heads"):
            log.warning("sequences are padded, not packed: %s", why)
    if not why:
        attention.register()
        for each in (actor, trial):
            each.model.set_attn_implementation(attention.NAME)
        difference, tolerance = packing_error(trial, pad_token_id % num_embeddings(trial.model)), TOLERANCE
        if difference <= tolerance and device.type == "cuda":
            there = Actor(miniature(actor.model.config), trial.temperature).to(device, knobs.precision)
            there.model.set_attn_implementation(attention.NAME)
            tolerance = TOLERANCE if knobs.precision == torch.float32 else HALF_TOLERANCE
            difference = packing_error(there, pad_token_id % num_embeddings(there.model), varlen=varlen)
        too_large = [] if difference <= tolerance else [difference]
        of_all_ranks = [each for of_rank in distributed.gather(too_large) for each in of_rank]
        if not of_all_ranks:
            return Packer(True, knobs.shared_prompt, pad_token_id, varlen)
        actor.model.set_attn_implementation("sdpa")
        why = f"packed and padded sequences differ by {max(of_all_ranks):.2g} of the largest hidden state"
        log.warning("sequences are padded, not packed: %s", why)
    if knobs.shared_prompt == "always":
        raise ValueError(f"trainer.shared_prompt=always is impossible: {why}. Pass trainer.shared_prompt=auto.")
    return Packer(False, knobs.shared_prompt, pad_token_id)


@torch.no_grad()
def packing_error(actor: Actor, pad_token_id: int, *, varlen: bool = False) -> float:
    """Largest difference between packed and padded hidden states on a small batch, over their largest value."""
    batch = _sample(actor.model)
    device = next(actor.model.parameters()).device

    def predicting(reads: Layout) -> torch.Tensor:
        """[n, h] hidden states of the tokens that predict a response's."""
        reads = reads.to(device)
        return actor.hidden(reads).flatten(0, 1)[reads.predict]

    padded = predicting(pack.pad(batch, pad_token_id=pad_token_id))
    packed = [predicting(pack.pack(batch, shared=shared, varlen=varlen)) for shared in (False, True)]
    largest = padded.abs().max()
    return max(float((each - padded).abs().max() / largest) for each in packed)


def _sample(model: PreTrainedModel) -> Batch:
    """Two groups of three responses of unequal length to prompts of unequal length, of random tokens."""
    generator = torch.Generator().manual_seed(0)
    size = num_embeddings(model)
    tokens = torch.randint(size, (6, 5), generator=generator)
    mask = torch.arange(5) < torch.tensor([5, 3, 1, 4, 5, 2])[:, None]
    nothing = torch.zeros(6, 5)
    prompt = torch.randint(size, (2, 7), generator=generator)
    prompt_mask = torch.arange(7) >= torch.tensor([0, 3])[:, None]
    group = torch.arange(2).repeat_interleave(3)
    return Batch(tokens, mask, nothing, nothing[:, 0], nothing[:, 0], group, prompt, prompt_mask)
