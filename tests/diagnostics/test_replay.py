import contextlib
import json
import string
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from omegaconf import DictConfig

from rlvr.diagnostics.gradient import start
from rlvr.diagnostics.replay import arms, main
from rlvr.ledger import layout
from rlvr.ledger.rollouts import read_rollouts, write_rollouts
from rlvr.model.tokenizer import word_tokenizer
from tests.rollout.test_native import make_model
from tests.support.composed import REGISTRY

BANDIT = ["task=bandit", "model=table", "task.arms=6", "task.centres=[0]", "task.widths=[3]", "task.heights=[1]"]
BANDIT += ["rollout.prompts=1", "rollout.samples=32", "rollout.dynamic_sampling=none"]


def run_of(words: list[str], **choices: str) -> DictConfig:
    """The config of a run in the maze."""
    (arm,) = arms(words, None)
    arm.config.choices = {"task": "maze", "model": "maze_tiny", "advantage": "grpo", **choices}
    return arm.config


@pytest.mark.slow
def test_a_knob_reaches_the_losses_that_read_it() -> None:
    objectives = arms(["loss=grpo,lad", "eta=0.25,1", "divergence=js,tv", "advantage=rloo"], None)
    names = ["grpo", *(f"lad-{d} eta={e}" for e in ("0.25", "1") for d in ("js", "tv"))]
    assert [a.name for a in objectives] == names
    assert {a.config.advantage["_target_"] for a in objectives} == {"rlvr.objective.advantage.rloo"}
    assert [a.config.loss.get("eta") for a in objectives] == [None, 0.25, 0.25, 1, 1]


# Overrides that a loss requires of any run.
COMPANIONS = {"lad_theoretical": BANDIT, "cross_entropy": ["rollout.dynamic_sampling=none"]}


@pytest.mark.slow
def test_every_loss_of_conf_is_usable_by_name() -> None:
    for loss in REGISTRY.options("loss"):
        (arm,) = arms([f"loss={loss}", *COMPANIONS.get(loss, [])], None)
        assert arm.name == loss
        assert arm.config.loss["_target_"].startswith("rlvr.loss."), loss
        trainer = arm.config.trainer
        assert (trainer.updates, trainer.epochs, trainer.clip_norm) == (1, 1, 0), loss


@pytest.mark.slow
def test_knobs_that_are_not_typed_are_those_of_the_run() -> None:
    words = ["loss=lad", "task.size=9", "advantage=rloo", "rollout.temperature=0.7", "trainer.kl=0.1"]
    run = run_of(words, advantage="rloo")
    run.lr = run.trainer.lr = 5e-3  # of a run with lr=5e-3
    truncated = ["rollout.top_p=0.9", "rollout.truncation=ignored"]
    config = arms(["loss=grpo", "trainer.aggregation=seq-mean-token-mean", *truncated], run)[0].config
    assert (config.task.size, config.advantage["_target_"]) == (9, "rlvr.objective.advantage.rloo")
    assert (config.lr, config.trainer.lr) == (5e-3, 5e-3)
    assert (config.rollout.temperature, config.rollout.top_p) == (0.7, 0.9)
    assert (config.trainer.kl, config.trainer.aggregation) == (0.1, "seq-mean-token-mean")
    # A loss that brings its own advantage keeps it.
    assert arms(["loss=maxrl"], run)[0].config.advantage["_target_"] == "rlvr.objective.advantage.maxrl"
    # If the run's loss reads no advantage, other losses keep their defaults.
    (other,) = arms(["loss=grpo"], run_of(["loss=pacs"], advantage="none", loss="pacs"))
    assert other.config.advantage["_target_"] == "rlvr.objective.advantage.grpo"
    (own,) = arms(["loss=grpo", "advantage=grpo"], run)
    assert own.config.advantage["_target_"] == "rlvr.objective.advantage.grpo"


@pytest.mark.slow
def test_what_the_loss_of_the_run_brought_stays_with_that_loss() -> None:
    """An advantage and an overlong penalty are part of an objective, unless somebody typed another one."""
    run = run_of(["loss=maxrl", "rollout.temperature=0.7"], advantage="maxrl", loss="maxrl")
    grpo, maxrl, dapo = (arm.config for arm in arms(["loss=grpo,maxrl,dapo"], run))
    names = [config.advantage["_target_"].rpartition(".")[2] for config in (grpo, maxrl, dapo)]
    assert names == ["grpo", "maxrl", "grpo"]
    assert [config.rollout.overlong_buffer for config in (grpo, maxrl, dapo)] == [None, None, 0.2]
    assert {config.rollout.temperature for config in (grpo, maxrl, dapo)} == {0.7}
    run = run_of(["loss=dapo", "rollout.overlong_penalty=1.0"], loss="dapo")  # typed: of the run, not of its loss
    grpo, dapo = (arm.config.rollout for arm in arms(["loss=grpo,dapo"], run))
    assert (grpo.overlong_buffer, grpo.overlong_penalty) == (None, 1.0)
    assert (dapo.overlong_buffer, dapo.overlong_penalty) == (0.2, 1.0)
    typed = run_of(["loss=maxrl", "advantage=rloo"], advantage="rloo", loss="maxrl")
    assert arms(["loss=grpo"], typed)[0].config.advantage["_target_"].endswith(".rloo")


