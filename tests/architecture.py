"""`make map`: the house as its imports show it. Rooms, floors, arrows, circles and the longest chain of imports.

A room is a package of `rlvr/`, a module at its root, or another top-level package. A room stands one floor above the
highest room that it imports. `python -m tests.architecture --write` puts the map into docs/architecture.md.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from grimp import ImportGraph, build_graph

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("rlvr", "sweeps", "slurm", "analysis")
DOCUMENT = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- map -->", "<!-- end of map -->"


def room_of(module: str) -> str:
    """`rlvr.ledger.state` → `rlvr.ledger`; `sweeps.slurm.jobs` → `sweeps`."""
    parts = module.split(".")
    return ".".join(parts[:2]) if parts[0] == "rlvr" else parts[0]


@dataclass(frozen=True)
class House:
    """The imports between the modules of this project; those for type checkers alone do not count."""

    graph: ImportGraph

    @classmethod
    def measured(cls) -> House:
        return cls(build_graph(*PACKAGES, exclude_type_checking_imports=True, cache_dir=None))

    @cached_property
    def imports(self) -> Mapping[str, set[str]]:
        """Module → modules of this project that it imports."""
        return {m: self.graph.find_modules_directly_imported_by(m) for m in self.graph.modules}

    @cached_property
    def arrows(self) -> Mapping[str, set[str]]:
        """Room → other rooms that it imports."""
        arrows = defaultdict[str, set[str]](set)
        for module, imported in self.imports.items():
            arrows[room_of(module)] |= {room_of(other) for other in imported} - {room_of(module)}
        arrows.pop("rlvr", None)  # the package itself, whose functions only name what they start
        return {room: arrows[room] - {"rlvr"} for room in sorted(arrows)}

    @cached_property
    def circles(self) -> list[str]:
        """Rooms that import one another, directly or over others."""
        return [room for room in self.arrows if room in _reached(self.arrows, room)]

    @cached_property
    def floors(self) -> Mapping[str, int]:
        """Room → its floor, counted from 1. Needs a house without circles."""
        floors = dict[str, int]()

        def floor(room: str) -> int:
            if room not in floors:
                floors[room] = 1 + max(map(floor, self.arrows[room]), default=0)
            return floors[room]

        for room in self.arrows:
            floor(room)
        return floors

    @cached_property
    def longest_chain(self) -> list[str]:
        """The longest chain of modules, each importing the next."""
        chains = dict[str, list[str]]()

        def chain(module: str) -> list[str]:
            if module not in chains:
                chains[module] = [module]  # a circle of modules ends here
                chains[module] = [module, *max(map(chain, sorted(self.imports[module])), key=len, default=[])]
            return chains[module]

        return max(map(chain, sorted(self.imports)), key=len)

    @property
    def loose(self) -> list[str]:
        """Modules at the root of rlvr."""
        names = (p.stem for p in (ROOT / "rlvr").glob("*.py"))
        return sorted(name for name in names if not name.startswith("__"))

    def __str__(self) -> str:
        numbers = {
            "rooms": len(self.arrows),
            "loose modules at the root of rlvr": len(self.loose),
            "floors": max(self.floors.values()),
            "arrows between rooms": sum(map(len, self.arrows.values())),
            "circles": len(self.circles),
            "longest import chain": len(self.longest_chain),
        }
        lines = [f"{name}: {number}" for name, number in numbers.items()]
        lines += ["", "floor  room              imports"]
        for room in sorted(self.arrows, key=lambda r: (-self.floors[r], r)):
            imported = ", ".join(sorted(self.arrows[room]))
            lines.append(f"{self.floors[room]:5}  {room:16}  {imported}".rstrip())
        return "\n".join([*lines, "", "longest chain: " + " > ".join(self.longest_chain)])


def _reached(arrows: Mapping[str, set[str]], room: str) -> set[str]:
    """Rooms at the end of any walk along the arrows from a room."""
    reached, todo = set[str](), list(arrows[room])
    while todo:
        following = todo.pop()
        if following not in reached:
            reached.add(following)
            todo += arrows[following]
    return reached


def in_document() -> str:
    """The map as docs/architecture.md has it."""
    return DOCUMENT.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0].strip().strip("`").strip()


def write(house: House) -> None:
    before, _, rest = DOCUMENT.read_text(encoding="utf-8").partition(BEGIN)
    DOCUMENT.write_text(f"{before}{BEGIN}\n```\n{house}\n```\n{END}{rest.partition(END)[2]}", encoding="utf-8")


def main() -> None:
    house = House.measured()
    if sys.argv[1:] == ["--write"]:
        write(house)
    print(house)


if __name__ == "__main__":
    main()
