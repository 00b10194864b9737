from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import optimize, stats

from analysis import decide
from sweeps.growing import stopping, tuning
from sweeps.growing.stopping import Budget
from tests.analysis.ledger_factory import config, counts, write_planned


def test_a_budget_is_runs_or_hours_and_anything_else_is_refused_with_what_to_type() -> None:
    budgets = {"24": Budget(runs=24), "24runs": Budget(runs=24), "10h": Budget(hours=10)}
    for typed, budget in {**budgets, "1.5h": Budget(hours=1.5), "90min": Budget(hours=1.5)}.items():
        assert stopping.read_budget(typed) == budget, typed
    for typed in ("", None, "2.5", "10 days", "-3", "many"):
        with pytest.raises(ValueError, match="budget=24, or hours of runs, budget=10h"):
            stopping.read_budget(typed)


def test_what_is_to_be_decided() -> None:
    assert stopping.read_until("decided", has_claims=True) == ("claims", None)
    assert stopping.read_until("decided", has_claims=False) == ("", None)
    assert stopping.read_until("decided:pass@8", has_claims=True) == ("pass@8", None)
    best = {"best": ("", 0.0), "best:pass@8": ("pass@8", 0.0), "best:avg within 1.5": ("avg", 1.5)}
    for typed, read in {**best, "best within 2": ("", 2.0)}.items():
        assert stopping.read_until(typed, has_claims=True) == read, typed
    for typed in ("forever", "decided within 1", "best within", "best:avg,pass within -1"):
        with pytest.raises(ValueError, match=f"until={typed} is unknown: pass until=decided.* or until=best"):
            stopping.read_until(typed, has_claims=False)


def test_a_budget_below_three_seeds_of_each_arm_is_refused_and_differences_share_the_five_per_cent() -> None:
    with pytest.raises(ValueError, match="5 runs .* 3 seeds of each of 2 arms. Pass budget=6"):
        stopping.rule("", arms=2, first=1, runs=5)
    assert stopping.rule("", arms=2, first=1, runs=7)["seeds"] == [3]
    with pytest.raises(ValueError, match="a budget of 36,000 runs .* Pass budget=5000 or less, or fewer hours"):
        stopping.rule("", arms=2, first=1, runs=36_000)
    # One look, at 3 seeds of each of 3 arms: two differences to one reference. A claim has all of it: by a simulation
    # of 200,000 of the tests, 5 % of the differences that do not exist have a p-value below 0.021.
    for about, level in {"": 0.025, "pass@8": 0.025, "claims": 0.021}.items():
        assert stopping.rule(about, arms=3, first=3, runs=9)["levels"] == pytest.approx([level], rel=0.02), about


def test_where_the_best_arm_is_sought_the_five_per_cent_are_of_one_side() -> None:
    """One look at three arms: by a t test of 95 % each, to one side 2.5 % of each of two."""
    assert stopping.rule("", arms=3, first=3, runs=9, best=0.0)["levels"] == pytest.approx([0.05])
    with pytest.raises(LookupError, match="--metrics entropy: no value of it is better than another"):
        decide.check_metric("entropy", ["evaluation/maze/avg_at_8"], 8, own_gpus=True, best=True)
    for name in ("", "avg", "pass@4", "steps-to-50", "hours"):
        decide.check_metric(name, ["evaluation/maze/avg_at_8"], 8, own_gpus=True, best=True)


