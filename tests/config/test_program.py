from pathlib import Path
from typing import Any

import pytest

from rlvr.config import memory
from rlvr.config.checks import Checker
from rlvr.config.freeze import arm_name, frozen_config
from rlvr.config.registry import Registry
from rlvr.ledger.identity import identity, run_id
from tests.support.composed import checked

OPTION = """
_target_: a_program.train
reads: []
lr: 0.5
width: 8
bias: true
start: null
rate: ${.lr}
layers: {depth: 2}
"""
CODE = "def train(config, run): ...\ndef other(run, lr): ...\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "program").mkdir()
    (tmp_path / "program" / "mine.yaml").write_text(OPTION)
    (tmp_path / "a_program.py").write_text(CODE)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def frozen(folder: Path, *words: str) -> dict[str, Any]:
    """The frozen config of a run of the program, checked as before a launch."""
    return checked(Registry([str(folder)]), "program=mine", *words)


def test_our_trainer_is_no_program_and_has_the_ids_that_it_had() -> None:
    """The id of `loss=grpo` of the release before programs."""
    ids = set[str]()
    for words in ([], ["program=rlvr"]):
        plain = frozen_config(*Registry().compose([*words, "loss=grpo"]))
        assert plain["program"] is None
        assert "program" not in {*plain["choices"], *identity(plain)}
        ids.add(run_id(plain))
    assert ids == {"a0565bd0b66b"}


def test_a_run_of_a_program_has_its_knobs_and_nothing_of_our_trainer(folder: Path) -> None:
    plain = frozen(folder, "program.lr=0.25", "rollout.prompts=3", "task=digits", "seed=2")
    assert set(identity(plain)) == {"program", "seed", "steps", "task", "rollout", "evaluation"}
    assert (identity(plain)["rollout"], plain["program"]["rate"]) == ({"prompts": 3, "engine": {}}, 0.25)
    assert not {"loss", "advantage", "model", "trainer", "rollout"} & plain["choices"].keys()
    assert arm_name(plain, ["program=mine", "program.lr=0.25", "seed=2"], ["program.lr"]) == "mine-lr0.25"


def test_the_memory_of_a_program_is_not_known_even_where_it_reads_the_model(folder: Path) -> None:
    """What it keeps beside the weights is its own affair: our cost model and preview say nothing of it."""
    (folder / "program" / "mine.yaml").write_text(OPTION.replace("[]", "[model]"))
    plain = frozen(folder, "task=coins", "model=coins_tiny")
    assert memory.architecture_of_model(plain["model"]) is not None
    assert memory.trained_architecture(plain) is None


def test_a_program_has_what_it_reads_of_our_knobs(folder: Path) -> None:
    (folder / "program" / "mine.yaml").write_text(OPTION.replace("[]", "[lr, model, rollout.samples]"))
    plain = frozen(folder, "lr=3", "rollout.samples=5", "model=table", "task=digits")
    assert (plain["lr"], plain["rollout"]["samples"], plain["choices"]["model"]) == (3.0, 5, "table")
    assert plain["rollout"]["temperature"] is None
    assert run_id(plain) != run_id(frozen(folder, "lr=2", "rollout.samples=5", "model=table", "task=digits"))


REFUSED = {
    "lr=1": "lr has no effect with program=mine, which does not read it. Drop it, or list lr under `reads`",
    "loss=grpo": "loss has no effect with program=mine",
    "rollout=vllm": "rollout has no effect with program=mine, which does not read it. Drop it.",
    "rollout.engine.dtype=float16": "rollout.engine.dtype has no effect with program=mine, which does not read",
    "rollout.samples=4": "Drop it, or list rollout.samples under `reads` in its file.",
    "trainer.updates=2": "trainer.updates has no effect with program=mine, which does not read it. Drop it.",
    "checkpoint.keep_best=true": "checkpoint.keep_best has no effect with program=mine",
    "keep_rollouts=1": "keep_rollouts has no effect with program=mine",
    "+program.widht=1": "program.widht is not in the file of program=mine, which lists its knobs. Did you mean width?",
    "program.lr=high": "program.lr=high: a number is expected. Type program.lr=0.5, for example.",
    "program.width=2.5": "program.width=2.5: a whole number is expected. Type program.width=8, for example.",
    "program.bias=1": "program.bias=1: true or false is expected.",
    "program.layers.depth=deep": "program.layers.depth=deep: a whole number is expected.",
    "program.reads=[trainer]": "program.reads: trainer is none of loss, divergence, advantage, model, lr,",
    "program.reads=[rollout.sample]": "program.reads: rollout.sample is none of .* Did you mean rollout.samples?",
    "program._target_=a_program.other": "a_program.other takes run, lr. A program is a function of config and run",
    "program._target_=a_program.nothing": "a_program defines no nothing",
    "cluster.ranks=2": "cluster.ranks=2: a program has one process. Drop it.",
    "rollout.reward=none": "rollout.reward=none: random, flipped or majority is expected, or null",
    "evaluation.k=[9]": "evaluation.k=9 is larger than evaluation.samples=8",
}


@pytest.mark.parametrize("word", REFUSED)
def test_what_has_no_effect_or_no_sense_is_refused_in_a_line(folder: Path, word: str) -> None:
    with pytest.raises(ValueError, match=REFUSED[word].replace("(", r"\(").replace("?", r"\?")):
        frozen(folder, word)


def test_any_value_replaces_null_and_an_integer_is_a_number(folder: Path) -> None:
    assert frozen(folder, "program.start=words", "program.lr=1")["program"]["start"] == "words"


def test_a_task_whose_policy_is_read_off_is_for_our_trainer(folder: Path) -> None:
    registry = Registry([str(folder)])
    config, choices = registry.compose(["program=mine", "task=bandit"])
    with pytest.raises(ValueError, match="task=bandit cannot be evaluated: its policy is read off, not sampled"):
        Checker(registry).check_task(config, choices)
