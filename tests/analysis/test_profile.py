import numpy as np
import pytest

from analysis.figures.profile import figure, tail_mean
from analysis.frames.load import load
from tests.analysis.ledger_factory import counts, write_planned


def test_the_mean_of_the_worst_is_the_integral_of_the_quantiles():
    """Of 1 … 5 the worst quarter is 1 and a quarter of 2: (1 + 0.5)/1.25. Of any numbers, that of the inverse
    distribution function up to the share, here by a sum over a fine grid."""
    assert tail_mean([5, 4, 3, 2, 1], 0.25) == pytest.approx(1.2)
    values = np.random.default_rng(0).normal(size=7)
    levels = (np.arange(100_000) + 0.5) / 100_000 * 0.4
    expected = np.quantile(values, levels, method="inverted_cdf").mean()
    assert tail_mean(values.tolist(), 0.4) == pytest.approx(expected, abs=1e-4)


def test_every_run_has_a_mark_and_diverged_ones_stand_at_0(tmp_path):
    right = {"grpo": (4, 5, 3), "pacs": (6, 7, 2)}
    runs = {
        f"loss={loss} seed={seed}": {0: {"maze7": counts(1)}, 40: {"maze7": counts(c)}}
        for loss, of in right.items()
        for seed, c in enumerate(of)
    }
    write_planned(tmp_path, runs, lost=["loss=pacs seed=2"])
    drawn = figure(load(tmp_path))
    assert drawn is not None
    lines = [[list(line.get_xdata()), list(np.round(line.get_ydata(), 1))] for line in drawn.axes[0].lines]
    assert lines[1::2] == [[[62.5, 50, 37.5], [33.3, 66.7, 100]], [[87.5, 75, 0], [33.3, 66.7, 100]]]
    assert lines[::2] == [[[37.5], [0]], [[0], [0]]]  # of three runs the worst quarter is a part of the worst run


def test_two_runs_are_no_profile(tmp_path):
    write_planned(tmp_path, {f"loss=grpo seed={s}": {40: {"maze7": counts(4)}} for s in (0, 1)})
    assert figure(load(tmp_path)) is None


def test_the_reference_is_black_as_on_the_page(tmp_path):
    runs = {f"loss=rloo lr={lr} seed={s}": {40: {"maze7": counts(4)}} for lr in ("1e-4", "2e-4") for s in range(3)}
    write_planned(tmp_path, runs, baseline="lr=2e-4")
    drawn = figure(load(tmp_path))
    assert drawn is not None
    (legend,) = drawn.legends
    colours = {t.get_text(): line.get_color() for t, line in zip(legend.get_texts(), legend.get_lines(), strict=True)}
    assert colours["lr=2e-4"] == "#000000"
    assert colours["lr=1e-4"] != "#000000"