def test_of_several_settings_each_has_a_best_arm() -> None:
    """Two settings: in x, a is known at look 1; in y, c leads at look 1, and d at look 2, at which e is dropped."""

    def question(arm: str, best: str, outcome: str) -> dict[str, Any]:
        return {"outcome": outcome, "groups": [arm, best], "arms": [f"{arm}, in {arm[0]}", f"{best}, in {best[0]}"]}

    first = [question("xb", "xa", "below"), question("yd", "yc", "undecided"), question("ye", "yc", "undecided")]
    second = [question("yc", "yd", "undecided"), question("ye", "yd", "below")]
    rule = {"best": 0.0, "looks": [{"questions": of_look} for of_look in (first, second)]}
    assert stopping.arms_left(rule) == (
        "left: xa, in x (leads), yd, in y (leads), yc, in y; dropped at look 1: xb, in x; dropped at look 2: ye, in y"
    )
    last = {"questions": [question("yc", "yd", "below")]}
    rule = {"best": 0.0, "looks": [*rule["looks"], last]}
    assert stopping.stopped(rule) == "in each setting the best arm is known"
    assert stopping.arms_left(rule).startswith("left: xa, in x, yd, in y; ")


def test_the_most_it_can_cost_has_the_runs_of_tuning() -> None:
    rule = stopping.rule("", arms=2, first=3, runs=16, spent=4)
    assert "At most 16 runs in all" in "\n".join(stopping.forecast(rule, [], 2, None, spent=4))


def test_before_the_first_run_the_spread_of_an_earlier_sweep_says_what_will_be_seen(tmp_path: Path) -> None:
    """Differences of 1, 2, 3, 1 and 2 of 8 by seed, alike on all problems: the power of a paired t test (scipy).
    Other problems, or two seeds, say nothing."""
    rule = stopping.rule("", arms=3, first=3, runs=24)
    assert decide.foreseen(tmp_path, config("rloo"), "avg", rule) == ""
    more = (1, 2, 3, 1, 2)
    for sweep_id, seeds, created in (("short", 2, 9.0), ("earlier", 5, 1.0)):
        ends = {f"loss=grpo name={sweep_id} seed={s}": {40: {"maze7": counts(*[2] * 30)}} for s in range(seeds)}
        pacs = {
            f"loss=pacs name={sweep_id} seed={s}": {40: {"maze7": counts(*[2 + more[s]] * 30)}} for s in range(seeds)
        }
        write_planned(tmp_path, ends | pacs, sweep_id, study=sweep_id, created=created)
    listed = list[str]()
    for seeds, level in zip(rule["seeds"], rule["levels"], strict=True):
        critical, deviation = stats.t.ppf(1 - level / 2, seeds - 1), 100 / 8 * np.std(more, ddof=1) / seeds**0.5

        def missing(size: float, t: float = critical, sd: float = deviation, df: int = seeds - 1) -> float:
            return stats.nct.sf(t, df, size / sd) - 0.8

        if missing(100) > 0:  # points; a look at three seeds sees none that is possible
            listed.append(f"{optimize.brentq(missing, 1, 100):.2g} points at {seeds} seeds")
    assert len(listed) == len(rule["seeds"]) - 1
    expected = f"By the spread in earlier differences are decided with 80 % chance from {', '.join(listed)}."
    assert decide.foreseen(tmp_path, config("rloo"), "avg", rule) == expected
    assert decide.foreseen(tmp_path, config("rloo", task={"size": 9}), "avg", rule) == ""
    assert decide.foreseen(tmp_path, config("rloo"), "pass@64", rule) == ""


def test_what_is_tuned() -> None:
    grid = tuning.read("lr:1e-5,3e-5 eta:1,2 seed:7,8", [["loss=lad"]])
    assert grid.values == [("lr=1e-5", "eta=1"), ("lr=1e-5", "eta=2"), ("lr=3e-5", "eta=1"), ("lr=3e-5", "eta=2")]
    assert grid.seeds == [7, 8]
    for typed, told in (
        ("lr", "write a knob and its values"),
        ("lr:1e-5", "two values or more"),
        ("loss:a,b", "loss is both tuned and set"),
        ("lr:1,2 eta:1 lr:3,4", "lr is written twice"),
        ("lr:1,2 seed:x", "seeds are whole numbers"),
    ):
        with pytest.raises(ValueError, match=told):
            tuning.read(typed, [["loss=lad"]])
    with pytest.raises(ValueError, match="seed 7 would tune and be reported"):
        tuning.rule(grid, [7])
