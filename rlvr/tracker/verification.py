"""Comparing the journal of a run with its MLflow run, row by row.

A row is (metric, step, time in milliseconds, value). Values that are not finite have no row (rlvr/tracker/shipper.py).
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rlvr.ledger.journal import Record

SHOWN = 3  # steps in a message


class Row(NamedTuple):
    """One value in MLflow."""

    metric: str
    step: int
    time_ms: int  # since the epoch
    value: float


def rows_of(record: Record) -> set[Row]:
    """The rows of a line of the journal."""
    time_ms = milliseconds(record.time)
    return {
        Row(metric, record.step, time_ms, value) for metric, value in record.metrics.items() if math.isfinite(value)
    }


def milliseconds(seconds: float) -> int:
    """A time as MLflow stores it."""
    return round(1000 * seconds)


@dataclass(frozen=True)
class Difference:
    """The difference between a journal and its MLflow run; false if they are equal."""

    lacking: frozenset[Row] = frozenset()  # in the journal, but not in MLflow
    foreign: frozenset[Row] = frozenset()  # in MLflow, but not in the journal

    def __bool__(self) -> bool:
        return bool(self.lacking or self.foreign)

    def __str__(self) -> str:
        parts = [
            f"{len(rows)} rows {where} ({_shown(sorted(rows))})"
            for rows, where in ((self.lacking, "are not in MLflow"), (self.foreign, "are only in MLflow"))
            if rows
        ]
        return ", ".join(parts)


def _shown(rows: Sequence[Row]) -> str:
    steps = sorted({row.step for row in rows})
    names = f"step{'s' * (len(steps) > 1)} {', '.join(map(str, steps[:SHOWN]))}{', ...' * (len(steps) > SHOWN)}"
    return f"{names}: {rows[0].metric}={rows[0].value:g}, ..."


def difference(records: Iterable[Record], stored: set[Row], sent: Container[int] | None = None) -> Difference:
    """The difference between the records of a journal, the first of each step, and all rows of its MLflow run.

    sent: the steps that have been sent, so that only they can be lacking; None: all steps.
    """
    in_journal: set[Row] = set()
    expected: set[Row] = set()
    for record in records:
        rows = rows_of(record)
        in_journal |= rows
        if sent is None or record.step in sent:
            expected |= rows
    return Difference(frozenset(expected - stored), frozenset(stored - in_journal))


def arrived(records: Iterable[Record], stored: set[Row]) -> list[Record]:
    """The records that need not be sent to an MLflow run with the rows `stored`.

    Either MLflow has all of their rows, or it has the step from a line that the journal has lost, after which another
    attempt recorded the step again. A record is not returned if MLflow has only some of its rows.
    """
    times: dict[int, set[int]] = {}
    for row in stored:
        times.setdefault(row.step, set()).add(row.time_ms)
    return [
        record
        for record in records
        if (record.step in times and milliseconds(record.time) not in times[record.step]) or rows_of(record) <= stored
    ]
