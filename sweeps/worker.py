"""The child processes of a local launch: workers that execute runs, the metrics shipper, the guard against orphans."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, cast

from rlvr.config import imports
from rlvr.ledger import layout
from rlvr.ledger.attempt import newest_attempt

TAG = "RLVR_LAUNCH"  # environment variable of all processes that a launch starts, and of their children
WARM = imports.python_command("-m", "rlvr.job", "--serve")
SHIPPER_S = 60.0  # longest wait for the shipper once all runs have ended
KILL_S = 20.0  # longest time in which processes with a tag are killed


def ranks_command(
    ranks: int, python: Sequence[str] = (sys.executable, "-P"), place: Sequence[str] = (), module: str = "rlvr.job"
) -> tuple[str, ...]:
    """Command that executes one run as several processes, `ranks` of them on this node. place: options of
    rlvr.job.ranks that name this node's place among several.
    """
    return (*python, "-m", "rlvr.job.ranks", *place, str(ranks), "-m", module)


def shipper_command(home: Path, *options: str, uri: str | None) -> list[str]:
    """Command that ships metrics to MLflow: one pass over all runs; options: `--sweep ID`, `--follow`.

    uri: `tracker.uri` of a launch. It holds no secret: a URI with a password is refused. It is not passed in the
    environment, where children would use it for other sweeps that set no `tracker.uri`.
    """
    store = ["--uri", uri] if uri else []
    return imports.python_command("-m", "rlvr.tracker.mlflow", "--home", str(home), *options, *store)


def in_own_session(
    command: Sequence[str], *, env: Mapping[str, str] | None = None, **pipes: Any
) -> subprocess.Popen[bytes]:
    """A process in a session of its own, which the terminal's Ctrl-C does not reach. env: None: that of a child."""
    environment = imports.child_environment() if env is None else env
    return subprocess.Popen[bytes](list(command), env=environment, start_new_session=True, **pipes)


def new_tag() -> str:
    return uuid.uuid4().hex


def environment(threads: int, tag: str) -> dict[str, str]:
    """The environment of a worker. Waiting is passive, so that idle OpenMP threads of one worker use no core time."""
    return {
        **imports.child_environment(),
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "OMP_WAIT_POLICY": "passive",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        TAG: tag,
    }


