"""One run in an allocation: it is tried, tried again if that may help, and its end is recorded on the ledger."""

import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlvr.config.nodes import ranks_of_node, training_nodes
from rlvr.ledger import layout, lock
from rlvr.ledger.attempt import ALONE, ENDS_AT, Attempt, Busy, newest_attempt, read_job, record_missing_end
from rlvr.ledger.cause import Cause, State
from rlvr.ledger.sweeps import Ledger
from slurm import client
from slurm.submit import warning_s
from slurm.supervise import Allocation, ProcessEnd, Supervisor
from sweeps import verdict
from sweeps.slurm.ends import STARTED_AGAIN
from sweeps.slurm.jobs import has_begun, python
from sweeps.slurm.nodes import Nodes
from sweeps.verdict import RunEnd
from sweeps.watchdog import Watchdog
from sweeps.worker import environment, kill_tagged, new_tag, ranks_command

BACKOFF_S, LONGEST_BACKOFF_S = 2.0, 60.0
NOT_EXECUTED = (126, 127)  # exit codes of a shell that could not execute a command
SAVING = 0.75  # part of the time between the warning and the time limit that a run has to save
BUSY_S = 600.0  # longest wait for a run that another process holds


@dataclass(frozen=True)
class SupervisedRun:
    """One run; others may run beside it under the same supervisor."""

    ledger: Ledger
    run_id: str
    settings: Mapping[str, Any]  # submission.json
    supervisor: Supervisor
    here: Allocation
    log: Path  # of the job
    devices: str | None  # CUDA_VISIBLE_DEVICES; None: unchanged
    nodes: Nodes | None  # None: the run has one node

    @property
    def dir(self) -> Path:
        return self.ledger.run_dir(self.run_id)

    def train(self) -> RunEnd:
        """Run it to its end; again in the same allocation as long as `RunEnd.again` and the retries allow it."""
        self._record_ends_before_restart()
        tries, waited = 0, 0.0
        while True:
            end = self._attempt()
            if self.supervisor.stop_signal is not None:
                return end
            if end.cause is Cause.BUSY and self.ledger.state(self.run_id).state is State.FINISHED:
                return RunEnd(Cause.OK, "finished by another process")
            if end.cause is Cause.BUSY:
                if waited >= BUSY_S:
                    return end
                pause = min(LONGEST_BACKOFF_S, max(BACKOFF_S, waited))
                waited += pause
            elif end.cause is Cause.HUNG:  # the node may be the reason: another job continues the run
                return end
            elif end.again and (tries < self.settings["retries"] or end.cause is Cause.GPU_OOM):
                pause = min(LONGEST_BACKOFF_S, BACKOFF_S * 2**tries)
                tries += end.cause is not Cause.GPU_OOM  # limited separately, in `RunEnd.again`
            else:
                return end
            self._say(f"again in {pause:.0f} s: {end.cause.value} {end.message}")
            self.supervisor.pause(pause)
            if self.supervisor.stop_signal is not None:
                return RunEnd(Cause.PREEMPTED, "stopped by a signal between two tries", again=True)

    def _attempt(self) -> RunEnd:
        before, tag = newest_attempt(self.dir), new_tag()
        ranks = int(self.settings["ranks"])
        env = environment(int(self.settings["threads"]), tag)
        env |= {} if self.devices is None else {"CUDA_VISIBLE_DEVICES": self.devices}
        env |= {ALONE: str(int(self.settings["pack"] == 1))}
        ends_at = client.end_of(self.here.job)
        env |= {} if ends_at is None else {ENDS_AT: str(ends_at)}
        watchdog = Watchdog(self.dir, before, self.settings.get("hung_min"), tag)

        def must_end() -> bool:
            return watchdog.finds_hung() or self._time_is_up()

        if self.nodes is not None:
            ended = self.nodes.lead(lambda place: on_nodes(self.settings, 0, place, self.dir), env, must_end)
        else:
            start = python(self.settings)
            command = ranks_command(ranks, start) if ranks > 1 else (*start, "-m", "rlvr.job")
            command = [*command, str(self.dir)]
            ended = self.supervisor.run(command, env, ranks=ranks, should_kill=must_end)
        kill_tagged(tag)  # verifiers and ranks whose parent was killed
        if ended.status in NOT_EXECUTED and newest_attempt(self.dir) == before and self.settings["pack"] == 1:
            has_begun(yes=False)  # such as without the program of the container
        known = watchdog.verdict(self.log) or self._verdict_of_allocation(before, ended)
        stopping = self.supervisor.stop_signal is not None
        return verdict.verdict_of_exit(self.dir, before, ended.status, stopping=stopping, log=self.log, known=known)

    def _verdict_of_allocation(self, before: int, ended: ProcessEnd) -> RunEnd | None:
        """The verdict on an attempt that was killed for its memory, or after a signal of SLURM; None for other ends,
        which `verdict.verdict_of_exit` evaluates.
        """
        newest = newest_attempt(self.dir)
        if newest <= before or lock.lock_is_held(layout.lock(self.dir)) is not False:
            return None
        if ended.out_of_memory:
            cause, message = Cause.HOST_OOM, f"out of memory: raise cluster.memory_gb; see {self.log}"
        elif self.supervisor.stop_signal is not None:
            cause = Cause.TIME_LIMIT if self.supervisor.stop_signal.name == "SIGUSR2" else Cause.PREEMPTED
            message = f"{self.supervisor.stop_signal.name}: stopped before it could save"
        else:
            return None
        return RunEnd(cause, message, again=cause.goes_on)

    def _time_is_up(self) -> bool:
        """Whether the run has used most of the time that the warning left it to save, as when answers are judged for
        long. It goes on from its newest checkpoint, but only if this process lives to return the job to the queue.
        """
        if self.supervisor.stop_signal is not signal.SIGUSR2:
            return False
        return time.monotonic() - self.supervisor.stopped_at > SAVING * warning_s(self.settings["asked"]["time_min"])

    def _record_ends_before_restart(self) -> None:
        """If SLURM has started this job again: the end of the newest attempt, unless its process has recorded it, and
        an attempt for each start since then that opened none, as where it was stopped while it was set up.
        """
        newest = newest_attempt(self.dir)
        if not self.here.restarts or lock.lock_is_held(layout.lock(self.dir)) is not False:
            return
        starts = client.earlier_starts(self.here.job)
        job = read_job(layout.attempt(self.dir, newest))
        is_of_job = job.get("slurm_job") == self.here.job
        num_known = int(job.get("restarts", self.here.restarts - 1)) + 1 if is_of_job else 0
        state = starts[min(num_known, len(starts)) - 1][0] if starts else ""
        cause, message = _cause_and_message(state)
        # It was in the queue since then.
        if newest and record_missing_end(self.dir, newest, cause, message, ended_earlier=True):
            self._say(f"attempt {newest} left no end: {cause.value} ({state or 'SLURM gives no reason'})")
        for restarts, (state, seconds) in enumerate(starts[num_known : self.here.restarts], num_known):
            with suppress(Busy, OSError):  # the next start counts it
                attempt = Attempt.open(self.dir, restarts=restarts, own_gpus=self.settings["pack"] == 1)
                attempt.close(*_cause_and_message(state), seconds)

    def _say(self, text: str) -> None:
        print(f"{self.here.job} {self.run_id}: {text}", flush=True)


def _cause_and_message(state: str) -> tuple[Cause, str]:
    return STARTED_AGAIN.get(state, Cause.PREEMPTED), f"SLURM started the job again: {state or 'no reason'}"


def on_nodes(settings: Mapping[str, Any], node: int, place: Sequence[str], run_dir: Path) -> list[str]:
    """Command for one node of a run on several: its ranks, or none on a node that has only workers of Ray."""
    return [
        *ranks_command(ranks_of_node(settings) if node < training_nodes(settings) else 0, python(settings), place),
        str(run_dir),
    ]