@pytest.mark.slow
def test_rollouts_of_a_run_of_any_length_and_schedule_are_replayed() -> None:
    """A run of 100 steps of 2 updates: 200 optimiser steps, of which a replay takes none."""
    run = run_of(["loss=lad"], loss="lad")
    run.steps = run.trainer.steps = 100
    wsd = {"schedule": "wsd", "warmup_steps": 150, "decay_steps": 100, "final_lr": 0.1}
    for schedule in ({"schedule": "constant"}, wsd):
        run.trainer.update({"updates": 2, **schedule})
        assert [arm.name for arm in arms(["loss=grpo,lad"], run)] == ["grpo", "lad"]


@pytest.mark.slow
def test_rollouts_are_not_replayed_as_those_of_another_task() -> None:
    """The model of another task has other words: its gradient of these tokens means nothing, if there is one."""
    run = run_of(["loss=grpo"], loss="grpo")
    with pytest.raises(ValueError, match="task=skills: these rollouts are answers to problems of task=maze. Drop it."):
        arms(["loss=grpo", "task=skills"], run)
    assert arms(["loss=grpo", "task=maze"], run)


def test_an_advantage_reaches_the_losses_that_read_one() -> None:
    grpo, pacs = (arm.config.advantage["_target_"] for arm in arms(["loss=grpo,pacs", "advantage=rloo"], None))
    assert (grpo, pacs) == ("rlvr.objective.advantage.rloo", "rlvr.objective.advantage.none")


REFUSED = [
    (["loss=gripo"], "loss=gripo does not exist. loss takes:"),
    (["loss=grpo,reinforce", "eta=1"], "Losses that read eta:"),
    (["loss=lad", "steps=40"], "steps has no effect on a replay: nothing is trained, one gradient is measured."),
    (["loss=lad", "evaluation.every=5"], "evaluation.every has no effect on a replay"),
    (["loss=lad", "trainer.updates=2"], "trainer.updates has no effect on a replay"),
    (["loss=lad", "loss.eta=high"], "loss.eta=high"),
    (["loss=lad", "rollouts=nowhere.parquet"], "rollouts=nowhere.parquet is no file"),
    (["loss=lad", "policy=nowhere"], "policy=nowhere is neither a checkpoint"),
    (["lad"], "lad is not understood"),
    (["rollouts=a.parquet", "rollouts=b.parquet"], "rollouts is typed twice: a replay has one. Drop rollouts=b"),
    (["--dry-run"], "there is no option --dry-run: arguments are KEY=VALUE, --config-dir DIR and --help."),
    (["--config-dir=/nowhere"], "--config-dir=/nowhere: there is no such directory."),
]


@pytest.mark.slow
def test_bad_input_is_one_line_and_exit_2(capsys: pytest.CaptureFixture[str], subtests: pytest.Subtests) -> None:
    for arguments, message in REFUSED:
        with subtests.test(message):
            assert main(arguments) == 2
            error = capsys.readouterr().err
            assert message in error
            assert error.count("\n") == 1