class RunWorker:
    """One worker of the pool: a process in a session of its own.

    A *warm* worker reads one run after another from its standard input, a JSON object {"run_dir"} per line, and answers
    on its standard output: {"ready": true} once, then {"run_dir", "cause", "code", "message"} per run. It exits when
    its input ends. A cold one (warm=False) is started anew for every run, whose directory is its last argument.
    """

    def __init__(
        self, command: Sequence[str], *, threads: int, tag: str, log: Path, warm: bool, devices: str | None = None
    ) -> None:
        self.command, self.tag, self.log_path, self.warm = list(command), tag, log, warm
        self.env = environment(threads, tag) | ({} if devices is None else {"CUDA_VISIBLE_DEVICES": devices})
        self.process: subprocess.Popen[bytes] | None = None
        self.ready = not warm
        self.run_id: str | None = None
        self.before = 0  # newest attempt of the run when it was assigned to this worker
        self.listening = False  # whether the dispatcher reads its answers
        self.busy_s = 0.0  # time with runs, summed over all of them
        self._run_began, self._unread = 0.0, b""

    def start(self, *arguments: str) -> None:
        """Start the process; its errors are appended to the log."""
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        pipe = subprocess.PIPE
        with self.log_path.open("ab") as log:
            pipes = {"stdin": pipe, "stdout": pipe} if self.warm else {"stdin": subprocess.DEVNULL, "stdout": log}
            self.process = in_own_session([*self.command, *arguments], env=self.env, stderr=log, **pipes)
        self.ready, self._unread = not self.warm, b""
        if self.process.stdout is not None:
            os.set_blocking(self.process.stdout.fileno(), False)

    @property
    def answers(self) -> IO[bytes]:
        assert self.process is not None
        assert self.process.stdout is not None
        return self.process.stdout

    def give(self, run_id: str, run_dir: Path) -> None:
        """Assign a run to this worker. If its process has just ended, `poll` will show it, not this method.

        Raises OSError if a cold worker cannot be started: it then has no run.
        """
        before = newest_attempt(run_dir)
        if not self.warm:
            self.start(str(run_dir))
        self.run_id, self.before, self._run_began = run_id, before, time.monotonic()
        if self.warm:
            assert self.process is not None
            assert self.process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.write(json.dumps({"run_dir": str(run_dir)}).encode() + b"\n")
                self.process.stdin.flush()

    def take(self) -> str:
        """Return the run, which has ended, and count its time: the worker is idle again."""
        assert self.run_id is not None
        run_id, self.run_id = self.run_id, None
        self.busy_s += time.monotonic() - self._run_began
        return run_id

    def read(self) -> tuple[list[dict[str, Any]], bool]:
        """(new answers, whether the output has ended). Output that is not an answer goes to the log."""
        ended = False
        with contextlib.suppress(BlockingIOError):  # no more output for now
            while part := os.read(self.answers.fileno(), 65536):
                self._unread += part
            ended = True
        *lines, self._unread = self._unread.split(b"\n")
        parsed = [self._parse(line) for line in lines]
        return [answer for answer in parsed if answer is not None], ended

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
        """Wait for the process, whose output has ended, to exit; kill it if it does not."""
        assert self.process is not None
        try:
            self.process.wait(patience_s)
        except subprocess.TimeoutExpired:
            self.process.kill()

    def clean_up(self) -> None:
        """After the process has ended: kill its children (verifiers, ranks) and close the pipes."""
        assert self.process is not None
        kill_tagged(self.tag)
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        self.process, self.ready = None, not self.warm

    def ask_to_stop(self) -> None:
        """Send SIGTERM to the process alone: its children (verifiers) are still needed to finish the step."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()

    def dismiss(self) -> None:
        """Close the input of the process, upon which a warm worker exits."""
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
) -> list[RunWorker]:
    """Workers for runs of `ranks` processes each. Workers are warm only for runs of one process.

    devices: CUDA_VISIBLE_DEVICES of each worker; None: unchanged.
    """
    command = command or (WARM if ranks == 1 else ranks_command(ranks))
    return [
        RunWorker(
            command,
            threads=threads,
            tag=f"{tag}-{k}-",  # with a hyphen at its end, so that the tag of worker 1 is no prefix of worker 10's
            log=layout.worker_log(logs, k),
            warm=ranks == 1,
            devices=visible,
        )
        for k, visible in enumerate(devices)
    ]


class ShipperProcess:
    """The process that ships metrics to MLflow while runs are running. If it is killed, metrics only arrive later.

    It ships until its input ends, then makes a last pass.
    """

    def __init__(self, command: Sequence[str] | None, logs: Path) -> None:
        """command: None for a launch that ships nothing."""
        self.command, self.log_path = command, layout.shipper_log(logs)
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, unless it is running."""
        if self.command is None or self.process is not None:
            return
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        with self.log_path.open("ab") as file:
            self._log_start = file.tell()  # it may contain output of earlier launches
            self.process = in_own_session(self.command, stdin=subprocess.PIPE, stdout=file, stderr=file)

    def finish(self, say: Callable[[str], None], hurry: Callable[[], bool] = lambda: False) -> None:
        """Close its input and wait for its exit, at most SHIPPER_S or until `hurry()` is true; then kill it. That is
        harmless: the next shipper continues from its cursor. `say` is told of metrics that are not shipped.
        """
        if self.process is None:
            return
        with contextlib.suppress(BrokenPipeError):
            assert self.process.stdin is not None
            self.process.stdin.close()
        deadline = time.monotonic() + SHIPPER_S
        while (code := self.process.poll()) is None and time.monotonic() < deadline and not hurry():
            time.sleep(0.05)
        if code is None:
            self.process.kill()
            self.process.wait()
        if code == 0:
            return
        log = self.log_path.read_bytes()[self._log_start :].decode(errors="replace").strip().splitlines()
        if code is None:
            why = "its shipper was killed before it was done"
        else:
            why = log[-1].partition(": ")[2] or log[-1] if log else f"its shipper ended with code {code}"
        text = f"Not all metrics are shipped yet: {why} ({self.log_path}). "
        say(text + "All metrics are safe in runs/: `python -m sweeps sync` ships the rest.")


class Guard:
    """A process that kills all processes with the tag of a launch when the launcher has ended, `kill -9` included.

    Process groups do not suffice (an engine starts its processes in sessions of their own), nor does PR_SET_PDEATHSIG
    (which reaches children only, not their children).
    """

    def __init__(self, tag: str) -> None:
        environment = {k: v for k, v in imports.child_environment().items() if k != TAG}
        command, silent = imports.python_command("-m", "sweeps.worker", tag), subprocess.DEVNULL
        self.process = in_own_session(command, env=environment, stdin=subprocess.PIPE, stdout=silent, stderr=silent)

    def dismiss(self) -> None:
        """At the end of a launch: let the guard kill all processes that are left, and wait for it."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(30)


def tagged(tag: str) -> list[int]:
    """Pids of all processes whose tag begins with `tag`."""
    import psutil

    pids: list[int] = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(TAG, "").startswith(tag):
                pids.append(process.pid)
    return pids


def kill_tagged(tag: str) -> None:
    """SIGKILL all processes whose tag begins with `tag`, until none is seen twice in a row: meanwhile new ones may have
    been forked, and a process in exec has no environment for a moment.
    """
    deadline, num_empty = time.monotonic() + KILL_S, 0
    while time.monotonic() < deadline and num_empty < 2:
        pids = tagged(tag)
        num_empty = 0 if pids else num_empty + 1
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


if __name__ == "__main__":
    import psutil  # noqa: F401  # pyright: ignore[reportUnusedImport] - so that `tagged` does not wait for the import

    while os.read(0, 4096):  # until the launcher closes its end of the pipe, or ends
        pass
    kill_tagged(sys.argv[1])
