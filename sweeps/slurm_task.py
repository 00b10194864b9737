"""One task of an array: `python -m sweeps.slurm_task SUBMISSION` runs one run, and decides what its end means.

Its exit code is that of the run's cause (rlvr/attempt.py): a failed training is FAILED in SLURM too, so nothing that
depends on it is released. A run that was told to stop goes back into the queue.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlvr import lock
from rlvr.attempt import Cause, newest_attempt, record_death
from rlvr.paths import read_json
from slurm import client
from slurm.supervise import Allocation, Ended, Supervisor
from sweeps import submissions, verdict
from sweeps.ledger import Ledger
from sweeps.verdict import Verdict
from sweeps.worker import environment, kill_tagged, new_tag, torchrun

BACKOFF_S, LONGEST_BACKOFF_S = 2.0, 60.0
BUSY_S = 600.0  # patience with a run that another process holds

# What SLURM says of a job that it started again, and what the ledger calls it.
ENDS = {
    "NODE_FAIL": Cause.NODE, "BOOT_FAIL": Cause.NODE, "TIMEOUT": Cause.TIME_LIMIT, "DEADLINE": Cause.TIME_LIMIT,
    "OUT_OF_MEMORY": Cause.HOST_OOM,
}  # fmt: skip


class ArrayTask:
    """One run in one allocation."""

    def __init__(self, submission: Path, supervisor: Supervisor) -> None:
        content = read_json(submission / "submission.json")
        if content is None:
            raise ValueError(f"{submission}/submission.json cannot be read: can this node see {submission}?")
        self.settings: Mapping[str, Any] = content
        self.supervisor, self.here = supervisor, Allocation.here()
        self.ledger = Ledger(submission.parent.parent.parent)
        self.run_id = str(content["runs"][self.here.index])
        self.dir = self.ledger.run_dir(self.run_id)
        self.log = submission / f"task_{self.here.index}.out"
        submissions.record_job(submission, self.here.number)

    def run(self) -> int:
        """Exit code of the job."""
        if self.ledger.state(self.run_id).state == "finished":
            self._say("finished before")
            return 0
        self._name_the_end_before()
        end = self._train()
        self._say(f"{end.cause.value} {end.message}")
        if end.cause in verdict.AGAIN:
            self._requeue()
        return end.cause.code

    def _train(self) -> Verdict:
        """The run, and again in the same allocation while its process dies without fault of its own."""
        deaths, waited = 0, 0.0
        while True:
            end = self._attempt()
            if self.supervisor.told is not None:
                return end
            if end.cause is Cause.BUSY and self.ledger.state(self.run_id).state == "finished":
                return Verdict(Cause.OK, "finished by another process")
            if end.cause is Cause.BUSY:
                if waited >= BUSY_S:
                    return end
                pause = min(LONGEST_BACKOFF_S, max(BACKOFF_S, waited))
                waited += pause
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
        command = torchrun(ranks) if ranks > 1 else (sys.executable, "-m", "rlvr.job")
        ended = self.supervisor.run(
            [*command, str(self.dir)], environment(int(self.settings["threads"]), tag), ranks=ranks
        )
        kill_tagged(tag)  # verifiers and ranks whose parent was killed
        self._write_cause(before, ended)
        return verdict.of_death(self.dir, before, ended.status, stopping=self.supervisor.told is not None, log=self.log)

    def _write_cause(self, before: int, ended: Ended) -> None:
        """Where the process could not say itself how it ended, and we know more than its exit code."""
        newest = newest_attempt(self.dir)
        if newest <= before or lock.lock_is_held(self.dir / "lock") is not False:
            return
        if ended.out_of_memory:
            cause, message = Cause.HOST_OOM, f"out of memory: raise cluster.memory_gb; see {self.log}"
        elif self.supervisor.told is not None:
            cause = Cause.TIME_LIMIT if self.supervisor.told.name == "SIGUSR2" else Cause.PREEMPTED
            message = f"{self.supervisor.told.name}: stopped before it could save"
        else:
            return
        record_death(self.dir, newest, cause, cause.code, message)

    def _name_the_end_before(self) -> None:
        """Of the attempt before, when this job was started again and its process left no word."""
        newest = newest_attempt(self.dir)
        if not self.here.restarts or not newest or lock.lock_is_held(self.dir / "lock") is not False:
            return
        said = client.last_end(self.here.job)
        cause = ENDS.get(said, Cause.PREEMPTED)
        if record_death(self.dir, newest, cause, cause.code, f"SLURM started the job again: {said or 'no reason'}"):
            self._say(f"attempt {newest} ended without a word: {cause.value} ({said or 'SLURM gives no reason'})")

    def _requeue(self) -> None:
        if self.here.restarts >= self.settings["requeues"]:
            self._say(
                f"requeued {self.here.restarts} times already (cluster.requeues): the same command goes on with it"
            )
            return
        try:
            requeued = self.here.requeue()
        except ValueError as error:
            self._say(f"not requeued: {error}. The same command goes on with the run.")
            return
        self._say("requeued" if requeued else "cancelled: not requeued")

    def _say(self, text: str) -> None:
        print(f"{self.here.job} {self.run_id}: {text}", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit codes: those of rlvr/attempt.py."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if len(given) != 1:
        print(__doc__)
        return 2
    with Supervisor() as supervisor:
        return ArrayTask(Path(given[0]), supervisor).run()


if __name__ == "__main__":
    sys.exit(main())
