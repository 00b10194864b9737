from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf

from rlvr.config.explain import unreadable_option_lines
from rlvr.config.registry import BroughtOption, Registry
from tests.support.composed import REGISTRY

OWN = {
    "loss/plain.yaml": "_target_: rlvr.loss.reinforce.reinforce\n_partial_: true\n",
    "loss/tuned.yaml": "defaults: [lad, _self_]\nratio: sequence\n",
    "loss/silent.yaml": (
        "defaults:\n  - override /advantage@_global_.advantage: none\n  - _self_\n"
        "_target_: rlvr.loss.cross_entropy.cross_entropy\n_partial_: true\n"
    ),
    "divergence/half.yaml": "_target_: rlvr.objective.divergence.js\n_partial_: true\n",
    "flavour/salty.yaml": "grains: 3\n",
    "study/mine.yaml": "# @package _global_\n#\n# Why?\n# Because.\nsteps: 3\n",
    "study/mute.yaml": "# @package _global_\nsteps: 3\n# too late\n",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in OWN.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def words(folder: Path, how: str) -> list[str]:
    return {"flag": ["loss=plain", "--config-dir", str(folder)], "key": [f"hydra.searchpath=[file://{folder}]"]}[how]


@pytest.mark.parametrize("how", ["flag", "key"])
def test_options_are_those_of_the_whole_search_path(folder: Path, how: str) -> None:
    registry = Registry.of(words(folder, how))
    assert set(registry.options("loss")) == {*REGISTRY.options("loss"), "plain", "tuned", "silent"}
    assert set(registry.groups()) == {*REGISTRY.groups(), "flavour"}
    assert (registry.options("flavour"), registry.options("nothing")) == (["salty"], [])


def test_a_half_written_option_is_left_out_unless_it_is_chosen(folder: Path) -> None:
    (folder / "loss/unfinished.yaml").write_text("eta: ${eta}\n  push: [1,\n")
    (folder / "loss/baseless.yaml").write_text("defaults: [nothing, _self_]\n")
    registry = Registry([str(folder)])
    assert {"unfinished", "baseless"} <= set(registry.options("loss"))
    assert registry.losses_reading("eta") == [*REGISTRY.losses_reading("eta"), "tuned"]
    assert registry.losses_with("divergence") == [*REGISTRY.losses_with("divergence"), "tuned"]
    assert "silent" in registry.losses_without_advantage
    baseless, unfinished = unreadable_option_lines(registry)
    assert baseless == "loss=baseless cannot be chosen: loss/nothing is no config."
    assert unfinished.startswith(f"loss=unfinished cannot be chosen: {folder}/loss/unfinished.yaml, line 2, column ")
    with pytest.raises(yaml.YAMLError):
        registry.node("loss", "unfinished")
    assert unreadable_option_lines(REGISTRY) == []


def test_paths_of_folders_are_absolute(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    assert Registry.of(["--config-dir", folder.name]).folders == (str(folder),)
    assert Registry(["pkg://hydra.conf"]).folders == ("pkg://hydra.conf",)


def test_an_option_with_the_name_of_a_built_in_one_is_refused_with_both_files(tmp_path: Path) -> None:
    for name, built_in in {"loss/grpo.yaml": "conf/loss/grpo.yaml", "study/eta.yaml": "sweeps/eta.yaml"}.items():
        mine = tmp_path / name
        mine.parent.mkdir()
        mine.write_text("clip_low: 0.9\n")
        with pytest.raises(ValueError, match=f"{mine} has the name of a built-in option, .*/{built_in}, "):
            Registry.of(["--config-dir", str(tmp_path)])
        mine.rename(mine.with_name("mine.yaml"))
    assert Registry.of([f"--config-dir={tmp_path}"]).folders == (str(tmp_path),)


def test_an_option_brings_its_defaults_and_those_of_its_bases(folder: Path) -> None:
    registry = Registry([str(folder)])
    js = BroughtOption("divergence", "js", is_override=False)
    assert registry.brought("loss", "lad") == registry.brought("loss", "tuned") == [js]
    assert registry.brought("loss", "plain") == []
    assert registry.losses_with("divergence") == ["lad", "lad_theoretical", "tuned"]
    assert registry.losses_with("advantage") == []  # chosen, not brought
    assert registry.losses_without_advantage == ["cross_entropy", "pacs", "pacs_actor", "silent"]


def test_a_shorthand_is_read_through_a_base(folder: Path) -> None:
    assert Registry([str(folder)]).losses_reading("eta") == ["lad", "lad_theoretical", "tuned"]
    assert Registry([str(folder)]).losses_reading("beta") == ["flowrl", "pacs", "pacs_actor"]


def test_settings_of_other_groups_are_no_part_of_an_option() -> None:
    dapo = Registry().node("loss", "dapo")
    assert OmegaConf.to_container(dapo) == {
        "_target_": "rlvr.loss.grpo.grpo",
        "_partial_": True,
        "clip_low": 0.2,
        "clip_high": "${default:${clip_high},0.28}",
        "dual_clip": None,
    }


def test_an_option_overrides_its_base(folder: Path) -> None:
    node = Registry([str(folder)]).node("loss", "tuned")
    assert (node["ratio"], node["_target_"]) == ("sequence", "rlvr.loss.lad.lad")
    with pytest.raises(ValueError, match="loss/nothing is no config"):
        REGISTRY.node("loss", "nothing")


def test_composing_uses_the_whole_search_path_and_built_in_options_take_precedence(folder: Path) -> None:
    (folder / "loss" / "grpo.yaml").write_text("_target_: nowhere.nothing\n")
    registry = Registry([str(folder)])
    config, choices = registry.compose(["loss=tuned", "divergence=half"])
    assert (choices["loss"], choices["divergence"], config.loss.ratio) == ("tuned", "half", "sequence")
    assert registry.compose(["loss=grpo"])[0].loss["_target_"] == "rlvr.loss.grpo.grpo"


def test_the_question_of_a_study_is_its_first_comment(folder: Path) -> None:
    registry = Registry([str(folder)])
    assert registry.question("mine") == "Why?"
    assert registry.question("mute") == registry.question("main") == ""
    assert REGISTRY.question("eta").startswith("How do accuracy and diversity depend on the temperature")


@pytest.mark.parametrize("study", REGISTRY.options("study"))
def test_every_study_has_a_question(study: str) -> None:
    assert "?" in REGISTRY.question(study)
