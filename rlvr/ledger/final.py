"""Queries of the final split: problems that no evaluation of training reads, and that few questions may be asked.

Whoever chooses after looking at a test split fits to it; the final one stays honest as long as it answers rarely.
runs/final.jsonl has a line for each query of this home: what was asked, by whom, when.
"""

import getpass
import hashlib
import json
import time
from collections.abc import Collection, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path

from rlvr.ledger import layout
from rlvr.ledger.files import read_json_lines, write_text
from rlvr.ledger.lock import held_lock
from rlvr.records import FinalTask, Problem, Split, Task

LOCK_S = 10.0  # longest wait for another command that records a query


def final_split(task: Task) -> Split:
    """The split that a query of the final split reads: of generated problems one of their own, of data `test`."""
    return "final" if isinstance(task, FinalTask) else "test"


def split_id(problems: Sequence[Problem]) -> str:
    """Identifies a split by the ids and answers of its problems, whatever their prompts' template."""
    content = sorted(json.dumps([problem.id, problem.answer], default=str) for problem in problems)
    return hashlib.sha256("\n".join(content).encode()).hexdigest()[:16]


def query(home: Path, split: str, policies: Collection[str], budget: int, command: str, *, write: bool) -> str:
    """`2-of-3`: which query of a split it is to evaluate these policies (their digests), and of how many; recorded if
    `write`. Policies that all took part in an earlier query are asked nothing new: it is that query. Raises ValueError
    for a query beyond the budget, and for a record that cannot be read.
    """
    path = layout.final_queries(home)
    busy = ValueError(f"another command records its query of the final split ({path}). Repeat this one.")
    with held_lock(path.with_suffix(".lock"), LOCK_S, busy) if write else nullcontext():
        lines, damaged = read_json_lines(path, "split")
        if damaged:
            raise ValueError(f"{path}: {damaged[0]}. Put it back: it says how often the final split was asked.")
        asked = [line for line in lines if line["split"] == split]
        for line in asked:
            if {*policies} <= {*line["policies"]}:
                return line["query"]
        if len(asked) >= budget:
            last = asked[-1]
            day = f"{datetime.fromtimestamp(last['time'], UTC):%Y-%m-%d %H:%M} UTC"
            raise ValueError(
                f"the final split was asked {len(asked)} of {budget} times, the last time by {last['user']} on {day}: "
                f"{last['command']}. Policies that are chosen by it need other problems; --final-budget "
                f"{len(asked) + 1} allows it, and its benchmarks are named {len(asked) + 1}-of-{len(asked) + 1}."
            )
        number = f"{len(asked) + 1}-of-{budget}"
        about = {"split": split, "query": number, "policies": sorted(policies), "time": time.time()}
        lines.append({**about, "user": getpass.getuser(), "command": command})
        if write:
            write_text(path, "".join(json.dumps(line) + "\n" for line in lines))
        return number
