"""Executes the runs of a sweep on this machine: one launcher with a pool of warm workers, no daemon."""

import contextlib
import functools
import os
import selectors
import signal
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

from rlvr.ledger import layout, lock, terminal
from rlvr.ledger.attempt import newest_attempt
from rlvr.ledger.cause import Cause, State
from rlvr.ledger.sweeps import Ledger
from sweeps import verdict
from sweeps.machine import at_once, available_gpus, share_of
from sweeps.progress import Display
from sweeps.verdict import LaunchOutcome, RunEnd
from sweeps.watchdog import Watchdog
from sweeps.worker import Guard, RunWorker, ShipperProcess, kill_tagged, new_tag, pool

FALSE_STARTS = 3  # after so many workers that exit before they are ready no more are started, until a ready one ends
POLL_S = 0.2  # for changes without an event: signals, exits whose pipes stay open, runs of other launches
FAILED_TURNS = 300  # after so many in a row, a minute, runs are no longer waited for
LEAVE_S = 1.0  # for workers to exit by themselves at the end


def run_local(
    ledger: Ledger,
    sweep_id: str,
    *,
    run_ids: Sequence[str] | None = None,
    workers: int | None = None,
    threads: int = 1,
    ranks: int = 1,
    engine_gpus: int = 0,
    retries: int = 1,
    hung_min: float | None = None,
    shipper: Sequence[str] | None = None,
    command: Sequence[str] | None = None,
) -> LaunchOutcome:
    """Run the unfinished runs of a sweep. Returns when all have ended or the user has stopped the launch.

    run_ids: run only these of its runs, in this order (None: all, in the order of the sweep).
    workers: runs at a time (None: as many as the cores allow). ranks: processes per run.
    engine_gpus: GPUs of a run in addition to those of its ranks.
    retries: new attempts of a run whose process was killed or preempted; a run's own errors are never retried.
    hung_min: minutes without progress after which a run's process is killed (sweeps/watchdog.py); None: never.
    shipper: command of a process that ships metrics meanwhile. command: of a worker (see `RunWorker`).

    Ctrl-C or SIGTERM once: runs finish their step, save, and the queue is dropped; twice: they are killed.
    Call it from the main thread, which alone receives signals.
    """
    of_sweep = dict.fromkeys(ledger.sweep(sweep_id).run_ids)
    run_ids = [run_id for run_id in (of_sweep if run_ids is None else run_ids) if run_id in of_sweep]
    gpus_each = ranks + engine_gpus
    size = min(at_once(workers, threads, ranks, gpus_each), max(1, len(run_ids)))
    devices = [share_of(available_gpus(), number, gpus_each) for number in range(size)]
    tag, logs = new_tag(), ledger.sweep_dir(sweep_id)
    worker_pool = pool(devices, threads=threads, ranks=ranks, tag=tag, logs=logs, command=command)
    progress = Display(ledger, run_ids)
    dispatcher = Dispatcher(ledger, run_ids, worker_pool, progress, retries, tag, hung_min)
    with dispatcher.signals(), _launch_lock_held(ledger.sweep_dir(sweep_id)) as held:
        dispatcher.sign(held, runs=run_ids)
        process = ShipperProcess(shipper, logs)
        process.start()
        dispatcher.run()
        process.finish(progress.say, dispatcher.signalled_again())
    dispatcher.outcome.signalled = dispatcher.num_signals > 0
    progress.failures(dispatcher.outcome.states, dispatcher.outcome.messages)
    progress.say(dispatcher.outcome.summary())
    return dispatcher.outcome


@contextlib.contextmanager
def _launch_lock_held(sweep_dir: Path) -> Generator[int, None, None]:
    """Hold a launch lock of the sweep, the first that no other launch holds; yields it, to be signed."""
    index = 0
    while (held := lock.lock(layout.launch_lock(sweep_dir, index), patience_s=0)) is None:
        index += 1
    try:
        yield held
    finally:
        lock.unlock(held)


def stop(ledger: Ledger, sweep_id: str, run_id: str | None = None) -> list[int]:
    """Signal all launches of a sweep on this machine to stop, as Ctrl-C does. Returns their pids.

    run_id: signal only launches of this run alone.
    """
    sweep_dir = ledger.sweep_dir(sweep_id)
    locks = layout.launch_locks(sweep_dir)
    if run_id is None:
        locks.append(layout.deciding_lock(sweep_dir))
    else:
        locks = [path for path in locks if lock.holder_record(path).get("runs") == [run_id]]
    stopped: list[int] = []
    # Without repetitions: a launch that grows a sweep holds two locks, and a second signal would kill its runs.
    for pid in dict.fromkeys(map(lock.holder, locks)):
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(pid, signal.SIGTERM)
                stopped.append(pid)
    return stopped


