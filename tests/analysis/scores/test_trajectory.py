import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.decide import check_metric, questions
from analysis.figures import evaluation as evaluation_figure
from analysis.figures import frontier as frontier_figure
from analysis.figures import training as training_figure
from analysis.frames.frames import Frames
from analysis.frames.load import load
from analysis.report import interactive
from analysis.report.grid import grids
from analysis.scores.arm import Arm, arms
from analysis.scores.claim import Outcome
from analysis.scores.crossed import Interval
from analysis.scores.measured import Point
from analysis.scores.metric import ENTROPY, MODES_COVERED, _evaluation, avg, check_ahead, pass_at
from analysis.scores.trajectory import Level, Where, cell_of, crossing, curve, devices, level
from analysis.scores.verdict import verdicts
from analysis.tables import comparison, frontier
from tests.analysis.ledger_factory import config, counts, write_run, write_sweep

STEPS = (0, 20, 40)
SOURCES = ("maze7",)


def test_more_is_better_of_rewards_and_not_of_every_number_of_an_evaluation() -> None:
    for name, better in (("bandit/expected_reward", 1), ("maze/mean_reward", 1), ("coins/distinct_correct_at_4", 0)):
        metric = _evaluation(f"evaluation/{name}")
        assert (metric.name, metric.better) == (name, better)


def test_a_difference_is_printed_with_its_unit_and_without_what_rounding_has_left():
    unknown = Interval(math.nan, math.nan)
    assert avg(8).difference(-0.012, Interval(-0.02, -0.004)) == "−1.2 [−2, −0.4] points"
    assert ENTROPY.difference(0.25, unknown) == "+0.25 nats without a spread"
    assert MODES_COVERED.difference(0.0, unknown) == "+0 without a spread"
    assert 0.1 + 0.2 - 0.3 > 0  # as 64-bit numbers
    assert avg(10).difference((0.1 + 0.2 - 0.3) / 3, Interval(-0.1, 0.1)) == "+0 [−10, 10] points"
    assert avg(8).difference(-0.0, Interval(-0.1, 0.1)) == "+0 [−10, 10] points"


def test_a_curve_crosses_between_two_evaluations():
    rising = [(0, 0.25), (20, 0.5), (40, 0.75)]
    assert crossing(rising, 0.6) == Point(20, 40, pytest.approx(0.4))
    assert crossing(rising, 0.5) == Point(0, 20, 1.0)
    assert crossing(rising, 0.25) == Point(0, 0)
    assert crossing(rising, 0.2) is None  # it begins above
    assert crossing(rising, 0.8) is None
    assert crossing([(0, 0.25), (20, 0.5), (40, 0.25), (60, 0.75)], 0.4) == Point(0, 20, pytest.approx(0.6))


def test_what_runs_will_measure_is_known_before_they_begin():
    logged = ["evaluation/maze7/avg_at_8", "evaluation/maze7/pass_at_8"]
    for name in ("avg", "avg@8", "pass", "pass@1", "pass@7", "entropy", "distinct-3", "policy/kl_base"):
        check_ahead(name, logged, 8)
    for name in ("avg@3", "pass@64", "foo", "avg,pass", "modes covered", "evaluation/nosuch/avg_at_8"):
        with pytest.raises(LookupError, match=f"{name}: no run measured it"):
            check_ahead(name, logged, 8)


def test_a_bandit_is_measured_by_its_policy_and_not_by_samples():
    check_ahead("modes covered", ["evaluation/bandit/expected_reward"], 8)
    with pytest.raises(LookupError, match="pass@1: no run measured it"):
        check_ahead("pass@1", ["evaluation/bandit/expected_reward"], 8)


def run(home: Path, loss: str, right: tuple[tuple[int, ...], ...], seed: int = 0, **training: list[float]) -> None:
    """right: of eight, by evaluation and problem."""
    evaluations: dict[int, Any] = {step: {"maze7": counts(*c)} for step, c in zip(STEPS, right, strict=True)}
    write_run(home, config(loss, seed=seed), evaluations, training=training)


def two(home: Path) -> tuple[Frames, list[Arm]]:
    """GRPO rises fast and keeps few problems; PACS slowly, and keeps them."""
    flat = {"time/step_s": [2.0] * 40, "tokens/rollout": [100.0] * 40}
    run(home, "grpo", ((2, 2, 0), (8, 4, 0), (8, 8, 0)), **flat)
    run(home, "pacs", ((2, 2, 0), (3, 2, 1), (6, 4, 2)), **{**flat, "tokens/rollout": [50.0] * 40})
    frames = load(home)
    return frames, sorted(arms(frames), key=lambda arm: arm.loss)


