"""Runs that differ by their seed alone are composed once, and are the runs that Hydra composes one by one."""

from __future__ import annotations

import pytest
from omegaconf import OmegaConf

from rlvr.config.by_seed import BySeed, setting_and_seed
from rlvr.config.compose import Points
from rlvr.config.freeze import frozen, group_id
from rlvr.ledger.identity import run_id
from sweeps.plan import plan
from tests.config.test_compose import composed

pytestmark = pytest.mark.usefixtures("composing")
# Every way in which Hydra changes a config, of those that a run can have.
SETTINGS = [
    ["loss=lad", "eta=2", "lr=1e-4"],  # interpolations read them
    ["loss=lad", "divergence=hd", "eta=2"],  # a group that another group brings
    ["loss=grpo", "evaluation.k=[1,4]", "++loss.clip_low=0.1"],
    ["loss=grpo", "task={size:9,test_problems:64}"],  # a group's name with a mapping: no choice
    ["trainer.kl=0.5", "loss=pacs", "rollout.samples=4"],
    ["study=eta", "eta=1"],
    ["loss=dph_js", "presample.problems=64"],
    ["steps=7", "+cluster.environment.A=1", "~cluster.environment.A", "+cluster.sbatch.nice=5"],
    ["trainer.seed=5"],  # it hands no seed on any more
    ["steps=9", "+cluster.sbatch.comment='seed ${seed}'"],  # a text with the seed in it
]


def test_a_plan_of_several_seeds_has_the_configs_of_a_full_compose() -> None:
    points = composed([[*setting, f"seed={seed}"] for setting in SETTINGS for seed in (3, 0)])
    runs = plan(points, command="").runs
    assert len({run.group_id for run in runs}) == len(SETTINGS)
    for index in [i for i in range(len(points)) if i % 2]:  # those that are not the first of their setting
        overrides, config, choices = points.full(points.words(index))
        plain = frozen(config, choices)
        assert list(runs[index].overrides) == overrides
        assert repr(runs[index].config) == repr(plain)  # 1 and 1.0 too
        assert (runs[index].run_id, runs[index].group_id) == (run_id(plain), group_id(config))


def test_hundreds_of_seeds_are_composed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    points = composed([["loss=lad", f"eta={eta}", f"seed={seed}"] for eta in (1, 2) for seed in range(200)])
    composed_one_by_one: list[object] = []
    compose = Points._patched
    monkeypatch.setattr(Points, "_patched", lambda *given: (composed_one_by_one.append(given), compose(*given))[1])
    assert len(plan(points, command="").runs) == 400
    assert len(composed_one_by_one) == 2


def test_a_seed_out_of_range_is_refused_with_its_point() -> None:
    points = composed([["loss=grpo", f"seed={seed}"] for seed in (0, 1, 2**63)])
    with pytest.raises(ValueError, match=rf"^seed={2**63} must be .* \(in the grid point loss=grpo seed={2**63}\)$"):
        plan(points, command="")


@pytest.mark.parametrize("text", ["${odd:${seed}}", "a ${seed}"])
def test_where_the_seed_decides_more_every_point_is_composed(text: str) -> None:
    """A resolver may compute with it, so that some seeds are alike, and a text may hold it."""
    OmegaConf.register_new_resolver("odd", lambda seed: seed % 2, replace=True)
    _, config, choices = composed([["loss=grpo", "seed=1"]])[0]
    assert BySeed.of(config, choices, frozen(config, choices)) is not None
    config.cluster.environment = {"KIND": text}
    assert BySeed.of(config, choices, frozen(config, choices)) is None


@pytest.mark.parametrize(
    ("words", "setting", "seed"),
    [
        (["a=1", "seed=7", "b=2"], ("a=1", "b=2"), 7),
        (["a=1"], ("a=1",), None),
        (["seed=7", "+seed=8"], ("+seed=8",), 7),  # Hydra refuses it where the first is composed
        (["seed=1e3"], ("seed=1e3",), None),
        (["seed=-1"], ("seed=-1",), None),
        (["seed=007"], ("seed=007",), None),
        (["seed=[1]"], ("seed=[1]",), None),
    ],
)
def test_what_sets_the_seed_in_no_plain_way_is_composed(
    words: list[str], setting: tuple[str, ...], seed: int | None
) -> None:
    assert setting_and_seed(words) == (setting, seed)
