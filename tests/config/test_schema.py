"""Every file of conf/ and sweeps/ composes and checks; identity follows what determines a result."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from hydra import compose
from omegaconf import DictConfig, OmegaConf

from rlvr.config import schema
from rlvr.config.signature import signature

pytestmark = pytest.mark.usefixtures("composing")


def composed(*overrides: str) -> tuple[DictConfig, dict[str, Any]]:
    config = compose("run", list(overrides), return_hydra_config=True)
    choices = OmegaConf.to_container(config.hydra.runtime.choices)
    assert isinstance(choices, dict)
    OmegaConf.set_struct(config, False)
    del config["hydra"]
    OmegaConf.set_struct(config, True)
    return config, {str(k): v for k, v in choices.items()}


# What an option needs from the user, or from another group, before it can stand.
COMPANIONS = {
    ("advantage", "none"): ["loss=pacs"],
    ("advantage", "gae"): ["loss=ppo"],
    ("advantage", "maxrl_control_variate"): ["rollout.dynamic_sampling=none"],
    ("loss", "cross_entropy"): ["rollout.dynamic_sampling=none"],
    ("loss", "lad_theoretical"): ["task=digits"],
    ("model", "hf"): ["model.path=/somewhere"],
    ("model", "table"): ["task=bandit", "rollout.prompts=1", "trainer.updates=1"],
    ("paper", "dph_sql"): ["task.train=a.jsonl", "task.test=b.jsonl", "task.databases=c"],
    ("presample", "default"): ["loss=dph_js"],
    ("rollout", "ray"): [f"rollout.engine.python={sys.executable}"],
    ("rollout", "vllm"): [f"rollout.engine.python={sys.executable}"],
    ("task", "bandit"): ["model=table"],
    ("task", "classes"): ["model=table"],
    ("task", "digits"): ["model=digits_tiny"],
    ("task", "choice"): ["task.train=a.jsonl", "task.test=b.jsonl", "model=hf", "model.path=/somewhere"],
    ("task", "reasoning_gym"): ["task.generators=chain_sum", "model=hf", "model.path=/somewhere"],
    ("task", "math"): ["task.train=a.jsonl", "task.test=b.jsonl", "model=hf", "model.path=/somewhere"],
    ("task", "code"): ["task.train=a.jsonl", "task.test=b.jsonl", "model=hf", "model.path=/somewhere"],
    ("task", "sql"): [
        "task.train=a.jsonl",
        "task.test=b.jsonl",
        "task.databases=c",
        "model=hf",
        "model.path=/somewhere",
    ],
}
EVERY = [(g.name, option) for g in sorted(schema.CONF.iterdir()) if g.is_dir() for option in schema.options(g.name)]


@pytest.mark.parametrize(("group", "option"), EVERY)
def test_every_option_of_conf_and_every_study_composes_and_checks(group: str, option: str) -> None:
    config, choices = composed(f"{group}={option}", *COMPANIONS.get((group, option), []))
    schema.check(config, choices)
    assert len(schema.run_id(schema.frozen(config, choices))) == 12


def identity(*overrides: str) -> str:
    return schema.run_id(schema.frozen(*composed(*overrides)))


def test_identity_ignores_where_and_how_a_run_is_executed() -> None:
    default = identity()
    assert identity("cluster.workers=1", "cluster.threads=2") == default
    assert identity("tracker.uri=http://127.0.0.1:5000") == default
    assert identity("checkpoint.every=7") == default


@pytest.mark.parametrize(
    "change",
    [
        "seed=1",
        "eta=0.5",
        "divergence=hd",
        "loss=grpo",
        "lr=1e-3",
        "task.size=9",
        "rollout.samples=16",
        "evaluation.every=10",
        "trainer.updates=1",
    ],
)
def test_identity_follows_what_determines_a_result(change: str) -> None:
    assert identity(change) != identity()


def test_a_default_written_out_is_the_same_run() -> None:
    assert identity("loss=lad", "divergence=js", "eta=0.25") != identity("eta=0.5")
    assert identity("loss=lad", "divergence=js") == identity()


def test_seeds_of_one_setting_share_a_group() -> None:
    first, second, other = (composed(*o)[0] for o in (["seed=0"], ["seed=1"], ["seed=1", "lr=1e-3"]))
    assert schema.group_id(first) == schema.group_id(second) != schema.group_id(other)


@pytest.mark.parametrize(
    ("overrides", "name"),
    [
        (["eta=0.5"], "lad-js-eta0.5-s0"),
        (["loss=grpo", "seed=3"], "grpo-s3"),
        (["divergence=tv", "eta=2", "rollout.samples=16"], "lad-tv-eta2-samples16-s0"),
        (["loss=grpo", "advantage=maxrl"], "grpo-maxrl-s0"),
        (  # too long: what is not swept goes
            [
                "rollout.samples=4",
                "rollout.temperature=0.9",
                "trainer.clip_norm=0.5",
                "evaluation.every=20",
                "task.size=9",
            ],
            "lad-js-eta0.25-samples4-s0",
        ),
    ],
)
def test_names_say_what_was_chosen(overrides: list[str], name: str) -> None:
    assert schema.run_name(schema.frozen(*composed(*overrides)), overrides, ["rollout.samples"]) == name


def test_a_shorthand_reaches_the_loss_that_reads_it() -> None:
    assert composed("eta=0.5")[0].loss.eta == 0.5
    assert composed()[0].loss.eta == 0.25  # LAD's own default, 1/η = 4


def test_a_signature_is_read_without_importing_its_module() -> None:
    parameters = {p.name: p for p in signature("rlvr.loss.lad.lad")}
    assert parameters["eta"].annotation == "float"
    assert parameters["eta"].required
    with pytest.raises(ValueError, match="defines no"):
        signature("rlvr.loss.lad.nothing")


@pytest.mark.parametrize(
    ("loss", "advantage"),
    [
        ("reinforce", "reinforce"),
        ("rloo", "rloo"),
        ("dr_grpo", "dr_grpo"),
        ("maxrl", "maxrl"),
        ("pkpo", "pkpo"),
        ("reinforce_pp", "reinforce_pp"),
        ("differential_smoothing", "differential_smoothing"),
        ("pacs", "none"),
        ("grpo", "grpo"),
        ("lad", "grpo"),
    ],
)
def test_a_baseline_by_name_brings_its_advantage_and_the_command_line_wins(loss: str, advantage: str) -> None:
    config, choices = composed(f"loss={loss}")
    assert config.advantage["_target_"] == f"rlvr.objective.advantage.{advantage}"
    assert choices["advantage"] == advantage
    assert composed(f"loss={loss}", "advantage=rloo")[0].advantage["_target_"] == "rlvr.objective.advantage.rloo"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["loss=pkpo", "advantage.k=9"], r"k is 2 to 8. Pass rollout.samples=9 or more"),
        (["loss=pkpo", "advantage.k=8", "advantage.form=sloo"], r"k is 1 to 7. Pass rollout.samples=9 or more"),
        (["loss=pkpo", "advantage.k=1"], r"k is 2 to 8"),
        (["loss=maxrl", "advantage.order=8"], r"orders are 1 to rollout.samples - 1. Pass rollout.samples=9"),
        (["loss=pacs", "advantage=rloo"], r"advantage=rloo has no effect with loss=pacs.*Drop it"),
        (["loss=grpo", "advantage=none"], r"nothing to learn from. Pass advantage=grpo"),
        (["loss=grpo", "advantage=gae"], r"needs a value head and loss=grpo trains none. Pass loss=ppo"),
        (["loss=pacs", "rollout.samples=1"], r"Pass rollout.samples=2 or more, or loss.score=naive"),
        (["loss=pacs", "task=bandit", "model=table"], r"loss=pacs takes rewards 0 and 1 only and task=bandit"),
        (["loss=maxrl", "task=bandit", "model=table"], r"takes rewards 0 and 1 only.*or task.binary=true"),
        (["loss=cross_entropy"], r"Pass rollout.dynamic_sampling=none; rollout.samples=1 saves time"),
        (
            ["loss=cross_entropy", "task=bandit", "model=table", "rollout.dynamic_sampling=none"],
            r"learns known answers and task=bandit gives none.*task=digits",
        ),
        (["loss=lad_theoretical"], r"takes responses of one token and task=maze has longer ones.*task=bandit"),
        (["rollout.filter=hard"], r"must be none or greedy_fails"),
    ],
)
def test_what_cannot_work_together_is_refused_with_a_way_out(overrides: list[str], message: str) -> None:
    small = ["rollout.prompts=1", "trainer.updates=1"] if "task=bandit" in overrides else []
    with pytest.raises(ValueError, match=message):
        schema.check(*composed(*overrides, *small))


@pytest.mark.parametrize("loss", ["maxrl", "pacs", "differential_smoothing"])
def test_a_bandit_of_right_and_wrong_suits_binary_objectives(loss: str) -> None:
    table = [*COMPANIONS["task", "bandit"], *COMPANIONS["model", "table"]]
    schema.check(*composed(f"loss={loss}", "task=bandit", "task.binary=true", *table))


def test_what_needs_nothing_of_a_group_runs_with_one_response() -> None:
    for overrides in (["loss=cross_entropy"], ["loss=pacs", "loss.score=naive"], ["loss=reinforce"]):
        schema.check(*composed(*overrides, "rollout.samples=1", "rollout.dynamic_sampling=none"))
