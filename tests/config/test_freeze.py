from pathlib import Path

import pytest
from omegaconf import open_dict

from rlvr.config.freeze import arm_name, frozen_config, run_name
from rlvr.ledger import inputs
from tests.support.composed import composed, identity

pytestmark = pytest.mark.usefixtures("composing")


def test_a_default_written_out_is_the_same_run() -> None:
    assert identity("loss=lad", "divergence=js", "eta=0.25") != identity("eta=0.5")
    assert identity("loss=lad", "divergence=js") == identity()


def test_presample_settings_of_a_recipe_are_kept_only_for_losses_that_use_them() -> None:
    """Otherwise the frozen config of a GRPO arm beside DPH-RL's would contain settings without a component."""
    kept, left = (
        frozen_config(*composed("paper=small/styles", f"loss={loss}")[:2])["presample"] for loss in ("dph_js", "grpo")
    )
    assert kept["threshold"] == 7
    assert left is None


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
def test_names_show_the_chosen_options(overrides: list[str], name: str) -> None:
    plain = frozen_config(*composed(*overrides))
    assert run_name(arm_name(plain, overrides, ["rollout.samples"]), plain) == name


SOURCE = """
from pathlib import Path


class Own:
    def __init__(self, *, file: Path, other: "Path | None", name: str) -> None: ...
"""


def test_a_knob_that_is_a_path_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a user's task. A value that names no file is unchanged, and so is a text knob that happens to name one."""
    (tmp_path / "own_frozen.py").write_text(SOURCE)
    (tmp_path / "data.txt").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    config, choices = composed()
    with open_dict(config):
        config.task = {"_target_": "own_frozen.Own", "file": "data.txt", "other": "nowhere.txt", "name": "data.txt"}
    task = frozen_config(config, choices)["task"]
    assert (task["file"], task["other"], task["name"]) == (str(tmp_path / "data.txt"), "nowhere.txt", "data.txt")


def test_a_path_below_the_home_directory_is_that_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise inputs.json would not have the file, and an edited one would go unnoticed."""
    (tmp_path / "own_read.py").write_text(
        "from pathlib import Path\ndef advantage(reward, group, mask, *, weights: Path): ...\n"
    )
    (tmp_path / "x.jsonl").write_text('{"problem": "1", "answer": "1"}\n')
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    typed = ("task=math", 'task.train="~/x.jsonl"', "task.test={a: ['~/x.jsonl', '~nobody/x.jsonl']}")
    config, choices = composed(*typed, "rollout=vllm", 'rollout.engine.python="~/env/bin/python"')
    with open_dict(config):
        config.advantage = {"_target_": "own_read.advantage", "_partial_": True, "weights": "~/x.jsonl"}
    plain, file = frozen_config(config, choices), str(tmp_path / "x.jsonl")
    assert plain["task"]["train"] == plain["advantage"]["weights"] == file
    assert plain["task"]["test"] == {"a": [file, "~nobody/x.jsonl"]}
    assert plain["rollout"]["engine"]["python"] == str(tmp_path / "env/bin/python")
    assert set(inputs.inputs(plain)) == {"task.train", "task.test.a", "advantage.weights"}


@pytest.mark.slow
def test_the_directory_of_a_model_becomes_absolute_and_a_name_on_the_hub_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`model.path=mine` in two directories means two models, and therefore two runs."""
    for place in ("a", "b"):
        (tmp_path / place / "mine").mkdir(parents=True)
    of_a, of_b = (str(tmp_path / place / "mine") for place in ("a", "b"))
    typed = ("task=math", "task.train=x.jsonl", "task.test=x.jsonl", "model=hf")
    monkeypatch.chdir(tmp_path / "a")
    plain = frozen_config(*composed(*typed, "model.path=mine")[:2])
    assert plain["model"]["path"] == plain["task"]["reader"]["path"] == of_a
    assert frozen_config(*composed(*typed, "model.path=owner/model")[:2])["model"]["path"] == "owner/model"
    assert identity(*typed, "model.path=mine") == identity(*typed, f"model.path={of_a}")
    assert identity(*typed, "model.path=mine") != identity(*typed, f"model.path={of_b}")
