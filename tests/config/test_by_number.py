"""Points that differ by numbers alone are composed once, and are the runs that Hydra composes one by one."""

from __future__ import annotations

import itertools
import re

import pytest
from omegaconf import OmegaConf

from rlvr.config.by_number import ConfigOfNumbers, Number, setting_and_numbers
from rlvr.config.compose import Points
from rlvr.config.freeze import frozen_config, group_id
from rlvr.ledger.identity import run_id
from sweeps.plan import WORTHWHILE, plan
from tests.config.test_compose import composed

pytestmark = pytest.mark.usefixtures("composing")
# Every way in which Hydra changes a config, of those that a run can have; N stands for numbers.
SETTINGS = [
    (["loss=lad", "eta=N", "lr=1e-4"], (2, 1, 4)),  # interpolations read them; a whole number becomes another
    (["loss=lad", "divergence=hd", "eta=N", "lr=Ne-5", "seed=3"], (2, 1, 4)),  # a group that another group brings
    (["loss=grpo", "evaluation.k=[1,4]", "++loss.clip_low=0.1", "seed=N"], (3, 0, 2)),
    (["loss=grpo", "task={size:9,test_problems:64}", "steps=N", "seed=N"], (3, 1, 4)),  # with a mapping: no choice
    (["trainer.kl=0.N", "loss=pacs", "rollout.samples=N", "++loss.beta=N"], (4, 8, 2)),
    (["study=eta", "eta=N", "trainer.schedule=cosine", "trainer.steps=N"], (1, 5, 3)),
    (["loss=dph_js", "presample.problems=N"], (64, 32, 16)),
    (["steps=N", "+cluster.environment.A=N", "~cluster.environment.A", "+cluster.sbatch.nice=N"], (5, 6, 7)),
    (["trainer.seed=5", "seed=N"], (3, 0, 1)),  # it hands no seed on any more
    (["steps=N", "+cluster.sbatch.comment='seed ${seed}'"], (19, 17, 18)),  # a text with the seed in it
    (["tracker.enabled=N", "steps=5N"], (1, 0, 2)),  # a switch
    (["eta=N", "advantage=maxrl", "advantage.order=N"], (1, 2, 3)),
]


@pytest.mark.slow
def test_a_plan_has_the_configs_identities_and_groups_of_a_full_compose() -> None:
    grid = [[word.replace("N", str(n)) for word in words] for words, numbers in SETTINGS for n in numbers]
    points = composed(grid)
    runs = plan(points, command="").runs
    assert len(points) == WORTHWHILE * len(SETTINGS)
    for index in [i for i in range(len(points)) if i % WORTHWHILE]:  # those that are not the first of their setting
        overrides, config, choices = points.full(points.words(index))
        plain = frozen_config(config, choices)
        assert list(runs[index].overrides) == overrides
        assert repr(runs[index].config) == repr(plain)  # 1 and 1.0 too
        assert (runs[index].run_id, runs[index].group_id) == (run_id(plain), group_id(config))


@pytest.mark.slow
def test_thousands_of_numbers_are_composed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = itertools.product(("lad", "rloo"), range(1, 101), (0, 1))
    grid = [[f"loss={loss}", f"lr={lr}e-6", f"seed={seed}"] for loss, lr, seed in settings]
    points = composed(grid)
    composed_one_by_one: list[object] = []
    compose = Points._patched
    monkeypatch.setattr(Points, "_patched", lambda *args: (composed_one_by_one.append(args), compose(*args))[1])
    runs = plan(points, command="").runs
    assert (len(runs), len({run.group_id for run in runs})) == (400, 200)
    assert len(composed_one_by_one) == 2


@pytest.mark.parametrize(
    ("points", "refusal"),
    [
        ([["loss=grpo", f"seed={seed}"] for seed in (0, 1, 2**63)], f"seed={2**63} must be .*"),
        ([["loss=lad", f"eta={eta}"] for eta in (2, 1, 3, 0)], r"eta=0.0 must be greater than 0.*"),
        ([[f"trainer.updates={n}"] for n in (2, 1, 4, 3)], "rollout.prompts=.* divide into .*updates=3 .*"),
        ([["loss=lad", f"++loss.eta={eta}"] for eta in (1, 2, 3, -1)], r"loss.eta=-1 must be .*"),
    ],
)
def test_every_number_is_checked_and_refused_with_its_point(points: list[list[str]], refusal: str) -> None:
    with pytest.raises(ValueError, match=rf"^{refusal} \(in the grid point {re.escape(' '.join(points[-1]))}\)$"):
        plan(composed(points), command="")


@pytest.mark.parametrize("text", ["${odd:${seed}}", "a ${seed}", "${oc.select:steps${seed},1}"])
def test_where_a_number_has_further_effects_every_point_is_composed(text: str) -> None:
    """A resolver may compute with the number, so that several points are equal; a text or a name may contain it."""
    OmegaConf.register_new_resolver("odd", lambda seed: seed % 2, replace=True)
    _, config, choices = composed([["loss=grpo", "seed=1"]])[0]
    assert ConfigOfNumbers.of(config, choices, frozen_config(config, choices), {"seed": 1}) is not None
    config.cluster.environment = {"KIND": text}
    assert ConfigOfNumbers.of(config, choices, frozen_config(config, choices), {"seed": 1}) is None


@pytest.mark.parametrize(
    ("words", "setting", "numbers"),
    [
        (["a=1", "seed=7", "b=x"], ("a=int", "seed=int", "b=x"), {"a": 1, "seed": 7}),
        (["lr=1e-4", "lr.x=-0.5"], ("lr=float", "lr.x=float"), {"lr": 1e-4, "lr.x": -0.5}),
        (["seed=7", "+seed=8"], ("seed=7", "+seed=8"), {}),  # Hydra refuses it where the first is composed
        (["seed=007"], ("seed=007",), {}),
        (["seed=[1]"], ("seed=[1]",), {}),
        (["lr=nan", "lr2=1_0", "b=true", "c='1'", "+d=1"], ("lr=nan", "lr2=1_0", "b=true", "c='1'", "+d=1"), {}),
        ([f"seed={2**63}"], (f"seed={2**63}",), {}),
    ],
)
def test_numbers_are_those_that_hydra_and_python_read_alike(
    words: list[str], setting: tuple[str, ...], numbers: dict[str, Number]
) -> None:
    assert setting_and_numbers(words) == (setting, numbers)
