"""Are the journal of a run and its MLflow run the same, row by row?

A row is (metric, step, time in milliseconds, value). Values that are not finite have none (rlvr/tracker/shipper.py).
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rlvr.ledger.journal import Record

SHOWN = 3


class Row(NamedTuple):
    """One value in MLflow."""

    metric: str
    step: int
    time_ms: int  # since the epoch
    value: float


def rows_of(record: Record) -> set[Row]:
    """What a line of the journal is in MLflow."""
    time_ms = milliseconds(record.time)
    return {
        Row(metric, record.step, time_ms, value) for metric, value in record.metrics.items() if math.isfinite(value)
    }


def milliseconds(seconds: float) -> int:
    """MLflow's times."""
    return round(1000 * seconds)


@dataclass(frozen=True)
class Difference:
    """Between a journal and its MLflow run. Empty: they are equal."""

    lacking: frozenset[Row] = frozenset()  # the journal has them, MLflow does not
    foreign: frozenset[Row] = frozenset()  # MLflow has them, the journal does not

    def __bool__(self) -> bool:
        return bool(self.lacking or self.foreign)

    def __str__(self) -> str:
        parts = [
            f"{len(rows)} rows {where} ({_shown(sorted(rows))})"
            for rows, where in ((self.lacking, "are not in MLflow"), (self.foreign, "are in MLflow alone"))
            if rows
        ]
        return ", ".join(parts)


def _shown(rows: Sequence[Row]) -> str:
    steps = sorted({row.step for row in rows})
    names = f"step{'s' * (len(steps) > 1)} {', '.join(map(str, steps[:SHOWN]))}{', ...' * (len(steps) > SHOWN)}"
    return f"{names}: {rows[0].metric}={rows[0].value:g}, ..."


def difference(records: Iterable[Record], stored: set[Row], sent: Container[int] | None = None) -> Difference:
    """records: of the journal, the first of each step. stored: all rows of the MLflow run. sent: the steps that are
    known to have arrived, which alone can be lacking; None: all.
    """
    rows = [(row, sent is None or record.step in sent) for record in records for row in rows_of(record)]
    expected = frozenset(row for row, has_arrived in rows if has_arrived)
    return Difference(expected - stored, frozenset(stored) - {row for row, _ in rows})


def arrived(records: Iterable[Record], stored: set[Row]) -> list[Record]:
    """The lines that need not be sent to an MLflow run with these rows: MLflow has them, or has the step from a line
    that the journal lost and another attempt wrote again. A line of which it has a part is not among them.
    """
    times: dict[int, set[int]] = {}
    for row in stored:
        times.setdefault(row.step, set()).add(row.time_ms)
    return [
        record
        for record in records
        if (record.step in times and milliseconds(record.time) not in times[record.step]) or rows_of(record) <= stored
    ]
