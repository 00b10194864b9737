"""The table of DPH-RL's divergences: accuracy, what is kept of the base policy, what is newly solved, styles."""

import math

from analysis.frames.frames import Frames
from analysis.paper.printed import published
from analysis.report.cells import cells_frame, row_records
from analysis.report.table import Format, Table, interval_notes, seeds_of
from analysis.scores.retention import BASE, EFFECTIVE, SURVIVES, SURVIVING, retentions

QUESTION = "Which divergence to the base policy keeps what it solved and its styles of answering, at what accuracy?"
NEEDS = "evaluated runs of DPH-RL, with their samples"


def table(frames: Frames) -> Table | None:
    """None without NEEDS."""
    measured = retentions(frames)
    if not measured:
        return None
    records = []
    for setting, strong in dict.fromkeys((r.setting, r.strong) for r in measured if r.label != BASE):
        size = "coefficient of 1 or more" if strong else "coefficients of the paper's size"
        title = ", ".join(filter(None, (size, setting)))
        for retention in (r for r in measured if r.setting == setting and (r.strong == strong or r.label == BASE)):
            label = retention.label if math.isnan(retention.coef) else f"{retention.label} (coef {retention.coef:g})"
            records += row_records(title, label, retention.cells)
    cells = cells_frame(records)
    notes = [
        "Keep rate: of the test problems that the base policy solved in at least one of its samples, the share still "
        "solved; exploration rate: of those it did not, the share now solved.",
        *interval_notes(seeds_of(cells)),
    ]
    if any(SURVIVING in r.cells for r in measured):
        notes.append(
            f"A style survives with at least {SURVIVES:.0%} of the correct responses; the effective number is e^H of "
            "the shares."
        )
    paper = published("dph_rl", 2)
    return Table(
        "alpha",
        "DPH-RL: divergences to the base policy",
        QUESTION,
        cells,
        ("",),
        tuple(notes),
        (paper,),
        formats={SURVIVING: Format(1.0, 1, ""), EFFECTIVE: Format(1.0, 2, "")},
        format=Format(1.0, 3, "", better=0),
    )
