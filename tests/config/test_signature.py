import importlib
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal, Optional

import pytest
from annotated_types import Interval
from pydantic import PositiveFloat

from rlvr.config.signature import UNKNOWN, clear_caches, definition, signature
from rlvr.objective.batch import declared_needs
from tests.support.composed import REGISTRY

TARGETS = sorted(
    {
        str(node["_target_"])
        for group in ("loss", "advantage", "divergence", "task", "model", "trainer", "presample")
        for option in REGISTRY.options(group)
        if "_target_" in (node := REGISTRY.node(group, option))
    }
)


def test_the_source_of_every_component_gives_the_signature_that_an_import_gives() -> None:
    assert len(TARGETS) > 50
    for target in TARGETS:
        read = signature(target)
        name, _, attribute = target.rpartition(".")
        component = getattr(importlib.import_module(name), attribute)
        parameters = inspect.signature(component).parameters.values()
        required = [(p.name, p.default is p.empty) for p in parameters]
        assert [(p.name, p.required) for p in read.parameters] == required, target
        assert read.declared == declared_needs(component) | getattr(component, "marks", frozenset()), target
        assert not read.takes_any, target


ODD = """
import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Literal, Protocol

import annotated_types as at
from rlvr.loss.lad import lad
from rlvr.objective import batch
from rlvr.objective.advantage import PassForm
from rlvr.objective.batch import binary_rewards as binary
from rlvr.objective.batch import first_pass, needs
from .inner import deep, relayed

WORDS = ("entropy", "noise")
Ratio = Literal["a", "b"]
Share = Annotated[float, at.Interval(gt=0, le=1)]
again = lad
gentle = functools.partial(lad, eta=0.5)
steep = functools.partial(deep, 1)


def wrapped(function: Callable) -> Callable:
    @functools.wraps(function)
    def inner(*args, **kwargs):
        return function(*args, **kwargs)
    return inner


@binary
@batch.needs("reference")
def marked(policy, batch, *, ratio: Ratio, form: PassForm = "plain", share: Share | None = None): ...


@needs("entropy")
def before(policy, batch, *, knob: int): ...


@first_pass(before)
def twice(policy, batch, *, knob: int, own: list["Base"]): ...


@wrapped
def decorated(policy, batch, *, knob: int): ...


def open_handed(policy, batch, **knobs): ...


try:
    from no_such_module import conditional
except ImportError:
    if len(WORDS) == 2:
        def conditional(one: int, *, two: str = "x"): ...


class Base:
    def __init__(self, *, size: int): ...


class Derived(Base):
    name = "derived"

    @classmethod
    def make(cls, sides: int): ...


@dataclass
class Record:
    first: int
    second: list[int] = field(default_factory=list)
    third: int = field(init=False)


@dataclass
class Settled(Record):
    first: int = field(init=False, default=1)


class Shape(Protocol):
    sides: int


class Foreign(functools.partial): ...


made = wrapped(deep)
"""
INNER = """
from rlvr.loss.grpo import grpo as relayed


def deep(count: int, *, knob: float): ...
"""


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A package of somebody else's, and a module that binds names in ways that no reader of source follows."""
    root = tmp_path_factory.mktemp("odd")
    (root / "odd").mkdir()
    (root / "odd" / "__init__.py").write_text(ODD)
    (root / "odd" / "inner.py").write_text(INNER)
    (root / "strange.py").write_text("from odd import *\n\ndef __getattr__(name):\n    raise AttributeError(name)\n")
    (root / "unfinished.py").write_text("x = 1\ndef loss(\n")
    (root / "spread.py").write_text("from rlvr.objective.batch import needs\n\n@needs(*'ab')\ndef loss(): ...\n")
    sys.path.append(str(root))
    clear_caches()
    yield root
    sys.path.remove(str(root))
    clear_caches()


# name in the package -> parameters with a ? after those that may be left out, what it declares
READ = {
    "marked": (["policy", "batch", "ratio", "form?", "share?"], {"binary_rewards", "reference"}),
    "again": (["policy", "batch", "divergence", "eta", "ratio"], set()),
    "gentle": (["policy", "batch", "divergence", "eta?", "ratio"], set()),
    "relayed": (["policy", "batch", "clip_low", "clip_high", "dual_clip"], set()),
    "deep": (["count", "knob"], set()),
    "steep": (["knob"], set()),
    "twice": (["policy", "batch", "knob", "own"], {"entropy", "first_pass"}),
    "open_handed": (["policy", "batch"], set()),
    "decorated": (["policy", "batch", "knob"], set()),
    "conditional": (["one", "two?"], set()),
    "Derived": (["size"], set()),
    "Record": (["first", "second?"], set()),
    "Settled": (["second?"], set()),
    "Shape": ([], set()),
}


def shown(target: str) -> tuple[list[str], set[str]]:
    read = signature(target)
    return [p.name + "?" * (not p.required) for p in read.parameters], set(read.declared)


def test_definitions_are_followed_through_imports_partials_bases_and_branches(odd: Path) -> None:
    for name, expected in READ.items():
        assert shown(f"odd.{name}") == expected, name
        assert signature(f"odd.{name}").takes_any == (name in ("open_handed", "decorated")), name
    assert shown("strange.marked") == READ["marked"]
    assert "odd" not in sys.modules


def test_what_source_does_not_tell_takes_any_knob(odd: Path) -> None:
    for target in ("odd.made", "odd.Foreign", "odd.Derived.make", "strange.nothing", "time.sleep"):
        read = signature(target)
        assert (read.parameters, read.takes_any) == ((), True), target
    assert definition("time.sleep") is None
    assert signature("time.sleep") is UNKNOWN


def test_an_annotation_means_a_type_or_what_is_not_checked(odd: Path) -> None:
    kinds = {p.name: p.kind for p in (*signature("odd.marked").parameters, *signature("odd.twice").parameters)}
    assert kinds["ratio"] == Literal["a", "b"]
    assert kinds["form"] == Literal["plain", "sloo", "sloo_minus_one"]  # an alias in another module
    assert kinds["share"] == Optional[Annotated[float, Interval(gt=0, le=1)]]  # noqa: UP045
    assert kinds["own"] is None
    eta = next(p for p in signature("rlvr.loss.lad.lad").parameters if p.name == "eta")
    assert eta.kind == PositiveFloat


def test_a_target_that_does_not_exist_is_named(odd: Path) -> None:
    for target, message in {
        "no_such_package.loss": "no module no_such_package",
        "rlvr.loss.ladd.lad": "no module rlvr.loss.ladd",
        "rlvr.loss.lad.nothing.at_all": "no module rlvr.loss.lad.nothing",
        "rlvr.loss.lad.nothing": "rlvr.loss.lad defines no nothing",
        "odd.nothing": "odd defines no nothing",
        "alone": "no module ",
    }.items():
        with pytest.raises(ValueError, match=rf"_target_: {target}: {message}"):
            signature(target)
    with pytest.raises(ValueError, match=r"unfinished\.py, line 2: '\(' was never closed"):
        signature("unfinished.loss")
    with pytest.raises(ValueError, match="spread: @needs is read from source: type its words as texts"):
        signature("spread.loss")


def test_a_file_with_the_name_of_a_module_that_python_finds_first_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "random.py").write_text("class Mine: ...\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    with pytest.raises(ValueError, match=r"`import random` finds \S+random\.py, which hides random in "):
        signature("random.Mine")
