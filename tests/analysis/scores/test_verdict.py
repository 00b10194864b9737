from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from analysis.decide import questions
from analysis.frames.load import load
from analysis.scores.claim import CLAIMS, Origin, Outcome, Verdict
from analysis.scores.verdict import name_of, verdicts
from analysis.tables import comparison
from tests.analysis.ledger_factory import change_sweep, config, counts, write_planned, write_run

PROBLEMS = 60
LOST = -1
CLAIM = {"says": "PACS ends more accurate", "metric": "avg", "arm": "loss=pacs", "relation": ">"}
RISES = {**CLAIM, "says": "it rises", "arm": "loss=pacs", "relation": "rises with lr"}


def evaluation(right: int) -> dict[str, Any]:
    """Problem i has `right` of 8 right, one more on every third and one fewer on the next."""
    return {"maze7": counts(*(min(8, max(0, right + (0, 1, -1)[i % 3])) for i in range(PROBLEMS)))}


def two(grpo: int, pacs: int, seeds: int) -> dict[str, Any]:
    """Evaluations of two arms with so many right answers of 8 at the end."""
    rates = {"grpo": grpo, "pacs": pacs}
    typed = {f"loss={loss} seed={seed}": right for loss, right in rates.items() for seed in range(seeds)}
    return {words: {0: evaluation(1), 40: evaluation(right)} for words, right in typed.items()}


