"""Which orders and subsets a group of responses has room for: asked before launch and by the advantages. No torch."""

from __future__ import annotations


def orders(samples: int) -> range:
    """Orders T of the truncated likelihood (MaxRL) that a group of so many responses can estimate with a baseline."""
    return range(1, samples)


def subset_sizes(samples: int, form: str) -> range:
    """k of pass@k (PKPO) for so many responses: `sloo` leaves one of them out, `sloo_minus_one` one of each subset."""
    least = 2 if form == "sloo_minus_one" else 1
    most = samples - 1 if form == "sloo" else samples
    return range(least, most + 1)
