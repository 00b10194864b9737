import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlvr.metrics import (
    accuracy,
    approach_score,
    coverage,
    distinct_at_k,
    distinct_n,
    elo_rating,
    embedding_diversity,
    maj_at_k,
    pass_at_k,
    percentile,
    shown_scores,
    weight_grpo,
    weight_maxrl,
    weight_ml,
    weight_rl,
)


@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_pass_at_k_is_the_fraction_of_subsets_with_a_success(n: int) -> None:
    for c in range(n + 1):
        samples = [True] * c + [False] * (n - c)
        for k in range(1, n + 1):
            subsets = list(itertools.combinations(samples, k))
            assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, subsets)) / len(subsets), abs=1e-15)


def test_pass_at_k_by_hand() -> None:
    # n = 4, k = 2: 1 − C(4 − c, 2)/6 = 0, 1 − 3/6, 1 − 1/6, 1, 1
    np.testing.assert_allclose(pass_at_k(4, [0, 1, 2, 3, 4], 2), [0, 1 / 2, 5 / 6, 1, 1], atol=1e-15)
    # problems with different numbers of samples: 1 − C(1, 1)/C(2, 1), 1 − C(3, 1)/C(4, 1)
    np.testing.assert_allclose(pass_at_k([2, 4], [1, 1], 1), [1 / 2, 1 / 4], atol=1e-15)


def test_pass_at_k_agrees_with_exact_fractions_at_large_n() -> None:
    for n, c, k in ((4096, 1, 2048), (4096, 3, 1), (100_000, 2, 1000), (1024, 600, 1024)):
        expected = 1 - Fraction(math.comb(n - c, k), math.comb(n, k))
        assert pass_at_k(n, c, k) == pytest.approx(float(expected), rel=1e-11)


@given(st.integers(1, 40).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_pass_at_k_grows_with_k_from_the_mean_to_one(case: tuple[int, int, int]) -> None:
    n, c, k = case
    assert (pass_at_k(n, c, 1), pass_at_k(n, c, n)) == (pytest.approx(c / n), float(c > 0))
    assert pass_at_k(n, c, k) >= pass_at_k(n, c, max(1, k - 1)) - 1e-15


@pytest.mark.parametrize(("n", "c", "k"), [(4, 1, 5), (4, 5, 2), (4, -1, 2), (4, 1, 0), ([8, 4], [1, 1], 5)])
def test_pass_at_k_refuses_impossible_counts(n: int | list[int], c: int | list[int], k: int) -> None:
    with pytest.raises(ValueError, match=r"pass@"):
        pass_at_k(n, c, k)


def test_maj_at_k_takes_the_mean_over_tied_answers_of_the_first_k() -> None:
    """The right answer is 7."""
    for answers, expected in (
        (["7", "7", "3"], 1.0),
        (["7", "3", "3"], 0.0),
        (["7", "3"], 0.5),  # a tie of two
        (["7", "3", "5", None, None, None], 1 / 3),  # None has most votes
        (["7", "7", "3", "3", "5"], 0.5),
        ([None, None], 0.0),
    ):
        correct = [answer == "7" for answer in answers]
        assert maj_at_k(answers, correct, len(answers)) == pytest.approx(expected), answers
    assert maj_at_k(["7", "3", "3"], [True, False, False], 1) == 1.0
    with pytest.raises(ValueError, match=r"maj@4 needs"):
        maj_at_k(["7"], [True], 4)


def test_distinct_n_by_hand() -> None:
    responses = [["a", "b", "a", "b"], ["a", "b", "c"], ["a"]]
    # bigrams: ab ba ab | ab bc → 3 different of 5; unigrams: a b c of 8
    assert (distinct_n(responses, 2), distinct_n(responses, 1)) == (pytest.approx(3 / 5), pytest.approx(3 / 8))
    assert math.isnan(distinct_n(responses, 5))


def test_distinct_at_k_by_hand() -> None:
    answers = ["a", "b", "a", None, "a", None]
    assert distinct_at_k(answers, 6) == 2
    # Of 2 among 6: "a" is missing with C(3, 2)/C(6, 2) = 3/15, "b" with C(5, 2)/C(6, 2) = 10/15.
    assert (distinct_at_k(answers, 2), distinct_at_k([None, None], 2)) == (pytest.approx(12 / 15 + 5 / 15), 0)
    with pytest.raises(ValueError, match=r"needs 1 ≤ k ≤ samples, and there are 2"):
        distinct_at_k(["a", "b"], 3)


@given(st.lists(st.sampled_from(["a", "b", "c", None]), min_size=1, max_size=7), st.data())
def test_distinct_at_k_is_the_mean_over_all_subsets(answers: list[str | None], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(answers)))
    subsets = [set(chosen) - {None} for chosen in itertools.combinations(answers, k)]
    assert distinct_at_k(answers, k) == pytest.approx(sum(map(len, subsets)) / len(subsets))


def test_coverage_by_hand() -> None:
    assert coverage([0, 1, 0, 0, 3]) == 2 / 5
    assert math.isnan(coverage([]))


