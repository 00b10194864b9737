"""A report as plain data, for programs: what `python -m analysis --json` prints (docs/analysis.md has the fields)."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from analysis.frames.frames import Frames
from analysis.report.table import Table
from analysis.scores.claim import Verdict
from rlvr.ledger.cause import State


def record(
    frames: Frames, verdicts: Sequence[Verdict], tables: Sequence[Table], notes: Sequence[str], files: Sequence[Path]
) -> dict[str, Any]:
    """One study. Numbers that are not finite become None, which JSON writes as null."""
    content = {
        "title": frames.title,
        "question": frames.question,
        "num_runs": len(frames.runs),
        "states": states(frames),
        "verdicts": [_verdict(verdict) for verdict in verdicts],
        "tables": [_table(table) for table in tables],
        "notes": notes,
        "files": [str(file) for file in files],
    }
    return cast("dict[str, Any]", _finite(content))


def states(frames: Frames) -> dict[str, int]:
    """The number of runs in each state, in the order of `State`."""
    count_of = frames.runs["state"].value_counts()
    return {state.value: int(count_of[state]) for state in State if state in count_of}


def _verdict(verdict: Verdict) -> dict[str, Any]:
    claim = verdict.claim
    fields = ("says", "metric", "arm", "relation", "of", "against", "at", "printed", "source")
    return {
        "outcome": verdict.outcome.value,
        **{name: str(getattr(claim, name)) for name in fields},
        "measured": verdict.measured,
        "basis": verdict.basis,
        "note": verdict.note,
        "setting": verdict.setting,
        "bases": [_verdict(of_base) for of_base in verdict.bases],
        "left_out": verdict.left_out,
        "differences": [
            {
                "estimate": compared.effect,
                "low": compared.judged.simultaneous.low,
                "high": compared.judged.simultaneous.high,
                "num_seeds": len(compared.difference.seeds),
                "num_problems": compared.difference.summary.num_problems,
            }
            for compared in verdict.compared
        ],
    }


def _table(table: Table) -> dict[str, Any]:
    return {
        "name": table.name,
        "title": table.title,
        "question": table.question,
        "notes": table.notes,
        "cells": table.records,
    }


def _finite(value: Any) -> Any:
    """The value with plain numbers; None in place of those that are not finite."""
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in cast("Sequence[Any]", value)]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
