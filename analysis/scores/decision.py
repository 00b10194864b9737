"""How the differences of a claim decide it: what holds, what contradicts it, what would decide it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from analysis.scores.bases import OverBases
from analysis.scores.claim import Claim, Outcome
from analysis.scores.comparison import Compared
from analysis.scores.contrast import Needed, equivalence, equivalent_within, needed
from analysis.scores.crossed import Interval
from analysis.scores.metric import Metric


@dataclass(frozen=True)
class Decision:
    REPEAT, REPEATS = "seed", "seeds"  # over what a difference is a mean

    claim: Claim
    metric: Metric
    level: float

    def _outcome(self, judged: Mapping[str, Compared]) -> Outcome:
        """The claim holds if it holds for every arm by itself (an intersection of claims needs no correction); it is
        contradicted if any arm contradicts it within the family.
        """
        if all(self._holds(compared) for compared in judged.values()):
            return Outcome.HOLDS
        if any(self._contradicts(compared) for compared in judged.values()):
            return Outcome.CONTRADICTED
        return Outcome.UNDECIDED

    def _contradicts(self, compared: Compared) -> bool:
        """Whether this difference is decidedly of the opposite sign or, for an equivalence, beyond the margin."""
        if self.claim.sign:
            return compared.decided and self._is_opposite(compared)
        interval = compared.judged.simultaneous
        return interval.low > self._margin or interval.high < -self._margin

    @property
    def _margin(self) -> float:
        """The margin of an equivalence, as a share if the metric is one."""
        return self.claim.margin / self.metric.scale

    def _is_opposite(self, compared: Compared) -> bool:
        return self.claim.sign * compared.effect < 0

    def _holds(self, compared: Compared) -> bool:
        """Whether the claim holds for this arm: by its sign, or by two one-sided tests within the margin."""
        if self.claim.sign:
            return compared.judged.plain.excludes(0) and not self._is_opposite(compared)
        return equivalence(compared.judged.summary, self._margin) < 1 - self.level

    def _more(self, judged: Mapping[str, Compared]) -> str:
        """The numbers that would decide the claim for every arm, if differences are as measured."""
        undecided = [compared for compared in judged.values() if not self._holds(compared)]
        counts = [self._needed(compared) for compared in undecided]
        now = min(len(compared.difference.seeds) for compared in undecided)
        seeds, problems = [count.seeds for count in counts], [count.problems for count in counts]
        if all(n is not None for n in seeds):
            return self._about(max(n or 0 for n in seeds) - now)
        if all(compared.judged.summary.alike for compared in undecided):
            return f"all {self.REPEATS} agree"
        same = max(self.metric.scale * equivalent_within(c.judged.summary, self.level) for c in undecided)
        more = all(n is not None for n in problems) and all(compared.more_problems for compared in undecided)
        would = f"; {max(n or 0 for n in problems):,} problems would" if more else ""
        within = f"{same:.3g} {self.metric.of_differences}".rstrip()
        return f"no number of {self.REPEATS} alone would decide it{would}; the same within {within}"

    def _about(self, more: int) -> str:
        return f"about {more} more {self.REPEAT if more == 1 else self.REPEATS}"

    def _needed(self, compared: Compared) -> Needed:
        if isinstance(compared.difference, OverBases):
            compared = replace(compared, judged=replace(compared.judged, summary=compared.difference.apart))
        if self._is_opposite(compared):
            return compared.needed  # to contradict the claim, it must be decided within the family
        summary, sampling = compared.judged.summary, compared.difference.sampling
        if self.claim.sign:
            return needed(summary, sampling, alpha=1 - self.level)
        room = self._margin - abs(compared.effect)
        if room < 0:  # by this difference the claim would be contradicted, which is decided within the family
            return needed(summary, sampling, alpha=compared.alpha, effect=-room)
        # TOST at 5 % rejects if a two-sided interval of 90 % lies within the margin; at other levels likewise.
        return needed(summary, sampling, alpha=2 * (1 - self.level), effect=room)

    def _outcome_of_slope(self, slope: float, interval: Interval, *, against: bool) -> Outcome:
        if not interval.excludes(0):
            return Outcome.UNDECIDED
        if self.claim.sign * slope < 0:
            return Outcome.CONTRADICTED
        return Outcome.UNDECIDED if against else Outcome.HOLDS

    def _measured(self, judged: Mapping[str, Compared]) -> str:
        """The difference, or the smallest and the largest of several, with the intervals that decide."""
        ordered = sorted(judged, key=lambda key: judged[key].effect)
        ends = dict.fromkeys([ordered[0], ordered[-1]])
        texts = [self.metric.difference(judged[key].effect, self._interval(judged, key)) for key in ends]
        if len(judged) == 1:
            return texts[0]
        return ", ".join(f"{text} ({key})" for text, key in zip(texts, ends, strict=True))

    def _interval(self, judged: Mapping[str, Compared], key: str) -> Interval:
        difference = judged[key].judged
        return difference.summary.interval(2 * self.level - 1) if self._is_tost(judged) else difference.simultaneous

    def _is_tost(self, judged: Mapping[str, Compared]) -> bool:
        """Whether two one-sided tests decide: at 5 % they need an interval of 90 % within the margin. That a difference
        is beyond the margin is decided by its simultaneous interval, as for other claims."""
        return not self.claim.sign and not any(self._contradicts(compared) for compared in judged.values())