class Dispatcher:
    """The event loop: assigns runs to idle workers and records how they end. One thread, no locks."""

    def __init__(
        self,
        ledger: Ledger,
        run_ids: Sequence[str],
        pool: list[RunWorker],
        progress: Display,
        retries: int,
        tag: str,
        hung_min: float | None,
    ) -> None:
        self.ledger, self.pool, self.progress, self.retries, self.tag = ledger, pool, progress, retries, tag
        self.outcome = LaunchOutcome(skipped=[r for r in run_ids if progress.states[r].state is State.FINISHED])
        self.queue = deque(r for r in run_ids if r not in set(self.outcome.skipped))
        self.hung_min = hung_min
        self.watchdogs: dict[str, Watchdog] = {}  # by run
        self.held: dict[str, int] = {}  # run that another process runs -> its newest attempt before that
        self.retried: dict[str, int] = {}
        self.num_signals = 0  # signals to stop that have arrived
        self.stopping = self.killing = False
        self.false_starts, self._held_checked = 0, 0.0
        self.why_no_worker = ""  # set when no worker could start, and the launch has given up
        self._announced_held: set[str] = set()
        self._sign: Callable[..., None] | None = None  # set by `sign`
        self.selector = selectors.DefaultSelector()

    def run(self) -> None:
        """Run the whole queue."""
        if self.queue:
            with self.at_work():
                while self.queue or self.held or self.active():
                    self.turn()

    @contextlib.contextmanager
    def at_work(self) -> Generator[None, None, None]:
        """A context at whose end all processes that were started in it are ended; after an error, runs save first."""
        began = time.monotonic()
        guard = Guard(self.tag)
        try:
            with self.progress:
                try:
                    yield
                except BaseException as error:
                    self.progress.say(f"error     {terminal.one_line(error) or type(error).__name__}")
                    self._let_runs_save()
                    raise
        finally:
            self._dismiss(guard)
        self.outcome.seconds = time.monotonic() - began
        self.outcome.busy_s = [worker.busy_s for worker in self.pool]
        self.outcome.interrupted = self.stopping

    def _let_runs_save(self) -> None:
        """Go on as after a first signal. A file server that has failed may fail again: that is endured for a while."""
        self.stop()
        num_failed = 0  # in a row
        while (self.active() or not self.stopping) and num_failed < FAILED_TURNS:
            try:
                self.turn()
                num_failed = 0
            except Exception:  # noqa: BLE001 - the first error is the one that the launch ends with
                num_failed += 1
                time.sleep(POLL_S)

    @contextlib.contextmanager
    def signals(self) -> Generator[None, None, None]:
        """A context in which signals to stop are counted."""

        def receive(*_: object) -> None:
            self.num_signals += 1

        numbers = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # under nohup the launch survives its terminal
            numbers.append(signal.SIGHUP)
        before = {number: signal.signal(number, receive) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def sign(self, held: int, **work: Any) -> None:
        """Sign a launch lock with this process and its work: others see which runs it will start, until it is told to
        stop, and `stop` which process to signal. work: runs=[...]; nothing if they become known one by one.
        """
        self._sign = functools.partial(lock.write_holder, held, **work)
        self._sign()

    def add(self, run_id: str) -> None:
        """Append a run to the queue."""
        self.queue.append(run_id)

    def stop(self) -> None:
        """Act as on a first signal."""
        self.num_signals = max(1, self.num_signals)

    def signalled_again(self) -> Any:
        """A function that returns whether a signal has arrived after this call."""
        before = self.num_signals
        return lambda: self.num_signals > before

    # --- the loop

    def turn(self) -> None:
        """One pass: assign queued runs to idle workers, and wait a moment for answers and exits."""
        if self.num_signals and not self.stopping:
            self._stop()
        if self.num_signals > 1 and not self.killing:
            self.killing = True
            kill_tagged(self.tag)
        self._check_held()
        self._dispatch()
        for key, _ in self.selector.select(POLL_S):
            self._read(key.data)
        for worker in self.pool:
            if worker.run_id is not None and self.watchdogs[worker.run_id].finds_hung():
                kill_tagged(worker.tag)
            if (status := worker.poll()) is not None:
                self._worker_exited(worker, status)
        self.progress.tick(self.active())

    def active(self) -> list[str]:
        return [worker.run_id for worker in self.pool if worker.run_id is not None]

    def _stop(self) -> None:
        self.stopping = self.progress.interrupted = True
        active = len(self.active())
        self.progress.say(f"Stopping: {active} runs finish their step and save. Once more to kill them at once.")
        self.outcome.queued += [*self.queue, *self.held]
        self.queue.clear()
        self.held.clear()
        for worker in self.pool:
            worker.ask_to_stop()
        if self._sign:
            with contextlib.suppress(OSError):  # a full disk: then its runs are shown as queued until it has ended
                self._sign(stopping=True)

    def _dispatch(self) -> None:
        for worker in self.pool:
            if worker.run_id is None and worker.ready and (run_id := self._next_run()):
                worker.give(run_id, self.ledger.run_dir(run_id))
                self.watchdogs[run_id] = Watchdog(self.ledger.run_dir(run_id), worker.before, self.hung_min, worker.tag)
                self.progress.started(run_id)
        num_starting = sum(worker.process is not None and not worker.ready for worker in self.pool)
        for worker in self.pool if self.false_starts < FALSE_STARTS else ():
            if worker.warm and worker.process is None and len(self.queue) > num_starting:
                worker.start()
                self.selector.register(worker.answers, selectors.EVENT_READ, worker)
                worker.listening = True
                num_starting += 1

    def _next_run(self) -> str | None:
        while self.queue:
            run_id = self.queue.popleft()
            state = self.ledger.state(run_id)
            if state.state is State.FINISHED:
                self._ended(run_id, State.FINISHED)
            elif state.state is State.RUNNING:
                self._hold(run_id, state.attempt - 1)
            elif state.state in (State.MISSING, State.UNREADABLE):
                self._ended(run_id, state.state, state.message)
            else:
                return run_id
        return None

    def _hold(self, run_id: str, before: int) -> None:
        if self.stopping:
            self.outcome.queued.append(run_id)
            return
        self.held[run_id] = before
        if run_id not in self._announced_held:
            self._announced_held.add(run_id)
            self.progress.say(f"waiting   {self.progress.states[run_id].name}: another process is at work on it")

    def _check_held(self) -> None:
        if time.monotonic() - self._held_checked < 1:
            return
        self._held_checked = time.monotonic()
        for run_id, before in list(self.held.items()):
            state = self.ledger.state(run_id)
            if state.state is State.RUNNING or lock.lock_is_held(layout.lock(self.ledger.run_dir(run_id))):
                continue
            del self.held[run_id]
            if state.state is State.FINISHED:
                self._ended(run_id, State.FINISHED)
            elif state.state in (State.FAILED, State.DIVERGED) and state.attempt > before:
                self._ended(run_id, state.state, state.message)
            else:
                self.queue.append(run_id)

    def _read(self, worker: RunWorker) -> None:
        answers, ended = worker.read()
        for answer in answers:
            if "ready" in answer:
                worker.ready = True
            elif worker.run_id is not None:
                run_id = worker.take()
                self._record_end(run_id, verdict.verdict_of_answer(self.ledger.run_dir(run_id), worker.before, answer))
        if ended:
            self.selector.unregister(worker.answers)
            worker.listening = False
            worker.await_end(2.0)

    # --- how runs end

    def _worker_exited(self, worker: RunWorker, status: int) -> None:
        """Handle the end of a worker's process, by itself or by a signal."""
        if worker.listening:
            self._read(worker)  # answers that it wrote before its end
        if worker.listening:
            self.selector.unregister(worker.answers)
            worker.listening = False
        was_ready, run_id = worker.ready, worker.take() if worker.run_id is not None else None
        worker.clean_up()
        if run_id is not None:
            run_dir = self.ledger.run_dir(run_id)
            end = verdict.verdict_of_exit(
                run_dir,
                worker.before,
                status,
                stopping=self.stopping,
                log=worker.log_path,
                known=self.watchdogs[run_id].verdict(worker.log_path),
            )
            self._record_end(run_id, end)
        self.false_starts = 0 if was_ready else self.false_starts + (not self.stopping)
        if self.false_starts >= FALSE_STARTS:
            self._give_up(worker)

    def _record_end(self, run_id: str, end: RunEnd) -> None:
        """Queue the run again if its end allows it, else add it to the outcome."""
        tries = self.retried.get(run_id, 0)
        if end.cause is Cause.OK or (end.cause is Cause.BUSY and self.ledger.state(run_id).state is State.FINISHED):
            self._ended(run_id, State.FINISHED)
        elif end.cause is Cause.BUSY:
            self._hold(run_id, newest_attempt(self.ledger.run_dir(run_id)) - 1)
        elif end.again and not self.stopping and (tries < self.retries or end.cause is Cause.GPU_OOM):
            self.retried[run_id] = tries + (end.cause is not Cause.GPU_OOM)
            self.queue.appendleft(run_id)
            self.progress.say(f"again     {self.progress.states[run_id].name}: {end.message or end.cause.value}")
        else:
            self._ended(run_id, end.cause.state, end.message)

    def _ended(self, run_id: str, state: State, message: str = "") -> None:
        self.outcome.add(run_id, state, message)
        self.progress.ended(run_id)

    def _give_up(self, worker: RunWorker) -> None:
        """Start no more workers while others are there, which go on with the queue; without any its runs fail."""
        lines = worker.log_path.read_text(errors="replace").strip().splitlines() or ["its log is empty"]
        why = f"{lines[-1]} ({worker.log_path})"
        if any(other.process is not None for other in self.pool):
            self.progress.say(f"fewer     no further worker could start: {why}")
            return
        self.why_no_worker = f"no worker could start: {why}"
        for run_id in self.queue:
            self.outcome.add(run_id, State.FAILED, self.why_no_worker)
        self.queue.clear()

    def _dismiss(self, guard: Guard) -> None:
        """End the workers: they exit when their input ends. All runs have ended, so those still there are killed."""
        for worker in self.pool:
            worker.dismiss()
        deadline = time.monotonic() + LEAVE_S
        while time.monotonic() < deadline and any(w.process is not None and w.poll() is None for w in self.pool):
            time.sleep(0.02)
        guard.dismiss()
        for worker in self.pool:
            if worker.process is not None:
                worker.clean_up()
        self.selector.close()