def test_equal_accuracy_is_the_highest_that_both_reached(tmp_path):
    frames, (grpo, pacs) = two(tmp_path)
    reached = level(frames, [pacs, grpo], Where.ACCURACY, avg(8), SOURCES)
    # PACS ends at 12/24, which GRPO reaches at step 20.
    assert reached.value == 0.5
    assert reached.points[pacs.group_id]["id-pacs-s0"].step == 40
    assert reached.points[grpo.group_id]["id-grpo-s0"].step == 20
    # pass@4 there: GRPO 8, 4, 0 of 8 -> 1, 1 - 1/70, 0; PACS 6, 4, 2 -> 1, 69/70, 1 - 15/70
    assert cell_of(frames, grpo, pass_at(4), SOURCES, reached).mean == pytest.approx((1 + 69 / 70) / 3)
    assert cell_of(frames, pacs, pass_at(4), SOURCES, reached).mean == pytest.approx((1 + 69 / 70 + 55 / 70) / 3)


def test_equal_tokens_and_seconds_are_sums_up_to_the_evaluation(tmp_path):
    frames, (grpo, pacs) = two(tmp_path)
    tokens = level(frames, [pacs, grpo], Where.TOKENS, avg(8), SOURCES)
    assert tokens.value == 40 * 50  # what PACS used in all, and GRPO in 20 steps
    assert tokens.points[grpo.group_id]["id-grpo-s0"].step == 20
    seconds = level(frames, [pacs, grpo], Where.SECONDS, avg(8), SOURCES)
    assert seconds.value == 80
    assert seconds.points[grpo.group_id]["id-grpo-s0"].step == 40


def test_seconds_count_every_device(tmp_path):
    # 4 GPU-seconds a step of 2 seconds and 100 tokens: two devices.
    training = {"time/step_s": [2.0] * 40, "tokens/rollout": [100.0] * 40, "throughput/gpu_s_per_token": [0.04] * 40}
    run(tmp_path, "grpo", ((2,), (4,), (6,)), **training)
    assert devices(load(tmp_path), "id-grpo-s0") == 2


def test_without_a_common_level_the_reason_is_given(tmp_path):
    run(tmp_path, "grpo", ((2, 2), (4, 4), (6, 6)))
    run(tmp_path, "pacs", ((2, 2), (1, 1), (1, 1)))
    frames = load(tmp_path)
    grpo, pacs = sorted(arms(frames), key=lambda arm: arm.loss)
    reached = level(frames, [pacs, grpo], Where.ACCURACY, avg(8), SOURCES)
    assert not reached.points
    assert reached.why == "loss=pacs has a run that never rises above where the others begin"
    assert "did not log" in level(frames, [pacs, grpo], Where.TOKENS, avg(8), SOURCES).why
    assert any("loss=pacs is not compared at equal accuracy" in note for note in frontier.table(frames).notes)


def test_a_level_interpolated_from_the_base_policy_has_a_warning(tmp_path):
    run(tmp_path, "grpo", ((2, 2), (6, 6), (6, 6)))  # at half between its base policy and its first evaluation
    run(tmp_path, "pacs", ((2, 2), (3, 3), (4, 4)))
    frames = load(tmp_path)
    reached = level(frames, arms(frames), Where.ACCURACY, avg(8), SOURCES)
    assert (reached.value, reached.lowest) == (0.5, "loss=pacs, seed 0")
    assert reached.caveat.startswith(
        "loss=grpo reached the 50.0 % of loss=pacs, seed 0, before the first evaluation after the base policy"
    )
    table = frontier.table(frames)
    assert any("are shown and not decided: at equal accuracy, loss=grpo reached" in note for note in table.notes)
    drawn = frontier_figure.figure(frames)
    assert drawn.legends[0].get_title().get_text() == "large mark: the last evaluation"


def test_equal_tokens_decide_nothing_before_the_first_evaluation(tmp_path):
    """Both arms learn the same from the same tokens, soon and then slowly: 1 of 8, 5 after 2,000 tokens, 6 after 4,000
    and 7 after 8,000. A step of PACS samples four times as many, so that 4,000 tokens are its step 10, half-way to its
    first evaluation: a straight line gives (1 + 7)/2 = 4 of 8 there, 2 fewer than it has."""
    for seed in range(3):
        for loss, right, tokens in (("grpo", (1, 5, 6), 100.0), ("pacs", (1, 7, 7), 400.0)):
            wave = [tuple(r + (i + seed) % 2 for i in range(30)) for r in right]
            run(tmp_path, loss, tuple(wave), seed=seed, **{"tokens/rollout": [tokens] * 40})
    table = frontier.table(load(tmp_path))
    tokens = table.cells[(table.cells["block"] == "At equal tokens") & (table.cells["metric"] == "avg@8")].iloc[0]
    assert (tokens["difference"], tokens["verdict"]) == (pytest.approx(-2 / 8), "")
    early = "loss=pacs reached 4,000 tokens, before the first evaluation after the base policy"
    assert any(f"not decided: at equal tokens, {early}" in note for note in table.notes)


