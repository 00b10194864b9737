"""One run of a sweep, as it is planned, and how it is put on the ledger."""

from __future__ import annotations

import functools
import os
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.utils import instantiate
from omegaconf import DictConfig

from rlvr.ledger.runs import to_yaml
from rlvr.ledger.sweeps import Ledger
from rlvr.metrics import VALIDATION


@dataclass(frozen=True)
class Planned:
    """One run of a sweep."""

    run_id: str
    group_id: str
    name: str
    overrides: tuple[str, ...]
    config: Mapping[str, Any]  # resolved
    arm: str = ""  # the name without the seed
    control: str = ""  # "seeds": it repeats an arm as the noise floor, and is no seed of it
    import_paths: tuple[str, ...] = ()  # where its components are found, beside Python and this project

    def line(self, index: int, overrides: Sequence[str]) -> dict[str, Any]:
        """What a sweep's manifest says of it."""
        about = {"run_id": self.run_id, "name": self.name, "arm": self.arm, "group_id": self.group_id}
        about |= {"control": self.control} if self.control else {}
        return {**about, "seed": self.config["seed"], "overrides": list(overrides), "index": index}


def evaluated(config: Mapping[str, Any] | DictConfig) -> list[str]:
    """Names that the evaluations of a run measure; the validation split's begin with VALIDATION."""
    from rlvr.rollout.evaluation import held_out, metric_names

    told, task = config["evaluation"], instantiate(config["task"])
    names = functools.partial(metric_names, task, samples=told["samples"], k=list(told["k"]))
    known = names(held_out(task, told["problems"]))
    if told["validation"] is not None:
        known += names(held_out(task, told["validation"], "validation"), prefix=VALIDATION)
    task.close()
    return known


def write_runs(runs: Sequence[Planned], ledger: Ledger, about: Mapping[str, Any]) -> None:
    """Put runs on the ledger, in no sweep yet. Harmless when repeated. about: what is kept of the launch."""
    sha, dirty = git_state()
    for run in runs:
        info = {
            "run_id": run.run_id,
            "group_id": run.group_id,
            "name": run.name,
            "arm": run.arm,
            "study": about["study"],
            "created": time.time(),
            "git_sha": sha,
            "git_dirty": dirty,
            "host": socket.gethostname(),
            "command": about["command"],
            "config_dirs": about["config_dirs"],
            "import_paths": list(run.import_paths),
        }
        ledger.create_run(run.run_id, to_yaml(run.config), info)


def git_state() -> tuple[str, bool]:
    """(commit, whether files differ from it) of the checkout that this package runs from; ("", False) elsewhere."""
    where = Path(__file__).parent.parent
    if not (where / ".git").exists():
        return "", False

    def git(*args: str) -> str:
        environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
        done = subprocess.run(["git", *args], cwd=where, capture_output=True, text=True, env=environment, check=False)
        return done.stdout.strip()

    return git("rev-parse", "HEAD"), bool(git("status", "--porcelain", "--untracked-files=no"))
