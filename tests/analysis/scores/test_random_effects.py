"""Meta-analysis: a published example, statsmodels, coverage by simulation, and the command that reads bundles."""

import json
from pathlib import Path

import numpy as np
import pytest
from statsmodels.stats.meta_analysis import combine_effects

from analysis import command
from analysis.frames import bundle
from analysis.frames.load import load
from analysis.scores.random_effects import pooled
from analysis.tables import across
from tests.analysis.ledger_factory import counts, write_planned

# The 13 trials of the BCG vaccine (Colditz et al. 1994): log relative risks and their variances.
RISKS = (-0.8893, -1.5854, -1.3481, -1.4416, -0.2175, -0.7861, -1.6209, 0.0120, -0.4694, -1.3713, -0.3394, 0.4459)
VARIANCES = (0.3256, 0.1946, 0.4154, 0.0200, 0.0512, 0.0069, 0.2230, 0.0040, 0.0564, 0.0730, 0.0124, 0.5325, 0.0714)
BCG = np.array((*RISKS, -0.0173)), np.array(VARIANCES)


def test_the_trials_of_a_vaccine_have_their_published_spread() -> None:
    """metafor: rma(yi, vi, method="PM") has τ² = 0.318, Q(12) = 152.2 and I² = 92 % (Q on unrounded data)."""
    whole, expected = pooled(*BCG), combine_effects(*BCG, method_re="iterated", atol=1e-12)
    assert whole.tau2 == pytest.approx(0.318, abs=5e-4)
    assert whole.q == pytest.approx(152.2, abs=0.5)
    assert whole.i2 == pytest.approx(0.921, abs=5e-4)
    assert whole.tau2 == pytest.approx(expected.tau2, rel=1e-6)
    assert whole.mean == pytest.approx(expected.mean_effect_re, rel=1e-6)
    interval = whole.interval(0.95)
    assert (interval.low, interval.high) == pytest.approx(expected.conf_int(use_t=True)[3], rel=1e-5)  # HKSJ
    error, another = (interval.high - whole.mean) / 2.17881, whole.of_another(0.95)  # t of 12 degrees of freedom
    assert another.high - whole.mean == pytest.approx(2.20099 * (error**2 + whole.tau2) ** 0.5, rel=1e-5)  # of 11


