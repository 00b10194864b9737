"""How much of the variance of results goes along with a knob: against statsmodels, and where it is known."""

import math
from itertools import product

import numpy as np
import pytest
import statsmodels.api as sm

from analysis.frames.load import load
from analysis.report import interactive
from analysis.scores import excerpt as excerpt_module
from analysis.scores.excerpt import excerpts, flipped
from analysis.scores.importance import explained, explored
from tests.analysis.ledger_factory import FINAL, config, write_run, write_study


def test_it_is_the_adjusted_r_squared_of_a_regression_on_the_values():
    random = np.random.default_rng(0)
    values = [("a", "b", "c")[i % 3] for i in range(30)]
    results = [float("abc".index(v)) * 0.3 + random.normal() for v in values]
    design = sm.add_constant(np.array([[v == "b", v == "c"] for v in values], float))
    assert explained(values, results) == pytest.approx(sm.OLS(results, design).fit().rsquared_adj)


def test_a_knob_that_decides_everything_has_all_one_that_does_nothing_none():
    assert explained(["1", "1", "2", "2"], [3.0, 3.0, 7.0, 7.0]) == 1.0
    assert explained(["1", "2", "1", "2"], [3.0, 3.0, 7.0, 7.0]) == 0.0
    assert math.isnan(explained(["1", "2"], [1.0, 1.0]))


def test_numbers_of_many_values_are_grouped_by_rank():
    numbers = [str(10.0**-i) for i in range(60)]
    assert explained(numbers, [float(i) for i in range(60)]) > 0.95


def test_every_finished_run_of_a_grid_is_placed_by_its_knobs(tmp_path):
    write_study(tmp_path, spoil=True)
    study = explored(load(tmp_path))
    assert study is not None
    assert set(study.knobs) == {"loss", "divergence", "eta"}
    assert len(study.runs) == len(FINAL) - 3 + 1  # three have no result; GRPO has one
    place = [run.name for run in study.runs].index("lad-js-eta0.5-s0")
    assert dict(zip(study.knobs, study.values[place], strict=True)) == {"loss": "lad", "divergence": "js", "eta": "0.5"}
    assert study.metrics == ("avg@8", "pass@8")  # those that the page headlines
    assert study.results[place] == pytest.approx(((20 / 32 + 19 / 32) / 2, 3 / 4))  # over maze7 and maze9
    assert {len(shares) for shares in study.importance.values()} == {2}


def test_only_shares_are_printed_in_per_cent(tmp_path):
    """Expected rewards of a bandit are not."""
    for i, (lr, kl) in enumerate(product((1e-5, 1e-4, 1e-3), (0.1, 0.2))):
        frozen = config("grpo", lr=lr, trainer={"kl": kl})
        write_run(tmp_path, frozen, {}, logged_at={40: {"evaluation/bandit/expected_reward": 2.5 + i}}, name=f"r{i}")
    search = interactive._search(load(tmp_path))
    assert (search["unit"], sorted(row["results"] for row in search["rows"])) == ("", [[2.5 + i] for i in range(6)])
    write_study(tmp_path / "shares")
    search = interactive._search(load(tmp_path / "shares"))
    assert (search["unit"], max(row["results"][1] for row in search["rows"])) == (", %", 100)


def test_each_arm_in_turn_adds_the_problem_on_which_it_lies_furthest_from_the_first():
    first = {("s", name): (right, 8) for name, right in zip("abc", (8, 4, 0), strict=True)}
    second = {("s", name): (right, 8) for name, right in zip("abc", (8, 8, 1), strict=True)}
    third = {("s", name): (right, 8) for name, right in zip("abc", (1, 4, 0), strict=True)}
    assert flipped([first, second, third]) == [("s", "b"), ("s", "a"), ("s", "c")]


def test_the_reader_shows_the_reference_first_and_one_response_of_each_outcome(tmp_path):
    write_study(tmp_path)
    (excerpt,) = excerpts(load(tmp_path))
    assert excerpt.shown[0].arm.loss == "grpo"  # the reference: 8, 4, 4, 0 of 8
    js = next(shown for shown in excerpt.shown if shown.name == "lad-js-eta0.5-s0")  # 8, 8, 4, 0
    assert js.last.right["maze7", "maze7-1"] == (8, 8)
    assert [evaluation.step for evaluation in js.evaluations] == [0, 40]
    assert {len(evaluation.responses["maze7", "maze7-2"]) for evaluation in js.evaluations} == {8}
    assert js.evaluations[0].right["maze7", "maze7-1"] == (2, 8)  # of the base policy


def test_of_long_responses_the_last_evaluation_shows_one_of_each_outcome(tmp_path, monkeypatch):
    write_study(tmp_path)
    (all_shown,) = excerpts(load(tmp_path))
    responses = [r for s in all_shown.shown for of_one in s.last.responses.values() for r in of_one]
    size = sum(len(r.response) + 30 for r in responses)
    monkeypatch.setattr(excerpt_module, "CHARACTERS", 2 * size - 1)
    (one,) = excerpts(load(tmp_path))
    assert {tuple(evaluation.step for evaluation in shown.evaluations) for shown in one.shown} == {(40,)}
    assert len(one.shown[1].last.responses["maze7", "maze7-2"]) == 8
    monkeypatch.setattr(excerpt_module, "CHARACTERS", size - 1)
    (few,) = excerpts(load(tmp_path))
    js = next(shown for shown in few.shown if shown.name == "lad-js-eta0.5-s0")
    assert [evaluation.step for evaluation in js.evaluations] == [40]
    outcomes = [r.outcome for r in js.last.responses["maze7", "maze7-2"]]
    assert outcomes == ["correct", "wrong", "correct"]  # one of each kind, then the next
