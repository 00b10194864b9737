import math
from collections.abc import Collection
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from statsmodels.duration.survfunc import SurvfuncRight

from analysis.frames.frames import Frames
from analysis.frames.load import load
from analysis.scores.crossed import crossed
from analysis.scores.measured import avg_noise, avg_values, pass_noise, pass_values
from analysis.scores.metric import avg, check_ahead, computed
from analysis.scores.verdict import verdicts
from analysis.tables import comparison
from analysis.tables.comparison import ComparisonOptions
from tests.analysis.ledger_factory import counts, write_planned


def test_avg_is_the_share_of_judged_samples():
    values = avg_values(np.array([8, 6, 0]), np.array([2, 6, 0]))
    assert values[:2].tolist() == [0.25, 1.0]
    assert math.isnan(values[2])  # nothing was judged


def test_pass_at_k_by_hand_and_undefined_where_samples_are_too_few():
    # C(4,2) = 6; c = 1: C(3,2) = 3 failing pairs -> 1/2; c = 2: C(2,2) = 1 -> 5/6; n = 1 < 2: undefined
    values = pass_values(np.array([4, 4, 1]), np.array([1, 2, 1]), 2)
    assert values[:2] == pytest.approx([1 / 2, 5 / 6])
    assert math.isnan(values[2])


def test_the_noise_of_avg_is_unbiased():
    """E of the estimate over c ~ Binomial(6, 0.3) is p(1 − p)/n."""
    c = np.arange(7)
    expected = stats.binom.pmf(c, 6, 0.3) @ avg_noise(np.full(7, 6), c)
    assert expected == pytest.approx(0.3 * 0.7 / 6)
    assert math.isnan(avg_noise(np.array([1]), np.array([1]))[0])


def test_the_noise_of_pass_at_k_by_simulation():
    """n = 8, c = 2: rate 2.5/9. 200,000 draws of c' give pass@4 a variance known to half a per cent."""
    drawn = np.random.default_rng(0).binomial(8, 2.5 / 9, 200_000)
    simulated = pass_values(np.full(drawn.shape, 8), drawn, 4).var()
    assert pass_noise(np.array([8]), np.array([2]), 4)[0] == pytest.approx(simulated, rel=0.02)
    assert math.isnan(pass_noise(np.array([3]), np.array([2]), 4)[0])


def test_the_noise_of_pass_at_1_is_that_of_the_mean():
    # c = 4 of 8: the rate of the plug-in is ½ too, p(1 − p)/n = 1/32
    assert pass_noise(np.array([8]), np.array([4]), 1)[0] == pytest.approx(1 / 32)


def test_pass_hat_k_and_g_pass_count_the_subsets_with_enough_right_samples():
    """All subsets of k of seven samples, of which four are right, are counted one by one."""
    right = [1, 1, 1, 1, 0, 0, 0]
    for name, least in {"pass^3": 3, "g-pass@4_0.5": 2, "g-pass@4_0.51": 3, "g-pass@5_0.6": 3, "g-pass@4_1": 4}.items():
        metric = computed(name, [])
        assert metric is not None
        subsets = list(combinations(right, metric.k))
        expected = sum(sum(subset) >= least for subset in subsets) / len(subsets)
        values = pass_values(np.array([7, 2]), np.array([4, 2]), metric.k, metric.least)
        assert values[0] == pytest.approx(expected, abs=1e-15)
        assert math.isnan(values[1])


def test_the_area_under_pass_at_k_is_that_of_its_trapezoids_over_log_k():
    metric = computed("pass-area@8", [])
    assert metric is not None
    ks = np.array([1, 2, 4, 8])
    for c in (0, 1, 3, 8, 9):
        curve = [1 - math.comb(9 - c, k) / math.comb(9, k) for k in ks]
        expected = np.trapezoid(curve, np.log(ks)) / np.log(8)
        assert pass_values(np.array([9]), np.array([c]), 8, metric.least)[0] == pytest.approx(expected, abs=1e-15)


def test_other_names_are_not_computed():
    unknown = (
        "pass^0",
        "g-pass@4_0",
        "g-pass@4_1.5",
        "g-pass@0_0.5",
        "g-pass@4",
        "pass-area@6",
        "pass-area@1",
        "x-to-1",
    )
    for name in (*unknown, "steps-to-", "steps-to-x", "steps-to-0", "tokens-to-101", "pass@", "pass@0"):
        assert computed(name, [avg(8)]) is None, name
    assert computed("steps-to-50", []) is None  # no avg@n was measured