def judged(
    home: Path, arms: Mapping[str, Sequence[int | None]], claim: Mapping[str, Any], *, start: int = 1
) -> Verdict:
    """The verdict on one claim. arms: overrides to right answers of 8 at the end, by seed; None: without that seed;
    LOST: it diverged."""
    home.mkdir(exist_ok=True)
    ends_of, lost = {}, set()
    for arm, of_seeds in arms.items():
        for seed, right in ((seed, right) for seed, right in enumerate(of_seeds) if right is not None):
            words = f"{arm} seed={seed}"
            ends_of[words] = {0: evaluation(start), 20: evaluation((start + right) // 2), 40: evaluation(right)}
            lost |= {words} if right == LOST else set()
    write_planned(home, ends_of, lost=lost, claims=[claim])
    (verdict,) = verdicts(load(home))
    return verdict


def test_an_empty_field_of_a_claim_is_none(tmp_path):
    """`source:` without a value made it a claim of a paper named None."""
    verdict = judged(tmp_path, {"loss=grpo": [4] * 3, "loss=pacs": [6] * 3}, {**CLAIM, "source": None, "printed": None})
    assert (verdict.outcome, verdict.claim.origin, verdict.claim.source) == (Outcome.HOLDS, Origin.OWN, "")


def test_a_claim_that_is_no_mapping_is_not_tested_and_no_traceback(tmp_path):
    write_planned(tmp_path, two(4, 6, 3), claims=["PACS wins", CLAIM])  # pyright: ignore[reportArgumentType]
    broken, whole = verdicts(load(tmp_path))
    assert (broken.outcome, broken.claim.says) == (Outcome.NOT_TESTED, "PACS wins")
    assert "a claim is fields and their values" in broken.note
    assert whole.outcome == Outcome.HOLDS


def more_seeds(effect: float, error: Callable[[int], float], tail: float = 0.025, df: int = 1) -> str:
    """How a verdict names the seeds beyond four of which a t test has a power of 80 %, by the noncentral t.

    error: the standard error with so many seeds. df: degrees of freedom per seed beyond the first."""

    def power(seeds: int) -> float:
        return float(stats.nct.sf(stats.t.isf(tail, df * (seeds - 1)), df * (seeds - 1), effect / error(seeds)))

    return f"about {next(seeds for seeds in range(4, 100) if power(seeds) >= 0.8) - 4} more seeds"


def test_a_claim_holds_where_the_difference_is_decided(tmp_path):
    verdict = judged(tmp_path, {"loss=grpo": (3, 4, 3), "loss=pacs": (5, 6, 5)}, CLAIM)
    # Seed by seed 2 of 8 more on every problem, without spread between seeds: exactly 25 points.
    assert verdict.outcome == Outcome.HOLDS
    assert verdict.measured.startswith("+25 [")
    assert verdict.basis == f"avg@8, last evaluations, 3 seeds, {PROBLEMS} problems, 95 %"


def test_the_opposite_contradicts_it(tmp_path):
    verdict = judged(tmp_path, {"loss=grpo": (5, 6, 5), "loss=pacs": (3, 4, 2)}, CLAIM)
    assert verdict.outcome == Outcome.CONTRADICTED
    assert verdict.measured.startswith("−29.2 [")  # (−2 − 2 − 3)/3/8


def test_an_undecided_claim_names_the_seeds_that_would_decide_it(tmp_path):
    verdict = judged(tmp_path, {"loss=grpo": (4, 4, 4, 4), "loss=pacs": (4, 6, 4, 5)}, CLAIM)
    assert verdict.outcome == Outcome.UNDECIDED
    # 0, 2, 0, 1 of 8 more, alike on all problems: a paired t test over seeds.
    assert verdict.note == more_seeds(0.75, lambda seeds: 0.9574271 / seeds**0.5)


@pytest.mark.parametrize(
    ("grpo", "pacs", "relation", "outcome"),
    [
        # Of three of eight runs that are left PACS has 2 of 8 more: the three luckiest of arms that may well be equal.
        ((4, 4, 5, 4, 4, 5, 4, 4), (6, 6, 7, *[LOST] * 5), ">", Outcome.NOT_TESTED),
        # GRPO's three luckiest, and they are less accurate yet.
        ((4, 4, 5, *[LOST] * 5), (6, 6, 7, 6, 6, 7, 6, 6), ">", Outcome.HOLDS),
        ((6, 6, 7, 6), (4, 4, 5, LOST), ">", Outcome.CONTRADICTED),
        ((6, 6, 7, LOST), (4, 4, 5, 4), ">", Outcome.NOT_TESTED),
        ((4, 5, 4, 4, LOST), (4, 4, 5, 4, 4), "~ 15", Outcome.NOT_TESTED),  # of equality either side counts
        ((4, 5, 4, 4, 4), (4, 4, 5, 4, 4), "~ 15", Outcome.HOLDS),
    ],
)
def test_runs_that_diverged_are_not_left_out_of_a_verdict(tmp_path, grpo, pacs, relation, outcome):
    """The remaining runs were the luckier ones: the side with the higher score must have no diverged run."""
    verdict = judged(tmp_path, {"loss=grpo": grpo, "loss=pacs": pacs}, {**CLAIM, "relation": relation})
    lost = max(grpo.count(LOST), pacs.count(LOST))
    assert verdict.outcome == outcome
    if outcome == Outcome.NOT_TESTED:
        assert verdict.note.startswith(f"{lost} run{'s' * (lost > 1)} diverged (of the others: ")
        assert not verdict.groups  # more seeds would not test it: no stopping rule waits for them
    elif lost:
        assert f", {len(grpo) - lost} of {len(grpo)} seeds ({lost} diverged), " in verdict.basis


def test_a_trend_over_values_at_which_runs_diverged_is_not_judged(tmp_path):
    ends = ((1e-5, (2, 3, 2, 2)), (1e-4, (4, 5, 4, 4)), (1e-3, (6, 7, 6, LOST)))
    verdict = judged(tmp_path, {f"loss=pacs lr={lr:g}": of for lr, of in ends}, RISES)
    assert (verdict.outcome, verdict.note) == (
        Outcome.NOT_TESTED,
        "1 run diverged: the remaining runs were the luckier ones",
    )


def test_two_arms_without_room_are_no_evidence_of_equality_unless_a_third_shows_that_there_was_some(tmp_path):
    """Under every other seed each solves 1 of 8 of one problem. Where DAPO solves half of all, they might have."""
    same = {**CLAIM, "says": "the same", "relation": "~ 2"}

    def verdict(*more: tuple[str, int]) -> Verdict:
        home, ends_of = tmp_path / f"{len(more)}", {}
        for loss, right in (("grpo", 0), ("pacs", 0), *more):
            for seed in range(4):
                last = max(right, (seed + (loss == "pacs")) % 2)
                ends = {0: evaluation(1), 40: {"maze7": counts(*[right] * (PROBLEMS - 1), last)}}
                ends_of[f"loss={loss} seed={seed}"] = ends
        write_planned(home, ends_of, claims=[same])
        (of_claim,) = verdicts(load(home))
        return of_claim

    assert verdict().note == "saturated: 0.1 to 0.1 % leave no room to differ"
    assert verdict(("dapo", 4)).outcome == Outcome.HOLDS


def test_beyond_the_margin_more_seeds_are_asked_for_to_contradict_it(tmp_path):
    """+15.6 points by seed (1, 2, 0, 2 of 8): beyond 5, and not yet decidedly. A paired t test of 10.6 points."""
    same = {**CLAIM, "says": "the same", "relation": "~ 5"}
    verdict = judged(tmp_path, {"loss=grpo": (4,) * 4, "loss=pacs": (5, 6, 4, 6)}, same)
    needed = more_seeds(1.25 / 8 - 0.05, lambda seeds: 0.9574271 / 8 / seeds**0.5)
    assert (verdict.outcome, verdict.note) == (Outcome.UNDECIDED, needed)
    more = judged(tmp_path / "more", {"loss=grpo": (4,) * 12, "loss=pacs": (5, 6, 4, 6) * 3}, same)
    assert more.outcome == Outcome.CONTRADICTED


def test_a_difference_of_two_pairs_of_runs_decides_nothing(tmp_path):
    """Where the others diverged: two seeds of 25 points on every problem, which no three need have."""
    write_planned(tmp_path, two(3, 5, seeds=4), lost=("loss=pacs seed=2", "loss=pacs seed=3"))
    (question,) = questions(load(tmp_path), "avg", 0.95)
    assert question.measured.startswith("+25 [")
    assert question.open


@pytest.mark.parametrize(
    ("diverged", "outcome", "mark"), [("pacs", Outcome.NOT_TESTED, ""), ("grpo", "above", "▲"), ("", "above", "▲")]
)
def test_nothing_is_decided_in_favour_of_an_arm_with_diverged_runs(tmp_path, diverged: str, outcome: str, mark: str):
    """PACS has two of eight more with every seed. If two of its five runs diverged, the others were the luckier ones;
    those of GRPO that diverged were none that it would have gained by."""
    write_planned(tmp_path, two(3, 5, seeds=5), lost=[f"loss={diverged} seed={seed}" for seed in (3, 4)])
    frames = load(tmp_path)
    (question,) = questions(frames, "avg", 0.95)
    assert question.outcome == outcome
    assert not question.open
    table = comparison.table(frames)
    cells = table.cells
    assert set(cells[(cells["row"] == "loss=pacs") & (cells["metric"] == "avg@8")]["verdict"]) == {mark}
    noted = [note for note in table.notes if "the better arm diverged" in note and "avg@8" in note]
    assert bool(noted) == (diverged == "pacs")


def test_an_arm_that_looks_the_other_way_but_not_within_the_family_is_open(tmp_path):
    """PACS at 1e-4 has 2, 3, 2 and 3 of 8 more by seed, at 1e-3 1, 1, 1 and 0 fewer: 0.75 ± t·0.27, the spread pooled
    over both: (1/3 + 1/4)/2 = 0.292 a seed, 6 degrees of freedom. |t| = 2.78: beyond 2.45, of it alone, and not beyond
    Dunnett's 2.86 of two arms, which S seeds reach with 80 % where the noncentral t says so."""
    arms = {"loss=grpo": (4, 4, 4, 4), "loss=pacs lr=1e-4": (6, 7, 6, 7), "loss=pacs lr=1e-3": (3, 3, 3, 4)}
    verdict = judged(tmp_path, arms, {**CLAIM, "source": "PACS"})
    assert verdict.outcome == Outcome.UNDECIDED
    assert verdict.note == more_seeds(0.75, lambda seeds: (0.2917 / seeds) ** 0.5, stats.t.sf(2.86, 6), df=2)
    assert verdict.claim.origin == Origin.PAPER


def test_a_claim_has_the_simultaneous_intervals_of_the_comparison(tmp_path):
    """Both arms are compared to the one GRPO: their differences are correlated, in the claim as in the table."""
    arms = {"loss=grpo": (4, 4, 4, 4), "loss=pacs lr=1e-4": (6, 7, 6, 7), "loss=pacs lr=1e-3": (3, 3, 3, 4)}
    verdict = judged(tmp_path, arms, CLAIM)
    cells = comparison.table(load(tmp_path)).cells
    compared = cells[(cells["metric"] == "avg@8") & cells["difference"].notna()]
    in_table = sorted(zip(compared["difference_low"], compared["difference_high"], strict=True))
    in_claim = sorted((c.judged.simultaneous.low, c.judged.simultaneous.high) for c in verdict.compared)
    assert in_claim == [pytest.approx(ends) for ends in in_table]


def test_a_claim_must_hold_for_each_of_several_arms_or_for_their_mean(tmp_path):
    arms = {"loss=grpo": (3, 4, 3), "loss=pacs lr=1e-5": (6, 7, 6), "loss=pacs lr=1e-3": (3, 4, 3)}
    assert judged(tmp_path, arms, CLAIM).outcome == Outcome.UNDECIDED
    mean = judged(tmp_path / "mean", arms, {**CLAIM, "of": "mean"})
    assert mean.outcome == Outcome.HOLDS
    assert mean.measured.startswith("+18.8 [")  # (3 + 0)/2/8


def test_the_same_within_a_margin_needs_two_one_sided_tests(tmp_path):
    same = {**CLAIM, "says": "the same", "relation": "~ 5"}
    alike = judged(tmp_path / "a", {"loss=grpo": (4, 5, 4), "loss=pacs": (4, 5, 4)}, same)
    # No spread at all is no evidence of equality.
    assert alike.outcome == Outcome.UNDECIDED
    far = judged(tmp_path / "b", {"loss=grpo": (3, 3, 3, 4), "loss=pacs": (5, 5, 6, 6)}, same)
    assert far.outcome == Outcome.CONTRADICTED
    wide = judged(tmp_path / "c", {"loss=grpo": (4, 5, 4, 4), "loss=pacs": (4, 4, 5, 4)}, {**same, "relation": "~ 50"})
    assert wide.outcome == Outcome.HOLDS


def test_the_interval_printed_of_an_equivalence_is_the_one_that_decides_it(tmp_path):
    """Differences of 0, −1, 1 and 0 of 8 by seed, of every problem alike: mean 0, standard error 12.5·√(2/3)/2 = 5.10
    points; t of 3 degrees of freedom is 2.353 at 90 % and 3.182 at 95 %: ± 12.0 decide, within ± 14, and not ± 16.2."""
    arms = {"loss=grpo": (4, 5, 4, 4), "loss=pacs": (4, 4, 5, 4)}
    verdict = judged(tmp_path, arms, {**CLAIM, "says": "the same", "relation": "~ 14"})
    assert verdict.outcome == Outcome.HOLDS
    assert "[−12, 12]" in verdict.measured
    assert "90 % (two one-sided tests at 5 % within ± 14)" in verdict.basis


def test_a_trend_is_a_slope_and_no_step_the_other_way(tmp_path):
    arms = {f"loss=pacs lr={lr:g}": of for lr, of in ((1e-5, (2, 3, 2)), (1e-4, (4, 5, 4)), (1e-3, (6, 7, 6)))}
    verdict = judged(tmp_path, arms, RISES)
    assert verdict.outcome == Outcome.HOLDS
    assert verdict.measured.startswith("+25 [")  # two of eight per step
    assert verdict.measured.endswith("per step over 3 values of lr")
    assert verdict.basis == f"avg@8, last evaluations, 3 seeds, {PROBLEMS} problems, 95 %"  # of one slope: no family
    falls = judged(tmp_path / "falls", arms, {**RISES, "relation": "falls with lr"})
    assert falls.outcome == Outcome.CONTRADICTED


def test_a_step_the_other_way_leaves_a_slope_undecided_and_contradicts_nothing(tmp_path):
    """From 2 to 7 of 8, then back to 5: a slope of 1.5 of 8 = 18.75 points, the second step 25 points down."""
    arms = {f"loss=pacs lr={lr:g}": of for lr, of in ((1e-5, (2, 1, 2)), (1e-4, (7, 6, 7)), (1e-3, (5, 4, 5)))}
    verdict = judged(tmp_path, arms, RISES)
    assert verdict.measured.startswith("+18")
    assert (verdict.outcome, verdict.note) == (
        Outcome.UNDECIDED,
        "a step between neighbours is decidedly the other way",
    )


def test_a_trend_rests_on_the_seeds_that_all_values_have(tmp_path):
    """Neighbours share three seeds each: 0 to 2, then 2 to 4. All three share seed 2 alone."""
    low, middle, high = (f"loss=pacs lr={lr}" for lr in ("1e-5", "1e-4", "1e-3"))
    verdict = judged(tmp_path, {low: (2, 3, 2), middle: (4, 5, 4, 4, 4), high: (None, None, 6, 7, 6)}, RISES)
    assert verdict.outcome == Outcome.NOT_TESTED
    assert verdict.note == "too few seeds that all 3 values have, 1 of at least 3"
    assert len(verdict.groups) == 3  # more seeds would test it
    three = judged(tmp_path / "three", {low: (2, 3, 2, 2), middle: (4, 5, 4, 4), high: (6, 7, 6)}, RISES)
    assert three.basis.startswith(f"avg@8, last evaluations, 3 seeds, {PROBLEMS} problems")  # of three each has


@pytest.mark.parametrize(
    ("arms", "claim", "why"),
    [
        ({"loss=grpo": (3, 4), "loss=pacs": (5, 6)}, CLAIM, "too few seeds, 2 of at least 3"),
        ({"loss=grpo": (3,), "loss=pacs": (5,)}, CLAIM, "1 of at least 3 (seen of these runs: +25 ["),
        ({"loss=grpo": (3, 4, 3)}, CLAIM, "no arm has loss=pacs"),
        ({"loss=dapo": (3, 4, 3), "loss=pacs": (3, 4, 3)}, {**CLAIM, "against": "loss=ppo"}, "no arm loss=ppo"),
        # Neither against nor a baseline: GRPO, and not whatever arm comes first.
        ({"loss=dapo": (3, 4, 3), "loss=pacs": (5, 6, 5)}, CLAIM, "there is no arm loss=grpo to compare to"),
        # No GRPO at 3e-4: what the claim says of every arm is not judged on those at 1e-4 and 1e-3 alone.
        (
            {
                **{
                    f"loss={loss} lr={lr}": of
                    for lr in ("1e-4", "1e-3")
                    for loss, of in (("grpo", (3,) * 3), ("pacs", (5,) * 3))
                },
                "loss=pacs lr=3e-4": (1, 1, 1),
            },
            CLAIM,
            "no arm loss=grpo agrees in all else with loss=pacs lr = 3e-4",
        ),
        ({"loss=grpo": (3, 4, 3), "loss=pacs": (3, 4, 3)}, {**CLAIM, "metric": "pass@64"}, "no run measured pass@64"),
        ({"loss=grpo": (9, 9, 9), "loss=pacs": (9, 9, 9)}, CLAIM, "saturated: 100.0 to 100.0 %"),
        (
            {f"loss=pacs lr={lr}": (9, 9, 9) for lr in ("1e-5", "1e-4", "1e-3")},
            {**CLAIM, "arm": "loss=pacs", "relation": "rises with lr"},
            "saturated: 100.0 to 100.0 %",
        ),
        (
            {"loss=grpo": (3, 4, 3), "loss=pacs": (1, 1, 1)},
            {**CLAIM, "metric": "pass", "at": "equal accuracy"},
            "not at equal accuracy: loss=pacs has a run that never rises above where the others begin",
        ),
    ],
)
def test_what_the_study_cannot_test_is_not_judged(tmp_path, arms, claim, why):
    verdict = judged(tmp_path, arms, claim)
    assert verdict.outcome == Outcome.NOT_TESTED
    assert why in verdict.note


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"relation": "better"}, "a relation is >, <, ~ MARGIN"),
        ({"relation": "~ 1.2.3"}, "~ 1.2.3: a relation is >, <, ~ MARGIN"),
        ({"metrics": "avg"}, "a claim has no field metrics"),
        ({"at": "step 5"}, "claims are made at last, equal accuracy"),
        ({"of": "most"}, "of each arm or of their mean"),
        ({"arm": ""}, "lacks arm"),
        ({"arm": "pacs"}, "'pacs' names no arm"),
        ({"against": "grpo"}, "'grpo' names no arm"),
        ({"metric": "avg,pass"}, "a claim is of one metric"),
    ],
)
def test_an_ill_formed_claim_names_its_field_and_costs_no_other(tmp_path, change, message):
    claim = {**CLAIM, "source": "PACS, Table 2", **change}
    verdict = judged(tmp_path, {"loss=grpo": (3, 4, 3), "loss=pacs": (5, 6, 5)}, claim)
    assert verdict.outcome == Outcome.NOT_TESTED
    assert message in verdict.note
    assert verdict.claim.origin == Origin.PAPER


