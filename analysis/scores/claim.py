"""Claims: what a study expects of its arms, under the key `claims` of its YAML file; verdict.py judges them.

This module imports little, because a launch checks claims too. The fields of a claim:

says       the claim in a sentence; "Control: ..." where it follows from the mathematics and tests the study
metric     avg, pass@8, entropy, ... as in --metrics
arm        which arms: their knobs, as in `loss=lad divergence=js,hd`
of         each (default): it must hold for every one of them; mean: for their mean
relation   > | < | ~ MARGIN | rises with KNOB | falls with KNOB; a margin in the units of the table (points)
against    the arm, or arms (with `of: mean`), that they are compared to; default: the study's baseline, else GRPO
at         last (default) | equal accuracy | equal tokens | equal GPU-seconds
printed    what a paper printed, word for word
source     where it is printed: paper, table, line
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from analysis.scores.comparison import Compared


CLAIMS = "claims"  # instead of a metric: the study's claims are to be decided


class Where(StrEnum):
    """At which point of training arms are compared."""

    LAST = "last"  # each at its own last evaluation
    ACCURACY = "equal accuracy"  # at the highest avg@n that every run of both arms reached
    TOKENS = "equal tokens"  # at the number of sampled tokens that every run of both arms has used
    SECONDS = "equal device-seconds"  # at the training time, times devices, that every run of both arms has used


class Outcome(StrEnum):
    HOLDS = "holds"
    CONTRADICTED = "contradicted"
    UNDECIDED = "undecided"
    NOT_TESTED = "not tested"
    # Outcomes of findings that are no claims (findings.py):
    ABOVE = "above"
    BELOW = "below"
    WARNING = "warning"


class Origin(StrEnum):
    """Who makes a claim."""

    PAPER = "paper"  # the claim has a source
    CONTROL = "control"
    OWN = "own"


OF_CLAIMS = (Outcome.HOLDS, Outcome.CONTRADICTED, Outcome.UNDECIDED, Outcome.NOT_TESTED)


@dataclass(frozen=True)
class Claim:
    """A claim, with the fields that the module's docstring lists."""

    says: str
    metric: str
    arm: str
    relation: str
    of: str = "each"
    against: str = ""
    at: Where = Where.LAST
    printed: str = ""
    source: str = ""

    @property
    def origin(self) -> Origin:
        if self.says.startswith("Control:"):
            return Origin.CONTROL
        return Origin.PAPER if self.source else Origin.OWN

    @property
    def margin(self) -> float:
        """The margin of `~ MARGIN`; NaN for any other relation."""
        match = re.fullmatch(r"~\s*(\d+\.?\d*|\.\d+)", self.relation)
        return float(match[1]) if match else math.nan

    @property
    def knob(self) -> str:
        """The knob of `rises with KNOB` and `falls with KNOB`; "" for any other relation."""
        match = re.fullmatch(r"(?:rises|falls) with (\S+)", self.relation)
        return match[1] if match else ""

    @property
    def sign(self) -> int:
        """1 for > and rises, −1 for < and falls, 0 for ~."""
        if self.relation.startswith("~"):
            return 0
        return 1 if self.relation.startswith((">", "rises")) else -1


@dataclass(frozen=True)
class Verdict:
    """The outcome of a claim, with its reasons in words.

    measured: the measured difference. basis: seeds, problems and level on which the outcome rests. note: what would
    decide the claim, or why it was not tested. setting: the name of the setting in which the claim was judged; "" for
    the only one. margin: of an equivalence, as a share if the metric is one; None for any other claim. bases: of a
    verdict over several base policies, that in each of them. left_out: other base policies, and why, in words.
    """

    claim: Claim
    outcome: Outcome
    measured: str = ""
    basis: str = ""
    note: str = ""
    groups: tuple[str, ...] = ()  # of the arms that take part, by group id
    compared: tuple[Compared, ...] = ()  # the differences on which the outcome rests; none for a trend
    setting: str = ""
    margin: float | None = None
    bases: tuple[Verdict, ...] = ()
    left_out: tuple[str, ...] = ()

    @property
    def extent(self) -> str:
        """` over 3 base policies`; "" where there is one."""
        return f" over {len(self.bases)} base policies" if self.bases else ""

    @property
    def rows(self) -> list[str]:
        """The verdict in each base policy, a line each, named by what differs from the setting of all."""
        shared, texts = self.setting.split(", "), list[str]()
        for verdict in self.bases:
            name = ", ".join(word for word in verdict.setting.split(", ") if word not in shared)
            why = verdict.note and f" ({verdict.note})"
            found = (
                f"{verdict.measured}, {verdict.outcome}{why}" if verdict.measured else verdict.note or verdict.outcome
            )
            texts.append(f"{name}: {found}")
        return [*texts, *self.left_out]


def read(content: Any) -> Claim:
    """The claim in a mapping of its fields. Raises ValueError with the wrong field and what is allowed."""
    if not isinstance(content, Mapping):
        raise ValueError(f"a claim is fields and their values, as in `metric: avg`; got {content!r}.")
    text = {str(key): str(value) for key, value in content.items() if value is not None}  # `source:` is none
    known = [f.name for f in fields(Claim)]
    if unknown := [key for key in text if key not in known]:
        raise ValueError(f"a claim has no field {', '.join(unknown)}. Fields: {', '.join(known)}.")
    if absent := [key for key in ("says", "metric", "arm", "relation") if not text.get(key)]:
        raise ValueError(f"the claim {text.get('says', text)!r} lacks {', '.join(absent)}")
    where = text.pop("at", Where.LAST.value)
    if where not in list(Where):
        raise ValueError(f"at: {where}: claims are made at {', '.join(Where)}.")
    claim = Claim(**text, at=Where(where))  # pyright: ignore[reportArgumentType] - `at` was popped
    if claim.relation not in (">", "<") and math.isnan(claim.margin) and not claim.knob:
        raise ValueError(
            f"relation: {claim.relation}: a relation is >, <, ~ MARGIN, rises with KNOB or falls with KNOB."
        )
    if claim.relation.startswith("~") and claim.margin == 0:
        raise ValueError(
            f"relation: {claim.relation}: no number of seeds shows that two arms are the same within 0. Name a margin "
            "above 0, in the units of the table."
        )
    if "," in claim.metric:
        raise ValueError(f"metric: {claim.metric}: a claim is of one metric.")
    if claim.of not in ("each", "mean"):
        raise ValueError(f"of: {claim.of}: a claim is of each arm or of their mean.")
    return claim
