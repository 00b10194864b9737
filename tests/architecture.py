"""`make map`: the house as its imports show it. Rooms, floors, arrows, circles, the longest chain of imports; its size.

A room is a package of `rlvr/`, a module at its root, or another top-level package. A room stands one floor above the
highest room that it imports. `python -m tests.architecture --write` puts the map into docs/architecture.md; the sizes,
which every change moves, are only printed.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import yaml
from grimp import ImportGraph, build_graph

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("rlvr", "sweeps", "slurm", "analysis")
SKIPPABLE = (  # parts that the rest can be understood without
    "rlvr/task/verify",
    "rlvr/diagnostics",
    "analysis/diagnostics",
    "analysis/paper",
)
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


@dataclass(frozen=True)
class Sizes:
    """What there is to read, in numbers."""

    lines: Mapping[Path, int]  # of each source, below the root of the project
    trees: Mapping[Path, ast.Module]
    test_lines: int

    @classmethod
    def measured(cls) -> Sizes:
        texts = {f.relative_to(ROOT): f.read_text(encoding="utf-8") for f in _sources(*PACKAGES, "hydra_plugins")}
        tests = sum(len(file.read_text(encoding="utf-8").splitlines()) for file in _sources("tests"))
        lines = {file: len(text.splitlines()) for file, text in texts.items()}
        return cls(lines, {file: ast.parse(text) for file, text in texts.items()}, tests)

    def of(self, folder: str) -> int:
        """Lines of a package or of a module."""
        return sum(
            num for file, num in self.lines.items() if file.is_relative_to(folder) or f"{folder}.py" == str(file)
        )

    @cached_property
    def rooms(self) -> Mapping[str, int]:
        """Room → its lines, the largest first."""
        rooms = Counter[str]()
        for file, num in self.lines.items():
            rooms[room_of(".".join(file.with_suffix("").parts).removesuffix(".__init__"))] += num
        return dict(rooms.most_common())

    @cached_property
    def public_names(self) -> int:
        """Functions, classes and values at the top level of modules, without those that begin with an underscore."""
        names = (name for tree in self.trees.values() for statement in tree.body for name in _bound(statement))
        return sum(not name.startswith("_") for name in names)

    @cached_property
    def repeated_classes(self) -> list[str]:
        """Names of more than one class."""
        nodes = (node for tree in self.trees.values() for node in ast.walk(tree))
        num = Counter(node.name for node in nodes if isinstance(node, ast.ClassDef))
        return sorted(name for name in num if num[name] > 1)

    @cached_property
    def long_functions(self) -> float:
        """Share of functions with more than 40 lines."""
        functions = [n for tree in self.trees.values() for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]
        return sum((n.end_lineno or 0) - n.lineno >= 40 for n in functions) / len(functions)

    def __str__(self) -> str:
        total = sum(self.lines.values())
        sizes = {
            "files": len(self.lines),
            "lines of source": total,
            "lines of tests": self.test_lines,
            "public names": self.public_names,
            "knobs": len(knobs()),
            "class names used twice or more": len(self.repeated_classes),
            "functions over 40 lines": f"{self.long_functions:.1%}",
        }
        lines = [f"{name}: {size}" for name, size in sizes.items()]
        lines += ["", *(f"{num:6}  {num / total:4.0%}  {room}" for room, num in self.rooms.items())]
        lines += ["", "of which a reader may skip:"]
        lines += [f"{self.of(room):6}  {self.of(room) / total:4.0%}  {room}" for room in SKIPPABLE]
        return "\n".join(lines)


def _sources(*folders: str) -> list[Path]:
    return [file for folder in folders for file in sorted((ROOT / folder).rglob("*.py"))]


def _bound(statement: ast.stmt) -> list[str]:
    """The names that a top-level definition or assignment binds."""
    match statement:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.AnnAssign(target=ast.Name(id=name)):
            return [name]
        case ast.Assign(targets=targets):
            return [target.id for target in targets if isinstance(target, ast.Name)]
    return []


def knobs() -> set[str]:
    """Dotted keys of all groups of conf/, but for recipes and studies, which only set them."""
    keys = set[str]()
    for file in (ROOT / "conf").rglob("*.yaml"):
        group = file.parent.relative_to(ROOT / "conf").as_posix()
        if group.split("/")[0] not in ("study", "paper", "hydra"):
            keys |= {f"{group}.{key}".lstrip(".") for key in _keys(yaml.safe_load(file.read_text(encoding="utf-8")))}
    return keys


def _keys(content: object, above: str = "") -> Iterator[str]:
    if not isinstance(content, dict):
        yield above
        return
    for key, value in content.items():
        if key not in ("defaults", "hydra") and not str(key).startswith("_"):
            yield from _keys(value, f"{above}.{key}".lstrip("."))


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
    print(house, Sizes.measured(), sep="\n\n")


if __name__ == "__main__":
    main()
