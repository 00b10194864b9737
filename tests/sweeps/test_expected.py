from collections.abc import Callable
from pathlib import Path

import pytest

from rlvr.ledger.sweeps import Ledger
from rlvr.run import main
from sweeps.expected import check
from sweeps.plan import write
from tests.support.composed import REGISTRY
from tests.sweeps.test_plan import planned

STUDY = """\
# @package _global_
# Which loss is better?
steps: 4
evaluation: {{every: 4, samples: {samples}, k: [1, 4]}}
{baseline}
claims:
  - {{says: it wins, metric: "{metric}", arm: "{arm}", relation: "{relation}", of: {of}, {against}{at}}}
hydra:
  mode: MULTIRUN
  sweeper: {{params: {{loss: "grpo,pacs"}}}}
"""
WINS = "{says: it wins, metric: avg, arm: 'loss=pacs', relation: '>'}"


@pytest.fixture
def launched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    """A dry run of the study with these words: (exit code, standard error)."""
    monkeypatch.setenv("RLVR_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "1000")
    (tmp_path / "mine" / "study").mkdir(parents=True)

    def launch(*words: str, **about: object) -> tuple[int, str]:
        usual = {"samples": 8, "metric": "avg", "arm": "loss=pacs", "relation": ">", "of": "each"}
        fields = {**usual, "baseline": "", "against": "", "at": "", **about}
        (tmp_path / "mine" / "study" / "mine.yaml").write_text(STUDY.format(**fields))
        code = main(["--config-dir", str(tmp_path / "mine"), "study=mine", "cluster=local", *words, "--dry-run"])
        return code, capsys.readouterr().err

    return launch


@pytest.mark.slow
def test_a_study_whose_arms_are_all_planned_is_launched_without_a_word(launched) -> None:
    assert launched() == (0, "")
    assert launched("seed=0,1", baseline="baseline: loss=grpo", metric="pass@8") == (0, "")
    assert launched("task=math")[0] == 0  # without data: which they are is asked for below the plan


@pytest.mark.slow
@pytest.mark.parametrize(
    ("about", "message"),
    [
        ({"metric": "foo"}, "claim 1: metric: foo: no run of this launch measures it."),
        (
            {"metric": "pass@8", "samples": 4},
            "claim 1: metric: pass@8: no run of this launch measures it. Did you mean",
        ),
        ({"arm": "loss=nope"}, "claim 1, arm: loss=nope is no option. Options: "),
        ({"against": "against: 'loss=nope'"}, "claim 1, against: loss=nope is no option."),
        ({"baseline": "baseline: loss=nope"}, "baseline: loss=nope is no option."),
        ({"baseline": "baseline: nope"}, "baseline: 'nope' names no arm"),
        ({"arm": "loss=rloo"}, "claim 1: no arm has loss=rloo, in this study or another sweep of it. Planned here: "),
        ({"baseline": "baseline: loss=rloo"}, "baseline: no arm has loss=rloo"),
        ({"arm": "loss=pacs lr=0.5"}, "no arm has loss=pacs lr=0.5"),
        ({"arm": "loss=grpo"}, "claim 1: what has loss=grpo is itself what it is compared to, loss=grpo. Name another"),
        ({"arm": "loss=grpo", "of": "mean"}, "claim 1: what has loss=grpo is itself what it is compared to"),
        ({"arm": "loss=pacs", "baseline": "baseline: loss=pacs"}, "loss=pacs is itself what it is compared to"),
    ],
)
def test_what_no_run_can_test_is_refused(launched, about: dict[str, object], message: str) -> None:
    code, errors = launched(**about)
    assert code == 2
    assert message in errors
    if "no arm has" in message:
        assert errors.rstrip().endswith("Planned here: loss=grpo; loss=pacs.")


def test_two_claims_of_one_name_are_refused(tmp_path: Path) -> None:
    """A look of a stopping rule remembers by its name what is decided: one would pass for the other."""
    wins = "{says: PACS wins, metric: avg, arm: 'loss=pacs', relation: '>', against: 'loss=%s'}"
    both = ", ".join(wins % loss for loss in ("grpo", "rloo"))
    with pytest.raises(ValueError, match=r"claims 1 and 2 say the same of loss=pacs: 'PACS wins'. Reword one."):
        planned([f"claims=[{both}]"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "about", "reason"),
    [
        (["loss=grpo,rloo"], {}, "claim 1: no arm has loss=pacs"),  # a part of the study, or arms beside its own
        (["loss=pacs,rloo"], {}, "claim 1: no arm has loss=grpo"),
        ([], {"relation": "rises with lr"}, "claim 1: a trend needs one arm at each of three or more values of lr"),
    ],
)
def test_what_other_sweeps_of_the_study_may_test_is_warned_of(launched, words, about, reason: str) -> None:
    code, errors = launched(*words, **about)
    assert code == 0
    (line,) = errors.splitlines()
    assert line.startswith(f"These runs alone cannot test all that is expected of them: {reason}")


@pytest.mark.slow
def test_an_arm_of_another_sweep_of_the_study_counts(tmp_path: Path) -> None:
    ledger, words = Ledger(tmp_path), ["name=grown", "steps=4"]
    grpo, pacs = ([*words, "loss=grpo"],), ([*words, "loss=pacs", f"claims=[{WINS}]"],)
    (warning,) = check(planned(*pacs), ledger, REGISTRY, [])
    assert "no arm has loss=grpo" in warning
    write(planned(*grpo), ledger)
    assert check(planned(*pacs), ledger, REGISTRY, []) == []
    (warning,) = check(planned([*pacs[0], "name=other"][1:]), ledger, REGISTRY, [])
    assert "no arm has loss=grpo" in warning


@pytest.mark.slow
@pytest.mark.parametrize("about", [{"at": "at: equal device-seconds"}, {"metric": "time/step_s"}])
def test_a_claim_about_time_is_warned_of_where_runs_share_a_machine(launched, about: dict[str, object]) -> None:
    code, errors = launched(**about)
    assert code == 0
    (line,) = errors.splitlines()
    assert line.startswith("These runs cannot test claim 1: without GPUs that SLURM allocated to each run alone, time")
    assert line.endswith("set cluster=slurm cluster.gpus=1 cluster.pack=1.")


def test_a_claim_about_time_needs_gpus_of_each_run(tmp_path: Path) -> None:
    claims = f"claims=[{WINS.replace('metric: avg', 'metric: hours')}]"
    for cluster, warned in (
        ("backend=slurm gpus=1", False),
        ("backend=slurm gpus=1 pack=2", True),
        ("backend=slurm gpus=0", True),
        ("backend=local gpus=1", True),
    ):
        words = ["steps=4", claims, *(f"cluster.{word}" for word in cluster.split())]
        lines = check(planned([*words, "loss=grpo"], [*words, "loss=pacs"]), Ledger(tmp_path), REGISTRY, [])
        assert bool(lines) == warned, cluster
        assert all("time also depends on what else a machine did" in line for line in lines)


@pytest.mark.slow
def test_with_tuning_arms_are_not_held_to_agree(launched) -> None:
    """Arms whose learning rates are chosen later: PACS is compared to GRPO at another value than its own."""
    tuned = {"arm": "loss=pacs", "against": "against: 'loss=grpo clip_high=0.3'"}
    assert launched("tune=lr:1e-5,1e-4", "seed=0,1,2", "also=loss=grpo clip_high=0.3", **tuned)[0] == 0
