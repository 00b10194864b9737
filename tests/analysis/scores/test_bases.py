"""Claims over several base policies: numbers by hand, what cannot be pooled, and coverage by simulation."""

import json
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from analysis import command
from analysis.decide import questions
from analysis.frames.load import load
from analysis.scores.bases import over_bases
from analysis.scores.claim import CLAIMS, Outcome, Verdict
from analysis.scores.contrast import Scores
from analysis.scores.selection import NotTested
from analysis.scores.verdict import verdicts
from tests.analysis.ledger_factory import config_of, counts, write_planned, write_run, write_sweep

CLAIM = {"says": "PACS ends more accurate", "metric": "avg", "arm": "loss=pacs", "relation": ">"}


def write(home: Path, more: Mapping[str, Sequence[int]], claim: Mapping[str, Any], lost: Sequence[str] = ()) -> None:
    """more: by the words of a setting, of how many more of 8 PACS has right than GRPO's 2, by seed."""
    home.mkdir(exist_ok=True)
    ends = {
        f"loss={loss} {base} seed={seed}": {
            0: {"maze7": counts(*[1] * 20)},
            40: {"maze7": counts(*[2 + gain * (loss == "pacs")] * 20)},
        }
        for base, gains in more.items()
        for seed, gain in enumerate(gains)
        for loss in ("grpo", "pacs")
    }
    write_planned(home, ends, claims=[claim], lost=lost)


def judged(home: Path, more: Mapping[str, Sequence[int]], claim: Mapping[str, Any] = CLAIM, **how: Any) -> Verdict:
    write(home, more, claim, **how)
    (verdict,) = verdicts(load(home))
    return verdict


def over(*gains: Sequence[int]) -> dict[str, Sequence[int]]:
    return {f"model.seed={base}": of_base for base, of_base in enumerate(gains)}


def test_a_claim_over_three_bases_by_hand(tmp_path, capsys):
    """3, 4 and 5 of 8 more, ± 1 between seeds: 50 points ± t of 2 degrees of freedom times 12.5/√3."""
    verdict = judged(tmp_path, over((2, 3, 4), (3, 4, 5), (4, 5, 6)))
    half = float(stats.t.isf(0.025, 2)) * 12.5 / 3**0.5
    assert verdict.outcome == Outcome.HOLDS
    assert verdict.measured == f"+50 [{50 - half:.3g}, {50 + half:.3g}] points"
    tau = 100 * (1 / 64 - 1 / 64 / 3) ** 0.5  # what is left of the variance between bases
    assert f"3 base policies of 3 seeds, τ = {tau:.2g} points, I² = 67 %, 20 problems, 95 %" in verdict.basis
    assert [row.partition(" [")[0] for row in verdict.rows] == [
        "model.seed=0: +37.5",
        "model.seed=1: +50",
        "model.seed=2: +62.5",
    ]
    assert all(row.endswith(" points, holds") for row in verdict.rows)
    assert command.main(["--home", str(tmp_path), "--claims", "--json"]) == 0
    (of_study,) = json.loads(capsys.readouterr().out)
    assert [of_base["outcome"] for of_base in of_study["verdicts"][0]["bases"]] == ["holds"] * 3
    assert command.main(["--home", str(tmp_path), "--claims"]) == 0
    assert "holds over 3 base policies: PACS ends more accurate" in capsys.readouterr().out


def test_what_each_of_three_bases_decides_otherwise_is_not_decided_over_them(tmp_path):
    verdict = judged(tmp_path, over((4, 5, 4), (-2, -1, -2), (0, 1, 0)))
    assert verdict.outcome == Outcome.UNDECIDED
    assert [of_base.outcome for of_base in verdict.bases] == ["holds", "contradicted", "undecided"]
    assert "more base policies" in verdict.note or "no number of base policies" in verdict.note


def test_two_bases_say_nothing_of_a_third_and_no_seed_changes_that(tmp_path):
    verdict = judged(tmp_path, over((2, 3, 4), (3, 4, 5)))
    assert verdict.outcome == Outcome.NOT_TESTED
    assert verdict.note.startswith("too few base policies, 2 of at least 3 (seen: +43.8 [")
    assert not verdict.groups
    assert [of_base.outcome for of_base in verdict.bases] == ["holds", "holds"]


