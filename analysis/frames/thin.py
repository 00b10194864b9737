"""Curves for drawing: of a long run the means over bins of steps, so that 500 runs are drawn as fast as five."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import pyarrow as pa

from rlvr.metrics import EVALUATION, VALIDATION

# The metrics of the page of a large study.
DRAWN = (
    *("reward/accuracy", "reward/mean", "reward/solved_fraction", "policy/entropy", "policy/kl_base"),
    *("optim/grad_norm", "response/length"),
)
KEPT = (*DRAWN, "advantage/abs_mean", "policy/abs_log_ratio", "throughput/gpu_s_per_token")  # and of figures alone
POINTS = 256  # at most, of a curve
_SCHEMA = pa.schema([("name", pa.dictionary(pa.int32(), pa.string())), ("step", pa.int64()), ("value", pa.float32())])


def thinned(journal: pa.Table, names: Collection[str] | None = None) -> pa.Table:
    """name, step and value of training's metrics, of all or of `names`. journal: `step`, ascending, and a column per
    metric.

    A run of more than POINTS steps is cut into bins of 2, 4, 8, … steps: the same for runs of about one length, so that
    seeds can be averaged. `step` is the last one of a bin, `value` the mean of what is finite in it.
    """
    steps = journal["step"].to_numpy() if journal.num_rows else np.zeros(0, np.int64)
    width = bin_width(int(steps[-1])) if len(steps) else 1
    codes, kept, values, drawn = [], [], [], []
    for name in journal.column_names:
        if name == "step" or name.startswith((EVALUATION, VALIDATION)) or (names is not None and name not in names):
            continue
        column = journal[name].to_numpy()
        here = np.isfinite(column) & (steps > 0)
        at, value = steps[here], column[here]
        if width > 1 and len(at):
            bins = (at - 1) // width
            starts = np.concatenate([[0], np.flatnonzero(np.diff(bins)) + 1])
            value = np.add.reduceat(value, starts) / np.diff([*starts, len(bins)])
            at = np.minimum((bins[starts] + 1) * width, steps[-1])
        codes.append(np.full(len(at), len(drawn), np.int32))
        kept.append(at)
        values.append(value.astype(np.float32))
        drawn.append(name)
    if not drawn:
        return _SCHEMA.empty_table()
    name = pa.DictionaryArray.from_arrays(pa.array(np.concatenate(codes)), pa.array(drawn))
    return pa.table([name, pa.array(np.concatenate(kept)), pa.array(np.concatenate(values))], schema=_SCHEMA)


def bin_width(last_step: int) -> int:
    """The smallest power of two that leaves at most POINTS bins."""
    width = 1
    while last_step > POINTS * width:
        width *= 2
    return width
