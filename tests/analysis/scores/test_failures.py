from pathlib import Path

import pytest
from scipy import stats

from analysis.frames.load import load
from analysis.scores.claim import Outcome
from analysis.scores.failures import fisher, holm
from analysis.scores.findings import findings
from tests.analysis.ledger_factory import BASE, write_planned


def test_fishers_p_is_scipys():
    for a, n, b, m in ((0, 5, 5, 5), (1, 5, 3, 7), (4, 9, 0, 9), (2, 3, 2, 3), (0, 4, 0, 6), (3, 12, 9, 11)):
        expected = stats.fisher_exact([[a, n - a], [b, m - b]]).pvalue
        assert fisher(a, n, b, m) == pytest.approx(expected, abs=1e-12)


def test_all_of_four_against_none_of_four_by_hand():
    assert fisher(4, 4, 0, 4) == pytest.approx(2 / 70)  # the two extreme tables of C(8, 4) = 70


def test_holm_by_hand():
    # sorted 0.01, 0.02, 0.04: times 3, 2, 1; the last may not be below the one before it
    assert holm({"a": 0.02, "b": 0.01, "c": 0.04}) == pytest.approx({"b": 0.03, "a": 0.04, "c": 0.04})
    assert holm({"a": 0.9, "b": 0.8}) == {"b": 1.0, "a": 1.0}


def test_a_report_says_which_arm_diverges_more_often_than_the_reference(tmp_path: Path):
    """5 of 5 against 0 of 5: p = 2/252; with a second arm, of which one run diverged (p = 1), Holm makes it 4/252."""
    arms = ("loss=grpo", "loss=pacs lr=1", "loss=rloo")
    runs = {f"{arm} seed={seed}": {40: BASE} for arm in arms for seed in range(5)}
    lost = [*(f"loss=pacs lr=1 seed={seed}" for seed in range(5)), "loss=rloo seed=3"]
    write_planned(tmp_path, runs, baseline="loss=grpo", lost=lost)
    worse, same = findings(load(tmp_path))
    assert worse.outcome == Outcome.ABOVE
    assert worse.claim.says == "loss=pacs lr = 1 diverges more often than loss=grpo"
    assert worse.measured == "5 of 5 runs against 0 of 5"
    assert worse.basis == "Fisher's exact test, p = 0.0079, 0.016 for all arms of the setting (Holm)"
    assert same.outcome == Outcome.UNDECIDED
    assert same.claim.says == "loss=rloo diverges at another rate than loss=grpo"