def test_where_the_luck_of_problems_decides_no_number_of_bases_would(tmp_path):
    """Three bases and seeds alike: of 20 problems half are 3 of 8 better, the others 2 of 8 worse."""
    more = [3, -2] * 10
    ends = {
        f"loss={loss} model.seed={base} seed={seed}": {
            40: {"maze7": counts(*[4 + gain * (loss == "pacs") + (base + seed + i) % 2 for i, gain in enumerate(more)])}
        }
        for loss, base, seed in product(("grpo", "pacs"), range(3), range(3))
    }
    write_planned(tmp_path, ends, claims=[CLAIM])
    (verdict,) = verdicts(load(tmp_path))
    assert verdict.outcome == Outcome.UNDECIDED
    assert "no number of base policies alone would decide it; " in verdict.note
    assert " problems would" in verdict.note


def test_what_no_seeds_of_these_bases_would_decide_is_given_up(tmp_path):
    """Differences of 4, −3 and 0 of 8 on three bases, with little luck of seeds: of t with 2 degrees of freedom."""
    write(tmp_path, over((4, 4, 3), (-3, -3, -2), (0, 0, 1)), CLAIM)
    (question,) = questions(load(tmp_path), CLAIMS, 0.95)
    assert question.chance_at_last(30, 0.05) < 0.01
    write(tmp_path / "alike", over((4, 1, 0), (0, 3, 1), (1, 2, 4)), CLAIM)  # here the luck of seeds is all there is
    (question,) = questions(load(tmp_path / "alike"), CLAIMS, 0.95)
    assert question.chance_at_last(30, 0.05) > 0.5


def test_three_bases_of_a_seed_each_are_three_draws(tmp_path):
    """3, 4 and 5 of 8: the same interval, of which no part is known to be that of seeds."""
    verdict = judged(tmp_path, over((3,), (4,), (5,)))
    assert verdict.outcome == Outcome.HOLDS
    assert "3 base policies of 1 seed, 20 problems" in verdict.basis


def test_only_what_differs_by_the_base_alone_is_pooled(tmp_path):
    more = {f"model.seed={base} task.size={size}": (3, 4, 4 + base) for base in (0, 1, 2) for size in (7, 9)}
    write(tmp_path, more, CLAIM)
    both = verdicts(load(tmp_path))
    assert [(verdict.setting, len(verdict.bases)) for verdict in both] == [("task.size=7", 3), ("task.size=9", 3)]
    assert [row.partition(":")[0] for row in both[1].rows] == ["model.seed=0", "model.seed=1", "model.seed=2"]


def test_a_base_that_one_launch_typed_and_another_had_by_default_is_one(tmp_path):
    """Of two arms one was launched with others of its bases: labels differ by no base."""
    plan: list[tuple[str, str, list[str]]] = []
    for base, seed, (loss, gain) in product(range(3), range(3), (("grpo", 0), ("pacs", 2), ("rloo", 3))):
        words = [f"loss={loss}", f"model.seed={base}", f"seed={seed}"]
        ends = {40: {"maze7": counts(*[2 + gain + (base + seed % 2) * (gain > 0)] * 20)}}
        name = " ".join(words)
        run_id = write_run(tmp_path, config_of(name), ends, name=name)
        plan.append((run_id, name, words if base or loss == "rloo" else [words[0], words[2]]))
    write_sweep(tmp_path, "s", plan, claims=[{**CLAIM, "arm": "loss=pacs,rloo"}])
    (verdict,) = verdicts(load(tmp_path))
    assert "simultaneous over 2 arms" in verdict.basis
    assert verdict.measured.endswith(" points (loss=rloo)")


def test_diverged_runs_of_one_base_count_over_all(tmp_path):
    more = over((2, 3, 4, 3), (3, 4, 5, 4), (4, 5, 6, 5))
    verdict = judged(tmp_path, more, lost=["loss=pacs model.seed=1 seed=3"])
    assert verdict.outcome == Outcome.NOT_TESTED
    assert verdict.note.startswith("1 run diverged (of the others: +")


