import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hydra.utils import instantiate

from rlvr.config.compose import Setting
from rlvr.config.evaluation_config import check_words, evaluation_point
from rlvr.config.freeze import arm_name, frozen_config
from rlvr.ledger.identity import run_id
from tests.support.composed import check, composed
from tests.support.composing import composing

POLICY = {"path": "/runs/a/checkpoints/step-00000040", "name": "lad@40", "digest": "0123", "group": "g@40", "step": 40}


@pytest.fixture(autouse=True)
def hydra() -> Iterator[None]:
    with composing():
        yield


def trained(*overrides: str) -> dict[str, Any]:
    return frozen_config(*composed(*overrides))


def evaluation(*typed: str, of: dict[str, Any] | None = None, usual: str = "", **policy: Any) -> dict[str, Any]:
    """The frozen config."""
    config, choices = composed("policy=evaluated", *([usual] if usual else []), *typed)
    _, config, choices = evaluation_point((list(typed), config, choices), {**POLICY, **policy}, of, typed)
    return frozen_config(config, choices)


def test_an_evaluation_has_the_settings_of_its_run_unless_others_are_typed() -> None:
    run = trained(
        "task=coins",
        "model=coins_tiny",
        "task.longest=9",
        "evaluation.temperature=0.7",
        "seed=3",
        "rollout.max_tokens=7",
    )
    plain = evaluation("task.test_problems=16", "evaluation.samples=32", of=run, usual="task=coins")
    assert (plain["task"]["longest"], plain["task"]["test_problems"], plain["seed"]) == (9, 16, 3)
    assert (plain["evaluation"]["temperature"], plain["evaluation"]["samples"]) == (0.7, 32)
    assert (plain["evaluation"]["k"], plain["rollout"]["max_tokens"]) == ([1, 2, 4, 8, 16, 32], 7)
    assert plain["rollout"]["engine"] == run["rollout"]["engine"]
    assert (plain["loss"], plain["trainer"], plain["model"]) == (None, None, None)
    assert "loss" not in plain["choices"]
    other = evaluation("task=maze", of=run)
    assert other["task"]["_target_"] == "rlvr.task.maze.Maze"
    assert other["rollout"]["max_tokens"] is None  # the length was that of the other task


def test_an_evaluation_reads_no_training_data(tmp_path: Path) -> None:
    """They may be gone: on a cluster, old files of a work space are deleted."""
    train, test = tmp_path / "train.jsonl", tmp_path / "test.jsonl"
    test.write_text('{"problem": "1", "answer": "1"}\n')
    words = ("task=math", f"task.train={train}", f"task.test={test}", f"model.path={tmp_path}", "model=hf")
    of_evaluation = evaluation(of=trained(*words), usual="task=math")
    assert (of_evaluation["task"]["train"], of_evaluation["task"]["test"]) == (None, str(test))
    task = instantiate(of_evaluation["task"])
    assert (task.size("train"), task.size("validation"), task.problem("test", 0).answer) == (0, 0, "1")
    task.close()
    assert evaluation("task=math", f"task.test={test}")["task"]["train"] is None  # of a model from elsewhere
    spelled = ("task=spelled", f"task.train={test}", f"task.test={test}", "model=spelled_tiny")
    assert evaluation(of=trained(*spelled), usual="task=spelled")["task"]["train"] == str(
        test
    )  # it makes demonstrations


@pytest.mark.slow
def test_an_evaluation_is_named_by_the_content_of_its_policy() -> None:
    run = trained("task=coins", "model=coins_tiny")
    one = evaluation(of=run)
    assert run_id(one) == run_id(evaluation(of=run, path="/elsewhere", name="renamed"))
    assert run_id(one) != run_id(evaluation(of=run, digest="4567"))
    assert run_id(one) != run_id(evaluation("evaluation.samples=16", of=run))
    assert arm_name(one, ["policy=lad@40", "evaluation.samples=16"], ()) == "lad@40-samples16"


def test_policies_of_several_seeds_are_one_group() -> None:
    groups = set()
    for seed in (0, 1):
        run = trained("task=coins", "model=coins_tiny", f"seed={seed}")
        config, choices = composed("policy=evaluated", "task=coins")
        _, config, choices = evaluation_point(([], config, choices), {**POLICY, "digest": str(seed)}, run, [])
        groups.add(Setting(config, choices).group_id())
    assert len(groups) == 1


@pytest.mark.slow
def test_the_most_likely_answer_is_sampled_once() -> None:
    run = trained("task=coins", "model=coins_tiny")
    plain = evaluation("evaluation.temperature=0", of=run)
    assert (plain["evaluation"]["samples"], plain["evaluation"]["k"]) == (1, [1])
    check("evaluation.temperature=0", "evaluation.samples=1", "evaluation.k=[1]")
    with pytest.raises(ValueError, match="evaluation.temperature=-0.1 must be"):
        check("evaluation.temperature=-0.1")
    with pytest.raises(ValueError, match="copies of it"):
        check("evaluation.temperature=0", "evaluation.samples=8")
    with pytest.raises(ValueError, match=r"policy\.chat=true"):
        evaluation("policy.system=Think.", of=run)


@pytest.mark.parametrize("word", ["policy.chat=no", "policy.chat=fals", "policy.chat=2", "policy.system=5"])
def test_a_word_that_is_neither_true_nor_false_does_not_turn_the_chat_template_on(word: str) -> None:
    """bool("no") is true."""
    config, choices = composed("policy=evaluated", "task=coins", word)
    expected = "true or false" if "chat" in word else "a text"
    with pytest.raises(ValueError, match=rf"^{re.escape(word)}: {expected} is expected, or null\.$"):
        evaluation_point(([], config, choices), POLICY, None, [word])


@pytest.mark.parametrize(
    ("word", "meant"),
    [("evaluation.sample=64", "evaluation.samples"), ("policy.chats=true", "policy.chat"), ("tags_=a", "tags")],
)
def test_a_misspelt_knob_of_an_evaluation_is_answered_with_the_one_that_is_meant(word: str, meant: str) -> None:
    with pytest.raises(ValueError, match=rf"has no effect on an evaluation.*\. Did you mean {meant}\?$"):
        check_words([word])


@pytest.mark.parametrize(
    "word", ["loss=lad", "lr=1e-3", "rollout.samples=4", "evaluation.every=2", "model=hf", "policy.path=x"]
)
def test_what_an_evaluation_does_not_read_is_refused(word: str) -> None:
    with pytest.raises(ValueError, match=r"has no effect on an evaluation.*\. Drop it\.$"):
        check_words([word])
    check_words(
        ["task=maze", "task.size=9", "rollout=vllm", "rollout.engine.eager=true", "policy.chat=true", "also=[]"]
    )
