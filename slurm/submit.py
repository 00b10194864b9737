"""A batch script for an array of tasks, written by submitit, and handing it in. submitit is imported here alone.

submitit's own jobs are pickles that it renames when sbatch has returned: a submitter that dies in between loses them.
So only its script is used; what a task does is read from files that are there before sbatch is called.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slurm import client

SAVE_S = 120  # warning before the time limit: a step and a checkpoint


@dataclass(frozen=True)
class Resources:
    """What each task of an array asks for, on each of its nodes; None: what the cluster gives by itself."""

    time_min: int
    cpus: int
    memory_gb: float
    gpus: int = 0
    nodes: int = 1
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    setup: tuple[str, ...] = ()  # shell lines before the command
    environment: Mapping[str, str] = field(default_factory=dict[str, str])  # exported after them; $VAR is expanded
    scratch: str | None = None  # directory for temporary files, emptied afterwards; $VAR is expanded
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])  # of sbatch, beside these

    @property
    def lines(self) -> list[str]:
        """Shell lines that prepare a job."""
        exported = [f"export {name}={_double_quoted(value)}" for name, value in self.environment.items()]
        return [*self.setup, *exported, *self._scratch_lines()]

    def _scratch_lines(self) -> list[str]:
        if self.scratch is None:
            return []
        on_all = "srun " if self.nodes > 1 else ""
        return [
            f"export TMPDIR={_double_quoted(self.scratch)}/rlvr-$SLURM_JOB_ID",
            f'{on_all}mkdir -p "$TMPDIR"',
            f"trap '{on_all}rm -rf \"$TMPDIR\"' EXIT",
        ]


def _double_quoted(text: str) -> str:
    return '"' + re.sub(r'(["`\\])', r"\\\1", str(text)) + '"'


def script(
    command: Sequence[str],
    resources: Resources,
    *,
    name: str,
    folder: Path,
    log: str,
    count: int | None,
    max_parallel: int | None = None,
    after_any: Sequence[str] = (),
    after_ok: Sequence[str] = (),
    requeues: int = 0,
) -> str:
    """Text of the batch script of an array of `count` tasks, at most `max_parallel` at a time.

    count None: one job, no array. after_any: jobs that must have left the queue, however they ended. after_ok: jobs
    that must have succeeded; when one has failed, SLURM cancels this one instead of holding it for ever. requeues:
    times that a job may go back into the queue when its command is killed.
    """
    from submitit.slurm.slurm import _make_sbatch_string

    theirs = Path("/", "%j_%t_log.out" if count is None else "%A_%a_%t_log.out")
    of_slurm = str(folder).replace("%", "%%")  # what follows one % is SLURM's to fill in
    conditions = [":".join((kind, *jobs)) for kind, jobs in (("afterany", after_any), ("afterok", after_ok)) if jobs]
    wait = {"dependency": ",".join(conditions)} if conditions else {}
    wait |= {"kill-on-invalid-dep": "yes"} if after_ok else {}
    parameters: dict[str, Any] = {
        "job_name": name,
        "partition": resources.partition,
        "account": resources.account,
        "qos": resources.qos,
        "time": resources.time_min,
        "nodes": resources.nodes,
        "ntasks_per_node": 1,
        "cpus_per_task": resources.cpus,
        "mem": f"{max(1, round(resources.memory_gb * 1024))}M",
        "gpus_per_node": resources.gpus or None,
        "signal_delay_s": min(SAVE_S, resources.time_min * 15),
        "setup": resources.lines or None,
        "array_parallelism": max_parallel or count or 1,
        "map_count": count,
        "stderr_to_stdout": True,
        "wckey": None,
        # Since 22.05 srun forgets what sbatch was told.
        "srun_args": [f"--cpus-per-task={resources.cpus}", *(["--kill-on-bad-exit=1"] if resources.nodes > 1 else [])],
        "additional_parameters": {**resources.options, "requeue": True, "output": f"{of_slurm}/{log}", **wait},
    }
    # The folder is for submitit's own logs alone, and of ours it would change some names.
    text = _make_sbatch_string(shlex.join(command), theirs.parent, **parameters)
    # One log per task: srun writes where its batch script does.
    text = text.replace(f" --output {theirs}", "")
    ours = shlex.quote(str(folder)) + "/" + log.replace("%a", "$SLURM_ARRAY_TASK_ID")
    return text + (_REQUEUE_THE_KILLED.format(requeues=requeues, log=ours) if requeues else "")


# SLURM's own kills are told apart: a job that it cancelled or whose time is over no longer runs, and one that took too
# much memory says so in its log. The same would happen again.
_REQUEUE_THE_KILLED = """
code=$?
if [ "$code" -eq 137 ] && [ "${{SLURM_RESTART_COUNT:-0}}" -lt {requeues} ] \\
    && scontrol show job -o "$SLURM_JOB_ID" | grep -q JobState=RUNNING \\
    && ! tail -c 4096 {log} | grep -Eq 'memory limit|oom_kill'; then
  echo "killed by somebody else than SLURM: requeued"
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
"""


def _environment(resources: Resources) -> dict[str, str]:
    """Of sbatch: not that of a job that hands in others; and where a launch leaves it open, whose account and which
    nodes a user has set for all jobs.
    """
    kept = {k: v for k, v in client.environment().items() if not k.startswith(("SLURM_", "SRUN_")) or k == "SLURM_CONF"}
    for name in ("account", "partition", "qos", "constraint", "reservation"):
        variable = f"SBATCH_{name.upper()}"
        if variable in os.environ and not (getattr(resources, name, None) or resources.options.get(name)):
            kept[variable] = os.environ[variable]
    return kept


class Full(ValueError):
    """The queue holds as many jobs of this user as it may: there will be room when some have ended."""


def hand_in(path: Path, resources: Resources, *, keep_open: Sequence[int] = ()) -> str:
    """sbatch. Returns the job's number. ValueError with SLURM's reason and what was asked for; Full: later, perhaps.

    keep_open: descriptors that sbatch inherits, such as a lock that must not be free before it has ended.
    """
    try:
        out = client.call("sbatch", "--parsable", str(path), env=_environment(resources), pass_fds=keep_open)
    except ValueError as error:
        asked = ", ".join(
            f"cluster.{key}={getattr(resources, key)}"
            for key in ("partition", "account", "qos", "time_min", "gpus", "cpus", "memory_gb")
        )
        refusal = Full if client.is_full(str(error)) else ValueError
        raise refusal(f"SLURM refused the jobs: {error} (asked: {asked}). {client.advice(str(error))}") from None
    return out.strip().split(";")[0]
