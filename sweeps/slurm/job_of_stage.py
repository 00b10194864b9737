"""The job of a stage: `python -m sweeps.slurm.job_of_stage SUBMISSION` builds it, or fails.

If it fails, SLURM cancels the jobs that depend on it; `python -m sweeps status` shows the reason, from the end.json
that this job writes.
"""

import signal
import sys
from pathlib import Path

from rlvr.ledger import layout
from rlvr.ledger.cause import Cause
from rlvr.ledger.files import write_json
from slurm.supervise import ProcessEnd, Supervisor
from sweeps.slurm import jobs
from sweeps.slurm.launch import give_up_stage
from sweeps.slurm.waves import submit_more
from sweeps.worker import environment, kill_tagged, new_tag, ranks_command


class StageTask(jobs.SlurmJob):
    """One stage in one allocation."""

    def __init__(self, submission: Path, supervisor: Supervisor) -> None:
        super().__init__(submission, supervisor)
        self.stage = layout.stages(self.ledger.home) / self.settings["stage"]

    def run(self) -> int:
        """Build the stage. Returns the exit code of the job."""
        ended = self._build()
        tries = int(self.settings["retries"])
        while ended.status < 0 and self.supervisor.stop_signal is None and tries:  # killed, not by an error of its own
            ended, tries = self._build(), tries - 1
        if self.stage.is_dir():
            print(f"stage {self.stage.name} is built", flush=True)
            submit_more(self.ledger)
            return 0
        preempted = self.supervisor.stop_signal is signal.SIGTERM and self.here.restarts < self.settings["requeues"]
        if preempted and self._requeue():
            return Cause.PREEMPTED.code
        cause, message = self._why(ended)
        write_json(layout.stage_end(self.submission), {"cause": cause.value, "message": message})
        print(f"{cause.value}: {message}", flush=True)
        give_up_stage(self.ledger, self.stage.name)
        if self.supervisor.stop_signal is not signal.SIGTERM:  # after that SLURM kills this process within seconds
            submit_more(self.ledger)
        return cause.code

    def _build(self) -> ProcessEnd:
        tag = new_tag()
        run_dir = self.ledger.run_dir(str(self.settings["run"]))
        python, ranks, builder = jobs.python(self.settings), int(self.settings["ranks"]), "rlvr.job.build_stage"
        start = ranks_command(ranks, python, module=builder) if ranks > 1 else (*python, "-m", builder)
        env = environment(int(self.settings["threads"]), tag)
        ended = self.supervisor.run([*start, str(run_dir), self.stage.name], env, ranks=ranks)
        kill_tagged(tag)  # verifiers whose parent was killed
        return ended

    def _requeue(self) -> bool:
        """Return the job to the queue. False if it was cancelled, or if that is not possible."""
        try:
            return self.here.requeue()
        except ValueError as error:
            print(f"not requeued: {error}", flush=True)
            return False

    def _why(self, ended: ProcessEnd) -> tuple[Cause, str]:
        if self.supervisor.stop_signal is signal.SIGUSR2:
            return Cause.TIME_LIMIT, f"more than cluster.time_min={self.settings['time_min']} minutes: raise it"
        if self.supervisor.stop_signal is not None:
            return Cause.PREEMPTED, "its job was cancelled"
        if ended.out_of_memory:
            return Cause.HOST_OOM, "out of memory: raise cluster.memory_gb"
        if ended.status < 0:
            return Cause.ERROR, f"its process was killed by signal {-ended.status}"
        return Cause.of_code(ended.status), _last_line(layout.job_log(self.submission, "stage"))


def _last_line(log: Path) -> str:
    """The last line of the builder's log: its error."""
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else ""


if __name__ == "__main__":
    sys.exit(jobs.on_node(StageTask, usage=__doc__))
