"""Writes the batch script of an array of tasks, by submitit, and submits it. submitit is imported only here.

submitit's own jobs are pickles that it renames after sbatch has returned: if the submitter is killed in between, they
are lost. Therefore only its script is used; a task reads its work from files that exist before sbatch is called.
"""

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slurm import client

BEGAN = "RLVR_BEGAN"  # environment variable: a file of the node, which the job's program fills when it begins
FEW = 3  # after so many nodes on which no program could begin, the jobs that wait are cancelled
SAVE_S = 120  # time between the warning signal and the time limit: for a step and a checkpoint


@dataclass(frozen=True)
class Resources:
    """Resources of each task of an array, on each of its nodes. None: the cluster's default."""

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
    scratch: str | None = None  # directory for temporary files, which are removed afterwards; $VAR is expanded
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])  # further options of sbatch

    @property
    def lines(self) -> list[str]:
        """Shell lines that prepare a job."""
        exported = [f"export {name}={_double_quoted(value)}" for name, value in self.environment.items()]
        return [*self.setup, *exported, *self._scratch_lines()]

    @property
    def parameters(self) -> dict[str, Any]:
        """What submitit writes of them into a script."""
        # Since SLURM 22.05 srun does not inherit the CPUs from sbatch.
        of_srun = [f"--cpus-per-task={self.cpus}", *(["--kill-on-bad-exit=1"] if self.nodes > 1 else [])]
        return {
            **{name: getattr(self, name) for name in ("partition", "account", "qos", "nodes")},
            "time": self.time_min,
            "ntasks_per_node": 1,
            "cpus_per_task": self.cpus,
            "mem": f"{max(1, round(self.memory_gb * 1024))}M",
            "gpus_per_node": self.gpus or None,
            "signal_delay_s": warning_s(self.time_min),
            "srun_args": of_srun,
        }

    def _scratch_lines(self) -> list[str]:
        if self.scratch is None:
            return []
        on_all_nodes = "srun " if self.nodes > 1 else ""
        return [
            f"export TMPDIR={_double_quoted(self.scratch)}/rlvr-$SLURM_JOB_ID",
            f'{on_all_nodes}mkdir -p "$TMPDIR"',
            f"trap '{on_all_nodes}rm -rf \"$TMPDIR\"' EXIT",
        ]


def warning_s(time_min: int) -> int:
    """Seconds between the warning signal and the time limit, at least."""
    return min(SAVE_S, time_min * 15)


def _double_quoted(text: str) -> str:
    return '"' + re.sub(r'(["`\\])', r"\\\1", str(text)) + '"'


def script(
    command: Sequence[str],
    resources: Resources,
    *,
    name: str,
    folder: Path,
    log: str,
    bad_nodes: Path,
    count: int | None,
    max_parallel: int | None = None,
    after_any: Sequence[str] = (),
    after_ok: Sequence[str] = (),
    requeues: int = 0,
) -> str:
    """Text of the batch script of an array of `count` tasks, of which at most `max_parallel` run at a time.

    count None: one job, no array. after_any: jobs that must have ended, with or without success. after_ok: jobs that
    must have succeeded; if one fails, SLURM cancels this job, which would otherwise wait for ever. requeues: how often
    a job may return to the queue after its command was killed, or could not begin on its node. bad_nodes: file of the
    nodes where that happened.
    """
    from submitit.slurm.slurm import _make_sbatch_string

    submitit_log = Path("/", "%j_%t_log.out" if count is None else "%A_%a_%t_log.out")
    escaped_folder = str(folder).replace("%", "%%")  # SLURM replaces a single % and the letter after it
    conditions = [":".join((kind, *jobs)) for kind, jobs in (("afterany", after_any), ("afterok", after_ok)) if jobs]
    wait = {"dependency": ",".join(conditions)} if conditions else {}
    wait |= {"kill-on-invalid-dep": "yes"} if after_ok else {}
    setup = [_leave_node(bad_nodes, resources, requeues), *resources.lines]
    parameters: dict[str, Any] = {
        **resources.parameters,
        "job_name": name,
        "setup": [*setup, "export PYTHONUNBUFFERED=1", "trap - ERR"],
        "array_parallelism": max_parallel or count or 1,
        "map_count": count,
        "stderr_to_stdout": True,
        "wckey": None,
        "additional_parameters": {**resources.options, "requeue": True, "output": f"{escaped_folder}/{log}", **wait},
    }
    # submitit needs its folder argument only for its own logs, and would change some characters of our folder.
    text = _make_sbatch_string(shlex.join(command), submitit_log.parent, **parameters)
    # One log per task: without --output srun writes to the log of the batch script. --unbuffered would make it a
    # terminal, for which programs write orders.
    text = text.replace(f" --output {submitit_log}", "").replace("srun --unbuffered", "srun")
    log_path = shlex.quote(str(folder)) + "/" + log.replace("%a", "$SLURM_ARRAY_TASK_ID")
    return text + _AT_END.format(requeues=requeues, log=log_path)


