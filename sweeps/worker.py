"""The child processes of a local launch: workers that run runs, the metrics shipper, and the guard against orphans."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any, cast

from rlvr.config import imports
from rlvr.ledger import layout
from rlvr.ledger.attempt import newest_attempt

TAG = "RLVR_LAUNCH"  # in the environment of everything that a launch starts, children of children too
WARM = imports.python("-m", "rlvr.job", "--serve")
SHIPPER_S = 60.0  # patience with a shipper when all runs have ended


def of_ranks(
    ranks: int, python: Sequence[str] = (sys.executable, "-P"), place: Sequence[str] = (), module: str = "rlvr.job"
) -> tuple[str, ...]:
    """Command that runs one run as several processes, `ranks` of them on this node; place: where the others are."""
    return (*python, "-m", "rlvr.job.ranks", *place, str(ranks), "-m", module)


def shipping(home: Path, *options: str) -> list[str]:
    """Command that ships metrics to MLflow: one pass over all runs; options: `--sweep ID`, `--follow`, `--uri URI`."""
    return imports.python("-m", "rlvr.tracker.mlflow", "--home", str(home), *options)


def to_store(uri: str | None) -> list[str]:
    """Options of the shipper for `tracker.uri` of a launch, which holds no secret: one with a password is refused.

    Not by the environment: children would take the store for that of every other sweep that names none.
    """
    return ["--uri", uri] if uri else []


def new_tag() -> str:
    return uuid.uuid4().hex


def environment(threads: int, tag: str) -> dict[str, str]:
    """What a worker sees. Passive waiting: idle OpenMP threads of one worker must not eat the cores of another."""
    return {
        **imports.environment(),
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "OMP_WAIT_POLICY": "passive",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        TAG: tag,
    }


class Worker:
    """One place in the pool: a process in a session of its own, so that Ctrl-C of the terminal does not reach it.

    A *warm* worker takes one run after another on its standard input, a JSON object a line {"run_dir"}, and answers on
    its standard output: {"ready": true} once, then {"run_dir", "cause", "code", "message"} per run; it exits when its
    input ends. A cold one (warm=False) is started anew for every run, whose directory is its last argument.
    """

    def __init__(
        self, command: Sequence[str], *, threads: int, tag: str, log: Path, warm: bool, devices: str | None = None
    ) -> None:
        self.command, self.tag, self.log_path, self.warm = list(command), tag, log, warm
        self.env = environment(threads, tag) | ({} if devices is None else {"CUDA_VISIBLE_DEVICES": devices})
        self.process: subprocess.Popen[bytes] | None = None
        self.ready = not warm
        self.run_id: str | None = None
        self.before = 0  # newest attempt of the run when it was given
        self.listening = False  # does somebody read the answers?
        self.busy_s = 0.0  # with all its runs
        self._given, self._unread = 0.0, b""

    @property
    def pid(self) -> int | None:
        return self.process.pid if self.process else None

    def start(self, *arguments: str) -> None:
        """Start the process; its errors are appended to the log."""
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [*self.command, *arguments],
                env=self.env,
                start_new_session=True,
                stderr=log,
                stdin=subprocess.PIPE if self.warm else subprocess.DEVNULL,
                stdout=subprocess.PIPE if self.warm else log,
            )
        self.ready, self._unread = not self.warm, b""
        if self.process.stdout is not None:
            os.set_blocking(self.process.stdout.fileno(), False)

    @property
    def answers(self) -> IO[bytes]:
        assert self.process is not None
        assert self.process.stdout is not None
        return self.process.stdout

    def give(self, run_id: str, run_dir: Path) -> None:
        """Hand over a run. A worker that has just died is found out by `poll`, not here."""
        self.run_id, self.before, self._given = run_id, newest_attempt(run_dir), time.monotonic()
        if not self.warm:
            self.start(str(run_dir))
            return
        assert self.process is not None
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps({"run_dir": str(run_dir)}).encode() + b"\n")
            self.process.stdin.flush()

    def take(self) -> str:
        """The run is over: forget it, count its time."""
        assert self.run_id is not None
        run_id, self.run_id = self.run_id, None
        self.busy_s += time.monotonic() - self._given
        return run_id

    def read(self) -> tuple[list[dict[str, Any]], bool]:
        """(answers that have come, whether the output has ended). What is not an answer goes to the log."""
        ended = False
        with contextlib.suppress(BlockingIOError):  # nothing more for now
            while part := os.read(self.answers.fileno(), 65536):
                self._unread += part
            ended = True
        *lines, self._unread = self._unread.split(b"\n")
        return [answer for line in lines if (answer := self._parse(line)) is not None], ended

    def _parse(self, line: bytes) -> dict[str, Any] | None:
        try:
            answer = json.loads(line)
        except ValueError:
            answer = None
        if isinstance(answer, dict) and ("ready" in answer or "cause" in answer):
            return cast("dict[str, Any]", answer)
        with self.log_path.open("ab") as log:
            log.write(line + b"\n")
        return None

    def poll(self) -> int | None:
        """Exit status if the process has ended (negative: killed by that signal), else None."""
        return self.process.poll() if self.process else None

    def await_end(self, patience_s: float) -> None:
        """Its answers have ended, so it is about to end; kill it if it does not."""
        assert self.process is not None
        try:
            self.process.wait(patience_s)
        except subprocess.TimeoutExpired:
            self.process.kill()

    def bury(self) -> None:
        """The process has ended: end what it left behind (verifiers, ranks) and close the pipes."""
        assert self.process is not None
        kill_tagged(self.tag)
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        self.process, self.ready = None, not self.warm

    def ask_to_stop(self) -> None:
        """SIGTERM to the process alone: its helpers (verifiers) are still needed to finish the step."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()

    def dismiss(self) -> None:
        """No more runs: the end of its input tells a warm worker to leave."""
        if self.process is not None and self.process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()


