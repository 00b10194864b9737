"""A task of an array: `python -m sweeps.slurm.job_of_runs SUBMISSION` executes its runs and evaluates their ends.

A task has one run, or `cluster.pack` of them side by side, each with attempts and an end of its own. Its exit code is
that of the first run without success (rlvr/ledger/cause.py): a failed training is FAILED in SLURM too, so that jobs
which depend on it are not released. A job that SLURM has signalled to stop returns to the queue for the runs that have
not ended.
"""

import contextlib
import functools
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rlvr.ledger import layout
from rlvr.ledger.cause import Cause, State
from rlvr.ledger.files import read_json, write_json
from slurm import client
from slurm.supervise import Supervisor
from sweeps.slurm import jobs, submissions
from sweeps.slurm.nodes import Nodes
from sweeps.slurm.supervised_run import SupervisedRun, on_nodes
from sweeps.slurm.waves import submit_more
from sweeps.verdict import RunEnd


class ArrayTask(jobs.SlurmJob):
    """The runs of one allocation."""

    def __init__(self, submission: Path, supervisor: Supervisor) -> None:
        super().__init__(submission, supervisor)
        self.run_ids = submissions.runs_of(self.settings, self.here.index)
        if not self.here.node:
            self._name_job()

    def _name_job(self) -> None:
        """Name this job after its sweep and its run: the array was named before its tasks were separate jobs."""
        with contextlib.suppress(ValueError):  # a name is for people
            sweep = self.ledger.sweep(str(self.settings["sweep_id"]))
            more = f"+{len(self.run_ids) - 1}" if len(self.run_ids) > 1 else ""
            labels = sweep.name or sweep.study or sweep.sweep_id, self.ledger.state(self.run_ids[0]).name + more
            client.rename(self.here.job, submissions.job_name(self.submission, *labels))

    def run(self) -> int:
        """Execute all runs. Returns the exit code of this node's task; that of the first node is the job's."""
        nodes = self._nodes()
        if nodes is not None and self.here.node:
            run_dir = self.ledger.run_dir(self.run_ids[0])
            node = self.here.node
            nodes.follow(lambda place: on_nodes(self.settings, node, place, run_dir), int(self.settings["threads"]))
            return 0
        with ThreadPoolExecutor(len(self.run_ids)) as pool:  # signals reach the main thread, which waits
            ends = list(pool.map(functools.partial(self._train, nodes=nodes), range(len(self.run_ids))))
        if nodes is not None:
            nodes.over()
        # A run that another process holds counts, too: this job may have to resume it.
        goes_on = any(end.cause.goes_on for end in ends)
        if not goes_on or not self._requeue():
            submit_more(self.ledger)
        return next((end.cause.code for end in ends if end.cause is not Cause.OK), 0)

    def _nodes(self) -> Nodes | None:
        count = int(self.settings["nodes"])
        if count == 1:
            return None
        folder = layout.task_nodes(self.submission, self.here.index, self.here.restarts)
        return Nodes(folder, self.here.node, count, self.supervisor, sampling=self.settings["sampling_nodes"])

    def _train(self, place: int, nodes: Nodes | None) -> RunEnd:
        """Train one run to its end, unless it has ended: before this launch, or before this job was requeued."""
        run_id = self.run_ids[place]
        end_path = layout.run_end(self.submission, run_id)
        if self.ledger.state(run_id).state is State.FINISHED:
            self._say("finished before", run_id)
            return RunEnd(Cause.OK, "")
        before = read_json(end_path) or {}
        if before.get("cause") in list(Cause):
            self._say(f"ended before the job was requeued: {before['cause']}", run_id)
            return RunEnd(Cause(before["cause"]), str(before.get("message", "")))
        log = layout.task_log(self.submission, self.here.index)
        devices = share(os.environ.get("CUDA_VISIBLE_DEVICES"), place, len(self.run_ids))
        end = SupervisedRun(self.ledger, run_id, self.settings, self.supervisor, self.here, log, devices, nodes).train()
        self._say(f"{end.cause.value} {end.message}", run_id)
        if not end.cause.goes_on and len(self.run_ids) > 1:
            write_json(end_path, {"cause": end.cause.value, "message": end.message})
        return end

    def _requeue(self) -> bool:
        """Return the job to the queue. False if that is not possible, so that its place there is free for other jobs;
        True also if the job was cancelled.
        """
        if self.here.restarts >= self.settings["requeues"]:
            self._say(f"requeued {self.here.restarts} times already (cluster.requeues): the same command continues it")
            return False
        try:
            requeued = self.here.requeue()
        except ValueError as error:
            self._say(f"not requeued: {error}. The same command continues the run.")
            return False
        self._say("requeued" if requeued else "cancelled: not requeued")
        return True

    def _say(self, text: str, run_id: str = "") -> None:
        print(f"{self.here.job} {run_id or ' '.join(self.run_ids)}: {text}", flush=True)


def share(devices: str | None, place: int, runs: int) -> str | None:
    """GPUs of run number `place` of `runs` side by side: its part of CUDA_VISIBLE_DEVICES, or one GPU if there are
    fewer GPUs than runs.
    """
    if not devices:
        return devices
    gpus = devices.split(",")
    first = place * len(gpus) // runs
    return ",".join(gpus[first : max(first + 1, (place + 1) * len(gpus) // runs)])


if __name__ == "__main__":
    sys.exit(jobs.on_node(ArrayTask, usage=__doc__))
