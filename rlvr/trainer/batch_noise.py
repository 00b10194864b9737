"""Random numbers of an optimiser step, as functions of seed, update and tokens.

They are the same for any division into micro-batches, any number of ranks and any order of rows.
"""

from collections import Counter
from hashlib import blake2b

import torch
from torch import Tensor

from rlvr.noise import uniform
from rlvr.objective.batch import Batch
from rlvr.trainer.heads import DROPOUT, LAYERS


def per_token(batch: Batch, *, seed: int, update: int) -> Tensor:
    """[B, T] float64 in (0, 1). Prompt and response identify a row; equal rows are numbered in their order."""
    prompts = _prompts(batch)
    num_seen, keys, copies = Counter[int](), list[int](), list[int]()
    for tokens, mask, group in zip(batch.tokens, batch.mask, batch.group.tolist(), strict=True):
        key = _key(prompts[group] + tokens[mask].tolist(), b"tokens")
        keys.append(key)
        copies.append(num_seen[key])
        num_seen[key] += 1
    return torch.from_numpy(uniform(seed, update, keys, copies, 0, batch.tokens.shape[1]))


def units_kept(batch: Batch, width: int, *, seed: int, update: int) -> Tensor:
    """[P, layers, h] bool: the units of `LogZ` that dropout keeps, for each prompt."""
    keys = [_key(prompt, b"units") for prompt in _prompts(batch)]
    drawn = uniform(seed, update, keys, [0] * len(keys), 0, LAYERS * width)
    return torch.from_numpy(drawn >= DROPOUT).view(-1, LAYERS, width)


def _prompts(batch: Batch) -> list[list[int]]:
    """Token ids of each prompt, followed by −1."""
    return [[*row[mask].tolist(), -1] for row, mask in zip(batch.prompt, batch.prompt_mask, strict=True)]


def _key(tokens: list[int], stream: bytes) -> int:
    data = b"".join(t.to_bytes(8, "little", signed=True) for t in tokens)
    return int.from_bytes(blake2b(data, digest_size=8, person=stream).digest(), "little")
