"""The SLURM commands: each with a timeout, each failure a ValueError in one line. Standard library only."""

from __future__ import annotations

import getpass
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

PATIENCE_S = 60.0
PING_S = 15.0
MAX_ARRAY = 1001  # SLURM's own default, one more than the highest index
# As SLURM calls the limits that an association or a QOS sets: AssocMaxSubmitJobLimit, QOSMaxSubmitJobPerUserLimit, ...
_FULL = re.compile(r"\b(?:Assoc|QOS)\w*Submit\w*")
_LIMIT = re.compile(r"\b(?:Assoc|QOS)(?:Max|Grp|Min)\w+")
NO_CLUSTER = ("configuration source", "cannot stat file", "Could not establish")
# Options that a user has set for these commands: they win over a batch script's own, and change what a queue shows.
_OPTIONS = ("SBATCH_", "SQUEUE_", "SACCT_", "SCANCEL_", "SCONTROL_", "SINFO_")


@dataclass(frozen=True)
class Task:
    """A job of the queue: one task of an array, or a job without one."""

    job: str  # as scancel takes it: 12_3
    name: str
    index: int | None
    state: str  # PENDING, RUNNING, COMPLETING, ...
    reason: str  # why it waits
    node: str


def environment() -> dict[str, str]:
    """Of a SLURM command: our own, without the options that a user has set for it."""
    return {key: value for key, value in os.environ.items() if not key.startswith(_OPTIONS)}


def call(
    name: str,
    *arguments: str,
    patience_s: float = PATIENCE_S,
    env: dict[str, str] | None = None,
    pass_fds: Sequence[int] = (),
) -> str:
    """Standard output of a SLURM command. ValueError: its last words, or that it gave no answer."""
    if (program := shutil.which(name)) is None:
        raise ValueError(f"{name} is not on PATH: there is no SLURM here. Use cluster=local.")
    try:
        done = subprocess.run(
            [program, *arguments],
            capture_output=True,
            text=True,
            timeout=patience_s,
            check=False,
            env=environment() if env is None else env,
            pass_fds=tuple(pass_fds),
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        raise ValueError(f"SLURM does not answer: {name} was given {patience_s:.0f} s") from None
    if done.returncode:
        lines = [line for line in done.stderr.strip().splitlines() if line.strip()]
        said = dict.fromkeys(line.removeprefix(f"{name}: ").removeprefix("error: ").strip() for line in lines)
        raise ValueError("; ".join(said) or f"{name} ended with code {done.returncode} and no word")
    return done.stdout


def is_configured() -> bool:
    """Is this machine part of a cluster? The programs alone do not make it one. ValueError: it is, but it is down."""
    if shutil.which("sbatch") is None:
        return False
    conf = os.environ.get("SLURM_CONF")
    if conf and not Path(conf).exists():
        return False
    try:
        call("scontrol", "ping", patience_s=PING_S)
    except ValueError as error:
        if any(text in str(error) for text in NO_CLUSTER):
            return False
        raise ValueError(
            f"{error}. sbatch is here, but the controller is not. Wait for it, or pass cluster=local."
        ) from None
    return True


def queue(prefix: str, patience_s: float = PATIENCE_S) -> list[Task]:
    """This user's jobs whose name begins so: pending, running and ending ones, in one call."""
    tasks: list[Task] = []
    for line in call("squeue", "--me", "-h", "-r", "-o", "%i|%K|%T|%r|%N|%j", patience_s=patience_s).splitlines():
        job, index, state, reason, node, name = line.split("|", 5)
        if name.startswith(prefix):
            tasks.append(Task(job, name, int(index) if index.isdigit() else None, state, reason, node))
    return tasks


def state_of(job: str) -> str:
    """State of one job; "" when SLURM has forgotten it."""
    lines = call("squeue", "-h", "-j", job, "-o", "%T", patience_s=PING_S).split()
    return lines[0] if lines else ""


def end_of(job: str) -> float | None:
    """When the time limit of a running job comes, in seconds since the epoch; None: never, or SLURM does not say."""
    try:
        plain = {**environment(), "SLURM_TIME_FORMAT": "standard"}  # a user may have another
        said = call("squeue", "-h", "-j", job, "-o", "%e", patience_s=PING_S, env=plain).split()
        return datetime.fromisoformat(said[0]).timestamp() if said else None  # of the cluster's clock, in local time
    except ValueError:  # no answer; or N/A, NONE: no limit
        return None


def last_end(job: str) -> str:
    """How the run of a job before the present one ended, from accounting: NODE_FAIL, PREEMPTED, ...; "" if unknown."""
    try:
        out = call("sacct", "-D", "-X", "-n", "-P", "-j", job, "-o", "State", patience_s=PING_S)
    except ValueError:  # no accounting here
        return ""
    states = [line.split()[0] for line in out.splitlines() if line.strip()]
    ended = [state for state in states if state not in ("RUNNING", "PENDING", "CONFIGURING")]
    return ended[-1] if ended else ""


def requeue(job: str) -> None:
    """Back into the queue: SLURM ends the job, the caller included, and starts it again later."""
    call("scontrol", "requeue", job)


def cancel(jobs: Sequence[str]) -> None:
    """End jobs. One that has ended meanwhile is no error."""
    for first in range(0, len(jobs), 500):
        call("scancel", "-Q", *jobs[first : first + 500])


def max_array() -> int:
    """How many tasks one array may have: the setting limits the index."""
    for line in call("scontrol", "show", "config").splitlines():
        key, _, value = line.partition("=")
        if key.strip() == "MaxArraySize" and value.strip().isdigit():
            return max(1, int(value.strip()))
    return MAX_ARRAY


def is_full(error: str) -> bool:
    """Did sbatch refuse because this user, account or QOS has as many jobs in the queue as it may have?"""
    return _FULL.search(error) is not None


def advice(error: str) -> str:
    """What to type after sbatch refused: the accounts or the qualities of service that this user has."""
    if is_full(error):
        return (
            "Your site allows no more jobs in the queue now: `squeue --me` lists yours. Try again when some have ended."
        )
    if reason := _LIMIT.search(error):
        return (
            f"{reason[0]} is a limit of your site, for one job: `sacctmgr show assoc user=$USER` and "
            "`sacctmgr show qos` list them. Ask for less."
        )
    for word in ("account", "qos"):
        if re.search(rf"invalid {word}", error, re.IGNORECASE):
            return _choices(word)
    return "`sinfo` lists what there is."


def _choices(word: str) -> str:
    user = getpass.getuser()
    try:
        out = call("sacctmgr", "-nP", "show", "assoc", f"user={user}", f"format={word}")
    except ValueError:  # no accounting here
        return f"Pass cluster.{word}=..., as your site told you."
    found = list(dict.fromkeys(each for line in out.split() for each in line.split(",") if each))
    if not found:
        return f"You ({user}) have no {word} here: ask the administrators for one."
    return f"Yours: {', '.join(found)}. Pass cluster.{word}={found[0]}."