def test_a_trend_over_bases_by_hand(tmp_path):
    """Slopes of 1, 2 and 1 of 8 per step: 16.7 points."""
    ends = {
        f"loss=pacs lr={lr} model.seed={base} seed={seed}": {
            40: {"maze7": counts(*[1 + i * (1 + base % 2) + (seed + i) % 2] * 20)}
        }
        for base in (0, 1, 2)
        for i, lr in enumerate(("1e-5", "1e-4", "1e-3"))
        for seed in (0, 1, 2)
    }
    write_planned(tmp_path, ends, claims=[{**CLAIM, "relation": "rises with lr"}])
    (verdict,) = verdicts(load(tmp_path))
    assert verdict.measured.startswith("+16.7 [")
    assert "per step over 3 values of lr" in verdict.measured
    assert "3 base policies of 3 seeds" in verdict.basis


def test_the_question_of_a_growing_sweep_is_over_its_bases(tmp_path):
    write(tmp_path, over((2, 3, 4), (3, 4, 5), (4, 5, 6)), CLAIM)
    (question,) = questions(load(tmp_path), CLAIMS, 0.95)
    assert (question.outcome, len(question.groups)) == ("holds", 6)


@pytest.mark.slow
@pytest.mark.parametrize("bases", [3, 5])
def test_over_bases_false_decisions_are_at_most_one_in_twenty(bases: int) -> None:
    """No mean difference; spread between bases (0, 1, 3), seeds (1), problems that bases share (1) and cells (2). Of
    1000, 50 false decisions are expected at most, which chance alone makes 64 (two errors)."""
    places = tuple(range(30)), np.zeros(30, np.int64)
    for seeds, spread in ((1, 1.0), (2, 0.0), (3, 3.0), (5, 1.0)):
        rng, false = np.random.default_rng([bases, seeds]), 0
        for _ in range(1000):
            problem, of_bases = rng.normal(0, 1, 30), list[Scores]()
            for _ in range(bases):
                of_base = rng.normal(0, spread) + rng.normal(0, 1, (seeds, 1)) + rng.normal(0, 2, (seeds, 30))
                of_bases.append(Scores(tuple(range(seeds)), places[0], of_base + problem, places[1]))
            false += over_bases(of_bases).summary.interval(0.95).excludes(0)
        assert false <= 64, (seeds, spread)


def test_base_policies_with_other_values_of_a_knob_or_other_benchmarks_are_not_pooled(tmp_path):
    trend = {"says": "more is better", "metric": "avg", "arm": "loss=grpo", "relation": "rises with lr"}
    ends = {
        f"loss=grpo model.seed={base} lr={lr} seed={seed}": {40: {"maze7": counts(*[2 + int(lr)] * 20)}}
        for base, of_base in enumerate(((1, 2, 4), (1, 2, 4), (1, 2, 4, 5)))
        for lr in of_base
        for seed in range(3)
    }
    write_planned(tmp_path, ends, claims=[trend])
    (verdict,) = verdicts(load(tmp_path))
    assert (verdict.outcome, verdict.note) == (Outcome.NOT_TESTED, "the base policies differ in their values of lr")
    two, one = np.repeat([0, 1], 4), np.zeros(4, np.int64)
    full = [Scores((0, 1), tuple(range(8)), np.tile(np.arange(8.0), (2, 1)) + b, two) for b in range(2)]
    with pytest.raises(NotTested, match="different benchmarks"):
        over_bases([*full, Scores((0, 1), tuple(range(4)), np.zeros((2, 4)), one)])


@pytest.mark.parametrize("claim", [CLAIM, {**CLAIM, "of": "mean"}])
def test_an_arm_that_is_trained_otherwise_on_another_base_is_not_pooled(tmp_path, claim):
    """Its label need not say so: in each setting it is the only PACS."""
    more = {f"model.seed={base} trainer.kl={kl}": (3, 4, 5) for base, kl in enumerate(("0.1", "0.2", "0.1"))}
    verdict = judged(tmp_path, more, claim)
    assert verdict.outcome == Outcome.NOT_TESTED
    assert verdict.note == "an arm differs between the base policies: trainer.kl=0.1 | trainer.kl=0.2"
    assert [of_base.outcome for of_base in verdict.bases] == ["holds"] * 3
