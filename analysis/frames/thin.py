"""Curves for drawing. Of a long run they are means over bins of steps, so that 500 runs are drawn as fast as five."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import pyarrow as pa

from rlvr.metrics import EVALUATION, VALIDATION

# The metrics on the page of a large study.
DRAWN = (
    *("reward/accuracy", "reward/mean", "reward/solved_fraction", "policy/entropy", "policy/kl_base"),
    *("optim/grad_norm", "response/length"),
)
# And those of figures.
CACHED_METRICS = (*DRAWN, "advantage/abs_mean", "policy/abs_log_ratio", "throughput/gpu_s_per_token")
POINTS = 256  # of a curve, at most
_SCHEMA = pa.schema([("name", pa.dictionary(pa.int32(), pa.string())), ("step", pa.int64()), ("value", pa.float32())])


def thinned(journal: pa.Table, names: Collection[str] | None = None) -> pa.Table:
    """name, step and value of the metrics of training, of all or of `names`.

    journal: `step`, ascending, and a column per metric. A run of more than POINTS steps is cut into bins of 2, 4, 8, …
    steps. Runs of about one length have the same width, so that seeds can be averaged. `step` is the last step of a
    bin, `value` the mean of its finite values.
    """
    steps = journal["step"].to_numpy() if journal.num_rows else np.zeros(0, np.int64)
    width = bin_width(int(steps[-1])) if len(steps) else 1
    codes, kept_steps, values, drawn = [], [], [], []
    for name in journal.column_names:
        if name == "step" or name.startswith((EVALUATION, VALIDATION)) or (names is not None and name not in names):
            continue
        column = journal[name].to_numpy()
        usable = np.isfinite(column) & (steps > 0)
        step, value = steps[usable], column[usable]
        if width > 1 and len(step):
            bins = (step - 1) // width
            starts = np.concatenate([[0], np.flatnonzero(np.diff(bins)) + 1])
            value = np.add.reduceat(value, starts) / np.diff([*starts, len(bins)])
            step = np.minimum((bins[starts] + 1) * width, steps[-1])
        codes.append(np.full(len(step), len(drawn), np.int32))
        kept_steps.append(step)
        values.append(value.astype(np.float32))
        drawn.append(name)
    if not drawn:
        return _SCHEMA.empty_table()
    name = pa.DictionaryArray.from_arrays(pa.array(np.concatenate(codes)), pa.array(drawn))
    return pa.table([name, pa.array(np.concatenate(kept_steps)), pa.array(np.concatenate(values))], schema=_SCHEMA)


def bin_width(last_step: int) -> int:
    """The smallest power of two that leaves at most POINTS bins."""
    width = 1
    while last_step > POINTS * width:
        width *= 2
    return width
