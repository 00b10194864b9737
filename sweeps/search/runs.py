"""Executes the runs of a search, which become known one by one, on this machine or on SLURM."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Sequence

from omegaconf import DictConfig

from rlvr.ledger import layout
from rlvr.ledger.attempt import StopFlag
from rlvr.ledger.cause import State
from rlvr.ledger.sweeps import Ledger
from sweeps.local import Dispatcher
from sweeps.machine import available_gpus, gpus_of, share_of
from sweeps.planned import PlannedRun
from sweeps.progress import Display
from sweeps.slurm import submissions
from sweeps.slurm.follow import LOOK_S
from sweeps.slurm.launch import submit
from sweeps.worker import ShipperProcess, new_tag, pool

SLURM_AT_ONCE = 8
SLICE_S = 0.2


class LocalRuns(contextlib.ExitStack):
    """Runs in a pool of warm workers (sweeps/local.py). After Ctrl-C runs save and end, and `stopping` is true."""

    def __init__(
        self, ledger: Ledger, sweep_id: str, config: DictConfig, size: int, shipper: Sequence[str] | None
    ) -> None:
        """config: of any run of the search; size: number of workers."""
        super().__init__()
        self.ledger, logs = ledger, ledger.sweep_dir(sweep_id)
        self.shipper = ShipperProcess(shipper, logs)
        cluster, tag = config.cluster, new_tag()
        devices = [share_of(available_gpus(), number, gpus_of(config)) for number in range(size)]
        workers = pool(devices, threads=cluster.threads, ranks=cluster.ranks, tag=tag, logs=logs)
        self.progress = Display(ledger, [])
        self.dispatcher = Dispatcher(ledger, [], workers, self.progress, cluster.retries, tag, cluster.hung_min)

    def __enter__(self) -> LocalRuns:
        super().__enter__()
        self.enter_context(self.dispatcher.signals())
        self.callback(lambda: self.shipper.finish(self.say, self.dispatcher.signalled_again()))
        self.enter_context(self.dispatcher.at_work())
        return self

    @property
    def stopping(self) -> bool:
        return self.dispatcher.stopping

    @property
    def busy(self) -> bool:
        return bool(self.dispatcher.active())

    def start(self, run: PlannedRun) -> None:
        self.shipper.start()  # now that the sweep is on the ledger
        self.progress.states[run.run_id] = self.ledger.state(run.run_id)
        self.dispatcher.add(run.run_id)

    def turn(self) -> dict[str, str]:
        """See `Runs.turn`. Runs that were stopped together with the search are left out: they can be continued.

        ValueError if no worker can start. That is the fault of no trial: all stay open for the next command.
        """
        self.dispatcher.turn()
        if self.dispatcher.why_no_worker:
            raise ValueError(f"{self.dispatcher.why_no_worker}. The same command continues the search.")
        ended: dict[str, str] = {}
        outcome = self.dispatcher.outcome
        for runs in (outcome.finished, outcome.failed, outcome.pruned, outcome.preempted):
            if not (self.stopping and runs is outcome.preempted):
                ended |= {run_id: outcome.messages.get(run_id, "") for run_id in runs}
            runs.clear()
        return ended

    def may_prune(self, run_id: str) -> bool:
        return run_id in self.dispatcher.active()

    def say(self, text: str) -> None:
        self.progress.say(text)


class SlurmRuns(contextlib.ExitStack):
    """Runs as SLURM jobs, submitted and followed one by one. After Ctrl-C the jobs continue, but are not followed.
    After `sweeps cancel` they save and end, and the same command continues them.
    """

    def __init__(self, ledger: Ledger, sweep_id: str, shipper: Sequence[str] | None) -> None:
        super().__init__()
        self.ledger, self.shipper = ledger, ShipperProcess(shipper, ledger.sweep_dir(sweep_id))
        self.sweep_id, self.cancelled = sweep_id, layout.cancelled(ledger.sweep_dir(sweep_id))
        self.waiting: list[PlannedRun] = []  # to be submitted
        self.followed: dict[str, int] = {}  # by run, the number of successive looks at which it had ended
        self.stop = StopFlag(signal.SIGINT, signal.SIGTERM)
        self.accepted = False  # whether SLURM has accepted a job of this search
        self.last_error = ""  # of sbatch

    def __enter__(self) -> SlurmRuns:
        super().__enter__()
        self.enter_context(self.stop)
        self.cancelled.unlink(missing_ok=True)  # by `cancel`, before this launch
        self.callback(self.shipper.finish, self.say)
        self.say(
            "The search follows its jobs and submits new ones: leave it running (tmux). If it ends, the jobs continue, "
            "and the same command continues the search."
        )
        return self

    @property
    def stopping(self) -> bool:
        return bool(self.stop) or self.cancelled.exists()

    @property
    def busy(self) -> bool:
        return False

    def start(self, run: PlannedRun) -> None:
        self.shipper.start()  # now that the sweep is on the ledger
        self.waiting.append(run)

    def turn(self) -> dict[str, str]:
        """See `Runs.turn`. If SLURM does not answer, no run counts as ended, and the next turn asks again. Runs that
        were cancelled together with the search are left out: they can be continued.
        """
        self._submit()
        until = time.monotonic() + LOOK_S
        while time.monotonic() < until and not self.stopping:
            time.sleep(SLICE_S)
        queue = submissions.read_queue(self.ledger)
        states = submissions.with_queue_states(self.ledger, self.ledger.states(self.followed), queue)
        for state in states:
            has_ended = queue.answered and state.run_id not in queue.tasks and state.state is not State.RUNNING
            self.followed[state.run_id] = self.followed[state.run_id] + 1 if has_ended else 0
        # Two looks: one look may fall between the end of a job and its return to the queue.
        ended = {state.run_id: state for state in states if self.followed[state.run_id] >= 2}
        for run_id in ended:
            del self.followed[run_id]
        stopped = (State.PREEMPTED, State.PLANNED) if self.stopping else ()
        return {run_id: state.message for run_id, state in ended.items() if state.state not in stopped}

    def _submit(self) -> None:
        """Submit the waiting runs. ValueError if SLURM refuses the first submission: the command is probably wrong.
        Later ones are tried again in the next turn.
        """
        if not self.waiting or self.stopping:
            return
        runs = [
            (run.run_id, {**run.config, "cluster": {**run.config["cluster"], "report": False}}) for run in self.waiting
        ]
        try:
            outcome = submit(self.ledger, self.sweep_id, runs, unless_cancelled=True)
        except ValueError as error:
            if not self.accepted:
                raise
            if str(error) != self.last_error:
                self.say(f"not submitted, tried again: {error}")
            self.last_error = str(error)
            return
        if outcome.jobs:
            names = [run.name for run in self.waiting if run.run_id in outcome.submitted]
            self.say(f"submitted {', '.join(names)} (job {', '.join(outcome.jobs)})")
        self.accepted, self.last_error = True, ""
        self.followed |= {run_id: 0 for run_id, _ in runs if run_id not in outcome.later}
        # Runs without room in the queue are tried again here, or by jobs that end.
        self.waiting = [run for run in self.waiting if run.run_id in outcome.later]

    def may_prune(self, run_id: str) -> bool:
        return run_id in self.followed

    def say(self, text: str) -> None:
        print(text, flush=True)
