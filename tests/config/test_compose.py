"""Points are those that Hydra composes one by one, and few are composed in full."""

import itertools
import re

import pytest
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import ConfigCompositionException
from hydra.types import RunMode
from omegaconf import OmegaConf

from rlvr.config import schema
from rlvr.config.compose import Composed, Points, Setting
from rlvr.config.freeze import frozen_config, group_of
from rlvr.ledger.identity import run_id
from sweeps.launcher import GridSweep
from sweeps.plan import plan
from sweeps.session import Session
from tests.support.composed import REGISTRY

pytestmark = pytest.mark.usefixtures("composing")


class Counted(Points):
    """Points that count how many of them are composed in full."""

    num_full = 0

    def full(self, point: list[str]) -> Composed:
        self.num_full += 1
        return super().full(point)


def composed(overrides: list[list[str]]) -> Counted:
    loader = GlobalHydra.instance().config_loader()
    assert isinstance(loader, ConfigLoaderImpl)
    return Counted(loader, loader.load_configuration("run", [], RunMode.MULTIRUN), overrides)


# Every way in which Hydra changes a config, of those that a run can have; N stands for numbers.
SETTINGS = [
    (["loss=lad", "eta=N", "lr=1e-4"], (2, 1, 4)),  # references read them; a whole number becomes another
    (["loss=lad", "divergence=hd", "eta=N", "lr=Ne-5", "seed=3"], (2, 1, 4)),  # a group that another group brings
    (["loss=grpo", "evaluation.k=[1,N]", "++loss.clip_low=0.1", "seed=N"], (3, 1, 2)),
    (["loss=grpo", "+loss.entropy_note=null", "~trainer.kl_estimator", "+loss.note=N", "+loss.k=[N]"], (3, 1, 2)),
    (["loss=grpo", "task={size:9,test_problems:64}", "steps=N", "seed=N"], (3, 1, 4)),  # with a mapping: no choice
    (["trainer.kl=0.N", "loss=pacs", "rollout.samples=N", "++loss.beta=N"], (4, 8, 2)),  # in the order as typed
    (["study=eta", "eta=N", "trainer.schedule=cosine", "trainer.steps=N"], (1, 5, 3)),
    (["loss=dph_js", "presample.problems=N"], (64, 32, 16)),
    (["steps=N", "+cluster.environment.A=N", "~cluster.environment.A", "+cluster.sbatch.nice=N"], (5, 6, 7)),
    (["trainer.seed=5", "seed=N"], (3, 0, 1)),  # it hands no seed on any more
    (["trainer.seed=${seed}", "seed=N", "evaluation.every=${steps}", "steps=N"], (3, 2, 1)),
    (["steps=N", "+cluster.sbatch.comment='seed ${seed}'"], (19, 17, 18)),  # a text with the seed in it
    (["tracker.enabled=N", "steps=5N"], (1, 0, 2)),  # a switch
    (["eta=N", "advantage=maxrl", "advantage.order=N"], (1, 2, 3)),
    (["rollout.engine.dtype=N", "trainer.dtype=N"], ("float32", "float16", "bfloat16")),  # `rollout.logp_old` reads it
    (["+divergence@loss.note=tv", "loss=grpo", "steps=N"], (9, 8, 7)),
]


@pytest.mark.slow
def test_points_and_their_runs_are_those_of_a_full_compose() -> None:
    grid = [[word.replace("N", str(value)) for word in words] for words, values in SETTINGS for value in values]
    points = composed(grid)
    frozen = [points.setting(index).frozen() for index in range(len(points))]
    for index, words in enumerate(grid):
        shared, full = points[index], points.full(words)
        _, config, choices = full
        assert repr(shared) == repr(full), words  # 1 and 1.0 differ too
        assert repr(frozen[index]) == repr(frozen_config(config, choices)), words
        config.seed = 0
        assert points.setting(index).group_id() == group_of(frozen_config(config, choices)), words


def test_a_resolver_that_computes_with_a_number_is_asked_for_every_point() -> None:
    OmegaConf.register_new_resolver("odd", lambda seed: seed % 2, replace=True)
    points = composed([["loss=grpo", f"seed={seed}", "+cluster.environment.A='${odd:${seed}}'"] for seed in (1, 2, 3)])
    odd = [points.setting(index).frozen()["cluster"]["environment"]["A"] for index in range(3)]
    assert odd == ["1", "0", "1"]
    assert points.num_full == 2  # the first, and the last as a check


@pytest.mark.parametrize(
    ("points", "refusal"),
    [
        ([["loss=grpo", f"seed={seed}"] for seed in (0, 1, 2**63)], f"seed={2**63} must be .*"),
        ([["loss=lad", f"eta={eta}"] for eta in (2, 1, 3, 0)], r"eta=0.0 must be greater than 0.*"),
        ([[f"trainer.updates={n}"] for n in (2, 1, 4, 3)], "rollout.prompts=.* divide into .*updates=3 .*"),
        ([["loss=lad", f"++loss.eta={eta}"] for eta in (1, 2, 3, -1)], r"loss.eta=-1 must be .*"),
    ],
)
def test_every_point_is_checked_and_refused_with_its_words(points: list[list[str]], refusal: str) -> None:
    with pytest.raises(ValueError, match=rf"^{refusal} \(in the grid point {re.escape(' '.join(points[-1]))}\)$"):
        plan(composed(points), command="")


@pytest.mark.slow
@pytest.mark.parametrize("study", sorted(p.stem for p in (schema.CONF / "study").glob("*.yaml")))
def test_points_of_every_study_have_the_identity_of_a_full_compose(
    study: str, capsys: pytest.CaptureFixture[str]
) -> None:
    loader = GlobalHydra.instance().config_loader()
    assert isinstance(loader, ConfigLoaderImpl)
    master = loader.load_configuration("run", [f"study={study}"], RunMode.MULTIRUN)
    with Session(registry=REGISTRY).entered():
        words = GridSweep(master, master.hydra.sweeper.params).points([f"study={study}"])
    points = Points(loader, master, words)
    for index in {0, len(points) // 2, len(points) - 1}:
        full = points.full(points.words(index))
        assert run_id(points.setting(index).frozen()) == run_id(frozen_config(*full[1:]))
    assert capsys.readouterr().err == ""


@pytest.mark.slow
def test_hundreds_of_points_compose_once_for_each_choice_of_groups_and_once_as_a_check() -> None:
    axes = itertools.product(("lad", "grpo"), (4, 8, 16), range(1, 26), (0, 1))
    grid = [[f"loss={loss}", f"rollout.samples={n}", f"lr={lr}e-5", f"seed={seed}"] for loss, n, lr, seed in axes]
    points = composed(grid)
    runs = plan(points, command="").runs
    assert len(runs) == len({run.run_id for run in runs}) == 300
    assert len({run.group_id for run in runs}) == 150  # the seeds of a setting
    assert points.num_full == 2 + 1


@pytest.mark.slow
def test_where_setting_values_is_wrong_all_points_are_composed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Stands for a Hydra that applies overrides in another way: here it ignores them."""
    monkeypatch.setattr(Setting, "set", lambda self, overrides: None)
    points = composed([["lr=1e-4"], ["lr=2e-4"]])
    assert "composed in full" in capsys.readouterr().err
    assert [config.lr for _, config, _ in points] == [1e-4, 2e-4]


def test_an_error_in_a_point_is_hydras_own() -> None:
    with pytest.raises(ConfigCompositionException, match="Could not override 'loss.clip_lo'"):
        composed([["loss=grpo", "loss.clip_lo=1"]])[0]