def test_the_band_of_a_curve_is_t_over_seeds(tmp_path):
    for seed, last in enumerate((4, 5, 6)):
        run(tmp_path, "grpo", ((2, 2), (4, 4), (last, last)), seed=seed)
    frames = load(tmp_path)
    band = curve(frames, arms(frames)[0], avg(8), SOURCES)
    assert (band.steps, band.mean) == (STEPS, (2 / 8, 4 / 8, 5 / 8))
    # 4/8, 5/8, 6/8: standard deviation 1/8, t(0.975, 2) = 4.302653
    assert band.high[2] - band.mean[2] == pytest.approx(4.302653 / 8 / 3**0.5)
    # The page keeps it, although the seeds agree at the steps before.
    page = next(panel for panel in interactive._evaluations(frames, arms(frames)) if "avg@8" in panel["title"])
    (line,) = page["lines"]
    assert line["low"][:2] == line["high"][:2] == line["y"][:2] == [25.0, 50.0]
    assert line["high"][2] - line["y"][2] == pytest.approx(100 * 4.302653 / 8 / 3**0.5, abs=0.02)


def test_a_run_that_ended_early_does_not_end_the_curve_of_its_arm(tmp_path):
    """Four seeds of two problems; one diverged at once. The curve is that of the others, and the figure says so."""
    for seed, last in enumerate((4, 5, 6)):
        run(tmp_path, "grpo", ((2, 2), (4, 4), (last, last)), seed=seed, **{"policy/entropy": [1.0] * 40})
    first = {0: {"maze7": counts(2, 2)}}
    short = {"policy/entropy": [9.0] * 12}
    write_run(tmp_path, config("grpo", seed=3), first, training=short, cause="diverged", message="loss is nan")
    frames = load(tmp_path)
    of_finished = curve(frames, arms(frames)[0], avg(8), SOURCES)
    assert (of_finished.steps, of_finished.mean) == (STEPS, (2 / 8, 4 / 8, 5 / 8))
    for figure in (frontier_figure.figure(frames), evaluation_figure.figure(frames), training_figure.figure(frames)):
        assert "3 of 4 runs (1 diverged)" in " ".join(figure.legends[0].get_title().get_text().split())
    entropy = training_figure.figure(frames)
    assert np.asarray(entropy.axes[0].lines[0].get_ydata()).tolist() == [1.0] * 40


def test_a_run_that_is_under_way_is_drawn_while_none_has_finished(tmp_path):
    early = {step: {"maze7": counts(2, 2)} for step in (0, 20)}
    write_run(tmp_path, config("grpo"), early, cause=None)
    frames = load(tmp_path)
    assert curve(frames, arms(frames)[0], avg(8), SOURCES).steps == (0, 20)
    (of_avg,) = [panel for panel in interactive._evaluations(frames, arms(frames)) if "avg@8" in panel["title"]]
    assert of_avg["lines"][0]["y"] == [25.0, 25.0]  # before and after are a line of the page, though no figure


def test_fewer_than_three_seeds_have_no_band(tmp_path):
    for seed, last in enumerate((5, 6)):
        run(tmp_path, "grpo", ((2, 2), (4, 4), (last, last)), seed=seed)
    frames = load(tmp_path)
    assert all(math.isnan(x) for x in curve(frames, arms(frames)[0], avg(8), SOURCES).low)


def test_the_frontier_compares_at_equal_accuracy_tokens_and_time(tmp_path):
    frames, _ = two(tmp_path)
    table = frontier.table(frames)
    cells = table.cells[table.cells["metric"] == "pass@8"]
    assert list(zip(cells["block"], cells["row"], strict=True)) == [
        ("At equal accuracy", "loss=pacs, at 50.0 %"),
        ("At equal tokens", "loss=pacs, at 2,000 tokens"),
        ("At equal device-seconds", "loss=pacs, at 80 s"),
    ]
    # pass@8 is solved at all: GRPO 2 of 3 everywhere but at its start, PACS 3 of 3 at its end.
    assert cells["difference"].tolist() == pytest.approx([1 / 3] * 3)