def reaching(home: Path, lost: Collection[str] = ()) -> Frames:
    """avg@8 at steps 0, 20 and 40 by seed: GRPO 1/8, 3/8, 5/8 · 1/8, 5/8, 5/8 · 1/8, 1/8, 2/8; PACS 1/8, 1/8, 3/8 with
    each. A step samples 100 tokens, of PACS 50."""
    right = {"grpo": ((1, 3, 5), (1, 5, 5), (1, 1, 2)), "pacs": ((1, 1, 3),) * 3}
    runs = {
        f"loss={loss} seed={seed}": {
            step: {"maze7": counts(*[c] * 4)} for step, c in zip((0, 20, 40), of_run, strict=True)
        }
        for loss, of_arm in right.items()
        for seed, of_run in enumerate(of_arm)
    }
    for loss, tokens in (("grpo", 100.0), ("pacs", 50.0)):
        fate = {"training": {"tokens/rollout": [tokens] * 40}}
        of_loss = {typed: ends for typed, ends in runs.items() if loss in typed}
        write_planned(home, of_loss, loss, lost=[typed for typed in lost if loss in typed], fate=fate)
    return load(home)


def test_steps_and_tokens_to_a_level_are_restricted_means(tmp_path):
    """To 4/8: GRPO 30, 15 and never, 40; PACS never. The run with the fewest tokens has 2,000: at most so many count.
    As all are censored at one time, the mean is the area under Kaplan and Meier's curve up to it (statsmodels)."""
    frames = reaching(tmp_path, lost=["loss=grpo seed=2"])
    table = comparison.table(frames, ComparisonOptions("steps-to-50,tokens-to-50"))
    assert table is not None
    means = {(row, metric): mean for row, metric, mean in table.cells[["row", "metric", "mean"]].to_numpy()}
    curve = SurvfuncRight(np.array([30.0, 15, 40]), np.array([1, 1, 0]))
    times = [0, *curve.surv_times, 40]
    area = np.diff(times) @ [1, *curve.surv_prob]
    assert means["loss=grpo", "steps-to-50"] == pytest.approx(area)
    assert means["loss=pacs", "steps-to-50"] == 40
    assert means["loss=grpo", "tokens-to-50"] == pytest.approx((2000 + 1500 + 2000) / 3)
    assert any(
        note.startswith("steps-to-50: reached by 2 of 3 (loss=grpo), 0 of 3 (loss=pacs) runs") for note in table.notes
    )
    assert not any("luckier" in note for note in table.notes)  # the diverged run counts
    claim = {"says": "sooner", "metric": "steps-to-50", "arm": "loss=pacs", "relation": ">"}
    (verdict,) = verdicts(frames, claims=[claim])
    assert verdict.compared[0].effect == pytest.approx(40 - area)
    check_ahead("tokens-to-50", ["evaluation/maze7/avg_at_8"], 8)
    check_ahead("pass-area@8", ["evaluation/maze7/avg_at_8"], 8)


def test_arms_of_other_lengths_are_restricted_to_the_shortest(tmp_path):
    """Neither gets to 4/8 within 20 steps, one does after 30: with 20 and 40 steps they would seem to differ."""
    runs = {}
    for steps, right in ((20, (1, 3)), (40, (1, 3, 5))):
        for seed in range(3):
            evaluations = {20 * i: {"maze7": counts(*[c] * 4)} for i, c in enumerate(right)}
            runs[f"loss=grpo steps={steps} seed={seed}"] = evaluations
    write_planned(tmp_path, runs)
    table = comparison.table(load(tmp_path), ComparisonOptions("steps-to-50"))
    assert table is not None
    assert table.cells["mean"].dropna().tolist() == [20, 20]


@pytest.mark.slow
def test_restricted_means_of_simulated_runs_and_their_differences():
    """Lognormal times to a level (σ = 0.4), none to half of them censored, five seeds, 4,000 sweeps (± 0.8): a mean
    lies in its interval in 90 % and more, and in 93 % and more if few are censored; of equal arms 5 % are decided."""
    rng = np.random.default_rng(0)
    for centre, least in ((20.0, 0.93), (30.0, 0.93), (40.0, 0.9)):
        one, other = (np.minimum(rng.lognormal(math.log(centre), 0.4, (4000, 5)), 40) for _ in range(2))
        true = np.minimum(rng.lognormal(math.log(centre), 0.4, 400_000), 40).mean()
        covered = np.mean([not crossed(sweep[:, None]).interval().excludes(true) for sweep in one])
        decided = np.mean([crossed(sweep[:, None]).interval().excludes(0) for sweep in one - other])
        assert covered >= least - 0.008
        assert decided <= 0.05 + 0.008
