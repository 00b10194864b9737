"""Saturating curves: known parameters, scipy's least squares, and the coverage of what is said of them."""

from pathlib import Path

import numpy as np
import pytest
from scipy import optimize, stats

from analysis.figures.saturation import figure
from analysis.frames.load import load
from analysis.report.report import build
from analysis.scores.saturation import Saturation, saturation
from tests.analysis.ledger_factory import counts, write_planned

STEPS = np.linspace(0, 160, 9)


def sigmoid(steps: np.ndarray, base: float, end: np.ndarray, half: np.ndarray, rate: float) -> np.ndarray:
    return base + (end - base) * steps**rate / (steps**rate + half**rate)


def test_the_parameters_of_a_curve_without_noise_are_found() -> None:
    """Three seeds that end at 69, 70 and 71 %; the grid has neighbours 4 % apart in `half`, 7 % in `rate`."""
    for half, rate in ((40.0, 1.5), (20.0, 3.0), (90.0, 2.0)):
        scores = sigmoid(STEPS, 0.2, np.array([[0.69], [0.7], [0.71]]), np.array(half), rate)
        fit = saturation(STEPS, scores, (0, 1))
        assert isinstance(fit, Saturation)
        assert (fit.base, fit.asymptote) == (pytest.approx(0.2, abs=0.005), pytest.approx(0.7, abs=0.015))
        assert (fit.half, fit.rate) == (pytest.approx(half, rel=0.1), pytest.approx(rate, rel=0.12))
        # A t interval of three seeds 1 point apart: 4.30·1/√3 points; at twice the steps likewise, of what is gained.
        assert fit.of_asymptote.half == pytest.approx(stats.t.ppf(0.975, 2) * 0.01 / 3**0.5, rel=0.1)
        ahead = sigmoid(np.array(320.0), 0.2, np.array(0.7), np.array(half), rate)
        assert fit.of_twice.low < ahead < fit.of_twice.high
        assert fit.mean[-1] == pytest.approx(ahead, abs=0.01)


def test_the_curve_is_that_of_least_squares() -> None:
    """Scipy's optimiser, begun at the true parameters, is nearer to the means by 0.1 points at most (the grid)."""
    rng = np.random.default_rng(1)
    for _ in range(3):
        scores = sigmoid(STEPS, 0.2, np.array([[0.7]]), np.array(40.0), 1.5) + rng.normal(0, 0.01, (5, 9))
        mean = scores.mean(0)
        best = optimize.least_squares(
            lambda p, mean=mean: sigmoid(STEPS, p[0], p[1], np.exp(p[2]), np.exp(p[3])) - mean,
            [0.2, 0.7, np.log(40.0), np.log(1.5)],
        )
        fit = saturation(STEPS, scores)
        assert isinstance(fit, Saturation)
        residual = sigmoid(STEPS, fit.base, np.array(fit.asymptote), np.array(fit.half), fit.rate) - mean
        assert np.sqrt((residual**2).mean()) <= np.sqrt(2 * best.cost / len(STEPS)) + 0.001
        assert fit.asymptote == pytest.approx(best.x[1], abs=0.01)


def test_what_the_scores_do_not_show_is_not_fitted() -> None:
    bent = sigmoid(STEPS, 0.2, np.array([[0.69], [0.7], [0.71]]), np.array(40.0), 1.5)
    assert saturation(STEPS, bent[:2]) == "2 of at least 3 seeds"
    assert saturation(STEPS[:4], bent[:, :4]) == "4 of at least 5 evaluations"
    assert saturation(STEPS, np.where(STEPS == 40, np.nan, bent)) == "an evaluation without a score"
    assert saturation(STEPS, np.tile(bent[:1], (3, 1))) == "all seeds have the same scores"
    falls = np.interp(STEPS, [0, 40, 160], [0.6, 0.73, 0.64]) + np.random.default_rng(0).normal(0, 0.005, (5, 9))
    assert saturation(STEPS, falls, (0, 1)) == "its evaluations do not follow such a curve"
    line = 0.2 + 0.002 * STEPS + np.array([[-0.01], [0.0], [0.01]])
    assert str(saturation(STEPS, line, (0, 1))).startswith("it has not bent: ")
    flat = 0.4 + np.random.default_rng(0).normal(0, 0.02, (3, 9))
    assert str(saturation(STEPS, flat, (0, 1))).startswith("it has not bent: ")


@pytest.mark.slow
@pytest.mark.parametrize(("seeds", "end_sd", "half_sd", "noise"), [(3, 0.03, 0.2, 0.01), (5, 0, 0, 0.02)])
def test_band_asymptote_and_forecast_cover_what_they_say(
    seeds: int, end_sd: float, half_sd: float, noise: float
) -> None:
    """Seeds differ in asymptote and in speed, or only by noise. The truth is the mean of 20,000 seeds."""
    rng, repeats = np.random.default_rng(2), 100

    def drawn(number: int) -> tuple[np.ndarray, np.ndarray]:
        return rng.normal(0.7, end_sd, (number, 1)), 40 * np.exp(rng.normal(0, half_sd, (number, 1)))

    dense = np.linspace(0, 320, 61)
    truth = sigmoid(dense, 0.2, *drawn(20_000), 1.5).mean(0)
    covered = np.zeros((repeats, 3), bool)
    for repeat in range(repeats):
        fit = saturation(STEPS, sigmoid(STEPS, 0.2, *drawn(seeds), 1.5) + rng.normal(0, noise, (seeds, 9)), (0, 1))
        assert isinstance(fit, Saturation)
        in_band = ((fit.low <= truth + 1e-9) & (truth <= fit.high + 1e-9)).all()
        of_end, of_twice = fit.of_asymptote, fit.of_twice
        covered[repeat] = in_band, of_end.low <= 0.7 <= of_end.high, of_twice.low <= truth[-1] <= of_twice.high
    least = stats.binom.ppf(0.005, repeats, 0.94) / repeats
    assert (covered.mean(0) >= least).all(), covered.mean(0)


def test_the_table_and_its_figure_are_made_where_they_are_asked_for(tmp_path: Path) -> None:
    """GRPO's eight evaluations bend, with a seed at 1/8 less and one at 1/8 more; RLOO has two seeds."""
    right = [1, 3, 4, 5, 5, 6, 6, 6]

    def curve(seed: int) -> dict[int, dict[str, object]]:
        return {
            20 * i: {"maze7": counts(*[max(0, c + (seed - 1) * (i > 0)) + j for j in (0, 1)])}
            for i, c in enumerate(right)
        }

    arms = {"grpo": 3, "rloo": 2}
    write_planned(tmp_path, {f"loss={arm} seed={s}": curve(s) for arm, count in arms.items() for s in range(count)})
    frames = load(tmp_path)
    assert "saturation" not in [usual.name for usual in build(frames, with_figures=False).tables]
    (table,) = build(frames, only=["saturation"], with_figures=False).tables
    cells = {(r["row"], r["column"]): r for r in table.records if r["metric"] == "avg@8"}
    assert cells["loss=rloo", "asymptote"]["state"] == "2 of at least 3 seeds"
    of_grpo = cells["loss=grpo", "asymptote"]
    assert of_grpo["low"] < 6.5 / 8 < of_grpo["high"]
    assert of_grpo["low"] < cells["loss=grpo", "at twice the steps"]["mean"] < of_grpo["high"]
    drawn = figure(frames)
    assert drawn is not None
    assert max(max(line.get_xdata()) for line in drawn.axes[0].lines) == 280
