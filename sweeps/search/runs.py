"""Runs that become known one by one, on this machine or on SLURM: what a search starts and waits for."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Sequence

from omegaconf import DictConfig

from rlvr.ledger import layout
from rlvr.ledger.attempt import StopFlag
from rlvr.ledger.cause import State
from rlvr.ledger.sweeps import Ledger
from sweeps.local import Dispatcher, available_gpus, gpus_of, share_of
from sweeps.planned import Planned
from sweeps.progress import Progress
from sweeps.slurm import submissions
from sweeps.slurm.follow import LOOK_S
from sweeps.slurm.launch import submit
from sweeps.worker import SHIPPER_S, ShipperProcess, new_tag, pool

SLURM_AT_ONCE = 8
SLICE_S = 0.2


class _Shipping(contextlib.ExitStack):
    """A shipper from the first run on, which is when the sweep is on the ledger."""

    def __init__(self, ledger: Ledger, sweep_id: str, command: Sequence[str] | None) -> None:
        super().__init__()
        self.ledger, self.logs, self.command = ledger, ledger.sweep_dir(sweep_id), command
        self.shipper: ShipperProcess | None = None

    def ship(self) -> None:
        if self.command and self.shipper is None:
            self.shipper = ShipperProcess(self.command, layout.shipper_log(self.logs))

    def finish(self, hurry: Callable[[], bool]) -> str:
        """What to tell the user, or nothing."""
        return self.shipper.finish(SHIPPER_S, hurry=hurry) if self.shipper else ""


class LocalRuns(_Shipping):
    """A pool of warm workers (sweeps/local.py), fed as it goes. Ctrl-C: runs save and end, `stopping` is true."""

    def __init__(
        self, ledger: Ledger, sweep_id: str, config: DictConfig, size: int, shipper: Sequence[str] | None
    ) -> None:
        """config: of any run; size: runs at a time."""
        super().__init__(ledger, sweep_id, shipper)
        cluster, tag = config.cluster, new_tag()
        devices = [share_of(available_gpus(), number, gpus_of(config)) for number in range(size)]
        staff = pool(devices, threads=cluster.threads, ranks=cluster.ranks, tag=tag, logs=self.logs)
        self.progress = Progress(ledger, [], show=True)
        self.dispatcher = Dispatcher(ledger, [], staff, self.progress, cluster.retries, tag, cluster.hung_min)

    def __enter__(self) -> LocalRuns:
        super().__enter__()
        self.enter_context(self.dispatcher.signals())
        self.callback(lambda: self.say(self.finish(self.dispatcher.told_again())))
        self.enter_context(self.dispatcher.at_work())
        self.push(self._save)
        return self

    def _save(self, *error: object) -> None:
        """An error of ours is no reason for runs to lose a step."""
        if error[0] is not None:
            self.dispatcher.stop()
        while error[0] is not None and (self.dispatcher.active() or not self.dispatcher.stopping):
            self.dispatcher.turn()

    @property
    def stopping(self) -> bool:
        return self.dispatcher.stopping

    @property
    def busy(self) -> bool:
        return bool(self.dispatcher.active())

    def start(self, run: Planned) -> None:
        self.ship()
        self.progress.states[run.run_id] = self.ledger.state(run.run_id)
        self.dispatcher.add(run.run_id)

    def turn(self) -> dict[str, str]:
        """What was stopped with the launch has not ended: it goes on with the same command."""
        self.dispatcher.turn()
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
        if text:
            self.progress.say(text)


class SlurmRuns(_Shipping):
    """Jobs that are submitted as they become known, and followed. Ctrl-C: no longer followed; they go on."""

    def __init__(self, ledger: Ledger, sweep_id: str, shipper: Sequence[str] | None) -> None:
        super().__init__(ledger, sweep_id, shipper)
        self.sweep_id = sweep_id
        self.waiting: list[Planned] = []  # to be submitted
        self.followed: dict[str, int] = {}  # looks in a row at which a run had ended
        self.stop = StopFlag(signal.SIGINT, signal.SIGTERM)
        self.accepted, self.said = False, ""  # has SLURM ever taken a job of ours; what it answered last

    def __enter__(self) -> SlurmRuns:
        super().__enter__()
        self.enter_context(self.stop)
        self.callback(lambda: self.say(self.finish(lambda: False)))
        self.say(
            "The search follows its jobs and submits new ones: leave it running (tmux). If it ends, the jobs go on and "
            "the same command goes on with the search."
        )
        return self

    @property
    def stopping(self) -> bool:
        return bool(self.stop)

    @property
    def busy(self) -> bool:
        return False

    def start(self, run: Planned) -> None:
        self.ship()
        self.waiting.append(run)

    def turn(self) -> dict[str, str]:
        """A SLURM that does not answer is asked again, for as long as it takes."""
        self._submit()
        until = time.monotonic() + LOOK_S
        while time.monotonic() < until and not self.stop:
            time.sleep(SLICE_S)
        queue = submissions.read_queue(self.ledger)
        states = submissions.joined(self.ledger, self.ledger.states(self.followed), queue)
        for state in states:
            known = queue.answered and state.run_id not in queue.tasks and state.state is not State.RUNNING
            self.followed[state.run_id] = self.followed[state.run_id] + 1 if known else 0
        # Twice: one look may fall between the end of a job and its return to the queue.
        ended = {state.run_id: state.message for state in states if self.followed[state.run_id] >= 2}
        for run_id in ended:
            del self.followed[run_id]
        return ended

    def _submit(self) -> None:
        """ValueError if SLURM refuses the first: more likely the command than SLURM. Later it is asked again."""
        if not self.waiting:
            return
        runs = [
            (run.run_id, {**run.config, "cluster": {**run.config["cluster"], "report": False}}) for run in self.waiting
        ]
        try:
            done = submit(self.ledger, self.sweep_id, runs, ship=False)
        except ValueError as error:
            if not self.accepted:
                raise
            if str(error) != self.said:
                self.say(f"not submitted, tried again: {error}")
            self.said = str(error)
            return
        if done.jobs:
            names = [run.name for run in self.waiting if run.run_id in done.submitted]
            self.say(f"submitted {', '.join(names)} (job {', '.join(done.jobs)})")
        self.accepted, self.said = True, ""
        self.followed |= {run_id: 0 for run_id, _ in runs if run_id not in done.later}
        self.waiting = [run for run in self.waiting if run.run_id in done.later]  # tried again, as jobs do at their end

    def may_prune(self, run_id: str) -> bool:
        return run_id in self.followed

    def say(self, text: str) -> None:
        if text:
            print(text, flush=True)
