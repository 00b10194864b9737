import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from rlvr.config import targets
from rlvr.config.registry import Registry
from tests.config.test_imports import module


@pytest.fixture(autouse=True)
def _own_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delenv("RLVR_TRUST", raising=False)


def test_packages_are_those_of_every_target() -> None:
    config = {"loss": {"_target_": "mine.losses.own", "inner": [{"_target_": "yours.f"}]}, "task": {"_target_": "a.B"}}
    assert targets.packages(config) == {"mine", "yours", "a"}


def test_a_run_finds_its_code_again_and_refuses_another_of_its_name(tmp_path: Path) -> None:
    config = {"task": {"_target_": "days_of_mine.Days"}}
    one, two = (module(tmp_path / name, "days_of_mine", f"NAME = '{name}'") for name in ("one", "two"))
    targets.make_importable([str(one)], config)
    import days_of_mine  # type: ignore[import-not-found]

    assert (days_of_mine.NAME, sys.path[-1]) == ("one", str(one))
    with pytest.raises(ValueError, match=rf"`import days_of_mine` finds {one}\S+, which hides days_of_mine in {two}"):
        targets.make_importable([str(two)], config)


def test_a_missing_directory_is_named_and_can_be_replaced_by_a_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {"task": {"_target_": "days_that_moved.Days"}}
    was, now = tmp_path / "was", module(tmp_path / "now", "days_that_moved", "class Days: ...")
    message = f"_target_: days_that_moved.Days came from a directory that is gone, {was}. Put it back, or a link"
    with pytest.raises(ValueError, match=message):
        targets.make_importable([str(tmp_path), str(was)], config)
    monkeypatch.setattr(sys, "path", [*sys.path, str(now)])
    with pytest.raises(ValueError, match=message):
        targets.make_importable([str(was)], config)
    with pytest.raises(ValueError, match=r"os\.system is neither a component"):  # no directory would change that
        targets.make_importable([str(was)], {"task": {"_target_": "os.system"}})
    was.symlink_to(now)
    targets.make_importable([str(was)], config)


@pytest.mark.parametrize(
    "config",
    [
        {"loss": "${oc.decode:'{_target_: os.makedirs, name: x}'}"},
        {"loss": {"_target_": "rlvr.loss.grpo.grpo", "clip_low": "${oc.env:HF_TOKEN}"}},
        {"task": {"train": ["a.jsonl", "${cluster.setup}"]}},
    ],
)
def test_a_config_on_disk_refers_to_nothing(config: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"is a reference \(\$\{\), and the config of a run has none"):
        targets.make_importable([], config)


def test_the_lines_of_a_job_may_name_variables_of_the_shell() -> None:
    targets.make_importable([], {"cluster": {"setup": ["cd ${TMPDIR:-/tmp}"], "environment": {"A": "${B}"}}})


def test_every_option_of_conf_is_a_component() -> None:
    registry = Registry()
    groups = ("loss", "advantage", "divergence", "task", "model", "trainer", "rollout", "presample")
    nodes = [registry.node(group, option) for group in groups for option in registry.options(group)]
    targets.refuse_targets([OmegaConf.to_container(node, resolve=False) for node in nodes], [])


@pytest.mark.parametrize(
    "target",
    [
        "os.system",
        "subprocess.Popen",
        "builtins.eval",
        "torch.hub.load",
        "rlvr.task.verify.pool.subprocess.Popen",  # a library that a module of ours imports
        "rlvr.config.imports.add_import_paths",  # ours, and no component
        "sweeps.worker.kill_tagged",
        "rlvr.trainer.checkpoint._publish",
        "rlvr.task.math.Verified",  # from elsewhere
        "rlvr.task.choice._place",
        "rlvr.task.sources.Path",
    ],
)
def test_a_config_names_components_and_nothing_else(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {"task": {"_target_": "rlvr.task.maze.Maze"}, "loss": [{"deep": {"_target_": target, "_args_": ["id"]}}]}
    with pytest.raises(ValueError, match=f"_target_: {target} is neither a component"):
        targets.make_importable([str(tmp_path)], config)
    monkeypatch.setenv("RLVR_TRUST", target.split(".")[0])
    targets.make_importable([], config)
