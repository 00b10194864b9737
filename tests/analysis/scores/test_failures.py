from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from analysis.frames.load import load
from analysis.scores.claim import Outcome
from analysis.scores.failures import fisher, holm
from analysis.scores.findings import findings
from analysis.scores.verdict import verdicts
from analysis.tables import comparison
from tests.analysis.ledger_factory import BASE, counts, write_planned


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


def test_differences_with_diverged_runs_in_them(tmp_path: Path):
    """PACS has 2 of 8 more than GRPO's 4 with each of three seeds, and began at 1 of 8. The fourth run diverged: as the
    base policy it is 3 below, as 0 4 below. By seed 2, 2, 2 and −3 or −4 of 8; problems are alike, so it is Student's t
    of four numbers."""
    begun = {"maze7": counts(*[1] * 40)}
    runs = {
        f"loss={loss} seed={seed}": {0: begun, 40: {"maze7": counts(*[right] * 40)}}
        for loss, right in (("grpo", 4), ("pacs", 6))
        for seed in range(4)
    }
    claim = {"says": "more", "metric": "avg", "arm": "loss=pacs", "relation": ">", "against": "loss=grpo"}
    lost = ["loss=pacs seed=3"]
    write_planned(tmp_path, runs, lost=lost, claims=[claim])
    frames = load(tmp_path)
    expected = []
    for last in (-3, -4):
        by_seed = np.array([2, 2, 2, last]) / 8
        low, high = stats.t.interval(0.95, 3, by_seed.mean(), stats.sem(by_seed))
        expected.append(f"{100 * by_seed.mean():+.3g} [{100 * low:.3g}, {100 * high:.3g}] points".replace("-", "−"))
    text = f"with diverged runs as the base policy {expected[0]}, as 0 {expected[1]}"
    (verdict,) = verdicts(frames)
    assert verdict.note.endswith(f"; {text})")
    assert any(text in note and "avg@8 are shown and not decided" in note for note in comparison.table(frames).notes)


def test_against_the_base_policy_it_counts_as_itself(tmp_path: Path):
    """From 1 of 8 to 6 with three seeds; the fourth run diverged: as the base policy it gains nothing, as 0 it loses
    1."""
    begun, ended = ({"maze7": counts(*[right] * 40)} for right in (1, 6))
    write_planned(tmp_path, {f"loss=grpo seed={s}": {0: begun, 40: ended} for s in range(4)}, lost=["loss=grpo seed=3"])
    as_base, as_0 = (f"{100 * np.mean([5, 5, 5, last]) / 8:+.3g} [" for last in (0, -1))
    table = comparison.table(load(tmp_path))
    assert table is not None
    (note,) = (note for note in table.notes if "avg@8 are shown and not decided" in note)
    assert f"with diverged runs as the base policy {as_base}" in note
    assert f"as 0 {as_0}" in note
