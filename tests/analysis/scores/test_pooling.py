"""Which arms of several base policies are one: what they were trained with, however it was typed."""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from analysis import command
from analysis.frames import bundle
from analysis.frames.load import load
from analysis.scores.claim import CLAIMS, Outcome, Verdict
from analysis.scores.verdict import name_of, verdicts
from tests.analysis.ledger_factory import change_sweep, config_of, counts, write_planned, write_run, write_sweep
from tests.analysis.scores.test_bases import CLAIM


def of_three(
    home: Path, *bases: str, claim: Mapping[str, Any] = CLAIM, apart: bool = False, tuned: str = ""
) -> Verdict:
    """The verdict on arms that get 1, 3 ... of 8 right, the first of them GRPO. bases: by base, the words of its arms,
    one per line; words in parentheses were not typed. apart: each base is a launch of its own."""
    planned: list[list[tuple[str, str, list[str]]]] = []
    for base, arms in enumerate(bases):
        of_base: list[tuple[str, str, list[str]]] = []
        for row, arm in enumerate(arms.split("\n")):
            for seed in range(3):
                words = [*arm.split(), f"model.seed={base}", f"seed={seed}"]
                frozen = config_of(" ".join(word.strip("()") for word in words))
                ends = {40: {"maze7": counts(*[1 + 2 * row + (row > 0) * ((seed + base) % 2)] * 20)}}
                run_id, typed = write_run(home, frozen, ends, name="-".join(words)), [w for w in words if "(" not in w]
                of_base.append((run_id, "-".join(words), typed))
        planned.append(of_base)
    launches = planned if apart else [[run for of_base in planned for run in of_base]]
    for number, runs in enumerate(launches):
        write_sweep(home, f"s{number}", runs, claims=[claim], created=1000.0 + number)
        change_sweep(home, f"s{number}", **({"tune": {"keys": [tuned], "text": "", "runs": []}} if tuned else {}))
    (verdict,) = verdicts(load(home))
    return verdict


def test_a_value_that_was_typed_otherwise_is_the_same(tmp_path):
    """1e-4, 0.0001 and 1 for 1.0: of two arms and of the values of a trend."""
    arms = "loss=grpo\nloss=pacs lr={0} trainer.kl={1}\nloss=pacs lr=1e-3 trainer.kl={1}"
    bases = (arms.format("1e-4", 1), arms.format("1e-4", 1), arms.format("0.0001", "1.0"))
    verdict = of_three(tmp_path / "each", *bases, claim={**CLAIM, "against": "loss=grpo"})
    assert verdict.outcome == Outcome.HOLDS
    assert "3 base policies of 3 seeds" in verdict.basis
    trend = {**CLAIM, "relation": "rises with lr"}
    verdict = of_three(tmp_path / "trend", *(f"loss=pacs lr=1e-5\n{base}" for base in bases), claim=trend)
    assert verdict.outcome == Outcome.HOLDS
    assert "per step over 3 values of lr" in verdict.measured


@pytest.mark.parametrize(("words", "apart"), [("(trainer.clip=0.3)", False), ("trainer.clip=0.3", True)])
def test_null_is_another_value(tmp_path, words, apart):
    """Known where one launch has both, or where the value was typed."""
    null, value = "loss=grpo\nloss=pacs", f"loss=grpo {words}\nloss=pacs {words}"
    verdict = of_three(tmp_path, null, value, value, apart=apart)
    assert verdict.outcome == Outcome.NOT_TESTED
    assert verdict.note == "an arm differs between the base policies: trainer.clip=null | trainer.clip=0.3"


def test_a_knob_that_an_earlier_launch_did_not_have_is_no_difference(tmp_path):
    """Its default came with a later version."""
    arms = "loss=grpo{0}\nloss=pacs{0}"
    before, after = arms.format(""), arms.format(" (trainer.younger=1)")
    assert of_three(tmp_path, before, after, after, apart=True).outcome == Outcome.HOLDS


def test_of_a_tuned_knob_only_that_knob_may_differ(tmp_path):
    """`trainer.kl` is tuned, and no other knob of that beginning."""
    arms = "loss=grpo trainer.kl={0} {1}\nloss=pacs trainer.kl={0} {1}"
    kl = [arms.format(kl, "") for kl in ("0.1", "0.2", "0.1")]
    assert of_three(tmp_path / "one", *kl, tuned="trainer.kl").outcome == Outcome.HOLDS
    kl = [arms.format("0.1", f"trainer.kl_estimator={name}") for name in ("k1", "k3", "k3")]
    verdict = of_three(tmp_path / "other", *kl, tuned="trainer.kl")
    assert verdict.note == "an arm differs between the base policies: trainer.kl_estimator=k1 | trainer.kl_estimator=k3"