def test_two_equal_effects_by_hand() -> None:
    """Errors 1 and 1: the mean has √½, without a spread; t of one degree of freedom is 12.706."""
    whole = pooled([2.0, 2.0], [1.0, 1.0])
    assert (whole.mean, whole.tau2, whole.i2, whole.p) == (2.0, 0.0, 0.0, 1.0)
    assert whole.interval(0.95).high == pytest.approx(2 + 12.706 * 0.5**0.5, abs=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(("count", "seeds"), [(3, 3), (5, 3), (5, 5), (8, 3)])
@pytest.mark.parametrize("spread", [0.0, 1.0, 3.0])
def test_the_mean_over_laboratories_lies_in_its_interval(count: int, seeds: int, spread: float) -> None:
    """Errors of 0.5 to 2 per seed, known from 3 or 5 seeds. In 95 %, which 1000 know to ± 1.4 (two errors)."""
    rng, inside = np.random.default_rng([count, seeds, round(spread)]), 0
    for _ in range(1000):
        errors = rng.uniform(0.5, 2, count) / np.sqrt(seeds)
        effects = rng.normal(0, spread, count) + rng.normal(0, errors)
        variances = errors**2 * rng.chisquare(seeds - 1, count) / (seeds - 1)
        inside += not pooled(effects, variances, [seeds - 1.0] * count).interval(0.95).excludes(0)
    assert inside / 1000 >= 0.95 - 0.014


def laboratory(home: Path, name: str, gain: int, *, first_seed: int = 0, size: str = "7") -> Path:
    """Two seeds; PACS has `gain` of 8 right more than GRPO on 40 problems, one more under odd seeds."""
    ends = {
        f"loss={loss} task.size={size} seed={first_seed + s}": {
            40: {"maze7": counts(*[2 + more + s * (more > 0)] * 40)}
        }
        for loss, more in (("grpo", 0), ("pacs", gain), ("rloo", 1))
        for s in (0, 1)
    }
    write_planned(home / name, ends, study=name)
    bundle.write(load(home / name), home / f"{name}.rlvr")
    return home / f"{name}.rlvr"


def test_arms_of_the_same_names_are_pooled_over_bundles(tmp_path, capsys) -> None:
    """Differences of 1.5/8, 2.5/8 and 3.5/8, each with the same error: the mean is 2.5/8."""
    files = [str(laboratory(tmp_path, f"lab{i}", i, first_seed=2 * i, size=str(5 + 2 * i))) for i in (1, 2, 3)]
    assert command.main(["meta", *files, "--json"]) == 0
    rows = [row for row in json.loads(capsys.readouterr().out) if (row["block"], row["metric"]) == ("loss=pacs", "avg")]
    assert [row["row"].rpartition("/")[2] for row in rows] == ["lab1", "lab2", "lab3", across.ALL]
    assert [row["difference"] for row in rows] == pytest.approx([1.5 / 8, 2.5 / 8, 3.5 / 8, 2.5 / 8])
    assert [row["plain_low"] - row["difference_low"] > 0 for row in rows] == [False, False, False, True]  # of two arms
    assert command.main(["meta", *files]) == 0
    assert "above in each of the 3" not in " ".join(capsys.readouterr().out.split())  # two seeds decide none alone


def test_runs_count_once_and_names_that_do_not_meet_are_a_line(tmp_path, capsys) -> None:
    one, again = (str(laboratory(tmp_path / name, "lab", 1)) for name in ("a", "b"))
    assert command.main(["meta", one, again]) == command.BAD_INPUT
    assert "Runs that several files hold count once. Arms: " in (said := capsys.readouterr().err)
    assert "loss=pacs" in said
    assert command.main(["meta", one, one]) == command.BAD_INPUT
    assert f"{one}: typed twice." in capsys.readouterr().err


@pytest.mark.slow
def test_more_seeds_of_a_setting_are_no_other_setting(tmp_path, capsys) -> None:
    one, more = (str(laboratory(tmp_path, f"lab{seed}", 1, first_seed=seed)) for seed in (0, 2))
    assert command.main(["meta", one, more]) == command.BAD_INPUT
    assert "have seeds of one setting, 'loss=grpo'" in (said := capsys.readouterr().err)
    assert command.main([*said.split("python -m analysis ")[1].split(), "--json", "--out", str(tmp_path / "out")]) == 0
    (study,) = json.loads(capsys.readouterr().out)
    assert study["num_runs"] == 12


def test_settings_of_one_study_are_pooled_on_its_page(tmp_path) -> None:
    ends = {
        f"loss={loss} task.size={size} seed={seed}": {40: {f"maze{size}": counts(*[2 + more + seed] * 40)}}
        for size in (7, 9)
        for loss, more in (("grpo", 0), ("pacs", 2))
        for seed in (0, 1)
    }
    write_planned(tmp_path, ends)
    of_avg = across.table(load(tmp_path)).cells.query("metric == 'avg'")
    assert dict(zip(of_avg["row"], of_avg["difference"], strict=True)) == pytest.approx(
        {"task.size=7": 0.25, "task.size=9": 0.25, across.ALL: 0.25}
    )


def test_effects_of_crossed_knobs_are_pooled_over_base_policies(tmp_path) -> None:
    """In each of three settings 2 of 8 + 1 with rloo + 1, 2, 3 with the larger rate, by setting: effects 1/8 and 2/8,
    the means of three numbers with nearly equal errors."""
    ends = {
        f"loss={loss} lr={lr} model.seed={base} seed={seed}": {
            40: {
                "maze7": counts(
                    *[2 + (loss == "rloo") + (lr == "1e-3") * (1 + base) + (seed + i) % 2 for i in range(40)]
                )
            }
        }
        for base in (0, 1, 2)
        for loss in ("grpo", "rloo")
        for lr in ("1e-5", "1e-3")
        for seed in (0, 1)
    }
    write_planned(tmp_path, ends)
    table = across.table(load(tmp_path))
    of_all = table.cells[(table.cells["row"] == across.ALL) & (table.cells["metric"] == "avg")]
    effects = dict(zip(of_all["block"], of_all["difference"], strict=True))
    assert effects["lr = 1e-3"] == pytest.approx(2 / 8, abs=1e-3)  # the bound on unseen problems depends on the mean
    assert effects["loss=rloo"] == pytest.approx(1 / 8)
    assert effects["loss=rloo × lr = 1e-3"] == pytest.approx(0)
    assert any(note.startswith("lr = 1e-3, avg: τ = ") for note in table.notes)
