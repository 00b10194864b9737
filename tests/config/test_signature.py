"""What a component takes and declares: read from source or, if that is unclear, from the imported component."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from rlvr.config import signature as module
from rlvr.config.definition import Unclear, definition
from rlvr.config.signature import clear_caches, declared, signature
from rlvr.objective.batch import declared_needs
from tests.support.composed import REGISTRY


def test_a_signature_is_read_without_importing_its_module() -> None:
    parameters = {p.name: p for p in signature("rlvr.loss.lad.lad").parameters}
    assert parameters["eta"].annotation == "PositiveFloat"
    assert parameters["eta"].required
    with pytest.raises(ValueError, match="defines no"):
        signature("rlvr.loss.lad.nothing")


TARGETS = sorted(
    {
        str(node["_target_"])
        for group in ("loss", "advantage", "divergence", "task", "model", "trainer", "presample")
        for option in REGISTRY.options(group)
        if "_target_" in (node := REGISTRY.node(group, option))
    }
)


@pytest.mark.parametrize("target", TARGETS)
def test_the_source_of_every_component_gives_the_signature_that_an_import_gives(target: str) -> None:
    read = module._from_source(definition(target))
    name, _, attribute = target.rpartition(".")
    component = getattr(importlib.import_module(name), attribute)
    parameters = inspect.signature(component).parameters.values()
    assert [(p.name, p.required) for p in read.parameters] == [(p.name, p.default is p.empty) for p in parameters]
    assert read.declared == declared_needs(component) | getattr(component, "marks", frozenset())


ODD = """
import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol

from rlvr.loss.lad import lad
from rlvr.objective import batch
from rlvr.objective.advantage import PassForm
from rlvr.objective.batch import binary_rewards as binary
from rlvr.objective.batch import first_pass, needs
from .inner import deep, relayed

WORDS = ("entropy", "noise")
Ratio = Literal["a", "b"]
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
def marked(policy, batch, *, ratio: Ratio, form: PassForm = "plain"): ...


@needs("entropy")
def before(policy, batch, *, knob: int): ...


@first_pass(before)
def twice(policy, batch, *, knob: int): ...


@wrapped
def decorated(policy, batch, *, knob: int): ...


@needs(*WORDS)
def spread(policy, batch): ...


def open_handed(policy, batch, **knobs): ...


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


class Shape(Protocol):
    sides: int
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
    (root / "broken.py").write_text("import no_such_module\n\n@no_such_module.mark\ndef loss(policy, batch): ...\n")
    sys.path.append(str(root))
    clear_caches()
    yield root
    sys.path.remove(str(root))
    clear_caches()


# (name in the package, parameters with a ? after those that may be left out, what it declares)
PLAIN = {
    "marked": (["policy", "batch", "ratio", "form?"], {"binary_rewards", "reference"}),
    "again": (["policy", "batch", "divergence", "eta", "ratio"], set()),
    "gentle": (["policy", "batch", "divergence", "eta?", "ratio"], set()),
    "relayed": (["policy", "batch", "clip_low", "clip_high", "dual_clip"], set()),
    "deep": (["count", "knob"], set()),
    "steep": (["knob"], set()),
    "twice": (["policy", "batch", "knob"], {"entropy", "first_pass"}),
    "open_handed": (["policy", "batch"], set()),
    "Derived": (["size"], set()),
    "Record": (["first", "second?"], set()),
    "Shape": ([], set()),
}
UNCLEAR = {
    "decorated": (["policy", "batch", "knob"], set()),
    "spread": (["policy", "batch"], {"entropy", "noise"}),
    "conditional": (["one", "two?"], set()),
    "Derived.make": (["sides"], set()),
}


def shown(target: str) -> tuple[list[str], set[str]]:
    inspected = signature(target)
    return [p.name + "?" * (not p.required) for p in inspected.parameters], set(inspected.declared)


@pytest.mark.parametrize("name", PLAIN)
def test_definitions_are_followed_through_imports_partials_and_bases(odd: Path, name: str) -> None:
    assert shown(f"odd.{name}") == PLAIN[name]
    assert "odd" not in sys.modules
    assert signature(f"odd.{name}").takes_any == (name == "open_handed")


def test_an_alias_of_a_type_is_replaced_by_its_value(odd: Path) -> None:
    ratio, form = signature("odd.marked").parameters[2:]
    assert (ratio.annotation, form.annotation) == ("Literal['a', 'b']", "Literal['plain', 'sloo', 'sloo_minus_one']")


@pytest.mark.slow
@pytest.mark.parametrize("name", UNCLEAR)
def test_an_unclear_source_is_imported_by_another_process(odd: Path, name: str) -> None:
    with pytest.raises(Unclear):
        module._from_source(definition(f"odd.{name}"))
    assert shown(f"odd.{name}") == UNCLEAR[name]
    assert "odd" not in sys.modules


@pytest.mark.slow
def test_re_exported_names_are_found(odd: Path) -> None:
    assert shown("strange.marked") == PLAIN["marked"]
    with pytest.raises(ValueError, match=r"_target_: strange\.nothing: "):
        signature("strange.nothing")


def test_a_module_that_cannot_be_imported_is_reported_in_one_line(odd: Path) -> None:
    with pytest.raises(ValueError, match=r"^_target_: broken\.loss: .*No module named 'no_such_module'.*$"):
        signature("broken.loss")


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("no_such_package.loss", "no module no_such_package"),
        ("rlvr.loss.ladd.lad", "no module rlvr.loss.ladd"),
        ("rlvr.loss.lad.nothing.at_all", "no module rlvr.loss.lad.nothing"),
        ("odd.nothing", "odd defines no nothing"),
        ("alone", "no module "),
    ],
)
def test_a_missing_module_or_name_is_named(odd: Path, target: str, message: str) -> None:
    with pytest.raises(ValueError, match=rf"_target_: {target}: {message}"):
        signature(target)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("random", r"`import random` finds \S+random\.py, which hides random in "),  # its source can be read
        ("time", "`import time` finds built-in, which hides time in "),  # it has no source, and is imported already
        ("analysis", r"_target_: analysis\.Mine: analysis \(\S+analysis/__init__\.py\) defines no Mine"),
    ],
)
def test_a_file_with_the_name_of_a_module_that_python_finds_first_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, message: str
) -> None:
    importlib.import_module(name)
    (tmp_path / f"{name}.py").write_text("class Mine: ...\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    with pytest.raises(ValueError, match=message):
        signature(f"{name}.Mine")


def test_a_syntax_error_is_reported_with_its_line(odd: Path) -> None:
    with pytest.raises(ValueError, match=r"unfinished\.py, line 2: '\(' was never closed"):
        signature("unfinished.loss")


def test_a_module_that_is_already_imported_is_inspected_in_this_process() -> None:
    assert [p.name for p in signature("tests.config.test_signature.here").parameters] == ["b"]


here = partial(lambda a, b: (a, b), 1)


def test_marks_are_on_the_function_too() -> None:
    assert declared("rlvr.loss.pacs.pacs") >= {"binary_rewards", "per_response", "reference"}
    from rlvr.loss.pacs import pacs

    assert declared("rlvr.loss.pacs.pacs") == declared_needs(pacs) | pacs.marks  # type: ignore[attr-defined]
