"""Reduces terms to one number: masks, weights, divides by *global* counts. The only place where a loss is averaged."""

from typing import Literal

import torch
from torch import Tensor

Mode = Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm", "prompt-mean"]


def counts(mask: Tensor) -> Tensor:
    """[2] int64: numbers of response tokens and non-empty sequences of mask [B, T], to be summed over micro-batches and
    ranks."""
    return torch.stack([mask.sum(), mask.any(-1).sum()])


def counts_of_streams(mask: Tensor, kind: Tensor | None) -> Tensor:
    """[K, 2] int64: `counts` of the rows of each kind 0 … K − 1 (`Batch.kind`); K = 1 if rows have no kind."""
    if kind is None:
        return counts(mask)[None]
    return torch.stack([counts(of_stream(mask, kind, k)) for k in range(int(kind.max()) + 1)])


def of_stream(mask: Tensor, kind: Tensor | None, k: int) -> Tensor:
    """mask [B, T], false on rows of other kinds than k."""
    return mask if kind is None else mask & (kind == k)[:, None]


def weights(mode: Mode, mask: Tensor, group: Tensor, kind: Tensor | None) -> Tensor | None:
    """[B, T] factors of a whole mini-batch's terms before it is cut: under `prompt-mean` N/(n_g·P), with which the mean
    over tokens is that over problems; None under the other modes. mask: [B, T]; group: [B] row numbers of problems.

    n_g: tokens of a row's problem; P: problems with tokens; N: all tokens. Each is of the rows of one kind.
    """
    if mode != "prompt-mean":
        return None
    factor = torch.zeros(mask.shape)
    for k in range(1 if kind is None else int(kind.max()) + 1):
        stream = of_stream(mask, kind, k)
        tokens = torch.bincount(group, weights=stream.sum(-1).double())
        mean = stream.sum() / (tokens[group].clamp(min=1) * (tokens > 0).sum().clamp(min=1))
        factor += torch.where(stream, mean[:, None], 0.0)
    return factor


def aggregate_streams(
    terms: Tensor, mask: Tensor, kind: Tensor | None, mode: Mode, *, counts: Tensor, max_tokens: int
) -> Tensor:
    """Σ_k `aggregate` over the rows of kind k: every stream is averaged over its own tokens or sequences, and the
    averages are added (DPH-RL, arXiv:2509.07430: L_exp + coef·L_pef; a single average over both would weight them by
    their lengths). counts: [K, 2] of the whole optimiser mini-batch, from `counts_of_streams`.
    """
    parts: list[Tensor] = []
    for k, (num_tokens, num_sequences) in enumerate(counts):
        stream = of_stream(mask, kind, k)
        parts.append(
            aggregate(terms, stream, mode, num_tokens=num_tokens, num_sequences=num_sequences, max_tokens=max_tokens)
        )
    return torch.stack(parts).sum()


def aggregate(
    terms: Tensor, mask: Tensor, mode: Mode, *, num_tokens: Tensor | int, num_sequences: Tensor | int, max_tokens: int
) -> Tensor:
    """One scalar from unreduced terms, such that its sum over micro-batches is the value of the mini-batch.

    terms: [B, T] per token or [B] per sequence. mask: [B, T] bool. num_tokens N and num_sequences S: `counts` of the
    whole optimiser mini-batch, over all micro-batches and ranks. max_tokens: the constant of `seq-mean-token-sum-norm`,
    the longest response allowed. With L a token's term and n_b the tokens of sequence b (libraries disagree on names):

    - `token-mean` (DAPO, arXiv:2503.14476)            Σ_b Σ_t L / N
    - `seq-mean-token-mean` (GRPO, arXiv:2402.03300)   Σ_b (Σ_t L / n_b) / S
    - `seq-mean-token-sum`                             Σ_b Σ_t L / S
    - `seq-mean-token-sum-norm` (Dr. GRPO, arXiv:2503.20783)   Σ_b Σ_t L / (S · max_tokens)
    - `prompt-mean` (ScaleRL, arXiv:2510.13786)        as `token-mean`, of terms times `weights`: the mean over problems
      of Σ_b Σ_t L / Σ_b n_b over the responses b to each

    For terms per sequence the result is Σ_b L_b / S under every mode.

    A row without tokens adds nothing and is not counted as a sequence. Values at padding, NaN included, change neither
    the result nor its gradient with respect to `terms`. (A NaN inside a loss can still reach *its* gradient, as
    0 · NaN: losses mask their inputs.) With nothing to average the result is 0.
    """
    tokens, sequences = (torch.as_tensor(n, device=terms.device).clamp(min=1) for n in (num_tokens, num_sequences))
    wide = torch.promote_types(terms.dtype, torch.float32)
    if terms.dim() == 1:
        return torch.where(mask.any(-1), terms.to(wide), 0.0).sum() / sequences
    divisor = {
        "token-mean": tokens,
        "prompt-mean": tokens,
        "seq-mean-token-mean": sequences * mask.sum(-1, keepdim=True).clamp(min=1),
        "seq-mean-token-sum": sequences,
        "seq-mean-token-sum-norm": sequences * max_tokens,
    }[mode]
    return (torch.where(mask, terms.to(wide), 0.0) / divisor).sum()