def test_what_a_look_has_decided_of_one_base_is_not_decided_over_three(tmp_path):
    """The base alone keeps it."""
    verdict = of_three(tmp_path, *["loss=grpo\nloss=pacs"] * 3, apart=True)
    groups = verdict.bases[0].groups
    question = {"name": name_of(verdict), "outcome": Outcome.CONTRADICTED, "measured": "-1", "groups": groups}
    look = {"seeds": 3, "level": 0.05, "questions": [question]}
    change_sweep(tmp_path, "s0", until={"about": CLAIMS, "parts": 1, "seeds": [3, 4], "looks": [look]})
    (now,) = verdicts(load(tmp_path))
    assert (now.outcome, now.measured) == (Outcome.HOLDS, verdict.measured)
    assert [of_base.outcome for of_base in now.bases] == ["contradicted", "holds", "holds"]


def write_ends(home: Path, ends: Mapping[str, Sequence[int]], claim: Mapping[str, Any]) -> Verdict:
    """The verdict on runs that get these numbers of 8 right on 20 problems, by seed. ends: by the words of an arm."""
    runs = {f"{arm} seed={seed}": n for arm, of_seeds in ends.items() for seed, n in enumerate(of_seeds)}
    write_planned(home, {words: {40: {"maze7": counts(*[n] * 20)}} for words, n in runs.items()}, claims=[claim])
    (verdict,) = verdicts(load(home))
    return verdict


def test_an_equivalence_needs_room_on_each_base_policy(tmp_path):
    """On the first two bases neither arm can get better."""
    ends = {f"loss={loss} model.seed={base}": (8, 8, 8) for loss in ("grpo", "pacs") for base in range(2)}
    ends |= {"loss=grpo model.seed=2": (4, 4, 4), "loss=pacs model.seed=2": (4, 4, 5)}
    verdict = write_ends(tmp_path, ends, {**CLAIM, "relation": "~ 10"})
    assert verdict.outcome == Outcome.NOT_TESTED
    assert verdict.note == "model.seed=0: saturated: 100.0 to 100.0 % leave no room to differ"


def test_a_base_policy_without_the_reference_is_named(tmp_path):
    ends = {f"loss=pacs model.seed={base}": (6, 7, 6) for base in range(4)}
    verdict = write_ends(tmp_path, {**ends, **{f"loss=grpo model.seed={base}": (2, 3, 3) for base in range(3)}}, CLAIM)
    assert (verdict.outcome, verdict.extent) == (Outcome.HOLDS, " over 3 base policies")
    assert verdict.rows[3:] == ["model.seed=3: left out, there is no arm loss=grpo to compare to"]


def test_what_is_missing_on_one_base_policy_is_said(tmp_path):
    """First the samples of an arm, of which means are left; then all of two of its runs."""
    of_loss = {"grpo": (2, 3, 2), "pacs": (6, 7, 6)}
    write_ends(
        tmp_path, {f"loss={loss} model.seed={base}": of_loss[loss] for loss in of_loss for base in range(3)}, CLAIM
    )
    run_dirs = [tmp_path / "runs" / f"id-losspacs-model.seed2-seed{seed}" for seed in range(3)]
    for run_dir in run_dirs:
        (run_dir / "samples").rename(run_dir / "elsewhere")
    (verdict,) = verdicts(load(tmp_path))
    assert verdict.note == "no problem in common with the other base policies: model.seed=2"
    (run_dirs[0] / "elsewhere").rename(run_dirs[0] / "samples")
    for run_dir in run_dirs[1:]:
        (run_dir / "metrics.jsonl").unlink()
        shutil.rmtree(run_dir / "attempts")
    (verdict,) = verdicts(load(tmp_path))
    assert "3 base policies of 1/3 seeds of 3 planned" in verdict.basis


def test_an_arm_with_other_code_on_another_base_policy_is_not_pooled(tmp_path, capsys):
    """As within an arm, unless `--mixed-code`. Each base by itself has one version."""
    ends = {
        f"loss={loss} model.seed={base}": (n, n + 1, n) for base in range(3) for loss, n in (("grpo", 2), ("pacs", 6))
    }
    write_ends(tmp_path, ends, CLAIM)
    for run_dir in (tmp_path / "runs").glob("id-losspacs-*"):
        version = ("b" if "model.seed2" in run_dir.name else "a") * 64
        (run_dir / "own_code.json").write_text(json.dumps({"rlvr.loss.pacs": [version]}))
    (verdict,) = verdicts(load(tmp_path))
    assert verdict.outcome == Outcome.NOT_TESTED
    assert verdict.note.startswith("`rlvr.loss.pacs`, code of the objective, was not the same in all runs: ")
    assert "pass --mixed-code" in verdict.note
    assert [of_base.outcome for of_base in verdict.bases] == ["holds"] * 3
    assert command.main(["--home", str(tmp_path), "--claims", "--mixed-code"]) == 0
    assert "holds over 3 base policies" in capsys.readouterr().out
    file = tmp_path / "one.rlvr"
    bundle.write(load(tmp_path), file)
    (verdict,) = verdicts(bundle.merged([bundle.read(file)], mixed_code=True))
    assert verdict.outcome == Outcome.HOLDS
