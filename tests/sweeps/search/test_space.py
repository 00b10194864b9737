import re
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.study import create_study

from rlvr.config.binding import bind
from rlvr.config.overrides import alternatives, parse
from rlvr.config.schema import CONF
from sweeps.search import sampler as samplers
from sweeps.search.space import SearchAxis, Space, search_space


def space(*typed: str) -> tuple[list[SearchAxis], list[str]]:
    searched = search_space(OverridesParser.create().parse_overrides(list(typed)))
    return list(searched.axes), list(searched.fixed.values())


TABLE: dict[str, BaseDistribution] = {
    "loss=lad,grpo": CategoricalDistribution(["lad", "grpo"]),
    "eta=0.5,1,2": CategoricalDistribution(["0.5", "1", "2"]),
    "eta=choice(0.5,1)": CategoricalDistribution(["0.5", "1"]),
    "model.path=choice('a b',c)": CategoricalDistribution(["a\\ b", "c"]),  # escaped, as Hydra passes it on
    "evaluation.k=[1],[1,4]": CategoricalDistribution(["[1]", "[1,4]"]),
    "trainer.kl=true,null": CategoricalDistribution(["True", "null"]),
    "seed=range(1,8)": IntDistribution(1, 7),  # Hydra's range stops before its end
    "seed=range(4)": IntDistribution(0, 3),
    "steps=range(10,41,10)": IntDistribution(10, 40, step=10),
    "steps=range(40,0,-10)": IntDistribution(10, 40, step=10),
    "seed=shuffle(range(3))": IntDistribution(0, 2),
    "eta=range(0.5,2,0.5)": FloatDistribution(0.5, 1.5, step=0.5),
    "eta=float(range(1,4))": FloatDistribution(1.0, 3.0, step=1.0),
    "steps=tag(log,range(1,101))": IntDistribution(1, 100, log=True),
    "eta=interval(0.5,4)": FloatDistribution(0.5, 4.0),
    "eta=interval(1,4)": FloatDistribution(1.0, 4.0),
    "lr=tag(log,interval(1e-5,1e-3))": FloatDistribution(1e-5, 1e-3, log=True),
    "steps=int(interval(1,8))": IntDistribution(1, 8),
    "steps=int(tag(log,interval(1,64)))": IntDistribution(1, 64, log=True),
    "+task.size=5,7": CategoricalDistribution(["5", "7"]),
}


def test_every_sweep_of_hydra_has_its_distribution() -> None:
    for typed, distribution in TABLE.items():
        (axis,), fixed = space(typed, "beta=1e-1")
        assert (axis.distribution, fixed) == (distribution, ["beta=0.1"]), typed
        assert axis.key == typed.split("=")[0]


WRONG = {
    "eta=tag(log,interval(0,4))": "numbers greater than 0",
    "eta=interval(4,0.5)": "is empty",
    "eta=interval(0.5,inf)": "has no end",
    "eta=tag(log,choice(0.5,1))": "a list of options has no logarithm",
    "eta=tag(lgo,interval(1,2))": "the tag lgo is unknown",
    "eta=tag(log,range(0.5,2,0.5))": r"Write tag(log,interval(a,b))",
    "steps=tag(log,range(1,9,2))": r"Write tag(log,range(a,b))",
    "steps=range(1,2)": "has 1 values",
    "eta=0.5": "nothing to search: no key has several values",
    "eta=choice(0.5)": "nothing to search",
}


def test_what_cannot_be_searched_is_refused() -> None:
    for typed, message in WRONG.items():
        with pytest.raises(ValueError, match=re.escape(message)):
            space(typed)


def test_the_last_word_on_a_key_counts() -> None:
    axes, fixed = space("eta=1,2", "lr=1e-4,1e-3", "eta=4", "lr=interval(1,2)", "loss=choice(grpo)")
    assert [(axis.key, axis.typed) for axis in axes] == [("lr", "interval(1,2)")]
    assert fixed == ["eta=4", "loss=grpo"]


