"""Attention over sequences that lie end to end in one row, where responses may share one copy of their prompt.

The linear layers, which are most of the work, process N tokens without padding; only attention needs to know which
tokens form a sequence. In half precision on a GPU it is one call of a kernel for sequences of any lengths (`Varlen`).
Otherwise queries and keys of equal shape are gathered into segments, PyTorch's attention runs on each segment, and the
results are put back in place (`Packed`).
"""

import inspect
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import scaled_dot_product_attention

from rlvr.model.grouped_queries import AMPERE, for_kernels, takes_groups
from rlvr.model.hugging_face import (
    AttentionInterface,
    AttentionMaskInterface,
    PreTrainedModel,
    sdpa_attention_forward,
    sdpa_mask,
    use_gqa_in_sdpa,
)
from rlvr.trainer.layout import Packed, Segment, Varlen
from rlvr.trainer.rows import rows

NAME, PADDED = "rlvr_packed", "rlvr_padded"
# Arguments of attention variants that change the scores in a way that is not implemented here.
UNSUPPORTED = ("sliding_window", "softcap", "s_aux", "position_bias")
# Before torch 2.13 its kernel for sequences of any lengths has no grouped queries: these are attended in segments.
VARLEN_TAKES_GROUPS = "enable_gqa" in inspect.signature(varlen_attn).parameters


class UnsupportedAttention(ValueError):
    """Raised for scores that a variant of attention changes, which packed attention would leave as they are."""


def register() -> None:
    """Register `attend` and `attend_padded` with transformers under their names. May be called more than once."""
    AttentionInterface.register(NAME, attend)
    AttentionInterface.register(PADDED, attend_padded)
    AttentionMaskInterface.register(PADDED, sdpa_mask)


@torch.compiler.disable  # shapes differ from one micro-batch to the next: it would be compiled again and again
def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    packed: Packed | Varlen | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention function of `transformers`: query [1, H, N, D], key and value [1, K, N, D] → [1, N, H, D].

    Without `packed` it is `attend_padded`. Raises UnsupportedAttention for a mask and for variants in UNSUPPORTED.
    """
    if packed is None:
        return attend_padded(module, query, key, value, attention_mask, **kwargs)
    given = {**kwargs, "attention_mask": attention_mask}  # transformers makes none for NAME: a bias of the model's own
    unsupported = [name for name in (*UNSUPPORTED, "attention_mask") if given.get(name) is not None]
    if unsupported:
        raise UnsupportedAttention(f"packed attention cannot do {', '.join(unsupported)}: pass trainer.packing=false")
    query, key, value = (x[0].transpose(0, 1) for x in (query, key, value))  # [N, heads, D]
    scale, dtype = kwargs.get("scaling"), query.dtype
    if isinstance(packed, Varlen):
        return _attend_varlen(query, key, value, packed, scale)[None], None
    query, key, value = to_float32_on_cpu(query, key, value)
    results = [_attend_segment(query, key, value, segment, scale) for segment in packed.segments]
    return torch.cat(results).to(dtype).index_select(0, packed.order)[None], None


def attend_padded(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, None]:
    """The function "sdpa" of `transformers`, except that no attention on a GPU keeps all scores for grouped queries."""
    if use_gqa_in_sdpa(attention_mask, key, value):  # otherwise keys and values are repeated there
        key, value, _ = for_kernels(query, key, value, masked=False)
    return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)


def _attend_varlen(query: Tensor, key: Tensor, value: Tensor, packed: Varlen, scale: float | None) -> Tensor:
    """[N, H, D]"""
    if packed.key is not None:
        key, value = rows(key, packed.key), rows(value, packed.key)
    grouped: dict[str, Any] = {"enable_gqa": True} if query.shape[1] != key.shape[1] else {}
    ends, longest = (packed.query_ends, packed.key_ends), (packed.longest_query, packed.longest_key)
    # (-1, 0): every key up to the query's own
    result = varlen_attn(query, key, value, *ends, *longest, scale=scale, window_size=(-1, 0), **grouped)
    assert isinstance(result, Tensor)  # a tuple only if further outputs are requested
    return result


def takes_varlen(model: PreTrainedModel, device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the kernel for sequences of any lengths can be used: half precision on an Ampere GPU or later."""
    config = model.config.get_text_config()
    heads = getattr(config, "num_attention_heads", None)
    if device.type != "cuda" or dtype not in (torch.bfloat16, torch.float16) or not heads:
        return False
    if not VARLEN_TAKES_GROUPS and getattr(config, "num_key_value_heads", heads) != heads:
        return False
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    return head_dim % 8 == 0 and head_dim <= 256 and torch.cuda.get_device_capability(device) >= AMPERE


def _attend_segment(query: Tensor, key: Tensor, value: Tensor, segment: Segment, scale: float | None) -> Tensor:
    """[b·t, H, D]"""
    q = _gather(query, segment.query)
    k, v = _gather(key, segment.key), _gather(value, segment.key)
    k, v, grouped = for_kernels(q, k, v, masked=segment.mask is not None)
    result = scaled_dot_product_attention(
        q, k, v, attn_mask=segment.mask, is_causal=segment.mask is None, scale=scale, enable_gqa=grouped
    )
    return result.transpose(1, 2).flatten(0, 1)


def to_float32_on_cpu(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Cast to float32 on a CPU, whose kernels take 1.6 times as long in half precision and round more."""
    return tuple(x if x.is_cuda else x.float() for x in tensors)


def _gather(tokens: Tensor, index: Tensor) -> Tensor:
    """tokens [N, H, D], index [b, t] → [b, H, t, D]"""
    return rows(tokens, index.flatten()).unflatten(0, index.shape).transpose(1, 2)


def pad_for_kernels(model: PreTrainedModel, device: torch.device, dtype: torch.dtype) -> None:
    """Let a model that reads padded rows compute attention by `attend_padded`, where "sdpa" would keep all scores."""
    replaceable = getattr(model, "_supports_attention_backend", False) and model.config._attn_implementation == "sdpa"
    if replaceable and device.type == "cuda" and not takes_groups(device, dtype):
        register()
        model.set_attn_implementation(PADDED)


def can_pack(model: PreTrainedModel) -> bool:
    """Whether all layers of a model use plain full attention, to which the decoder passes keyword arguments on.

    A structural test: whether the numbers agree is checked separately, before packing is used (`packer.choose`).
    """
    config = model.config.get_text_config()
    layer_types = set(getattr(config, "layer_types", None) or ["full_attention"])
    parameters = inspect.signature(model.get_decoder().forward).parameters
    passes_arguments = "position_ids" in parameters and any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    is_full = layer_types == {"full_attention"} and getattr(config, "sliding_window", None) is None
    supported = bool(getattr(model, "_supports_attention_backend", False)) and passes_arguments
    return supported and is_full and config._attn_implementation == "sdpa"
