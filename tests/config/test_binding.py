import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from rlvr.config.binding import UnresolvedConfig, bind, check_partial, close_match
from rlvr.config.signature import clear_caches

SOURCE = """
from collections.abc import Sequence
from pathlib import Path
import typing as t
from typing import Literal

import annotated_types as at
from pydantic import NonNegativeFloat as AtLeastNothing

from rlvr.task.choice import Choice

Mood = Literal["calm", "loud"]
Share = t.Annotated[float, at.Interval(gt=0, le=1)]


class Thing: ...


def component(
    *, count: int, mood: Mood, names: Sequence[str], file: Path, thing: Thing, share: Share | None = 0.5,
    floor: AtLeastNothing = 0
): ...


def with_any_knob(*, count: int, **others): ...


def clipped(reward, group, *, limit: float): ...


def loss(policy, batch, *, count: int): ...


class Sparse(Choice):
    pass


def divergence(log_ratio, a): ...


def maker(*, count: int): ...
"""
KNOBS = {"count": 1, "mood": "calm", "names": ["a"], "file": "x", "thing": 3, "share": 0.5, "floor": 0}


@pytest.fixture(autouse=True)
def _source(tmp_path: Path) -> Iterator[None]:
    (tmp_path / "bound_things.py").write_text(SOURCE)
    sys.path.append(str(tmp_path))
    clear_caches()
    yield
    sys.path.remove(str(tmp_path))
    clear_caches()


def try_to_bind(function: str = "component", **knobs: object) -> None:
    bind("loss", OmegaConf.create({"_target_": f"bound_things.{function}", "_partial_": True, **knobs}))


def test_what_fits_is_bound_and_a_default_of_the_users_code_must_be_in_the_file() -> None:
    """A default that only the code has would be in no run's identity: two runs of different values would be one."""
    try_to_bind(**KNOBS)
    for name in ("share", "floor"):
        with pytest.raises(ValueError, match=rf"loss\.{name} is not in the file of the option.*Write `{name}: VALUE`"):
            try_to_bind(**{knob: value for knob, value in KNOBS.items() if knob != name})


def test_an_option_for_a_subclass_of_ours_need_not_name_what_later_versions_added_to_the_class() -> None:
    """`validation`, `train_problems`, `revision` and `marked` have defaults that leave everything as it was."""
    fields = ("question_field", "choices_field", "answer_field")
    knobs = {"train": "a.jsonl", "test": "b.jsonl", "max_tokens": 8, "template": "{problem}{choices}", "shuffle": False}
    try_to_bind("Sparse", **knobs, **dict.fromkeys(fields))
    with pytest.raises(ValueError, match="loss needs shuffle"):
        try_to_bind(
            "Sparse", **{name: value for name, value in knobs.items() if name != "shuffle"}, **dict.fromkeys(fields)
        )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"coutn": 1},
            "loss.coutn is unknown: loss takes count, file, floor, mood, names, share, thing. Did you mean count?",
        ),
        ({"count": "many"}, r"loss.count=many: a whole number is expected\."),
        ({"mood": "sad"}, r"loss.mood=sad: calm or loud is expected\."),
        ({"names": 3}, r"loss.names=3: a list is expected, each a text\."),
        ({"share": 2}, r"loss.share=2 must be above 0 to 1\."),
        ({"share": float("nan")}, r"loss.share=nan: a finite number is expected, above 0 to 1, or null\."),
        ({"floor": -1}, r"loss.floor=-1 must be 0 or more\."),
        ({"count": "???"}, r"loss.count has no value: pass loss.count=\.\.\."),
    ],
)
def test_a_value_that_does_not_fit_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        try_to_bind(**{**KNOBS, **change})


def test_missing_knobs_are_named() -> None:
    with pytest.raises(ValueError, match=r"loss needs mood, thing: pass loss.mood=\.\.\."):
        try_to_bind(**{k: v for k, v in KNOBS.items() if k not in ("mood", "thing")})


def test_a_function_with_keyword_arguments_accepts_any_knob() -> None:
    try_to_bind("with_any_knob", count=1, whatever=2)
    with pytest.raises(ValueError, match="loss.count=x: a whole number"):
        try_to_bind("with_any_knob", count="x", whatever=2)


def test_components_are_found_under_their_own_keys() -> None:
    inner, outer = {"_target_": "b.B"}, {"_target_": "a.A"}
    config = OmegaConf.create({"loss": {**outer, "inner": inner, "other": "${divergence}"}, "divergence": inner})
    assert UnresolvedConfig(config).components("loss") == ("loss", "loss.inner")


def test_a_similar_name_is_proposed_and_a_different_one_is_not() -> None:
    assert close_match("etaa", ["eta", "beta"]) == " Did you mean eta?"
    assert close_match("zebra", ["eta", "beta"]) == ""


@pytest.mark.parametrize(
    ("path", "function", "data"),
    [
        ("advantage", "clipped", "reward, group"),
        ("loss", "loss", "policy, batch"),
        ("divergence", "divergence", "log_ratio, a"),
    ],
)
def test_a_component_that_needs_data_at_each_step_must_be_partial(path: str, function: str, data: str) -> None:
    node = {"_target_": f"bound_things.{function}"}
    message = f"{path}: bound_things.{function} takes {data} at each step, .*Add `_partial_: true` there"
    for missing in ({}, {"_partial_": False}):
        with pytest.raises(ValueError, match=message):
            check_partial(path, {**node, **missing})
    check_partial(path, {**node, "_partial_": True})
    check_partial("model", node)  # which is called with what it is given at once


def test_a_component_that_needs_only_its_knobs_need_not_be_partial() -> None:
    check_partial("loss", {"_target_": "bound_things.maker", "count": 1})