def test_a_grid_search_visits_each_point_once_as_a_grid_writes_it() -> None:
    for typed in ("eta=range(0.1,0.6,0.1)", "seed=range(3)", "loss=lad,grpo"):
        (axis,), _ = space(typed)
        points = alternatives(parse([typed]))[axis.key]
        study, seen = create_study(), list[str]()
        for number in range(len(points)):
            study.sampler = samplers.grid(samplers.SampledParameter([axis], 1, number, 0), seed=3)
            trial = study.ask()
            seen.append(axis.suggest(trial))
            study.tell(trial, 0.0)
        assert sorted(seen) == sorted(points)


def test_an_axis_with_a_condition_belongs_to_the_trials_that_meet_it_and_is_asked_for_after_what_it_names() -> None:
    overrides = parse(["eta=interval(0.5,4)", "loss=lad,grpo", "steps=3"])
    searched = search_space(overrides, ["eta if loss=lad", "cluster.gpus=2 if loss=grpo steps=3"])
    chained = search_space(
        parse(["lr=interval(1e-5,1e-3)", "steps=1,2", "loss=lad,grpo"]), ["lr if steps=2", "steps if loss=lad"]
    )

    def point(searched: Space, **values: str) -> list[str]:
        return searched.point(lambda k: f"{searched.axes[k].key}={values[searched.axes[k].key]}")

    assert sorted(point(searched, eta="1.5", loss="grpo")) == ["cluster.gpus=2", "loss=grpo", "steps=3"]
    assert sorted(point(searched, eta="1.5", loss="lad")) == ["eta=1.5", "loss=lad", "steps=3"]
    assert point(chained, lr="1e-4", steps="2", loss="lad") == ["loss=lad", "steps=2", "lr=1e-4"]
    assert point(chained, loss="grpo") == ["loss=grpo"]
    with pytest.raises(ValueError, match="no point of the sweep sets lr"):
        search_space(overrides, ["lr if loss=lad"])


SAMPLERS = {"tpe": "TPESampler", "random": "RandomSampler", "grid": "_Grid", "cmaes": "CmaEsSampler"}
PRUNERS = {"none": "NopPruner", "median": "MedianPruner", "patient": "PatientPruner"}
OPTIONS = {
    "sampler": {**SAMPLERS, "nsgaii": "NSGAIISampler"},
    "pruner": {**PRUNERS, "successive_halving": "SuccessiveHalvingPruner"},
}


def test_every_option_is_what_its_name_says() -> None:
    for group, kinds in OPTIONS.items():
        files = {path.stem: OmegaConf.load(path) for path in (CONF / "hydra/sweeper" / group).glob("*.yaml")}
        assert set(files) == set(kinds)
        for name, node in files.items():
            assert isinstance(node, DictConfig)
            bind(f"hydra.sweeper.{group}", node)
            make = instantiate(node, _partial_=True)
            option = make(_asked("seed=range(3)")) if group == "sampler" else make()
            assert type(option).__name__ == kinds[name]


def _asked(*typed: str, objectives: int = 1) -> samplers.SampledParameter:
    return samplers.SampledParameter(space(*typed)[0], objectives, 0, 0)


def test_a_sampler_says_what_it_cannot_search() -> None:
    cma: dict[str, Any] = {"seed": 0, "n_startup_trials": 1, "popsize": None}
    with pytest.raises(ValueError, match=r"cannot visit every point of eta=interval\(0,1\): write range\(a,b,step\)"):
        samplers.grid(_asked("eta=interval(0,1)", "seed=1,2"), seed=0)
    with pytest.raises(ValueError, match="needs a numeric axis, but loss is a list of options"):
        samplers.cmaes(_asked("loss=lad,grpo"), **cma)
    with pytest.raises(ValueError, match="has one objective, not 2"):
        samplers.cmaes(_asked("eta=interval(0,1)", objectives=2), **cma)
    samplers.cmaes(_asked("eta=interval(0,1)", "loss=lad,grpo"), **cma)
