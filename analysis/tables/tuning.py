"""The table of what each arm's tuning measured on the validation split, value by value."""

import numpy as np

from analysis.frames.frames import Frames
from analysis.report.cells import cells_frame, record
from analysis.report.table import Table, format_of, interval_notes
from analysis.scores.cell import Cell
from analysis.scores.contrast import Scores
from analysis.scores.tuning import Tried, judge, tuned, tuning_runs

QUESTION = "Which value did each arm's tuning pick, and what did the others score?"
NEEDS = "arms that were tuned (tune=) and measured"


def table(frames: Frames) -> Table | None:
    """None without NEEDS."""
    tunings, metric = tuned(frames), judge(tuning_runs(frames))
    if not tunings or metric is None:
        return None
    column = (str(metric), "validation")
    records = [
        record(tuning.arm, f"{tried.value}{' (picked)' if tried.picked else ''}", column, _cell(tried))
        for tuning in tunings
        for tried in tuning.values
    ]
    edges = [
        f"{tuning.arm}: the best {knob} is at the edge of what was tried." for tuning in tunings for knob in tuning.edge
    ]
    seeds = {len(tried.scores) for tuning in tunings for tried in tuning.values}
    notes = (
        "Scores on the validation split at the last evaluation, under seeds that no reported run has. Bold: the best "
        "value, with which the arm goes on.",
        *edges,
        *interval_notes(seeds, on_problems=False),
    )
    formats = {str(metric): format_of(metric)}
    return Table("tuning", "Tuning", QUESTION, cells_frame(records), (str(metric),), notes, formats=formats)


def _cell(tried: Tried) -> Cell:
    """A cell of one number per run; empty unless all runs have one."""
    planned = len(tried.scores)
    if not np.isfinite(tried.scores).all():
        return Cell(planned=planned, state="not evaluated")
    return Cell.of(Scores.of_runs(range(planned), tried.scores), planned)
