"""Says what ends a response, and warns if of the first responses hardly any ends, or most have no answer."""

import logging
from collections.abc import Mapping, Sequence

from rlvr.records import Rollout
from rlvr.rollout.evaluation import MOST, NO_ANSWER

FEW = 0.05  # share of finished responses below which something is likely to be wrong

log = logging.getLogger("rlvr")


class FirstResponses:
    """Inspects the first responses of a process."""

    def __init__(self, ends: Sequence[str]) -> None:
        """ends: the tokens that end a response."""
        self.ends = " or ".join(ends)
        self._is_checked = self._is_step_checked = False
        log.info("a response ends with %s", self.ends)

    def check_groups(self, groups: Sequence[Rollout], max_tokens: int) -> None:
        """As `check`, for all responses of some groups."""
        finished = [completion.finished for group in groups for completion in group.completions]
        self.check(sum(finished) / len(finished), max_tokens)

    def check_step(self, metrics: Mapping[str, float], max_tokens: int) -> None:
        """As `check`, for a training step, of which the first also warns if most responses have no answer.

        metrics: of the step. The evaluation before it does not suffice: training data may ask in another way.
        """
        if "response/finished" not in metrics:  # a filter may leave nothing to sample
            return
        self.check(metrics["response/finished"], max_tokens)
        if not self._is_step_checked and (share := metrics["reward/unparsable"]) > MOST:
            log.warning("training: %.0f %% of the first responses have %s", 100 * share, NO_ANSWER)
        self._is_step_checked = True

    def check(self, finished: float, max_tokens: int) -> None:
        """Warn if few of the first responses have finished. finished: the share of those that have."""
        if not self._is_checked and finished < FEW and max_tokens > 1:
            log.warning(
                "%.1f %% of the first responses ended, by %s; the others were cut after %d tokens. Does the model end "
                "its answers otherwise, as in turns (model.chat=true), or need more tokens (rollout.max_tokens)? What "
                "it says after an answer is judged, too",
                100 * finished,
                self.ends,
                max_tokens,
            )
        self._is_checked = True
