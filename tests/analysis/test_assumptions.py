from pathlib import Path

import pytest

from analysis.figures import assumptions
from analysis.frames.load import load
from analysis.report import style
from tests.analysis.ledger_factory import config, write_run


def test_curves_are_means_over_seeds_and_boxes_are_of_all_steps(tmp_path: Path) -> None:
    for loss, scale in (("grpo", 1.0), ("lad", 2.0)):
        for seed in (0, 1):
            training = {
                "advantage/abs_mean": [scale + seed, scale],
                "policy/abs_log_ratio": [0.0, 0.25 * scale],
                "throughput/gpu_s_per_token": [1e-6 * scale, 3e-6 * scale],
            }
            write_run(tmp_path, config(loss=loss, seed=seed, steps=2), {}, training=training)
    short = {"advantage/abs_mean": [100.0]}  # of a seed that diverged: it would shift the curve up to there
    write_run(tmp_path, config(loss="lad", seed=2, steps=2), {}, training=short, cause="diverged")
    drawn = assumptions.figure(load(tmp_path))
    assert "2 of 3 runs (1 diverged)" in " ".join(drawn.legends[0].get_title().get_text().split())
    advantage, ratio, cost = drawn.axes
    curves = {line.get_color(): list(line.get_ydata()) for line in advantage.lines}
    assert sorted(curves.values()) == [pytest.approx([1.5, 1.0]), pytest.approx([2.5, 2.0])]
    assert sorted(max(line.get_ydata()) for line in ratio.lines) == pytest.approx([0.25, 0.5])
    assert [tick.get_text() for tick in cost.get_yticklabels()] == ["grpo", "js"]
    medians = sorted({x for line in cost.lines for x in line.get_xdata() if len(set(line.get_xdata())) == 1})
    assert {2.0, 4.0} <= {round(float(x), 3) for x in medians}  # of 1, 3, 1, 3 µs, and twice that
    assert style.encode(drawn, "png") == style.encode(assumptions.figure(load(tmp_path)), "png")


def test_there_is_no_figure_of_runs_that_logged_nothing(tmp_path: Path) -> None:
    write_run(tmp_path, config(loss="grpo"), {}, training={"policy/entropy": [1.0, 0.5]})
    assert assumptions.figure(load(tmp_path)) is None
