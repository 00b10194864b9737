"""Effects of crossed knobs: worked by hand, against statsmodels, and their false verdicts in simulated sweeps."""

from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from statsmodels.formula.api import ols
from statsmodels.stats.anova import anova_lm

from analysis.frames.load import load
from analysis.report import report
from analysis.report.render import markdown
from analysis.scores.arm import arms
from analysis.scores.cell import Cell
from analysis.scores.contrast import Scores
from analysis.scores.factors import Crossing, Levels, compared_effects, crossings, shares
from analysis.tables.across import across
from analysis.tables.factors import table
from tests.analysis.ledger_factory import counts, write_planned

VALUES = {"eta": ("1", "2", "4"), "lr": ("low", "high")}


def crossing(**values: Levels) -> Crossing:
    """Without arms, which effects do not read."""
    levels: list[Any] = list(product(*(values or VALUES).values()))
    return Crossing(values or VALUES, dict.fromkeys(levels, None))


def numbers(runs: np.ndarray) -> dict[Levels, Cell]:
    """runs [arms, seeds]: one number per run, of the arms of `crossing()` in their order."""
    seeds = tuple(range(runs.shape[1]))
    return {
        levels: Cell.of(Scores(seeds, ("",), of_arm[:, None]), len(seeds))
        for levels, of_arm in zip(crossing().arms, runs, strict=True)
    }


def test_effects_by_hand() -> None:
    """Rows are η = 1, 2, 4; columns lr low, high: 1 3 | 2 8 | 0 2. Means by η 2, 5, 1; by lr 1 and 13/3. The step of lr
    is 2 at η = 1, 6 at 2 and 2 at 4."""
    runs = np.array([1.0, 3, 2, 8, 0, 2])[:, None] + np.array([[0, 0.1, -0.1]])
    compared = compared_effects(crossing(), numbers(runs))
    assert [c.effect for c in compared] == pytest.approx([3, -1, 10 / 3, 4, 0])
    assert crossing().effects()[3] == {"eta": "2", "lr": "high"}


def test_shares_errors_and_f_are_those_of_an_analysis_of_variance() -> None:
    """With seeds as blocks, sum coding, by least squares. The spread between seeds is pooled, so every contrast has the
    residual's 20 degrees of freedom, unless its own spread is larger."""
    rng = np.random.default_rng(0)
    runs = rng.normal(0, 1, (6, 5)) + rng.normal(0, 3, 5) + np.array([0, 1, 1, 4, 2, 3.0])[:, None]
    rows = [
        {"eta": eta, "lr": lr, "seed": seed, "y": runs[i, seed]}
        for i, (eta, lr) in enumerate(crossing().arms)
        for seed in range(5)
    ]
    fit = ols("y ~ C(eta, Sum) * C(lr, Sum) + C(seed)", pd.DataFrame(rows)).fit()
    expected = anova_lm(fit, typ=3)
    of_variance = shares(crossing(), numbers(runs))
    names = ["C(eta, Sum)", "C(lr, Sum)", "C(eta, Sum):C(lr, Sum)"]
    assert [share.f for share in of_variance] == pytest.approx([expected["F"][name] for name in names])
    assert [share.df for share in of_variance] == [(2, 20), (1, 20), (2, 20)]
    squares, error = expected["sum_sq"], expected["sum_sq"]["Residual"] / 20
    omega = [
        (squares[n] - df * error) / (squares[n] + (30 - df) * error) for n, df in zip(names, (2, 1, 2), strict=True)
    ]
    assert [share.share for share in of_variance] == pytest.approx([max(0, w) for w in omega])
    for share in of_variance:
        low, high = (30 * end / (1 - end) for end in (share.interval.low, share.interval.high))
        assert stats.ncf.cdf(share.f, *share.df, high) == pytest.approx(0.025, abs=1e-4)
        assert low == 0 or stats.ncf.cdf(share.f, *share.df, low) == pytest.approx(0.975, abs=1e-4)
    compared = compared_effects(crossing(), numbers(runs))
    norms = (1, 1, 2 / 3, 4, 4)  # Σ weights²: of two thirds, 6 weights of ± 1/3
    own = [np.var(c.difference.values, ddof=1) for c in compared]
    errors = [max(norm * error, spread) / 5 for norm, spread in zip(norms, own, strict=True)]
    assert [float(c.judged.summary.seed) for c in compared] == pytest.approx(errors)


