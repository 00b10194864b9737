"""The lengths of responses that an estimate assumes: exponential, cut at the longest. No torch."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

HALVINGS = 60  # of an interval in which a root is searched: to the precision of a float
ALL_CUT = 1e-6  # share of the responses that end by themselves, below which all have the same length


@dataclass(frozen=True)
class Lengths:
    """Lengths min(X, longest), in tokens, with an exponential X such that their mean is `mean`."""

    mean: float
    longest: float

    @functools.cached_property
    def ended(self) -> float:
        """Share of the responses that end before `longest`: s = 1 − e^(−longest/scale), where scale = mean/s."""
        low, high = 0.0, 1.0
        for _ in range(HALVINGS):
            share = (low + high) / 2
            low, high = (share, high) if -math.expm1(-share * self.longest / self.mean) > share else (low, share)
        return low

    @property
    def position(self) -> float:
        """Mean number of tokens before a token of a response, E[l²] / 2E[l]: most tokens belong to long responses."""
        if self.ended < ALL_CUT:
            return self.mean / 2
        return (self.mean - self.longest * (1 - self.ended)) / self.ended

    def largest(self, responses: float) -> float:
        """About the expected length of the longest of so many responses."""
        if self.ended < ALL_CUT:
            return max(self.mean, self.longest)
        return min(self.longest, self.mean / self.ended * (1 + math.log(max(1.0, responses))))
