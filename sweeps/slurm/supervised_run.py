"""One run in an allocation: tried, tried again where that makes sense, and its end named on the ledger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlvr.ledger import layout, lock
from rlvr.ledger.attempt import ENDS_AT, newest_attempt, record_death
from rlvr.ledger.cause import Cause, State
from rlvr.ledger.sweeps import Ledger
from slurm import client
from slurm.supervise import Allocation, Ended, Supervisor
from sweeps import verdict
from sweeps.slurm.ends import STARTED_AGAIN
from sweeps.slurm.jobs import python
from sweeps.slurm.nodes import Nodes
from sweeps.verdict import Verdict
from sweeps.watchdog import Watchdog
from sweeps.worker import environment, kill_tagged, new_tag, of_ranks

BACKOFF_S, LONGEST_BACKOFF_S = 2.0, 60.0
BUSY_S = 600.0  # patience with a run that another process holds


@dataclass(frozen=True)
class SupervisedRun:
    """One run; others may go on beside it under the same supervisor."""

    ledger: Ledger
    run_id: str
    settings: Mapping[str, Any]  # submission.json
    supervisor: Supervisor
    here: Allocation
    log: Path  # of the job
    devices: str | None  # CUDA_VISIBLE_DEVICES; None: as it is
    nodes: Nodes | None  # where the run has several

    @property
    def dir(self) -> Path:
        return self.ledger.run_dir(self.run_id)

    def train(self) -> Verdict:
        """The run, and again in the same allocation while its process dies without fault of its own."""
        self._name_the_end_before()
        deaths, waited = 0, 0.0
        while True:
            end = self._attempt()
            if self.supervisor.told is not None:
                return end
            if end.cause is Cause.BUSY and self.ledger.state(self.run_id).state is State.FINISHED:
                return Verdict(Cause.OK, "finished by another process")
            if end.cause is Cause.BUSY:
                if waited >= BUSY_S:
                    return end
                pause = min(LONGEST_BACKOFF_S, max(BACKOFF_S, waited))
                waited += pause
            elif end.cause is Cause.HUNG:  # the node may be the reason: another job goes on with it
                return end
            elif end.again and (deaths < self.settings["retries"] or end.cause is Cause.GPU_OOM):
                pause = min(LONGEST_BACKOFF_S, BACKOFF_S * 2**deaths)
                deaths += end.cause is not Cause.GPU_OOM  # that one counts for itself
            else:
                return end
            self._say(f"again in {pause:.0f} s: {end.cause.value} {end.message}")
            self.supervisor.pause(pause)
            if self.supervisor.told is not None:
                return Verdict(Cause.PREEMPTED, "told to stop between two tries", again=True)

    def _attempt(self) -> Verdict:
        before, tag = newest_attempt(self.dir), new_tag()
        ranks = int(self.settings["ranks"])
        around = environment(int(self.settings["threads"]), tag)
        around |= {} if self.devices is None else {"CUDA_VISIBLE_DEVICES": self.devices}
        ends_at = client.end_of(self.here.job)
        around |= {} if ends_at is None else {ENDS_AT: str(ends_at)}
        watchdog = Watchdog(self.dir, before, self.settings.get("hung_min"), tag)
        if self.nodes is not None:
            ended = self.nodes.lead(
                lambda place: on_nodes(self.settings, 0, place, self.dir), around, watchdog.ended_it
            )
        else:
            start = python(self.settings)
            command = of_ranks(ranks, start) if ranks > 1 else (*start, "-m", "rlvr.job")
            ended = self.supervisor.run([*command, str(self.dir)], around, ranks=ranks, in_vain=watchdog.ended_it)
        kill_tagged(tag)  # verifiers and ranks whose parent was killed
        known = watchdog.verdict(self.log) or self._cause(before, ended)
        stopping = self.supervisor.told is not None
        return verdict.of_death(self.dir, before, ended.status, stopping=stopping, log=self.log, known=known)

    def _cause(self, before: int, ended: Ended) -> Verdict | None:
        """Where the process could not say itself how it ended, and we know more than its exit code."""
        newest = newest_attempt(self.dir)
        if newest <= before or lock.lock_is_held(layout.lock(self.dir)) is not False:
            return None
        if ended.out_of_memory:
            cause, message = Cause.HOST_OOM, f"out of memory: raise cluster.memory_gb; see {self.log}"
        elif self.supervisor.told is not None:
            cause = Cause.TIME_LIMIT if self.supervisor.told.name == "SIGUSR2" else Cause.PREEMPTED
            message = f"{self.supervisor.told.name}: stopped before it could save"
        else:
            return None
        return Verdict(cause, message, again=cause.goes_on)

    def _name_the_end_before(self) -> None:
        """Of the attempt before, when this job was started again and its process left no word."""
        newest = newest_attempt(self.dir)
        if not self.here.restarts or not newest or lock.lock_is_held(layout.lock(self.dir)) is not False:
            return
        said = client.last_end(self.here.job)
        cause = STARTED_AGAIN.get(said, Cause.PREEMPTED)
        if record_death(self.dir, newest, cause, cause.code, f"SLURM started the job again: {said or 'no reason'}"):
            self._say(f"attempt {newest} ended without a word: {cause.value} ({said or 'SLURM gives no reason'})")

    def _say(self, text: str) -> None:
        print(f"{self.here.job} {self.run_id}: {text}", flush=True)


def on_nodes(settings: Mapping[str, Any], node: int, place: Sequence[str], run_dir: Path) -> list[str]:
    """Command of one node's part of a run on several: its ranks, or none where it is for workers of Ray alone."""
    training = settings["nodes"] - sampling_nodes(settings)
    return [*of_ranks(settings["ranks"] // training if node < training else 0, python(settings), place), str(run_dir)]


def sampling_nodes(settings: Mapping[str, Any]) -> int:
    """Of a run's nodes, the last ones: they have no ranks. A job handed in by a version before has none."""
    return settings.get("sampling_nodes", 0)
