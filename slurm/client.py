"""The SLURM commands: each has a timeout, and each failure is a ValueError of one line. Standard library only."""

import getpass
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

PATIENCE_S = 60.0  # longest wait for a command
PING_S = 15.0  # the same, for queries
MAX_ARRAY = 1001  # SLURM's default: one more than the highest index
# SLURM's names for limits of an association or a QOS: AssocMaxSubmitJobLimit, QOSMaxSubmitJobPerUserLimit, ...
_FULL = re.compile(r"\b(?:Assoc|QOS)\w*Submit\w*")
_LIMIT = re.compile(r"\b(?:Assoc|QOS)(?:Max|Grp|Min)\w+")
NO_CLUSTER = ("configuration source", "cannot stat file", "Could not establish")
# States of jobs that have ended, which `scontrol show job` still lists for a while.
_ENDED = (
    *("COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "DEADLINE"),
    *("OUT_OF_MEMORY", "REVOKED"),
)
# Variables in which a user sets options of these commands. They override those of a batch script, and change the
# output.
_OPTIONS = ("SBATCH_", "SQUEUE_", "SACCT_", "SCANCEL_", "SCONTROL_", "SINFO_")


@dataclass(frozen=True)
class QueuedTask:
    """A job of the queue: one task of an array, or a job without one."""

    job: str  # as scancel takes it: 12_3
    name: str
    index: int | None
    state: str  # PENDING, RUNNING, COMPLETING, ...
    reason: str  # why it waits
    node: str


def environment() -> dict[str, str]:
    """The environment of a SLURM command: that of this process, without the options that a user has set for it."""
    return {key: value for key, value in os.environ.items() if not key.startswith(_OPTIONS)}


def call(
    name: str,
    *arguments: str,
    patience_s: float = PATIENCE_S,
    env: dict[str, str] | None = None,
    pass_fds: Sequence[int] = (),
) -> str:
    """Standard output of a SLURM command. ValueError, with its error output, if it fails or does not answer in time."""
    if (program := shutil.which(name)) is None:
        raise ValueError(f"{name} is not on PATH: there is no SLURM here. Use cluster=local.")
    try:
        process = subprocess.run(
            [program, *arguments],
            capture_output=True,
            text=True,
            errors="replace",  # the user's other jobs may have names in any encoding
            timeout=patience_s,
            check=False,
            env=environment() if env is None else env,
            pass_fds=tuple(pass_fds),
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        raise ValueError(f"SLURM does not answer: {name} was given {patience_s:.0f} s") from None
    if process.returncode:
        lines = [line for line in process.stderr.strip().splitlines() if line.strip()]
        messages = dict.fromkeys(line.removeprefix(f"{name}: ").removeprefix("error: ").strip() for line in lines)
        raise ValueError("; ".join(messages) or f"{name} ended with code {process.returncode} and no message")
    return process.stdout


def is_configured() -> bool:
    """Whether this machine is part of a cluster: having SLURM's programs is not enough. ValueError if it is down."""
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


def queue(mark: str, patience_s: float = PATIENCE_S) -> list[QueuedTask]:
    """This user's jobs whose name contains `mark`: pending, running and ending ones, in one call.

    Some sites cache the answer: jobs of the last minute may be missing (`tasks_of` finds them).
    """
    tasks: list[QueuedTask] = []
    for line in call("squeue", "--me", "-h", "-r", "-o", "%i|%K|%T|%r|%N|%j", patience_s=patience_s).splitlines():
        fields = line.split("|", 5)
        if len(fields) == 6 and mark in fields[5]:  # a site may print lines of its own
            job, index, state, reason, node, name = fields
            tasks.append(QueuedTask(job, name, int(index) if index.isdigit() else None, state, reason, node))
    return tasks


def tasks_of(number: str) -> list[QueuedTask]:
    """The tasks of the job with this number that have not ended, from the controller itself."""
    try:
        records = _records(number)
    except ValueError:  # SLURM has forgotten it
        return []
    return [
        QueuedTask(number if index is None else f"{number}_{index}", of["JobName"], index, state, of["Reason"], "")
        for of in records
        if (state := of["JobState"]) not in _ENDED
        for index in _indices(of.get("ArrayTaskId", ""))
    ]


def _records(job: str) -> list[dict[str, str]]:
    """What `scontrol` says about a job: a record for each task of an array, and one for those that wait together."""
    env = {**environment(), "SLURM_TIME_FORMAT": "standard"}  # a user may have set another
    lines = call("scontrol", "show", "job", "-o", job, patience_s=PING_S, env=env).splitlines()
    return [dict(re.findall(r"(\S+?)=(\S*)", line)) for line in lines if "JobState=" in line]


def _indices(of_array: str) -> list[int | None]:
    """`0,2-4%3` -> 0, 2, 3, 4; "" -> None: no array."""
    ranges = [part.partition("-") for part in of_array.partition("%")[0].split(",") if part]
    return [index for first, _, last in ranges for index in range(int(first), int(last or first) + 1)] or [None]


def state_of(job: str) -> str:
    """State of one job; "" if it has ended."""
    return next((record["JobState"] for record in _records(job)), "")


def end_of(job: str) -> float | None:
    """When a running job reaches its time limit, in seconds since the epoch; None: no limit, or not known."""
    try:
        end = next((record["EndTime"] for record in _records(job)), "")
        return datetime.fromisoformat(end).timestamp()  # by the cluster's clock, in local time
    except ValueError:  # no answer; or Unknown: no limit
        return None


def rename(job: str, name: str) -> None:
    """Give a job, or a task of an array alone, another name."""
    call("scontrol", "update", f"JobId={job}", f"JobName={name}", patience_s=PING_S)


def earlier_starts(job: str) -> list[tuple[str, float]]:
    """How each start of a job ended that SLURM has started again, and how many seconds it had taken, oldest first, from
    accounting: NODE_FAIL, PREEMPTED, REQUEUED, ...; empty if that is unknown.
    """
    try:
        out = call("sacct", "-D", "-X", "-n", "-P", "-j", job, "-o", "State,ElapsedRaw", patience_s=PING_S)
    except ValueError:  # no accounting here
        return []
    starts = [line.split("|") for line in out.splitlines() if line.count("|") == 1]
    ended = [(state.split()[0], float(s or 0)) for state, s in starts if state]
    return [start for start in ended if start[0] not in ("RUNNING", "PENDING", "CONFIGURING")]


def requeue(job: str) -> None:
    """Return a job to the queue: SLURM ends it, with this process if it belongs to it, and starts it again later."""
    call("scontrol", "requeue", job)


def cancel(jobs: Sequence[str]) -> None:
    """End jobs. One that has ended meanwhile is no error."""
    for first in range(0, len(jobs), 500):
        call("scancel", "-Q", *jobs[first : first + 500])


def max_array() -> int:
    """The largest number of tasks in one array. (MaxArraySize is one more than the highest index.)"""
    for line in call("scontrol", "show", "config").splitlines():
        key, _, value = line.partition("=")
        if key.strip() == "MaxArraySize" and value.strip().isdigit():
            return max(1, int(value.strip()))
    return MAX_ARRAY


def is_full(error: str) -> bool:
    """Whether sbatch refused because this user, account or QOS has as many jobs in the queue as the site allows."""
    return _FULL.search(error) is not None


def advice(error: str) -> str:
    """Advice after sbatch has refused with this error, such as the accounts or the QOS that this user has."""
    if is_full(error):
        return (
            "Your site allows no more jobs in the queue now: `squeue --me` lists yours. Try again when some have ended."
        )
    if reason := _LIMIT.search(error):
        return (
            f"{reason[0]} is a limit of your site, for one job: `sacctmgr show assoc user=$USER` and "
            "`sacctmgr show qos` list them. Ask for less."
        )
    for option in ("account", "qos"):
        if re.search(rf"invalid {option}", error, re.IGNORECASE):
            return _choices(option)
    return "`sinfo` lists what there is."


def _choices(option: str) -> str:
    """The values of `account` or `qos` that this user may pass."""
    user = getpass.getuser()
    try:
        out = call("sacctmgr", "-nP", "show", "assoc", f"user={user}", f"format={option}")
    except ValueError:  # no accounting here
        return f"Pass cluster.{option}=..., with the name that your site has given you."
    names = list(dict.fromkeys(name for line in out.split() for name in line.split(",") if name))
    if not names:
        return f"You ({user}) have no {option} here: ask the administrators for one."
    return f"Yours: {', '.join(names)}. Pass cluster.{option}={names[0]}."
