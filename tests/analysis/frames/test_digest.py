import math

import numpy as np
import pyarrow as pa

from analysis.frames.digest import POINTS, bin_width, thinned


def test_a_short_run_is_drawn_as_it_was_logged_without_step_0_and_evaluations():
    journal = {"step": [0, 1, 2, 3], "a": [9.0, 1.0, math.inf, 3.0], "evaluation/x/avg_at_8": [0.5, None, None, 0.6]}
    rows = thinned(pa.table(journal)).to_pylist()
    assert rows == [{"name": "a", "step": 1, "value": 1.0}, {"name": "a", "step": 3, "value": 3.0}]


def test_a_long_run_is_cut_into_bins_of_a_power_of_two_whose_means_and_last_steps_it_keeps():
    steps = np.arange(1, 2 * POINTS + 2)  # one step too many for bins of two
    assert bin_width(int(steps[-1])) == 4
    rows = thinned(pa.table({"step": steps, "a": steps.astype(float)})).to_pylist()
    assert rows[0] == {"name": "a", "step": 4, "value": (1 + 2 + 3 + 4) / 4}
    assert rows[1] == {"name": "a", "step": 8, "value": (5 + 6 + 7 + 8) / 4}
    assert rows[-1] == {"name": "a", "step": 513, "value": 513.0}  # a bin of one step
    assert len(rows) == 129


def test_a_metric_logged_at_some_steps_is_averaged_over_these():
    steps = np.arange(1, 4 * POINTS + 1)
    sparse = [float(s) if s % 8 == 1 else None for s in steps.tolist()]
    rows = thinned(pa.table({"step": steps, "a": sparse})).to_pylist()
    assert [row["value"] for row in rows[:3]] == [1.0, 9.0, 17.0]
    assert [row["step"] for row in rows[:3]] == [4, 12, 20]
