"""Patched points equal the composed ones, and few points are composed in full."""

from __future__ import annotations

import pytest
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import ConfigCompositionException
from hydra.types import RunMode

from rlvr.config import schema
from rlvr.config.compose import SAMPLE, Points
from rlvr.config.freeze import frozen_config
from rlvr.ledger.identity import run_id
from sweeps.grid_sweep import GridSweep
from sweeps.plan import plan
from sweeps.session import Session
from tests.support.composed import REGISTRY

pytestmark = pytest.mark.usefixtures("composing")


def composed(overrides: list[list[str]]) -> Points:
    loader = GlobalHydra.instance().config_loader()
    assert isinstance(loader, ConfigLoaderImpl)
    return Points(loader, loader.load_configuration("run", [], RunMode.MULTIRUN), overrides)


# One of each way in which Hydra changes a config.
OVERRIDES = [
    ["loss=lad", "eta=2", "lr=1e-4"],  # interpolations read them
    ["loss=lad", "divergence=hd", "eta=2"],  # a group that another group brings
    ["loss=grpo", "evaluation.k=[1,4]", "++loss.clip_low=0.1"],
    ["loss=grpo", "+loss.entropy_note=null", "trainer.betas=[0.9,0.95]"],
    ["loss=grpo", "~trainer.kl_estimator"],
    ["loss=grpo", "task={size:9,test_problems:64}"],  # a group's name with a mapping: no choice
    ["trainer.kl=0.5", "loss=pacs", "rollout.samples=4"],  # the order in which they were given
    ["study=eta", "eta=1", "seed=3"],
    ["loss=dph_js", "presample.problems=64"],
    ["+divergence@loss.note=tv", "loss=grpo", "steps=9"],
]


@pytest.mark.slow
def test_a_patched_point_equals_the_composed_one() -> None:
    points = composed(OVERRIDES)
    for index, overrides in enumerate(OVERRIDES):
        patched, full = points[index], points.full(overrides)
        assert patched == full
        assert repr(patched[1]) == repr(full[1])  # 1 and 1.0 too
        assert frozen_config(*patched[1:]) == frozen_config(*full[1:])


@pytest.mark.slow
@pytest.mark.parametrize("study", sorted(p.stem for p in (schema.CONF / "study").glob("*.yaml")))
def test_points_of_every_study_have_the_identity_of_a_full_compose(
    study: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("rlvr.config.compose.SAMPLE", 2)
    loader = GlobalHydra.instance().config_loader()
    assert isinstance(loader, ConfigLoaderImpl)
    master = loader.load_configuration("run", [f"study={study}"], RunMode.MULTIRUN)
    with Session(registry=REGISTRY).entered():
        words = GridSweep(master, master.hydra.sweeper.params).points([f"study={study}"])
    points = Points(loader, master, words)
    for index in {0, len(points) // 2, len(points) - 1}:
        overrides, *patched = points[index]
        full = points.full(overrides)
        assert run_id(frozen_config(*patched)) == run_id(frozen_config(*full[1:]))
    assert capsys.readouterr().err == ""


@pytest.mark.slow
def test_hundreds_of_points_compose_once_for_each_choice_of_groups_and_once_for_each_of_the_sample() -> None:
    grid = [
        [f"loss={loss}", f"rollout.samples={n}", f"lr={lr}e-5", f"seed={seed}"]
        for loss in ("lad", "grpo")
        for n in (4, 8, 16)
        for lr in range(1, 26)
        for seed in (0, 1)
    ]
    points = composed(grid)
    runs = plan(points, command="").runs
    assert len(runs) == len({run.run_id for run in runs}) == 300
    assert len({run.group_id for run in runs}) == 150  # the seeds of a setting
    assert points.num_full == 2 + SAMPLE


@pytest.mark.slow
def test_where_patching_is_wrong_all_points_are_composed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Stands for a Hydra that applies overrides in another way: here it ignores them."""
    monkeypatch.setattr(Points, "_chooses_option", lambda self, override: True)
    points = composed([["lr=1e-4"], ["lr=2e-4"]])
    assert capsys.readouterr().err == ""
    points._bases = dict.fromkeys(points._bases, points._bases["lr=1e-4",])
    points._verify()
    assert "composed in full" in capsys.readouterr().err
    assert [config.lr for _, config, _ in points] == [1e-4, 2e-4]


def test_an_error_in_a_point_is_hydras_own() -> None:
    with pytest.raises(ConfigCompositionException, match="Could not override 'loss.clip_lo'"):
        composed([["loss=grpo", "loss.clip_lo=1"]])
