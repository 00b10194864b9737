"""Keys and values of responses that share prompts: a prompt is stored once per group, a response once per row.

Reading a prompt's keys once for all G responses turns G matrix-vector products into one matrix product (bifurcated
attention, arXiv:2403.08845). Responses are written in place; nothing grows by concatenation.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from rlvr.model.grouped_queries import for_kernels
from rlvr.model.hugging_face import Cache

SHARED_PROMPT = "rlvr_shared_prompt"
FIRST_CAPACITY = 32  # response tokens; doubles when full


class SharedPromptCache(Cache):
    """P prompts of at most L tokens (right-padded), then B rows of responses, each continuing one prompt.

    Per layer: prompt keys and values [P, heads, L, D], response keys and values [B, heads, capacity, D].
    """

    def __init__(self, lengths: Tensor, width: int, dtype: torch.dtype) -> None:
        super().__init__(layers=[])
        self.lengths, self.width, self.dtype = lengths, width, dtype
        self.prompts: list[Tensor] = []  # [2, P, heads, L, D] per layer
        self.responses: list[Tensor] = []  # [2, B, heads, capacity, D] per layer
        self.filling: slice | None = slice(0, 0)  # the prompts being read; None once responses are written
        self.length = 0  # response tokens in every layer, including the one being written
        self.capacity = self.room = 0
        self.bias: Tensor | None = None  # [P, 1, 1, L] −inf at padding; None if no prompt is padded

    def update(  # type: ignore[override]
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Write new keys and values [b, heads, t, D]; attention reads them through `attend`."""
        if self.filling is None:
            written = self.responses[layer_idx][:, :, :, self.length - 1]
            written[0], written[1] = key_states[:, :, 0], value_states[:, :, 0]
            return key_states, value_states
        if layer_idx == len(self.prompts):
            P, heads, D = len(self.lengths), key_states.shape[1], key_states.shape[3]
            self.prompts.append(key_states.new_zeros(2, P, heads, self.width, D, dtype=self.dtype))
        read = self.prompts[layer_idx][:, self.filling, :, : key_states.shape[2]]
        read[0], read[1] = key_states, value_states
        return key_states, value_states

    def start_responses(self, group: Tensor, room: int) -> None:
        """Prepare for responses of at most `room` tokens. group: [B] non-decreasing, the prompt of each row."""
        self.filling, self.group, self.room = None, group, room
        P, device = len(self.lengths), self.lengths.device
        if int(self.lengths.min()) < self.width:
            padding = torch.arange(self.width, device=device) >= self.lengths[:, None]
            self.bias = torch.zeros(P, 1, 1, self.width, dtype=self.dtype, device=device)
            self.bias.masked_fill_(padding[:, None, None], -torch.inf)
        for layer in self.prompts:
            self.responses.append(layer.new_empty(2, len(group), layer.shape[2], 0, layer.shape[4]))
        self._place()

    def grow(self) -> None:
        """Make room for one more response token in every layer."""
        self.length += 1
        if self.length <= self.capacity:
            return
        self.capacity = min(max(FIRST_CAPACITY, 2 * self.capacity), self.room)
        assert self.length <= self.capacity
        for index, old in enumerate(self.responses):
            self.responses[index] = old.new_empty(*old.shape[:3], self.capacity, old.shape[4])
            self.responses[index][:, :, :, : self.length - 1] = old[:, :, :, : self.length - 1]

    def keep(self, rows: Tensor) -> None:
        """Keep these rows ([B'] ascending) and the prompts that they continue."""
        prompts, self.group = torch.unique_consecutive(self.group[rows], return_inverse=True)
        for index, old in enumerate(self.responses):
            self.responses[index] = old.new_empty(2, len(rows), *old.shape[2:])
            self.responses[index][:, :, :, : self.length] = old[:, rows, :, : self.length]
        if len(prompts) < len(self.lengths):
            self.lengths = self.lengths[prompts]
            self.prompts = [layer[:, prompts] for layer in self.prompts]
            self.bias = None if self.bias is None else self.bias[prompts]
        self._place()

    def _place(self) -> None:
        """Lay the rows on a grid [P, largest group]: `cell` [B] is the place of each, None if every place is taken."""
        P, counts = len(self.lengths), torch.bincount(self.group, minlength=len(self.lengths))
        self.G = int(counts.max())
        start = counts.cumsum(0) - counts
        rank = torch.arange(len(self.group), device=self.group.device) - start[self.group]
        self.cell = None if len(self.group) == P * self.G else self.group * self.G + rank

    def _by_group(self, rows: Tensor) -> Tensor:
        """[B, heads, r, X] → [P, heads, G·r, X]; empty places are zeros."""
        _, heads, r, X = rows.shape
        P = len(self.lengths)
        if self.cell is not None:
            rows = rows.new_zeros(P * self.G, heads, r, X).index_copy_(0, self.cell, rows)
        return rows.reshape(P, self.G, heads, r, X).transpose(1, 2).reshape(P, heads, self.G * r, X)

    def _by_row(self, groups: Tensor) -> Tensor:
        P, heads, wide, X = groups.shape
        rows = groups.reshape(P, heads, self.G, wide // self.G, X).transpose(1, 2).reshape(-1, heads, wide // self.G, X)
        return rows if self.cell is None else rows[self.cell]

    def attend(self, layer_idx: int, query: Tensor, scaling: float, window: int | None) -> Tensor:
        """Attention of one new token per row over its prompt and its response so far. query: [B, heads·r, 1, D].

        window: of these, only the last `window` tokens are seen, the new one included.
        """
        prompt_keys, prompt_values = self.prompts[layer_idx].unbind(0)
        keys, values = self.responses[layer_idx][:, :, :, : self.length].unbind(0)
        B, heads, D = len(query), keys.shape[1], query.shape[3]
        query = query.reshape(B, heads, -1, D).to(self.dtype) * scaling
        prompt_scores = _scores(self._by_group(query), prompt_keys)
        if self.bias is not None:
            prompt_scores += self.bias
        scores = torch.cat((self._by_row(prompt_scores), _scores(query, keys)), dim=-1)
        if window is not None and window < self.width + self.length:
            first_seen = self.lengths[self.group] + self.length - window  # position, [B]
            of_prompt = torch.arange(self.width, device=query.device) < first_seen[:, None]
            scores[..., : self.width].masked_fill_(of_prompt[:, None, None], -torch.inf)
            scores[..., self.width : self.width + max(0, self.length - window)] = -torch.inf
        weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(self.dtype)
        read = self._by_row(self._by_group(weights[..., : self.width]) @ prompt_values)
        return (read + weights[..., self.width :] @ values).reshape(B, 1, heads * query.shape[2], D)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0 if self.filling is not None else self.width + self.length - 1


def _scores(query: Tensor, key: Tensor) -> Tensor:
    """query [b, heads, r, D] times key [b, heads, t, D] → [b, heads, r, t]; float32 on a GPU in half precision too."""
    if query.is_cuda and query.dtype != torch.float32:
        q, k = query.flatten(0, 1), key.flatten(0, 1).transpose(-1, -2)
        product = torch.bmm(q, k, out_dtype=torch.float32)  # type: ignore[call-overload]
        return product.unflatten(0, query.shape[:2])
    return query @ key.transpose(-1, -2)


def shared_prompt_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    shared_prompt: SharedPromptCache | None = None,
    sliding_window: int | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """The attention interface of transformers. Prompts are right-padded, so that causality alone hides the padding.

    shared_prompt: None from a model that does not pass arguments on (Nemotron), which is then seen not to fit.
    attention_mask: `SHARED_PROMPT` makes none, so it is one of the model's own, as a learned bias (Doge): does not fit.
    """
    if shared_prompt is None or attention_mask is not None:
        return torch.zeros_like(query).transpose(1, 2), None
    if shared_prompt.filling is not None:
        mask, L = None, query.shape[2]
        if sliding_window is not None and sliding_window < L:
            mask = torch.ones(L, L, dtype=torch.bool, device=query.device).tril().triu(1 - sliding_window)
        key, value, grouped = for_kernels(query, key, value, masked=mask is not None)
        how: dict[str, Any] = {"attn_mask": mask, "is_causal": mask is None, "scale": scaling, "enable_gqa": grouped}
        return scaled_dot_product_attention(query, key, value, **how).transpose(1, 2), None
    read = shared_prompt.attend(module.layer_idx, query, scaling, sliding_window)  # type: ignore[arg-type]
    return read.to(query.dtype), None
