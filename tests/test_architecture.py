"""The house keeps its shape: few rooms, floors that imports go down, and a test for every source."""

import json
import re
from pathlib import Path

import pytest

from tests import architecture
from tests.architecture import ROOT, House

# Sources that a test of another name tests, because they are one thing with what it is named after: test → sources.
TESTED_BY: dict[str, list[str]] = json.loads((Path(__file__).parent / "tested_by.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def house() -> House:
    return House.measured()


def test_the_house_stays_small_enough_to_walk_through(house: House) -> None:
    """Before it had a plan: 42 loose modules, 10 floors, 152 arrows, a circle. The longest chain goes from a command
    through a growing sweep to what `analysis` has decided about it."""
    assert len(house.loose) <= 6, house.loose
    assert len(house.arrows) <= 21, sorted(house.arrows)
    assert max(house.floors.values()) <= 7, house.floors
    # 60; `rlvr.load` of the door, which reads the frames of `analysis`; the native engine, which asks for a model's
    # positions where `rlvr.task` knows them.
    assert sum(map(len, house.arrows.values())) <= 62, house.arrows
    assert not house.circles
    assert len(house.longest_chain) <= 16, " > ".join(house.longest_chain)  # its last: who may open a lock


def test_only_the_door_knows_sweeps_and_analysis(house: House) -> None:
    importers = {name: set[str]() for name in ("sweeps", "analysis", "slurm")}
    for module, imported in house.imports.items():
        for room in {architecture.room_of(other) for other in imported} & importers.keys():
            if module.startswith("rlvr."):
                importers[room].add(module)
    assert importers == {"sweeps": {"rlvr.run"}, "analysis": {"rlvr.run"}, "slurm": set()}


def test_the_document_shows_the_house_as_it_is(house: House) -> None:
    """`make map` writes it."""
    assert architecture.in_document().splitlines() == str(house).splitlines()


def test_the_walks_open_what_is_there() -> None:
    """Each step of docs/architecture.md names files, and behind each file names that it defines or mentions."""
    text = architecture.DOCUMENT.read_text(encoding="utf-8").partition("## Two walks")[2].partition("\n## ")[0]
    opened = list[str]()
    for step in re.findall(r"^\d+\. (.*)$", text, re.MULTILINE):
        file = ""
        for word in re.findall(r"`([\w./]+)`", step):
            if word.endswith(".py"):
                file = word
                opened.append(word)
                assert (ROOT / file).is_file(), step
            elif "." not in word and "/" not in word and word != "eta":
                assert re.search(rf"(def|class) {word}\b", (ROOT / file).read_text(encoding="utf-8")), step
    assert 15 <= len(set(opened)) <= 40


def test_formatting_is_left_to_the_formatter() -> None:
    skipped = [
        f"{file.relative_to(ROOT)}:{number}"
        for package in (*architecture.PACKAGES, "tests")
        for file in (ROOT / package).rglob("*.py")
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1)
        if line.rstrip().endswith("# fmt: skip")
    ]
    assert len(skipped) <= 10, skipped


def sources() -> list[Path]:
    files = [file for package in architecture.PACKAGES for file in sorted((ROOT / package).rglob("*.py"))]
    return [file.relative_to(ROOT) for file in files if file.name not in ("__init__.py", "__main__.py")]


def own_test(source: Path) -> Path:
    """`rlvr/a/b.py` → `tests/a/test_b.py`; `sweeps/b.py` → `tests/sweeps/test_b.py`."""
    inside = source.relative_to("rlvr") if source.parts[0] == "rlvr" else source
    return Path("tests", inside.parent, f"test_{inside.name}")


def test_every_source_has_a_test_of_its_name_or_of_the_thing_that_it_is_a_part_of() -> None:
    elsewhere = {source for listed in TESTED_BY.values() for source in listed}
    lacking = [str(s) for s in sources() if not (ROOT / own_test(s)).exists() and str(s) not in elsewhere]
    assert not lacking, "write a test of its name, or name the test that covers it in tests/tested_by.json"
    assert [file for file in (*TESTED_BY, *elsewhere) if not (ROOT / file).is_file()] == []
    assert [source for source in elsewhere if (ROOT / own_test(Path(source))).exists()] == []