@pytest.mark.parametrize(("seconds", "text"), [(0.1634, "0.163 s"), (12.34, "12.3 s"), (1234.5, "1,234 s")])
def test_a_level_of_time_has_three_digits_and_its_unit(seconds, text):
    assert frontier._level_text(Level(Where.SECONDS, seconds)) == f", at {text}"


def timed(home: Path, *, own_gpus: bool, claim: dict[str, Any] | None = None) -> Frames:
    """Two arms with one curve over steps; a step of PACS takes twice as long, with every seed."""
    curve = {
        step: {"maze7": counts(*(r + i % 3 for i in range(30)))} for step, r in ((0, 1), (10, 2), (20, 3), (40, 5))
    }
    plan = []
    for loss, of_seeds in {"grpo": (2.0, 2.1, 2.2), "pacs": (4.0, 4.3, 4.5)}.items():
        for seed, seconds in enumerate(of_seeds):
            training = {"time/step_s": [seconds] * 40, "tokens/rollout": [9.0] * 40}
            run_id = write_run(home, config(loss, seed=seed), curve, training=training, own_gpus=own_gpus)
            plan.append((run_id, run_id, [f"loss={loss}", f"seed={seed}"]))
    write_sweep(home, "s", plan, claims=[claim] if claim else [])
    return load(home)


@pytest.mark.parametrize(("own_gpus", "mark"), [(True, "▼"), (False, "")])
def test_times_decide_only_between_runs_with_gpus_of_their_own(tmp_path, own_gpus, mark):
    """At 40 steps of GRPO PACS has done 20, so that it is two of eight behind; per run it takes longer. On a machine
    that the runs shared both may be the load, which every seed of an arm may have met."""
    frames = timed(tmp_path, own_gpus=own_gpus)
    at_level, at_end = frontier.table(frames), comparison.table(frames)
    compared = at_level.cells[(at_level.cells["metric"] == "avg@8")].set_index("block")
    # 40 steps of GRPO: 80, 84 and 88 s; the least of all runs is the level.
    assert compared.loc["At equal device-seconds", "row"] == "loss=pacs, at 80 s"
    assert compared.loc["At equal device-seconds", "difference"] == pytest.approx(-0.25, abs=0.03)
    assert compared.loc["At equal device-seconds", "verdict"] == mark
    hours = at_end.cells[(at_end.cells["metric"] == "hours") & (at_end.cells["row"] == "loss=pacs")].iloc[0]
    assert hours["difference"] == pytest.approx((4.0 + 4.3 + 4.5 - 2.0 - 2.1 - 2.2) / 3 * 40 / 3600)
    assert hours["verdict"] == mark.replace("▼", "▲")
    grid = grids(at_end, width=400)[0]
    best_hours = [row for row, column in grid.best if grid.header[column].startswith(("hours", "time"))]
    assert [grid.rows[row][0] for row in best_hours] == (["loss=grpo"] if own_gpus else [])
    for table in (at_level, at_end):
        assert any("time also depends on what else" in note for note in table.notes) == (mark == "")


@pytest.mark.parametrize(("own_gpus", "outcome"), [(True, "above"), (False, Outcome.UNDECIDED)])
def test_a_look_decides_hours_only_between_runs_with_gpus_of_their_own(tmp_path, own_gpus, outcome):
    (question,) = questions(timed(tmp_path, own_gpus=own_gpus), "hours", 0.95, ())
    assert question.outcome == outcome


@pytest.mark.parametrize("what", [{"metric": "hours"}, {"metric": "avg", "at": "equal device-seconds"}])
@pytest.mark.parametrize(("own_gpus", "outcome"), [(True, Outcome.CONTRADICTED), (False, Outcome.NOT_TESTED)])
def test_claims_about_time_are_tested_only_between_runs_with_gpus_of_their_own(tmp_path, what, own_gpus, outcome):
    relation = "<" if what["metric"] == "hours" else ">"
    claim = {"says": "PACS is as fast", "arm": "loss=pacs", "relation": relation, **what}
    (verdict,) = verdicts(timed(tmp_path, own_gpus=own_gpus, claim=claim))
    assert verdict.outcome == outcome
    assert ("time also depends on what else" in verdict.note) == (outcome == Outcome.NOT_TESTED)


def test_seeds_are_not_added_for_a_time_that_none_would_decide():
    for name in ("hours", "time/step_s", "throughput/tokens_per_s"):
        check_metric(name, ["evaluation/maze7/avg_at_8"], 8, own_gpus=True)
        with pytest.raises(LookupError, match=f"{name} would never be decided"):
            check_metric(name, ["evaluation/maze7/avg_at_8"], 8, own_gpus=False)
    check_metric("avg", ["evaluation/maze7/avg_at_8"], 8, own_gpus=False)
