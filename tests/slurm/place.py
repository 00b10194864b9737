"""A home for runs beside a real SLURM: what the tests of sweeps launch, and how they look at it."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import psutil

from tests.slurm.local_cluster import cluster as local
from tests.slurm.local_cluster.settings import Settings
from tests.support import homes, words

BANDIT = ["-m", *words.BANDIT, "loss=lad", "rollout.samples=64", "cluster.time_min=10"]


# Runs that tests strike, beside the same ones that are left in peace.
INTERRUPTED = ["steps=300", "evaluation.every=300", "checkpoint.every=50", "tracker=none", "cluster.report=false"]


@dataclass(frozen=True)
class SlurmHome:
    """A home for runs, and the cluster that works on them."""

    home: Path
    cluster: Settings
    cwd: Path | None = None  # where commands are typed: the checkout that they run, if it is one

    @property
    def environment(self) -> dict[str, str]:
        ours = {"RLVR_HOME": str(self.home), "SLURM_CONF": str(self.cluster.conf), "COLUMNS": "140"}
        return {**os.environ, **ours}

    def python(self, *arguments: str) -> tuple[int, str]:
        both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        done = subprocess.run(
            [sys.executable, *arguments], env=self.environment, check=False, timeout=300, **both, cwd=self.cwd
        )
        return done.returncode, done.stdout

    def start(self, *arguments: str, output: IO[str] | int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
        """The same in the background."""
        command = [sys.executable, *arguments]
        return subprocess.Popen(command, env=self.environment, stdout=output, stderr=output, cwd=self.cwd)

    def launch(self, *overrides: str, world: Sequence[str] = BANDIT) -> str:
        code, out = self.python("-m", "rlvr.run", *words.newest([*world, *overrides]))
        assert code == 0, out
        return out

    def client(self, *command: str) -> str:
        return local.client(self.cluster, *command)

    def runs(self) -> dict[str, Path]:
        return homes.runs(self.home)

    def status(self) -> dict[str, dict[str, Any]]:
        code, out = self.python("-m", "sweeps", "status", "--json")
        assert code == 0, out
        return {run["name"]: run for run in json.loads(out)[0]["runs"]}

    def queue(self) -> dict[str, str]:
        """State of every task, by its job's number."""
        lines = self.client("squeue", "-h", "-r", "-o", "%i %T").splitlines()
        return dict(line.split() for line in lines)


def wait_for(is_so: Callable[[], bool], patience_s: float = 900, every_s: float = 0.7) -> None:
    deadline = time.monotonic() + patience_s
    while not is_so():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(every_s)


def causes(run_dir: Path) -> list[str]:
    """How each attempt ended, in order; "" for one that has not."""
    numbers = range(1, len(list((run_dir / "attempts").iterdir())) + 1)
    ends = [run_dir / "attempts" / str(number) / "exit.json" for number in numbers]
    return [json.loads(end.read_text())["cause"] if end.exists() else "" for end in ends]


def steps_done(run_dir: Path) -> int:
    """Of the first attempt."""
    path = run_dir / "attempts/1/heartbeat.json"
    return json.loads(path.read_text())["step"] if path.exists() else 0


def process_of(run_dir: Path) -> psutil.Process:
    """Of the first attempt."""
    return psutil.Process(json.loads((run_dir / "attempts/1/job.json").read_text())["pid"])


def froze(run_dir: Path) -> bool:
    """Has the run done some steps? Then its process is stopped: it cannot end before it is interrupted."""
    if steps_done(run_dir) < 5:
        return False
    process_of(run_dir).suspend()
    return True


def freeze(runs: Sequence[Path]) -> None:
    """Stop the process of each, as soon as it has done some steps."""
    going = set(runs)

    def all_stand_still() -> bool:
        going.difference_update([run for run in going if froze(run)])
        return not going

    wait_for(all_stand_still, every_s=0.2)
