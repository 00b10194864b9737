from collections.abc import Sequence
from pathlib import Path

import pytest

from analysis.frames.load import load
from analysis.scores.arm import Arm, arms
from analysis.scores.claim import Claim, Outcome
from analysis.scores.findings import findings
from analysis.scores.selection import NotTested, sides, trend
from analysis.scores.verdict import verdicts
from tests.analysis.ledger_factory import BASE, counts, write_planned

END = {0: BASE, 40: {"maze7": counts(4, 4, 0, 0)}}
TWO = dict.fromkeys(("loss=grpo", "loss=pacs"), END)
WINS = {"says": "it wins", "metric": "avg", "relation": ">"}


def arms_of(home: Path, *points: str) -> list[Arm]:
    write_planned(home, dict.fromkeys(points, END))
    return arms(load(home))


def claim(arm: str, of: str = "each", relation: str = ">") -> Claim:
    return Claim("it wins", "avg", arm, relation, of)


def labels(compared: Sequence[Arm]) -> list[str]:
    return sorted(arm.label for arm in compared)


def test_each_arm_and_the_mean_of_several_have_a_side(tmp_path: Path) -> None:
    arms = arms_of(tmp_path, "loss=grpo", "loss=pacs lr=1e-5", "loss=pacs lr=1e-4")
    compared = sides(claim("loss=pacs"), "loss=grpo", arms)
    assert {label: labels(others) for label, (_, others) in compared.items()} == {
        "loss=pacs lr = 1e-5": ["loss=grpo lr = 1e-06"],
        "loss=pacs lr = 1e-4": ["loss=grpo lr = 1e-06"],
    }
    ((claimed, others),) = sides(claim("loss=pacs", "mean"), "loss=grpo", arms).values()
    assert (len(claimed), len(others)) == (2, 1)


@pytest.mark.parametrize("of", ["each", "mean"])
def test_a_claim_that_compares_arms_with_themselves_is_not_tested(tmp_path: Path, of: str) -> None:
    arms = arms_of(tmp_path, "loss=grpo", "loss=pacs")
    with pytest.raises(NotTested, match="^what has loss=grpo is itself what it is compared to, loss=grpo$"):
        sides(claim("loss=grpo", of), "loss=grpo", arms)
    with pytest.raises(NotTested, match="^there is no arm loss=ppo to compare to$"):
        sides(claim("loss=grpo", of), "loss=ppo", arms)


def test_an_arm_beside_the_plain_one_of_its_name_is_compared_to_it(tmp_path: Path) -> None:
    arms = arms_of(tmp_path, "loss=grpo", "loss=grpo lr=1e-4", "loss=pacs")
    ((claimed, _),) = sides(claim("loss=grpo lr=1e-4"), "loss=grpo lr=1e-06", arms).values()
    assert labels(claimed) == ["loss=grpo lr = 1e-4"]


def test_a_report_says_of_a_claim_that_it_compares_an_arm_with_itself(tmp_path: Path) -> None:
    claims = [{**WINS, "arm": "loss=grpo"}]
    write_planned(tmp_path, TWO, claims=claims, baseline="loss=grpo")
    (verdict,) = verdicts(load(tmp_path))
    assert verdict.outcome == Outcome.NOT_TESTED
    assert verdict.note == "what has loss=grpo is itself what it is compared to, loss=grpo"


def test_a_trend_takes_the_arms_by_the_value_of_its_knob(tmp_path: Path) -> None:
    arms = arms_of(tmp_path, "loss=pacs lr=1e-3", "loss=pacs lr=1e-5", "loss=pacs lr=1e-4")
    rises = claim("loss=pacs", relation="rises with lr")
    assert [arm.label for arm in trend(rises, arms)] == ["lr = 1e-5", "lr = 1e-4", "lr = 1e-3"]
    with pytest.raises(NotTested, match="three or more values of lr"):
        trend(rises, arms[:2])


def test_a_trend_over_values_that_are_not_all_numbers_is_not_tested(tmp_path: Path) -> None:
    arms = arms_of(tmp_path, *(f"loss=pacs lr={lr}" for lr in ("1e-5", "1e-4", "1e-3", "auto")))
    with pytest.raises(NotTested, match="^a trend needs numbers, and lr is auto too$"):
        trend(claim("loss=pacs", relation="rises with lr"), arms)


def test_a_report_names_a_baseline_that_no_arm_has_and_its_replacement(tmp_path: Path) -> None:
    write_planned(tmp_path, TWO, baseline="loss=nope")
    (verdict,) = findings(load(tmp_path))
    assert verdict.outcome == Outcome.WARNING
    assert verdict.claim.says == ("no arm has the study's baseline, loss=nope: arms are compared to loss=grpo instead")


def test_a_baseline_that_some_arm_has_is_no_finding(tmp_path: Path) -> None:
    write_planned(tmp_path, TWO, baseline="loss=pacs")
    assert findings(load(tmp_path)) == []
