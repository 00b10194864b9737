"""Every file of conf/ and sweeps/ composes and checks; identity follows what determines a result."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from rlvr import config as schema
from rlvr.signature import signature
from sweeps import launcher


@pytest.fixture(autouse=True)
def _hydra() -> Iterator[None]:
    schema.register()
    launcher.register()
    with initialize_config_dir(str(schema.CONF), version_base="1.3"):
        yield


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
    ("model", "hf"): ["model.path=/somewhere"],
    ("model", "table"): ["task=bandit", "rollout.prompts=1", "trainer.updates=1"],
    ("presample", "default"): ["loss=dph_js"],
    ("task", "bandit"): ["model=table"],
    ("task", "classes"): ["model=table"],
    ("task", "digits"): ["model=digits_tiny"],
    ("task", "math"): ["task.train=a.jsonl", "task.test=b.jsonl", "model=hf", "model.path=/somewhere"],
}
EVERY = [(g.name, option) for g in sorted(schema.CONF.iterdir()) if g.is_dir() for option in schema.options(g.name)]


@pytest.mark.parametrize(("group", "option"), EVERY)
def test_every_option_of_conf_and_every_study_composes_and_checks(group: str, option: str) -> None:
    if group == "paper":
        overrides = [f"+paper={option}"]
    else:
        overrides = [f"{group}={option}", *COMPANIONS.get((group, option), [])]
    config, choices = composed(*overrides)
    schema.check(config, choices)
    assert len(schema.run_id(schema.frozen(config, choices))) == 12


def identity(*overrides: str) -> str:
    return schema.run_id(schema.frozen(*composed(*overrides)))


def test_identity_ignores_where_and_how_a_run_is_executed() -> None:
    default = identity()
    assert identity("cluster.workers=1", "cluster.threads=2") == default
    assert identity("tracker.uri=http://127.0.0.1:5000") == default
    assert identity("checkpoint.every=7") == default


@pytest.mark.parametrize("change", ["seed=1", "eta=0.5", "divergence=hd", "loss=grpo", "lr=1e-3", "task.size=9",
                                    "rollout.samples=16", "evaluation.every=10", "trainer.updates=1"])  # fmt: skip
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