@given(p=st.floats(1e-9, 1), order=st.integers(1, 60))
def test_maxrl_weight_is_the_truncated_geometric_series(p: float, order: int) -> None:
    assert weight_maxrl(p, order) == pytest.approx(sum((1 - p) ** i for i in range(order)), rel=1e-6)
    assert weight_rl(p) - 1e-12 <= weight_maxrl(p, order) <= weight_ml(p) + 1e-9


def test_population_weights_by_hand() -> None:
    # p = 0.2: 1, 1/√0.16, 1 + 0.8 + 0.64, 1/0.2
    assert (weight_rl(0.2), weight_grpo(0.2)) == (1, pytest.approx(2.5))
    assert (weight_maxrl(0.2, 3), weight_ml(0.2)) == (pytest.approx(2.44), pytest.approx(5))


def test_population_weights_at_the_ends() -> None:
    np.testing.assert_array_equal(weight_maxrl([0, 1], 7), [7, 1])
    np.testing.assert_array_equal(weight_grpo([0, 1]), [np.inf, np.inf])
    np.testing.assert_array_equal(weight_ml([0, 1]), [np.inf, 1])
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        weight_ml([1.5])


def test_accuracy_is_the_mean_of_avg_at_n_over_benchmarks_or_a_bandits_expected_reward() -> None:
    """(0.25 + 0.75)/2: pass@k, errors and the accuracy of training do not count."""
    evaluation = {"evaluation/maze_7x7/avg_at_8": 0.25, "evaluation/maze_9x9/avg_at_8": 0.75}
    others = {"evaluation/maze_7x7/pass_at_8": 1.0, "evaluation/maze_7x7/error": 0.1, "reward/accuracy": 0.9}
    assert accuracy(evaluation | others) == 0.5
    assert accuracy(others) is None
    assert accuracy({"evaluation/bandit/expected_reward": -1.5}) == -1.5


def test_what_status_shows_of_responses_is_the_mean_over_benchmarks() -> None:
    assert shown_scores({"reward/accuracy": 0.9}) == {"accuracy": None, "unparsable": None, "finished": None}
    of_a = {"evaluation/a/unparsable": 0.5, "validation/a/unparsable": 0, "evaluation/a/finished": 0.25}
    both = of_a | {"evaluation/b/unparsable": 1, "evaluation/b/finished": 0.75, "evaluation/a/length": 9}
    assert shown_scores(both) == {"accuracy": None, "unparsable": 0.75, "finished": 0.5}
    assert shown_scores({"evaluation/a/finished": 0, "evaluation/a/length": 1})["finished"] is None  # one token each


def test_accuracy_is_that_of_the_validation_split_where_it_is_measured() -> None:
    """(0.5 + 0.625)/2: selection uses other problems than the reported results."""
    validation = {"validation/maze_7x7/avg_at_8": 0.5, "validation/maze_9x9/avg_at_8": 0.625}
    assert accuracy({"evaluation/maze_7x7/avg_at_8": 1.0, "validation/maze_7x7/pass_at_8": 1.0} | validation) == 0.5625


def test_embedding_diversity_is_the_mean_distance_of_all_pairs() -> None:
    rows = np.random.default_rng(0).normal(size=(5, 3))
    pairs = [
        1 - rows[m] @ rows[n] / (math.sqrt(rows[m] @ rows[m]) * math.sqrt(rows[n] @ rows[n]))
        for m in range(5)
        for n in range(m + 1, 5)
    ]
    assert embedding_diversity(rows) == pytest.approx(sum(pairs) / 10)
    assert embedding_diversity([[1, 0], [3, 0]]) == pytest.approx(0)
    assert embedding_diversity([[1, 0], [0, 2]]) == pytest.approx(1)
    assert math.isnan(embedding_diversity([[1.0, 0.0]]))


@pytest.mark.parametrize(
    ("most", "score"), [(16, 1), (14, 1), (13, 2), (11, 2), (10, 3), (7, 3), (6, 4), (4, 4), (3, 5), (1, 5)]
)
def test_the_scale_of_approaches_is_that_of_lad(most: int, score: int) -> None:
    answers = ["common"] * most + [f"other {i}" for i in range(16 - most)]
    assert approach_score(answers) == score
    assert approach_score(answers * 2) == (score if most > 1 else 5)  # shares of 32


def test_a_rating_is_where_the_expected_number_is_what_was_solved() -> None:
    # One problem of 1500 solved half the time: 1500. At 10/11 of the time, 400 points above it.
    assert elo_rating([0.5], [1500]) == pytest.approx(1500)
    assert elo_rating([10 / 11], [1500]) == pytest.approx(1900)
    assert elo_rating([1, 0], [1000, 2000]) == pytest.approx(1500)  # by symmetry
    assert math.isnan(elo_rating([0, 0], [1000, 2000]))
    assert math.isnan(elo_rating([1, 1], [1000, 2000]))
    assert percentile(1500, [1000, 1499, 1500, 2000]) == 0.5
