"""What each arm's tuning measured on the validation split, value by value."""

from __future__ import annotations

import numpy as np

from analysis.frames.frames import Frames
from analysis.report.layout import frame, record
from analysis.report.table import Table, format_of, interval_notes
from analysis.scores.cell import Cell
from analysis.scores.contrast import Scores
from analysis.scores.tuning import Tried, judge, tuned, tuning_runs

QUESTION = "Which value did each arm's tuning pick, and what did the others score?"


def table(frames: Frames) -> Table | None:
    """None where nothing was tuned, or nothing is measured yet."""
    found, metric = tuned(frames), judge(tuning_runs(frames))
    if not found or metric is None:
        return None
    records = [
        record(
            one.arm, f"{tried.value}{' (picked)' if tried.picked else ''}", (str(metric), "validation"), _cell(tried)
        )
        for one in found
        for tried in one.values
    ]
    edges = [f"{one.arm}: the best {knob} is at the edge of what was tried." for one in found for knob in one.edge]
    seeds = max(len(tried.scores) for one in found for tried in one.values)
    notes = (
        "Of the validation split, at the last evaluation, under seeds that no reported run has. Bold: the best, which "
        "the arm goes on with.",
        *edges,
        *(interval_notes(seeds) if seeds > 1 else ()),
    )
    formats = {str(metric): format_of(metric)}
    return Table("tuning", "Tuning", QUESTION, frame(records), (str(metric),), notes, formats=formats)


def _cell(tried: Tried) -> Cell:
    """One number per run."""
    known = np.array([score for score in tried.scores if np.isfinite(score)])
    planned = len(tried.scores)
    if len(known) < planned:
        return Cell(planned=planned, state="not evaluated")
    scores = Scores(tuple(range(planned)), ("",), known[:, None])
    return Cell(float(known.mean()), scores, planned, state="ok")