@pytest.mark.slow
@pytest.mark.parametrize(("S", "spread"), [(1, 0.0), (3, 0.03)])
def test_all_effects_of_a_sweep_lie_in_their_intervals(S: int, spread: float) -> None:
    """In 95 %, which 500 sweeps know to ± 2 (two errors). The sixth arm 15 points above the others is an interaction of
    15 points, and main effects of 7.5 and 5."""
    rng, problems, covered = np.random.default_rng([S, 2]), 128, 0
    for _ in range(500):
        base, cells = rng.beta(3, 3, problems), dict[Levels, Cell]()
        for i, levels in enumerate(crossing().arms):
            rate = base + rng.normal(0, 0.05, problems) + rng.normal(0, spread, (S, 1))
            values = rng.binomial(8, np.clip(rate, 0, 1)) / 8 + 0.15 * (i == 5)
            scores = Scores(tuple(range(S)), tuple(range(problems)), values, np.zeros(problems, np.int64))
            cells[levels] = Cell.of(scores, S)
        effects = zip(compared_effects(crossing(), cells), (0, 0.075, 0.05, 0, 0.15), strict=True)
        covered += all(not c.judged.simultaneous.excludes(true) for c, true in effects)
    assert covered / 500 >= 0.95 - 0.02


def planned(tmp_path, *typed: str, **about: Any):
    """Two seeds of each arm; 2, 3, … of 8 right to each of 40 problems, one more with odd seeds."""
    ends = {
        f"{words} seed={seed}": {40: {"maze7": counts(*[2 + i + seed] * 40)}}
        for i, words in enumerate(typed)
        for seed in (0, 1)
    }
    write_planned(tmp_path, ends, **about)
    return load(tmp_path)


def test_every_combination_of_two_knobs_is_a_table_of_the_report(tmp_path) -> None:
    """1e-5: 2, 3; 1e-3: 4, 5 of 8: a step of lr of 2/8, of the loss 1/8, and none that depends on the other."""
    arms_typed = [f"loss={loss} lr={lr}" for lr in ("1e-5", "1e-3") for loss in ("grpo", "rloo")]
    frames = planned(tmp_path, *arms_typed)
    of_avg = table(frames).cells.query("metric == 'avg@8'")
    rows = dict(zip(of_avg["row"], of_avg["difference"], strict=True))
    assert rows == pytest.approx({"loss=rloo": 1 / 8, "lr = 1e-3": 2 / 8, "loss=rloo × lr = 1e-3": 0})
    assert set(of_avg["reference"]) == {"loss=grpo lr = 1e-5"}
    content = report.build(frames, with_figures=False)
    assert "loss=rloo × lr = 1e-3" in report.page(frames, content, {})
    assert "the difference of two differences" in markdown(table(frames))


def test_a_knob_that_one_loss_has_is_part_of_the_loss(tmp_path) -> None:
    frames = planned(
        tmp_path, *(f"{loss} lr={lr}" for loss in ("loss=grpo", "loss=lad eta=2") for lr in ("1e-5", "1e-3"))
    )
    (found,) = crossings(arms(frames), frames.swept, "")
    assert found.values == {"loss": ("grpo", "lad"), "lr": ("1e-5", "1e-3")}


def test_a_grid_that_ran_again_with_one_more_knob_is_a_block_of_its_own(tmp_path) -> None:
    """A step of lr of 2/8 in the first grid, and of 4/8 where clip_high was typed, too."""
    grid = [f"loss={loss} lr={lr}" for lr in ("1e-5", "1e-3") for loss in ("grpo", "rloo")]
    again = {f"{typed} clip_high=0.28 seed=0": {40: {"maze7": counts(*[2 * i] * 40)}} for i, typed in enumerate(grid)}
    write_planned(tmp_path, again, "again", created=2000.0)
    of_lr = table(planned(tmp_path, *grid)).cells.query("metric == 'avg@8' and row == 'lr = 1e-3'")
    effects = dict(zip(of_lr["block"], of_lr["difference"], strict=True))
    assert effects == pytest.approx({"loss × lr": 2 / 8, "loss × lr, clip_high = 0.28": 4 / 8})
    assert set(of_lr["reference"]) == {"loss=grpo lr = 1e-5", "loss=grpo lr = 1e-5 clip_high = 0.28"}
    assert across({"": load(tmp_path)}) is None  # in one setting, nothing to pool


def test_a_combination_that_is_missing_or_was_lucky_decides_nothing(tmp_path) -> None:
    typed = [f"loss={loss} lr={lr}" for lr in ("1e-5", "1e-3") for loss in ("grpo", "rloo")]
    assert table(planned(tmp_path / "missing", *typed[:3])) is None
    lost = {f"{typed[3]} seed=1"}
    of_avg = table(planned(tmp_path / "lucky", *typed, lost=lost)).cells.query("metric == 'avg@8'")
    assert (of_avg["unfair"] != "").tolist() == [True, True, False]  # of no effect neither side is the better one