def pool(
    devices: Sequence[str | None],
    *,
    threads: int,
    ranks: int,
    tag: str,
    logs: Path,
    command: Sequence[str] | None = None,
) -> list[Worker]:
    """Workers for runs of `ranks` processes each. Only those of one process are warm.

    devices: CUDA_VISIBLE_DEVICES of each worker; None: as it is.
    """
    command = command or (WARM if ranks == 1 else of_ranks(ranks))
    return [  # a tag ends, that worker 1's does not begin worker 10's
        Worker(
            command, threads=threads, tag=f"{tag}-{k}-", log=layout.worker_log(logs, k), warm=ranks == 1, devices=own
        )
        for k, own in enumerate(devices)
    ]


class ShipperProcess:
    """The process that carries metrics to MLflow beside the runs. Its death costs nothing but delay.

    It follows until its input ends, then makes a last pass.
    """

    def __init__(self, command: Sequence[str], log: Path) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self.log_path = log
        with log.open("ab") as file:
            self.process = subprocess.Popen(
                list(command),
                env=imports.environment(),
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )

    def finish(self, patience_s: float, hurry: Callable[[], bool]) -> str:
        """End its input and wait, not longer than `patience_s` or until `hurry()`. Returns "" or what to tell the user.

        Cutting it off is harmless: it goes on from its cursor next time.
        """
        with contextlib.suppress(BrokenPipeError):
            assert self.process.stdin is not None
            self.process.stdin.close()
        deadline = time.monotonic() + patience_s
        while (code := self.process.poll()) is None and time.monotonic() < deadline and not hurry():
            time.sleep(0.05)
        if code is None:
            self.process.kill()
            self.process.wait()
        if code == 0:
            return ""
        said = self.log_path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        if code is None:
            why = "its shipper was cut off"
        else:
            why = said[-1].removeprefix("MLflow: ") if said else f"its shipper ended with code {code}"
        text = f"MLflow has not got everything: {why} ({self.log_path}). "
        return text + "All metrics are safe in runs/: `python -m sweeps sync` ships the rest."


class Guard:
    """A bystander that kills everything tagged by a launch when the launcher is gone, `kill -9` included.

    Process groups do not suffice (an engine gives its processes a session of their own), nor does PR_SET_PDEATHSIG (it
    reaches children only, not theirs).
    """

    def __init__(self, tag: str) -> None:
        environment = {k: v for k, v in imports.environment().items() if k != TAG}
        self.process = subprocess.Popen(
            imports.python("-m", "sweeps.worker", tag),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env=environment,
        )

    def dismiss(self) -> None:
        """The launch is over: what it may have left behind is killed now."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(30)


def tagged(tag: str) -> list[int]:
    """Process numbers of all processes whose tag begins so."""
    import psutil

    found: list[int] = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(TAG, "").startswith(tag):
                found.append(process.pid)
    return found


def kill_tagged(tag: str, patience_s: float = 20.0) -> None:
    """SIGKILL everything whose tag begins so, until two looks find nothing: new ones may be born meanwhile, and what
    begins a program has no environment for a moment.
    """
    deadline, empty = time.monotonic() + patience_s, 0
    while time.monotonic() < deadline and empty < 2:
        pids = tagged(tag)
        empty = 0 if pids else empty + 1
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def _guard(tag: str) -> None:
    import psutil  # noqa: F401  # pyright: ignore[reportUnusedImport] - now, not when it matters

    while os.read(0, 4096):  # until the launcher's end of the pipe is closed: by it or by its death
        pass
    kill_tagged(tag)


if __name__ == "__main__":
    _guard(sys.argv[1])
