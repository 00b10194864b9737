r"""Checks every right answer of real mathematics data: in \boxed{} it must be judged right and parsed as mathematics.

python -m tests.bench.golds [--write-docs]     all files of the data folder, some minutes on one core
"""

import argparse
import csv
import os
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rlvr.records import Problem
from rlvr.task.verify.pool import Pool
from tests.support.tasks import DATA, make_task

DOCS = Path(__file__).parents[2] / "docs" / "right_answers.csv"
SHOWN = 70  # characters of a right answer
FILES = [
    *("aime24/test", "aime25/test", "aime_1983_2023/train", "aime_aimo_validation/test", "amc23/test"),
    *("amc_aimo_validation/test", "college_math/test", "dapo_math_17k/train", "gsm8k/test", "gsm8k/train"),
    *("math/test", "math/train", "math500/test", "minerva/test", "olympiadbench/test"),
]


@dataclass(frozen=True)
class Judged:
    """The verdict on a right answer. line: in its file, from 1. readable: whether it was parsed as mathematics; if not,
    only the same text counts as right."""

    line: int
    problem: Problem
    outcome: str
    readable: bool

    @property
    def fine(self) -> bool:
        return self.outcome == "correct" and self.readable

    @property
    def why(self) -> str:
        if self.outcome != "correct":
            return self.outcome
        words = re.sub(r"\$.*?\$|\\[a-zA-Z]+|\{[^{}]*\}", " ", self.problem.answer, flags=re.DOTALL)
        if len(re.findall(r"[A-Za-z]{2,}", words)) > 1:
            return "words"
        if r"\bigcup" in self.problem.answer:
            return "a union over all k"
        return "notation"


def problems(file: str) -> list[Problem]:
    """All problems of a file, loaded as a run loads them."""
    path = str(DATA / f"{file}.jsonl.gz")
    task = make_task("math", train=path, test=path)
    task.close()
    return [task.problem("test", i) for i in range(task.size("test"))]


def judge(lines: Sequence[tuple[int, Problem]], pool: Pool) -> list[Judged]:
    requests = [{"gold": p.answer, "answer": _boxed(p.answer)} for _, p in lines]
    replies = pool.ask(requests)
    return [
        Judged(*line, reply["outcome"], "unreadable" not in reply) for line, reply in zip(lines, replies, strict=True)
    ]


def verifier() -> Pool:
    workers = len(os.sched_getaffinity(0))
    return Pool("rlvr.task.verify.math_answer", workers=workers, timeout_s=60, memory_gb=4)


def _boxed(answer: str) -> str:
    return answer if answer.startswith(r"\boxed") else f"\\boxed{{{answer}}}"


def write_exceptions(judged: dict[str, list[Judged]]) -> None:
    """Write DOCS: the right answers that are not fine, by line of their file."""
    exceptions = [
        (file, j.line, _shown(j.problem.answer), j.why) for file in judged for j in judged[file] if not j.fine
    ]
    with DOCS.open("w", encoding="utf-8", newline="") as out:
        csv.writer(out, lineterminator="\n").writerows([("file", "line", "right_answer", "why"), *exceptions])


def _counted(name: str, judged: Sequence[Judged]) -> str:
    right, fine = _share(j.outcome == "correct" for j in judged), _share(j.fine for j in judged)
    return f"{name}: {len(judged):,} right answers, {right} judged right, {fine} read as mathematics"


def _share(facts: Iterable[bool]) -> str:
    listed = list(facts)
    return f"{sum(listed):,} ({100 * sum(listed) / len(listed):.2f} %)"


def _shown(answer: str) -> str:
    text = " ".join(answer.split())
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write-docs", action="store_true", help=f"write those that are not fine to docs/{DOCS.name}")
    options = parser.parse_args()
    judged: dict[str, list[Judged]] = {}
    with verifier() as pool:
        for file in FILES:
            judged[file] = judge(list(enumerate(problems(file), start=1)), pool)
            print(_counted(file, judged[file]), flush=True)
    print(_counted("all", [j for of_file in judged.values() for j in of_file]))
    if options.write_docs:
        write_exceptions(judged)
    return int(any(j.outcome != "correct" for of_file in judged.values() for j in of_file))


if __name__ == "__main__":
    sys.exit(main())