@pytest.mark.slow
def test_stored_rollouts_give_the_report_of_fresh_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RLVR_HOME", str(tmp_path))
    objectives = ["loss=grpo,reinforce,lad", "advantage=grpo", "divergence=tv", "eta=0.5,2"]
    assert main([*objectives, *BANDIT, f"out={tmp_path / 'one'}"]) == 0
    stored = tmp_path / "one" / "rollouts" / "step-00000001.parquet"
    # No override names the task: it is that of the rollouts' run.
    assert main([*objectives, f"rollouts={stored}", f"out={tmp_path / 'two'}"]) == 0
    for name in ("objectives.csv", "cosines.csv", "weights.csv", "prompts.csv", "replay.png"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    assert "32 responses to 1 prompts" in capsys.readouterr().out
    _check(tmp_path / "two")


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Rollouts of a bandit's base policy."""
    monkeypatch.setenv("RLVR_HOME", str(tmp_path))
    assert main(["loss=grpo", *BANDIT, f"out={tmp_path / 'one'}"]) == 0
    return tmp_path / "one" / "rollouts" / "step-00000001.parquet"


@pytest.mark.slow
def test_a_checkpoint_without_an_objectives_head_is_refused_before_anything_is_measured(
    tmp_path: Path, stored: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (grpo,) = arms(["loss=grpo", *BANDIT], None)
    with contextlib.closing(start(grpo.config, None, layout.replay_stages(tmp_path))) as run:
        run.trainer.save(tmp_path / "step-1", {})
    of_grpo = [f"rollouts={stored}", f"policy={tmp_path / 'step-1'}"]
    assert main(["loss=grpo,reinforce", *of_grpo]) == 0
    capsys.readouterr()
    for words, lacking in (
        (["loss=grpo,flowrl"], "without log_z"),
        (["loss=ppo"], "without value"),
        (["loss=grpo", "trainer.kl=0.1", "trainer.reference_every=1"], "without trainer.reference_every"),
    ):
        assert main([*words, *of_grpo]) == 2
        out, err = capsys.readouterr()
        assert lacking in err
        assert (err.count("\n"), out) == (1, "")


@pytest.mark.slow
def test_rollouts_of_another_vocabulary_are_refused(stored: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A token that the policy reads as another word, and one that it does not have."""
    groups = read_rollouts(stored)
    for change in (lambda tokens: tokens[::-1] ^ 1, lambda tokens: tokens + 1000):
        capsys.readouterr()
        others = [replace(g, completions=[replace(c, tokens=change(c.tokens)) for c in g.completions]) for g in groups]
        write_rollouts(others, stored)
        assert main(["loss=grpo", f"rollouts={stored}"]) == 2
        assert "grpo: its policy has another vocabulary" in capsys.readouterr().err


@pytest.mark.slow
def test_a_model_directory_is_the_policy_if_it_has_the_words_of_the_rollouts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RLVR_HOME", str(tmp_path))
    letters = string.ascii_lowercase
    for name, words in (("same", letters), ("other", letters[::-1])):
        make_model(0, vocab_size=len(letters) + 2).save_pretrained(tmp_path / name)
        word_tokenizer([*words, "end"], "end").save_pretrained(tmp_path / name)
    problems = tmp_path / "problems.jsonl"
    problems.write_text("".join(json.dumps({"problem": " ".join(letters[i:]), "answer": i}) + "\n" for i in range(4)))
    task = ["task=math", f"task.train={problems}", f"task.test={problems}", "task.template='{problem}'", "model=hf"]
    sampling = ["rollout.prompts=2", "rollout.samples=4", "rollout.max_tokens=6", "rollout.dynamic_sampling=none"]
    of_model = f"model.path={tmp_path / 'same'}"
    assert main(["loss=reinforce", *task, of_model, *sampling, f"out={tmp_path / 'one'}"]) == 0
    stored = f"rollouts={tmp_path / 'one' / 'rollouts' / 'step-00000001.parquet'}"
    assert main(["loss=reinforce", stored, f"policy={tmp_path / 'same'}", f"out={tmp_path / 'two'}"]) == 0
    assert (tmp_path / "one" / "objectives.csv").read_bytes() == (tmp_path / "two" / "objectives.csv").read_bytes()
    assert main(["loss=reinforce", stored, f"policy={tmp_path / 'other'}", f"out={tmp_path / 'three'}"]) == 2
    assert "reinforce: its policy has another vocabulary" in capsys.readouterr().err


def _check(folder: Path) -> None:
    """Against the gradient by hand: for a uniform softmax over six arms the logit of arm j has gradient
    −Σ_i A_i([i = j] − 1/6)/32."""
    weights = pd.read_csv(folder / "weights.csv")
    rows = pd.read_csv(folder / "objectives.csv").set_index("objective")
    angles = pd.read_csv(folder / "cosines.csv").set_index("objective")
    assert list(rows.index) == ["grpo", "reinforce", "lad eta=0.5", "lad eta=2"]
    assert rows["abs_log_ratio"].max() < 1e-6
    grpo = weights[weights["objective"] == "grpo"]
    reward = grpo["reward"].to_numpy()
    advantage = (reward - reward.mean()) / (reward.std(ddof=1) + 1e-6)
    assert np.allclose(grpo["advantage"], advantage, atol=1e-5)
    assert np.allclose(grpo["weight"], advantage / 32, atol=1e-6)
    # Every arm has a reward of its own (one mode, at the edge): rewards tell arms apart.
    arms_drawn = [reward == r for r in np.unique(reward)]
    advantages = {"grpo": advantage, "lad eta=0.5": np.sign(advantage)}
    of = {name: np.array([a[m].sum() for m in arms_drawn]) for name, a in advantages.items()}
    of = {name: np.append(g, np.zeros(6 - len(g))) - g.sum() / 6 for name, g in of.items()}
    for name, gradient in of.items():
        assert rows.loc[name, "gradient_norm"] == pytest.approx(np.linalg.norm(gradient) / 32, rel=1e-4)
    # One prompt: the batch is that prompt.
    of_prompts = pd.read_csv(folder / "prompts.csv").set_index("objective")["gradient_norm"]
    assert list(of_prompts) == pytest.approx(list(rows["gradient_norm"]), rel=1e-6)
    one, two = of.values()
    assert angles.loc["grpo", "lad eta=0.5"] == pytest.approx(
        one @ two / np.linalg.norm(one) / np.linalg.norm(two), abs=1e-4
    )
    assert angles.loc["grpo", "reinforce"] == pytest.approx(1, abs=1e-6)
    assert angles.loc["lad eta=0.5", "lad eta=2"] == pytest.approx(1, abs=1e-6)
