"""A SLURM that is a program with a list of jobs."""

from __future__ import annotations

import os
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from rlvr.ledger.sweeps import Ledger
from sweeps.slurm.submissions import history, token, with_queue_states

REFUSED = (
    "AssocMaxSubmitJobLimit; Batch job submission failed: Job violates accounting/QOS policy (job submit limit, "
    "user's size and/or time limits)"
)
# ROOM: jobs that the queue may have; REFUSES: the error for a job without an array; FAILS: that after one was accepted.
SBATCH = f"""
import os, pathlib, re, sys
queue = pathlib.Path(os.environ["QUEUE"])
text, lines = pathlib.Path(sys.argv[-1]).read_text(), queue.read_text().splitlines()
array = re.search(r"--array=0-([0-9]+)", text)
indices = range(int(array[1]) + 1) if array else [None]
if len(lines) + len(indices) > int(os.environ.get("ROOM", 1000)):
    sys.exit({REFUSED!r})
if not array and "REFUSES" in os.environ:
    sys.exit(os.environ["REFUSES"])
job = 1 + max((int(line.split("|")[0].split("_")[0]) for line in lines), default=0)
name = re.search("--job-name=(.*)", text)[1]
ids = [f"{{job}}|N/A" if index is None else f"{{job}}_{{index}}|{{index}}" for index in indices]
lines += [f"{{of_task}}|PENDING|||{{name}}" for of_task in ids]
queue.write_text("\\n".join(lines) + "\\n")
sys.exit(os.environ["FAILS"]) if "FAILS" in os.environ else print(job)
"""


@dataclass
class FakeSlurm:
    """The programs, first on PATH, and a home for runs beside them."""

    home: Path
    monkeypatch: pytest.MonkeyPatch

    @classmethod
    def installed(cls, home: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
        made = cls(home, monkeypatch)
        (home / "bin").mkdir()
        (home / "bin/sbatch.py").write_text(SBATCH)
        made.queue.touch()
        made.programs(
            sbatch=f'exec {sys.executable} {home}/bin/sbatch.py "$@"',
            squeue='cat "$QUEUE"',
            scancel='echo "$@" >> "$QUEUE.cancelled"',
            scontrol="",
            sinfo="",
        )
        made.set(QUEUE=str(made.queue), RLVR_HOME=str(home), SLURM_JOB_ID="1")
        made.set(PATH=f"{home}/bin:{os.environ['PATH']}")
        return made

    def programs(self, **scripts: str) -> None:
        """Write, or replace, these."""
        for name, script in scripts.items():
            (program := self.home / "bin" / name).write_text(f"#!/bin/sh\n{script}\n")
            program.chmod(0o755)

    def set(self, **variables: str) -> None:
        for name, value in variables.items():
            self.monkeypatch.setenv(name, value)

    @property
    def queue(self) -> Path:
        return self.home / "bin/queue"

    @property
    def ledger(self) -> Ledger:
        return Ledger(self.home)

    def jobs(self) -> Counter[str]:
        """How many jobs in the queue each run has, by its id, and how many build stages and reports."""
        contents = {submission.name: content for submission, content in history(self.ledger)}
        counts = Counter[str]()
        for line in self.queue.read_text().splitlines():
            _, index, *_, name = line.split("|")
            content = contents[token(name)]
            counts.update([word for word in ("stage", "report") if word in content])
            counts.update([content["runs"][int(index)]] if content["runs"] else [])
        return counts

    def end_first_job(self) -> None:
        self.queue.write_text("".join(self.queue.read_text().splitlines(keepends=True)[1:]))

    def states(self) -> list[tuple[str, str]]:
        ledger = self.ledger
        return [(s.state, s.phase) for s in with_queue_states(ledger, ledger.states(ledger.runs()))]
