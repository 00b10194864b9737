"""The effects of crossed knobs: on average over each other, and where one depends on another."""

from typing import Any

from analysis.frames.frames import Frames
from analysis.report.cells import cells_frame, record
from analysis.report.table import Format, Table, format_of
from analysis.scores.cell import Cell, cell
from analysis.scores.comparable import Comparable, by_setting
from analysis.scores.comparison import study_level
from analysis.scores.factors import Crossing, Share, compared_effects, crossings, shares
from analysis.scores.metric import Metric

QUESTION = "What does each swept knob change on average over the others, and does it depend on them?"
NEEDS = "arms of every combination of the values of two knobs, evaluated on problems"


def table(frames: Frames) -> Table | None:
    """None without NEEDS."""
    records: list[dict[str, Any]] = []
    formats: dict[str, Format] = {}
    of_variance: list[str] = []
    for setting in by_setting(frames):
        for crossing in crossings(setting.arms, frames.swept, frames.baseline):
            for metric in setting.shown:
                formats[str(metric)] = format_of(metric)
                cells = {levels: cell(frames, arm, metric, setting.sources) for levels, arm in crossing.arms.items()}
                records += _records(frames, setting, crossing, metric, cells)
                parts = [_share(share) for share in shares(crossing, cells, study_level(frames))]
                title = f"{setting.titled(crossing.title)}, {metric}"
                of_variance += [f"{title}: {'; '.join(parts)}."] if parts else []
    if not records:
        return None
    cells = cells_frame(records)
    several = (cells["paired_seeds"] > 1).any()
    notes = [
        "A row with one knob: the mean over all values of the other knobs, less that at the knob's reference value. "
        "With two (×): how much the second value changes the effect of the first (the difference of two differences). "
        f"Differences are paired by seed and problem; intervals of {100 * study_level(frames):.4g} % are simultaneous "
        "over all rows of a metric (max-|t|), the spread between seeds pooled over all arms.",
        *([] if several else ["One seed: effects hold for these runs, not yet for their arms."]),
        *(f"Some effects are shown and not decided: {reason}." for reason in sorted({*cells["unfair"]} - {""})),
        *(["Share of the variance between runs that is not of seeds (partial ω²):"] if of_variance else []),
        *of_variance,
    ]
    names = tuple(formats)
    return Table(
        "factors", "Factors", QUESTION, cells, names, tuple(notes), (), formats, differences=True, scores=False
    )


def _records(
    frames: Frames, setting: Comparable, crossing: Crossing, metric: Metric, cells: dict[tuple[str, ...], Cell]
) -> list[dict[str, Any]]:
    (rows, reference), compared = crossing.named(), compared_effects(crossing, cells, study_level(frames))
    planned = max(of_arm.planned for of_arm in cells.values())
    title = setting.titled(crossing.title)
    return [
        record(title, row, (str(metric), ""), Cell(planned=planned, state="ok"), judged, reference)
        for row, judged in zip(rows, compared, strict=bool(compared))
    ]


def _share(share: Share) -> str:
    """`eta × lr 12 % [0, 40], F(2, 8) = 3.2`."""
    low, high = (f"{100 * end:.0f}" for end in (share.interval.low, share.interval.high))
    df = ", ".join(map(str, share.df))
    return f"{' × '.join(share.knobs)} {100 * share.share:.0f} % [{low}, {high}], F({df}) = {share.f:.3g}"