def test_what_was_decided_in_one_setting_stays_open_in_the_other(tmp_path):
    """In the small mazes PACS has 2 of 8 more on every problem. In the large ones it has, by seed, 2 more, 1 fewer and
    none: ± 4.30·1.53/√3 = 3.8 about 1/3. The look found the first."""
    ends_of = {
        f"loss={loss} task.size={size} seed={seed}": {0: evaluation(1), 40: evaluation(right)}
        for size, ends in ((7, (5, 6, 5)), (9, (5, 3, 3)))
        for loss, of_seeds in (("grpo", (3, 4, 3)), ("pacs", ends))
        for seed, right in enumerate(of_seeds)
    }
    write_planned(tmp_path, ends_of, claims=[CLAIM])
    small, large = questions(load(tmp_path), CLAIMS, 0.95)
    assert (small.outcome, large.outcome) == (Outcome.HOLDS, Outcome.UNDECIDED)
    (still,) = questions(load(tmp_path), CLAIMS, 0.95, closed=[{"name": small.name, "groups": small.groups}])
    assert still.name == large.name
    decided = [
        {"name": q.name, "outcome": q.outcome, "measured": q.measured, "groups": q.groups} for q in (small, large)
    ]
    look = {"seeds": 3, "level": 0.05, "questions": decided}
    change_sweep(tmp_path, until={"about": CLAIMS, "parts": 1, "seeds": [3, 6], "looks": [look]})
    assert [verdict.outcome for verdict in verdicts(load(tmp_path))] == [Outcome.HOLDS, Outcome.UNDECIDED]


