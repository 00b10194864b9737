"""Sampling noise as a function of keys, not of history: the same for any batch, number of ranks or order."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

MASK = (1 << 64) - 1
GAMMA = np.uint64(0x9E3779B97F4A7C15)


def uniform(
    seed: int, step: int, keys: Sequence[int], samples: Sequence[int], start: int, count: int
) -> NDArray[np.float64]:
    """[B, count] uniform numbers in the open interval (0, 1), for positions start … start + count − 1 of each row.

    keys, samples: [B] 64-bit integers. Row i is the SplitMix64 stream (Steele, Lea, Flood 2014) whose seed is a hash
    of (seed, step, keys[i], samples[i]), from position `start` on: any position of any row costs the same.
    """
    state = _streams(seed, step, keys, samples)
    positions = np.arange(start + 1, start + count + 1, dtype=np.uint64)
    return to_unit(mix(state[:, None] + positions * GAMMA))


def seeds(seed: int, step: int, keys: Sequence[int], samples: Sequence[int]) -> NDArray[np.int64]:
    """[B] 63-bit seeds, one per row, for engines that generate their own noise."""
    return (mix(_streams(seed, step, keys, samples)) >> np.uint64(1)).astype(np.int64)


def _streams(seed: int, step: int, keys: Sequence[int], samples: Sequence[int]) -> NDArray[np.uint64]:
    """[B] the initial state of the stream of each row."""
    state = np.zeros(1, dtype=np.uint64)
    for words in ([seed], [step], keys, samples):
        state = mix((state ^ np.array([int(word) & MASK for word in words], dtype=np.uint64)) + GAMMA)
    return state


def mix(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The output function of SplitMix64, a bijection of 64 bits (arithmetic modulo 2^64)."""
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


def to_unit(bits: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Numbers in (0, 1): midpoints of 2^52 equal cells, chosen by the top 52 bits. Exact in float64, never 0 or 1."""
    return ((bits >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