def _leave_node(bad_nodes: Path, resources: Resources, requeues: int) -> str:
    """Shell function for a job that fails before its program has begun, which is the node's fault: neither the job nor
    those that wait go there again. A failing command of the setup calls it, too, but not one within a file that the
    setup reads. A job that is requeued gets SIGTERM; it goes on, to name the nodes that it must not return to.
    """
    file, excluded = shlex.quote(str(bad_nodes)), str(resources.options.get("exclude") or "")
    return _LEAVE_NODE.format(
        began=BEGAN, file=file, few=FEW, requeues=requeues, excluded=shlex.quote(excluded + "," * bool(excluded))
    )


_LEAVE_NODE = """\
export {began}=$(mktemp)
array=${{SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}}
task=${{SLURM_ARRAY_JOB_ID:+${{SLURM_ARRAY_JOB_ID}}_}}${{SLURM_ARRAY_TASK_ID:-$SLURM_JOB_ID}}
leave_node() {{
  trap - ERR
  echo "ended on node $SLURMD_NODENAME before its program began, with exit code $1"
  echo "$SLURMD_NODENAME" >> {file}
  bad=$(sort -u {file} | paste -sd,)
  num_bad=$(sort -u {file} | wc -l)
  if [ "$num_bad" -ge {few} ] || [ "$num_bad" -ge "$(sinfo -h -N -o %N -p "$SLURM_JOB_PARTITION" | sort -u | wc -l)" ]
  then
    echo "so it did on each of $bad: the jobs that wait are cancelled"
    scancel --state=PENDING "$array"
  elif [ "${{SLURM_RESTART_COUNT:-0}}" -lt {requeues} ]; then
    trap '' TERM
    scontrol update JobId="$array" ExcNodeList={excluded}"$bad" > /dev/null 2>&1
    scontrol requeue "$task" && scontrol update JobId="$task" ExcNodeList={excluded}"$bad"
  fi
  exit "$1"
}}
trap '[ "${{#BASH_SOURCE[@]}}" -gt 1 ] || {{ code=$?; echo "failed: $BASH_COMMAND"; leave_node "$code"; }}' ERR"""

# Requeues a job whose program could not begin, or was killed, but not by SLURM, as the same would happen again: a job
# that SLURM has cancelled, or whose time is over, is not RUNNING any more, and the log of one that used too much memory
# contains that.
_AT_END = """
code=$?
if [ "$code" -ne 0 ] && scontrol show job -o "$task" | grep -q JobState=RUNNING \\
    && ! tail -c 4096 {log} | grep -Eq 'memory limit|oom_kill'; then
  [ -s "$RLVR_BEGAN" ] || leave_node "$code"
  if [ "$code" -eq 137 ] && [ "${{SLURM_RESTART_COUNT:-0}}" -lt {requeues} ]; then
    echo "killed by somebody else than SLURM: requeued"
    scontrol requeue "$task"
  fi
fi
rm -f "$RLVR_BEGAN"
exit "$code"
"""


def _environment(resources: Resources) -> dict[str, str]:
    """The environment of sbatch: without the variables of the job that calls it, if one does; with the account, the
    partition, ... that a user has set for all jobs, where the launch does not set them.
    """
    kept = {k: v for k, v in client.environment().items() if not k.startswith(("SLURM_", "SRUN_")) or k == "SLURM_CONF"}
    for name in ("account", "partition", "qos", "constraint", "reservation"):
        variable = f"SBATCH_{name.upper()}"
        if variable in os.environ and not (getattr(resources, name, None) or resources.options.get(name)):
            kept[variable] = os.environ[variable]
    return kept


class QueueFull(ValueError):
    """Raised when the queue has as many jobs of this user as it may have: there will be room when some have ended."""


def submit_script(path: Path, resources: Resources, *, keep_open: Sequence[int] = ()) -> str:
    """Submit a script by sbatch. Returns the job's number.

    keep_open: descriptors that sbatch inherits, such as a lock that must stay held until sbatch has ended. Raises
    ValueError with SLURM's reason and the resources; QueueFull if it may be accepted later. A site may print lines
    around the number.
    """
    try:
        out = client.call("sbatch", "--parsable", str(path), env=_environment(resources), pass_fds=keep_open)
    except ValueError as error:
        asked = ", ".join(
            f"cluster.{key}={getattr(resources, key)}"
            for key in ("partition", "account", "qos", "time_min", "gpus", "cpus", "memory_gb")
        )
        refusal = QueueFull if client.is_full(str(error)) else ValueError
        raise refusal(f"SLURM refused the jobs: {error} (asked: {asked}). {client.advice(str(error))}") from None
    numbers = re.findall(r"^\s*(\d+)(?:;\S+)?\s*$", out, re.MULTILINE)
    if not numbers:
        raise ValueError(
            f"sbatch printed no number of a job, but {out.strip()[:200]!r}: `squeue --me` shows what it did."
        )
    return numbers[0]
