"""Saturating curves through the scores of the arms: where they tend to, and where they would be at twice the steps."""

import math
from typing import Any

from analysis.frames.frames import Frames
from analysis.report.cells import cells_frame, record
from analysis.report.table import Format, Table, format_of
from analysis.scores.arm import Arm
from analysis.scores.cell import Cell
from analysis.scores.comparable import Comparable
from analysis.scores.crossed import Interval
from analysis.scores.metric import Metric
from analysis.scores.saturation import LEAST_EVALUATIONS, saturation_of
from analysis.scores.selection import ordered
from analysis.scores.trajectory import settings_with_curves
from rlvr.ledger.cause import State

QUESTION = "Where does training tend to, and is it worth twice the steps?"
NEEDS = f"an arm of one setting with {LEAST_EVALUATIONS} evaluations on problems during training"
ASKED = True
HALF, RATE = "half of the gain at step", "rate"
NOTES = (
    "y(t) = base + (asymptote − base)/(1 + (half/t)^rate), by least squares (ScaleRL, arXiv:2510.13786, Eq. 1). 95 % "
    "intervals by a bootstrap over seeds, widened for their number; in the figure the band is simultaneous over the "
    "steps. They hold for these problems, and if the curve has this form: what lies beyond the last evaluation was not "
    "measured.",
)


def table(frames: Frames) -> Table | None:
    """None without NEEDS."""
    settings = settings_with_curves(frames, LEAST_EVALUATIONS)
    records = [
        cell
        for setting in settings
        for arm in ordered(setting.arms, frames.swept)
        for metric in setting.shown
        for cell in _cells(frames, setting, arm, metric)
    ]
    if not records:
        return None
    shown = tuple(dict.fromkeys(str(cell["metric"]) for cell in records))
    formats = {str(metric): format_of(metric) for setting in settings for metric in setting.shown}
    formats |= {HALF: Format(1.0, 0, "", 0), RATE: Format(1.0, 2, "", 0)}
    return Table("saturation", "Saturation", QUESTION, cells_frame(records), shown, NOTES, formats=formats)


def _cells(frames: Frames, setting: Comparable, arm: Arm, metric: Metric) -> list[dict[str, Any]]:
    fit, planned = saturation_of(frames, arm, metric, setting.sources), len(arm.runs)
    diverged = sum(run.state == State.DIVERGED for run in arm.runs)
    if isinstance(fit, str):
        shown = Cell(planned=planned, diverged=diverged, state=fit)
        return [record(setting.name, arm.label, (str(metric), "asymptote"), shown)]
    unknown = Interval(math.nan, math.nan)
    numbers = {
        "asymptote": (fit.asymptote, fit.of_asymptote),
        "at twice the steps": (float(fit.mean[-1]), fit.of_twice),
        HALF: (fit.half, unknown),
        RATE: (fit.rate, unknown),
    }
    state = "ok" if fit.seeds == planned else "partial"
    return [
        record(
            setting.name, arm.label, (str(metric), column), Cell(mean, planned=planned, diverged=diverged, state=state)
        )
        | {"seeds": fit.seeds, "low": ends.low, "high": ends.high}
        for column, (mean, ends) in numbers.items()
    ]
