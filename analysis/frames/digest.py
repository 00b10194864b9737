"""What is derived from a run's journal. Its digest, the few numbers that tables read: what each evaluation logged, and
means and sums of training up to it. And its curves, thinned for drawing: of a long run they are means over bins of
steps, so that 500 runs are drawn as fast as five."""

import math
from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import cached_property

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from rlvr.metrics import EVALUATION, VALIDATION

Array = NDArray[np.float64]

TAIL = 0.1  # share of the steps up to an evaluation over which a metric of training is averaged
SUMMED = ("time/", "tokens/")  # metrics whose sum over steps is meaningful


class What(StrEnum):
    """The kind of a value in a digest."""

    LOGGED = "logged"  # at this step, by an evaluation
    MEAN = "mean"  # over the last tenth of the steps up to this one
    SUM = "sum"  # over all steps up to this one


def digest_of(journal: pa.Table) -> pa.Table:
    """what, name, step, value of a journal: the metrics at every evaluation and at the last step.

    journal: `step`, ascending, and a column per metric (null: not logged). A metric that was not logged up to a step
    has no row there, except for the means at the last step: they list the metrics that the run logged at all.
    """
    steps = journal["step"].to_numpy() if journal.num_rows else np.zeros(0, np.int64)
    values = {n: journal[n].to_numpy() for n in journal.column_names if n != "step"}
    evaluated = np.zeros(len(steps), bool)
    for name in (n for n in values if n.startswith((EVALUATION, VALIDATION))):
        evaluated |= journal[name].is_valid().to_numpy()
    points = sorted({*steps[evaluated].tolist(), *steps[-1:].tolist()})
    measured = {n: column for n, column in values.items() if n.startswith((EVALUATION, VALIDATION))}
    rows = [
        (What.LOGGED.value, name, step, value)
        for name, column in measured.items()
        for step, value in zip(steps.tolist(), column.tolist(), strict=True)
        if not math.isnan(value)
    ]
    rows += _of_training({n: column for n, column in values.items() if n not in measured}, steps, points)
    what, names, at, value = zip(*rows, strict=True) if rows else ((), (), (), ())
    return pa.table(
        {
            "what": pa.array(what, pa.string()).dictionary_encode(),
            "name": pa.array(names, pa.string()).dictionary_encode(),
            "step": pa.array(at, pa.int64()),
            "value": pa.array(value, pa.float64()),
        }
    )


def _of_training(
    columns: Mapping[str, Array], steps: NDArray[np.int64], points: Iterable[int]
) -> list[tuple[str, str, int, float]]:
    if not columns:
        return []
    names, table = list(columns), np.stack(list(columns.values()), 1)  # [steps, metrics]
    logged = ~np.isnan(table)
    known = np.where(logged, table, 0.0)
    rows: list[tuple[str, str, int, float]] = []
    for point in points:
        until = np.searchsorted(steps, point, side="right")
        tail = slice(np.searchsorted(steps, point * (1 - TAIL), side="right"), until)
        count, total, everything = logged[tail].sum(0), known[tail].sum(0), known[:until].sum(0)
        for name, n, of_tail, of_all in zip(names, count.tolist(), total.tolist(), everything.tolist(), strict=True):
            if n or point == steps[-1]:
                rows.append((What.MEAN.value, name, point, of_tail / n if n else float("nan")))
            if name.startswith(SUMMED):
                rows.append((What.SUM.value, name, point, of_all))
    return rows


class Digest:
    """The digests of several runs. frame: run_id and the columns of `digest_of`."""

    def __init__(self, frame: pd.DataFrame) -> None:
        self._frame = frame
        self._values: dict[tuple[What, str], dict[tuple[str, int], float]] = {}

    @cached_property
    def _of_runs(self) -> Mapping[str, tuple[list[str], list[int], int]]:
        """By run: the metrics that it logged, the steps at which it was evaluated, its last step."""
        frame = self._frame
        names = frame[["run_id", "name"]].drop_duplicates().groupby("run_id", observed=True)["name"].agg(list).to_dict()
        logged = frame.loc[frame["what"] == What.LOGGED.value, ["run_id", "step"]].drop_duplicates()
        steps = logged.groupby("run_id", observed=True)["step"].agg(sorted).to_dict()
        last = frame.groupby("run_id", observed=True)["step"].max()
        return {str(i): (names[i], steps.get(i, []), int(step)) for i, step in last.to_dict().items()}

    def names(self, run_id: str) -> list[str]:
        """The metrics that a run logged."""
        return self._of_runs.get(run_id, ([], [], 0))[0]

    def steps(self, run_id: str) -> list[int]:
        """The steps at which a run was evaluated, ascending."""
        return self._of_runs.get(run_id, ([], [], 0))[1]

    def last(self, run_id: str) -> int:
        """The last step that a run logged; 0 if it logged none."""
        return self._of_runs.get(run_id, ([], [], 0))[2]

    def logged(self, run_id: str, name: str, step: int) -> float:
        """The value of a metric that an evaluation logged at a step; NaN if there is none."""
        return self._of(What.LOGGED, name).get((run_id, step), float("nan"))

    def mean(self, run_id: str, name: str, step: int) -> float:
        """Mean of a metric of training over the last tenth of the steps up to `step`; NaN if nothing was logged.

        step: an evaluation's, or the run's last.
        """
        return self._of(What.MEAN, name).get((run_id, step), float("nan"))

    def sum(self, run_id: str, name: str, step: int) -> float:
        """Sum of a time or a number of tokens over all steps up to `step`, which is an evaluation's, or the run's last;
        NaN if nothing was logged."""
        return self._of(What.SUM, name).get((run_id, step), float("nan"))

    def _of(self, what: What, name: str) -> dict[tuple[str, int], float]:
        if (what, name) not in self._values:
            part = self._frame[(self._frame["name"] == name) & (self._frame["what"] == what.value)]
            keys = zip(part["run_id"].astype(str), part["step"].tolist(), strict=True)
            self._values[what, name] = dict(zip(keys, part["value"].tolist(), strict=True))
        return self._values[what, name]


# --- curves


# The metrics on the page of a large study.
DRAWN = (
    *("reward/accuracy", "reward/mean", "reward/solved_fraction", "policy/entropy", "policy/kl_base"),
    *("optim/grad_norm", "response/length"),
)
# And those of figures.
USUAL_METRICS = (*DRAWN, "advantage/abs_mean", "policy/abs_log_ratio", "throughput/gpu_s_per_token")
POINTS = 256  # of a curve, at most
_SCHEMA = pa.schema([("name", pa.dictionary(pa.int32(), pa.string())), ("step", pa.int64()), ("value", pa.float32())])


def thinned(journal: pa.Table) -> pa.Table:
    """name, step and value of the metrics of training.

    journal: `step`, ascending, and a column per metric. A run of more than POINTS steps is cut into bins of 2, 4, 8, …
    steps. Runs of about one length have the same width, so that seeds can be averaged. `step` is the last step of a
    bin, `value` the mean of its finite values.
    """
    steps = journal["step"].to_numpy() if journal.num_rows else np.zeros(0, np.int64)
    width = bin_width(int(steps[-1])) if len(steps) else 1
    codes, kept_steps, values, drawn = [], [], [], []
    for name in journal.column_names:
        if name == "step" or name.startswith((EVALUATION, VALIDATION)):
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
