import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.frames.load import load
from analysis.scores.density import basins, learned_density, modes_covered, target_density, temperature, total_variation
from analysis.scores.measured import at, scores
from analysis.scores.metric import parse
from tests.analysis.ledger_factory import config, counts, write_bandit, write_run


def test_basins_part_three_gaussian_modes():
    arms = np.arange(50)
    reward = sum(h * np.exp(-((arms - c) ** 2) / 2 / w**2) for c, w, h in ((10, 2, 0.9), (25, 3, 1.0), (40, 2, 0.8)))
    slices = basins(np.asarray(reward))
    assert len(slices) == 3
    for basin, centre in zip(slices, (10, 25, 40), strict=True):
        assert basin.start <= centre < basin.stop
    assert [b.start for b in slices[1:]] == [b.stop for b in slices[:-1]]


def test_small_bumps_and_flat_stretches_are_no_modes():
    assert len(basins(np.array([0, 1.0, 0.98, 1.0, 0, 0, 0.01, 0]))) == 1
    assert len(basins(np.array([1.0, 0, 0, 1.0]))) == 2  # at the edges


def test_target_survives_a_cold_temperature():
    assert target_density(np.array([0.0, 1.0, 1.0]), 1e-4).tolist() == [0, 0.5, 0.5]


@given(st.lists(st.floats(0.01, 1), min_size=2, max_size=9), st.floats(0.05, 5))
def test_the_exact_minimiser_is_recovered(old, eta):
    """π = π_old e^{A/η}/Z gives P_π = P_A, whatever π_old."""
    before = np.array(old) / sum(old)
    advantage = np.linspace(0, 1, len(before))
    after = before * np.exp(advantage / eta)
    assert learned_density(after / after.sum(), before) == pytest.approx(target_density(advantage, eta))


def test_arms_that_cannot_be_drawn_have_no_ratio():
    assert learned_density(np.array([0.5, 0.5]), np.array([1.0, 0.0])).tolist() == [1.0, 0.0]


def test_distance_and_modes_of_a_density_that_keeps_one_mode_of_two():
    reward, target = np.array([1.0, 0, 1.0]), np.array([0.4, 0.2, 0.4])
    learned = np.array([[0.4, 0.2, 0.4], [0.9, 0.1, 0.0], [0.6, 0.1, 0.3]])
    # ½(|.5| + |−.1| + |−.4|) and ½(.2 + .1 + .1). The valley is the second mode's, 0.2 + 0.4: 0.1 is under half.
    assert total_variation(learned, target) == pytest.approx([0, 0.5, 0.2])
    assert modes_covered(learned, target, reward).tolist() == [2, 1, 2]


def test_bandit_runs_are_measured_against_the_target_of_their_own_temperature(tmp_path):
    write_bandit(tmp_path, "js", "target", seeds=(0,))
    write_bandit(tmp_path, "hd", "first mode", seeds=(0,))
    write_bandit(tmp_path, "grpo", "target", seeds=(0,))
    frames = load(tmp_path)
    by_name = {run.name: run for run in frames.rows}
    assert {name: temperature(run) for name, run in by_name.items()} == {
        **{"lad-js-eta0.25-s0": 0.25, "lad-hd-eta0.25-s0": 0.25},
        "grpo-s0": 0.01,  # its KL coefficient
    }
    run_ids = [run.run_id for run in frames.rows]
    distance, modes = parse("total variation,modes covered", frames, run_ids)

    def of(name: str) -> list[float]:
        measured = [scores(frames, metric, (), {by_name[name].run_id: at(40)}) for metric in (distance, modes)]
        return [float(metric_scores.values.item()) for metric_scores in measured if metric_scores is not None]

    # P_A: three arms of e⁴ = 54.598 and six of 1. A single mode is off by what the others hold, 1 − 54.598 / 169.795.
    assert of("lad-js-eta0.25-s0") == pytest.approx([0, 3], abs=1e-12)
    assert of("lad-hd-eta0.25-s0") == pytest.approx([1 - 54.59815 / 169.79445, 1], abs=1e-6)


def test_without_a_target_there_is_no_distance(tmp_path):
    write_run(tmp_path, config("grpo"), {0: {"maze7": counts(2)}, 40: {"maze7": counts(4)}})
    frames = load(tmp_path)
    (run,) = frames.rows
    assert math.isnan(temperature(run))
    (metric,) = parse("total variation", frames, [run.run_id])
    assert scores(frames, metric, (), {run.run_id: at(40)}) is None
