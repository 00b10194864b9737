"""Queries of the final split: problems that no evaluation of training reads, and that few questions may be asked.

Whoever chooses after looking at a test split fits to it; the final one stays honest as long as it answers rarely.
runs/final.jsonl has a line for each query of this home: what was asked, by whom, when.
"""

import getpass
import hashlib
import json
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rlvr.ledger import layout
from rlvr.ledger.files import read_json_lines, write_text
from rlvr.ledger.lock import held_lock
from rlvr.records import FinalTask, Split, Task

LOCK_S = 10.0  # longest wait for another command that records a query
Line = dict[str, Any]
TEXTS, OTHERS = ("policies", "problems"), {"query": str, "time": float, "user": str, "command": str}  # of a line


def final_split(task: Task) -> Split:
    """The split that a query of the final split reads: of generated problems one of their own, of data `test`."""
    return "final" if isinstance(task, FinalTask) and task.has_final else "test"


@dataclass(frozen=True)
class Query:
    """Policies that are evaluated on problems. texts: of the problems, without template and white space. policies:
    their digests. budget: how many queries may ask any of these problems.
    """

    texts: Collection[str]
    policies: Collection[str]
    budget: int
    command: str

    def number(self, home: Path) -> str:
        """`2-of-3`: which query of its problems it is, and of how many. Those that ask some of the same problems count,
        whatever file they are in. Policies that all took part in an earlier query of all its problems are asked nothing
        new: it is that query. Raises ValueError for a query beyond the budget, and for a record that cannot be read.
        """
        return self._number(_lines(home))

    def record(self, home: Path, number: str) -> Callable[[], None]:
        """Record the query that is to have this number, and return what undoes that. Raises ValueError if another
        command has recorded one since.
        """
        with _locked(home):
            lines = _lines(home)
            if self._number(lines) != number:
                raise ValueError("another command has asked the final split meanwhile. Repeat this one.")
            if self._same(lines):
                return lambda: None
            about = {"query": number, "policies": sorted(self.policies), "problems": sorted(self._problems())}
            line = {**about, "time": time.time(), "user": getpass.getuser(), "command": self.command}
            _write(home, [*lines, line])
        return lambda: _remove(home, line)

    def is_repeated(self, home: Path) -> bool:
        """Whether nothing new is asked: all of its policies took part in an earlier query of all its problems."""
        return self._same(_lines(home)) is not None

    def _problems(self) -> set[str]:
        return set(map(_digest, self.texts))

    def _same(self, lines: Sequence[Line]) -> Line | None:
        """The earlier query that asked these policies all of these problems."""
        asked = (self._problems(), {*self.policies})
        return next((x for x in lines if asked[0] <= {*x["problems"]} and asked[1] <= {*x["policies"]}), None)

    def _number(self, lines: Sequence[Line]) -> str:
        if same := self._same(lines):
            return same["query"]
        problems = self._problems()
        asked = [line for line in lines if not problems.isdisjoint(line["problems"])]
        if len(asked) >= self.budget:
            last, count = asked[-1], len(asked)
            day = f"{datetime.fromtimestamp(last['time'], UTC):%Y-%m-%d %H:%M} UTC"
            raise ValueError(
                f"the final split was asked {count} of {self.budget} times, the last time by {last['user']} on {day}: "
                f"{last['command']}. Policies that are chosen by it need other problems, none of them the same; "
                f"--final-budget {count + 1} allows it, and its benchmarks are named {count + 1}-of-{count + 1}."
            )
        return f"{len(asked) + 1}-of-{self.budget}"


def asked(home: Path, texts: Iterable[str]) -> list[str]:
    """Those of the texts of problems that a query of this home has asked, by the lines that say which."""
    lines, _ = read_json_lines(layout.final_queries(home), "query")
    counted = {problem for line in lines if not _lacking(line) for problem in line["problems"]}
    return [text for text in texts if _digest(text) in counted]


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _lines(home: Path) -> list[Line]:
    path = layout.final_queries(home)
    lines, damaged = read_json_lines(path, "query")
    damaged += [f"the line of query {line['query']} has no {lack}" for line in lines if (lack := _lacking(line))]
    if damaged:
        of_earlier = "it is of an earlier version: keep it in another file, and count that query by hand"
        todo = of_earlier if damaged[0].endswith("no problems") else "put it back"
        raise ValueError(f"{path}: {damaged[0]}, and says how often the final split was asked: {todo}.")
    return lines


def _lacking(line: Line) -> str:
    """The first field that a line lacks, or has in another form; else ""."""
    whole = [name for name in TEXTS if isinstance(line.get(name), list) and all(isinstance(x, str) for x in line[name])]
    whole += [name for name, kind in OTHERS.items() if isinstance(line.get(name), kind)]
    return next((name for name in (*TEXTS, *OTHERS) if name not in whole), "")


def _locked(home: Path) -> AbstractContextManager[int]:
    path = layout.final_queries(home)
    busy = ValueError(f"another command records its query of the final split ({path}). Repeat this one.")
    return held_lock(path.with_suffix(".lock"), LOCK_S, busy)


def _remove(home: Path, line: Line) -> None:
    with _locked(home):
        _write(home, [other for other in _lines(home) if other != line])


def _write(home: Path, lines: Sequence[Line]) -> None:
    write_text(layout.final_queries(home), "".join(json.dumps(line) + "\n" for line in lines))