def test_a_question_stays_decided_when_a_run_of_another_study_changes_its_name(tmp_path):
    """Labels name what arms do not share. Reports of any study also use the GRPO runs of others."""
    ends_of = {
        f"loss=lad divergence={divergence} seed={seed}": {0: evaluation(1), 40: evaluation(right)}
        for divergence, of_seeds in (("js", (3, 4, 3)), ("hd", (5, 6, 5)))
        for seed, right in enumerate(of_seeds)
    }
    write_planned(tmp_path, ends_of, study="mine", baseline="divergence=js")
    (before,) = questions(load(tmp_path, study="mine"), "avg", 0.95)
    assert before.outcome == "above"
    write_run(tmp_path, config("grpo"), {0: evaluation(1), 40: evaluation(3)}, name="elsewhere", study="other")
    (after,) = questions(load(tmp_path, study="mine"), "avg", 0.95)
    assert after.name != before.name
    closed = [{"name": before.name, "groups": before.groups}]
    assert questions(load(tmp_path, study="mine"), "avg", 0.95, closed=closed) == []


def test_what_a_look_has_decided_asks_for_no_more_seeds(tmp_path):
    """PACS was above GRPO at a look; over the seeds since, which another question needed, it no longer is."""
    verdict = judged(tmp_path, {"loss=grpo": (4, 4, 4, 4), "loss=pacs": (4, 6, 4, 5)}, CLAIM)
    assert (verdict.outcome, verdict.note[:5]) == (Outcome.UNDECIDED, "about")
    question = {"name": name_of(verdict), "outcome": Outcome.HOLDS, "measured": "+25 [20, 30] points"}
    question["groups"] = verdict.groups
    looks = [{"seeds": 3, "level": 0.02, "questions": [question]}]
    change_sweep(tmp_path, until={"about": CLAIMS, "parts": 1, "seeds": [3, 4], "looks": looks})
    (of_look,) = verdicts(load(tmp_path))
    assert (of_look.outcome, of_look.measured, of_look.note) == (Outcome.HOLDS, "+25 [20, 30] points", "")


