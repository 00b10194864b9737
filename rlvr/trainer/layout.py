"""A batch as the model reads it, and which tokens attend to which."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rlvr.objective.batch import copy_to_device


@dataclass(frozen=True)
class Segment:
    """b sequences, padded to one shape. Padding repeats position 0; its results are never read."""

    query: Tensor  # [b, t] int64, positions in the row
    key: Tensor  # [b, s] int64
    mask: Tensor | None  # [b or 1, 1, t, s] bool, True: attends; None: causal, with query and key the same

    def to(self, device: torch.device) -> Segment:
        mask = None if self.mask is None else copy_to_device(device, self.mask)
        return Segment(copy_to_device(device, self.query), copy_to_device(device, self.key), mask)


@dataclass(frozen=True)
class Packed:
    """Which of the N tokens of a row attend to which, as segments."""

    segments: tuple[Segment, ...]
    order: Tensor  # [N] int64, place of each token in the concatenation of the segments' queries

    def to(self, device: torch.device) -> Packed:
        return Packed(tuple(s.to(device) for s in self.segments), copy_to_device(device, self.order))


@dataclass(frozen=True)
class Varlen:
    """Which tokens attend to which, for one call of a kernel that takes sequences of any lengths.

    S sequences of queries lie end to end in the row. A query attends to the keys of its sequence up to the key that is
    as far from the sequence's end as the query is (causal, aligned at the bottom right). A sequence may have more keys
    than queries: those of a shared prompt, then those of the response.
    """

    query_ends: Tensor  # [S + 1] int32, 0 first
    key_ends: Tensor  # [S + 1] int32, 0 first
    longest_query: int  # on the host, so that no transfer from the GPU is waited for
    longest_key: int
    key: Tensor | None  # int64, places in the row of the keys, sequence by sequence; None: the keys in the row's order

    def to(self, device: torch.device) -> Varlen:
        key = None if self.key is None else copy_to_device(device, self.key)
        query_ends, key_ends = (copy_to_device(device, ends) for ends in (self.query_ends, self.key_ends))
        return replace(self, query_ends=query_ends, key_ends=key_ends, key=key)


@dataclass(frozen=True)
class Layout:
    """A batch as the model reads it, and the places where response tokens are predicted. R = 1 when packed."""

    input_ids: Tensor  # [R, W] int64
    position_ids: Tensor | None  # [R, W]; None: 0, 1, 2, …
    packed: Packed | Varlen | None
    predict: Tensor  # [n] int64, place in R·W of the token *before* each response token
    target: Tensor  # [n] int64, the response token
    place: Tensor  # [n] int64, its place in B·T
    num_tokens: int  # tokens that the model reads, padding not counted
    prompt_place: Tensor  # [m] int64, place in R·W of the tokens of all prompts, one copy of each
    prompt_owner: Tensor  # [m] int64, the prompt of each of these tokens
    num_prompts: int

    def to(self, device: torch.device) -> Layout:
        if device.type == "cpu":
            return self
        parts = {name: copy_to_device(device, part) for name, part in vars(self).items() if isinstance(part, Tensor)}
        packed = None if self.packed is None else self.packed.to(device)
        return replace(self, **parts, packed=packed)


def empty(pad_token_id: int) -> Layout:
    """One token that predicts nothing: the input of a rank that has no rows while other ranks still have some."""
    nothing = torch.zeros(0, dtype=torch.int64)
    return Layout(torch.tensor([[pad_token_id]]), None, None, nothing, nothing, nothing, 0, nothing, nothing, 0)
