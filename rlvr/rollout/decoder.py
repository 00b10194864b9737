"""A batch of sequences that grow by one token per step, with three operations: start, step, keep."""

import inspect
from typing import Protocol

import torch
from torch import Tensor

from rlvr.model.head import WideHead
from rlvr.model.hugging_face import PreTrainedModel
from rlvr.rollout.cache import SHARED_PROMPT, SharedPromptCache
from rlvr.rollout.packed import PackedLinear

PREFILL_TOKENS = 8192  # prompt tokens of one forward pass, padding included: bounds the memory of activations


class Decoder(Protocol):
    """Rows of token sequences and the logits of their next token. Rows of one group share a prompt."""

    def start(self, group: Tensor, room: int) -> Tensor:
        """Logits [B, V] after the prompts. group: [B] non-decreasing, the prompt that each row continues.

        room: the largest number of steps to come.
        """
        ...

    def step(self, token: Tensor) -> Tensor:
        """Append one token to each row, [B]. Returns the logits [B, V] after it."""
        ...

    def keep(self, rows: Tensor) -> None:
        """Continue with these rows only, [B'] ascending."""
        ...


class SharedPromptDecoder:
    """For Hugging Face causal models with an attention interface: each prompt is read once, for all its responses."""

    def __init__(self, model: PreTrainedModel, prompt: Tensor, lengths: Tensor) -> None:
        """prompt: [P, L] right-padded; lengths: [P]. `model.config._attn_implementation` must be `SHARED_PROMPT`."""
        assert model.config._attn_implementation == SHARED_PROMPT
        head = model.get_output_embeddings()
        assert head is not None
        self.decoder, self.head = model.get_decoder(), head if isinstance(head, PackedLinear) else WideHead(head)
        self.prompt, self.lengths = prompt, lengths
        # On a CPU the narrow products of decoding are faster in float32 than in bfloat16, and exact softmax inputs.
        dtype = torch.float32 if prompt.device.type == "cpu" else model.dtype
        self.cache = SharedPromptCache(lengths, prompt.shape[1], dtype)

    def start(self, group: Tensor, room: int) -> Tensor:
        ends, at_once = [], max(1, PREFILL_TOKENS // self.prompt.shape[1])
        for first in range(0, len(self.prompt), at_once):
            read = slice(first, first + at_once)
            length = self.lengths[read]
            self.cache.filling = read
            hidden = self._hidden(self.prompt[read, : int(length.max())])
            ends.append(hidden[torch.arange(len(length), device=hidden.device), length - 1])
        self.cache.start_responses(group, room)
        self.position = self.lengths[group]
        return self.head(torch.cat(ends))[group]

    def step(self, token: Tensor) -> Tensor:
        self.cache.grow()
        hidden = self._hidden(token[:, None], self.position[:, None])
        self.position = self.position + 1
        return self.head(hidden[:, 0])

    def keep(self, rows: Tensor) -> None:
        self.cache.keep(rows)
        self.position = self.position[rows]

    def _hidden(self, tokens: Tensor, position: Tensor | None = None) -> Tensor:
        if position is None:
            position = torch.arange(tokens.shape[1], device=tokens.device)[None]
        shared = {"past_key_values": self.cache, "shared_prompt": self.cache}
        output = self.decoder(input_ids=tokens, position_ids=position, use_cache=True, **shared)
        return output.last_hidden_state


class RecomputingDecoder:
    """For any causal model, without a cache: every step reads the whole sequences again, those of one length together:
    not every model takes positions or a mask. Of logits it makes those of the last position, if the model can.
    """

    def __init__(self, model: PreTrainedModel, prompt: Tensor, lengths: Tensor) -> None:
        """prompt: [P, L] right-padded; lengths: [P]."""
        self.model, self.tokens, self.lengths = model, prompt, lengths
        can_cut = "logits_to_keep" in inspect.signature(model.forward).parameters
        self.cut = {"logits_to_keep": 1} if can_cut else {}

    def start(self, group: Tensor, room: int) -> Tensor:
        self.tokens = torch.nn.functional.pad(self.tokens, (0, room))
        self.keep(group)
        return self._logits()

    def step(self, token: Tensor) -> Tensor:
        self.tokens.scatter_(1, self.lengths[:, None], token[:, None])
        self.lengths = self.lengths + 1
        return self._logits()

    def keep(self, rows: Tensor) -> None:
        self.tokens, self.lengths = self.tokens[rows], self.lengths[rows]

    def _logits(self) -> Tensor:
        rows = {length: (self.lengths == length).nonzero()[:, 0] for length in self.lengths.unique().tolist()}
        read = [
            self.model(input_ids=self.tokens[r, :n], use_cache=False, **self.cut).logits[:, -1] for n, r in rows.items()
        ]
        return torch.cat(read)[torch.cat(list(rows.values())).argsort()]