def test_what_a_look_has_decided_stays_decided_beside_a_later_setting(tmp_path):
    """The only setting has no name; beside another it has one."""
    of_size = {
        size: {
            f"loss={loss} task.size={size} seed={seed}": {0: evaluation(1), 40: evaluation(right)}
            for loss, of_seeds in (("grpo", (4, 4, 4, 4)), ("pacs", (4, 6, 4, 5)))
            for seed, right in enumerate(of_seeds)
        }
        for size in (7, 9)
    }
    write_planned(tmp_path, of_size[7], claims=[CLAIM])
    (verdict,) = verdicts(load(tmp_path))
    question = {"name": name_of(verdict), "outcome": Outcome.HOLDS, "measured": "+25 [20, 30] points"}
    question["groups"] = verdict.groups
    looks = [{"seeds": 3, "level": 0.02, "questions": [question]}]
    change_sweep(tmp_path, until={"about": CLAIMS, "parts": 1, "seeds": [3, 4], "looks": looks})
    write_planned(tmp_path, of_size[9], "later", claims=[CLAIM], created=2000.0)
    later = {verdict.setting: verdict for verdict in verdicts(load(tmp_path))}
    assert {setting: verdict.outcome.value for setting, verdict in later.items()} == {
        "task.size=7": "holds",
        "task.size=9": "undecided",
    }
    assert later["task.size=7"].measured == "+25 [20, 30] points"
