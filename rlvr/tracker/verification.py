"""Comparing the journal of a run with its MLflow run, row by row.

A row is (metric, step, time in milliseconds, value). Values that are not finite have no row (rlvr/tracker/shipper.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rlvr.ledger.journal import Record

SHOWN = 3  # steps in a message


class StoredRow(NamedTuple):
    """One value in MLflow."""

    metric: str
    step: int
    time_ms: int  # since the epoch
    value: float


def rows_of(record: Record) -> set[StoredRow]:
    """The rows of a line of the journal."""
    time_ms = milliseconds(record.time)
    return {
        StoredRow(metric, record.step, time_ms, value)
        for metric, value in record.metrics.items()
        if math.isfinite(value)
    }


def milliseconds(seconds: float) -> int:
    """A time as MLflow stores it."""
    return round(1000 * seconds)


@dataclass(frozen=True)
class RowDifference:
    """The difference between a journal and its MLflow run; false if they are equal."""

    lacking: frozenset[StoredRow] = frozenset()  # in the journal, but not in MLflow
    foreign: frozenset[StoredRow] = frozenset()  # in MLflow, but not in the journal

    def __bool__(self) -> bool:
        return bool(self.lacking or self.foreign)

    def __str__(self) -> str:
        parts = [
            f"{len(rows)} rows {where} ({_shown(sorted(rows))})"
            for rows, where in ((self.lacking, "are not in MLflow"), (self.foreign, "are only in MLflow"))
            if rows
        ]
        return ", ".join(parts)


def _shown(rows: Sequence[StoredRow]) -> str:
    steps = sorted({row.step for row in rows})
    names = f"step{'s' * (len(steps) > 1)} {', '.join(map(str, steps[:SHOWN]))}{', ...' * (len(steps) > SHOWN)}"
    return f"{names}: {rows[0].metric}={rows[0].value:g}, ..."


def difference(records: Sequence[Record], stored: set[StoredRow], sent: int) -> RowDifference:
    """The difference between the records of a journal, the first of each step, and all rows of its MLflow run.

    sent: number of records that have been sent, so that only the rows of these can be lacking.
    """
    rows = [rows_of(record) for record in records]
    return RowDifference(frozenset(set().union(*rows[:sent]) - stored), frozenset(stored - set().union(*rows)))
