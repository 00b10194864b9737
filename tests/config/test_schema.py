import contextlib
import sys

import pytest

from rlvr.config import schema
from rlvr.config.checks import Checker
from rlvr.config.freeze import frozen_config
from rlvr.config.imports import find_spec
from rlvr.ledger.identity import run_id
from rlvr.records import NotAvailable
from tests.support.composed import REGISTRY, composed

pytestmark = pytest.mark.usefixtures("composing")

# What an option needs from the user, or from another group, before it can stand.
COMPANIONS = {
    ("advantage", "none"): ["loss=pacs"],
    ("advantage", "gae"): ["loss=ppo"],
    ("advantage", "maxrl_conditional"): ["rollout.dynamic_sampling=none"],
    ("advantage", "shrinkage"): ["rollout.dynamic_sampling=none"],
    ("advantage", "signed"): ["rollout.dynamic_sampling=none"],
    ("advantage", "maxrl_control_variate"): ["rollout.dynamic_sampling=none"],
    ("loss", "cross_entropy"): ["rollout.dynamic_sampling=none"],
    ("loss", "lad_theoretical"): ["task=digits"],
    ("model", "hf"): ["model.path=somebody/something"],
    ("model", "table"): ["task=bandit", "rollout.prompts=1", "trainer.updates=1"],
    ("paper", "dph_sql"): ["task.train=a.jsonl", "task.test=b.jsonl", "task.databases=c"],
    ("paper", "dph_sql_32b"): ["task.train=a.jsonl", "task.test=b.jsonl", "task.databases=c"],
    ("presample", "default"): ["loss=dph_js"],
    ("rollout", "ray"): [f"rollout.engine.python={sys.executable}"],
    ("task", "bandit"): ["model=table"],
    ("task", "classes"): ["model=table"],
    ("program", "command"): ["program.argv=[make]"],
    ("program", "trl"): ["loss=grpo"],
    ("program", "verl"): [
        *("loss=grpo", "cluster.gpus=1", "rollout.max_tokens=64"),
        *("model=hf", "model.path=somebody/something", "model.chat=true"),
    ],
    ("policy", "evaluated"): ["policy.path=/a", "policy.name=a", "policy.digest=0", "policy.group=0"],
    ("task", "digits"): ["model=digits_tiny"],
    ("task", "choice"): ["task.train=a.jsonl", "task.test=b.jsonl", "model=hf", "model.path=somebody/something"],
    ("task", "verifiers"): ["task.environment=some-name", "model=hf", "model.path=somebody/something"],
    ("task", "reasoning_gym"): ["task.generators=chain_sum", "model=hf", "model.path=somebody/something"],
    ("task", "spelled"): ["task.train=a.jsonl", "task.test=b.jsonl", "model=spelled_tiny"],
    ("task", "math"): ["task.train=a.jsonl", "task.test=b.jsonl", "model=hf", "model.path=somebody/something"],
    ("task", "code"): ["task.train=a.jsonl", "task.test=b.jsonl", "model=hf", "model.path=somebody/something"],
    ("task", "sql"): [
        "task.train=a.jsonl",
        "task.test=b.jsonl",
        "task.databases=c",
        "model=hf",
        "model.path=somebody/something",
    ],
}
GROUPS = sorted(path.name for path in schema.CONF.iterdir() if path.is_dir() and path.name != "hydra")
EVERY = [(group, option) for group in GROUPS for option in REGISTRY.options(group)]


@pytest.mark.parametrize(("group", "option"), EVERY)
def test_every_option_of_conf_and_every_study_composes_and_checks(group: str, option: str) -> None:
    config, choices = composed(f"{group}={option}", *COMPANIONS.get((group, option), []))
    if choices["rollout"] == "vllm":  # of recipes, and of the studies that follow them: no environment has it here
        config.rollout.engine.python = sys.executable
    lacking = option == "verl" and find_spec("verl") is None  # it is no dependency
    with pytest.raises(NotAvailable, match="pip install") if lacking else contextlib.nullcontext():
        Checker(REGISTRY).check(config, choices)
    assert len(run_id(frozen_config(config, choices))) == 12


def test_a_shorthand_reaches_the_loss_that_reads_it() -> None:
    assert composed("eta=0.5")[0].loss.eta == 0.5
    assert composed()[0].loss.eta == 0.25  # LAD's own default, 1/η = 4


@pytest.mark.parametrize(("loss", "advantage"), [("rloo", "rloo"), ("pacs", "none"), ("grpo", "grpo")])
def test_a_baseline_by_name_brings_its_advantage_and_the_command_line_wins(loss: str, advantage: str) -> None:
    config, choices = composed(f"loss={loss}")
    assert config.advantage["_target_"] == f"rlvr.objective.advantage.{advantage}"
    assert choices["advantage"] == advantage
    assert composed(f"loss={loss}", "advantage=rloo")[0].advantage["_target_"] == "rlvr.objective.advantage.rloo"


@pytest.mark.parametrize(
    ("lr", "words"),
    [
        (1e-6, ["model=hf", "model.path=a/b"]),
        (2e-4, ["model=hf", "model.path=a/b", "trainer.lora_rank=16"]),
        (3e-5, ["model=hf", "model.path=a/b", "lr=3e-5"]),
        (2e-4, ["model=maze_tiny"]),
    ],
)
def test_the_learning_rate_belongs_to_the_model_unless_it_is_typed(lr: float, words: list[str]) -> None:
    assert composed(*words)[0].lr == lr
