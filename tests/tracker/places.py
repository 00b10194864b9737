"""Homes created by hand, real MLflow servers, and the content of a store, read without our code."""

import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

from omegaconf import OmegaConf

from rlvr.ledger import lock
from rlvr.ledger.journal import encode
from rlvr.ledger.runs import FORMAT

ROOT = Path(__file__).resolve().parents[2]
T0 = 1_795_000_000.0  # a moment, seconds since the epoch
COMMAND = "python -m rlvr.run -m eta=1,2"


def make_run(home: Path, run_id: str, *, steps: int = 0, study: str = "eta", **info: object) -> Path:
    """A run as the ledger lays it out, with `steps` lines in its journal."""
    directory = home / "runs" / run_id
    directory.mkdir(parents=True)
    run = {"run_id": run_id, "group_id": f"g-{run_id}", "name": f"lad-js-{run_id}", "study": study, "created": T0}
    run |= {"git_sha": "0123abc", "git_dirty": True, "host": "login", "command": COMMAND, "format": FORMAT}
    (directory / "run.json").write_text(json.dumps(run | info))
    config = {"eta": 0.5, "beta": None, "seed": 0, "lr": "2e-4", "empty": ""}
    config |= {"task": {"size": 7, "test": ["a", "b"]}}
    config |= {"loss": {"_target_": "rlvr.loss.lad.lad", "_partial_": True}}
    config |= {"cluster": {"host": "node7", "job": 123}, "tracker": {"uri": None}, "checkpoint": {"every": 40}}
    config |= {"choices": {"loss": "lad", "divergence@_global_.divergence": "js", "study": None}}
    (directory / "config.yaml").write_text(OmegaConf.to_yaml(OmegaConf.create(config)))
    add_steps(directory, range(steps))
    return directory


def metrics_of(step: int) -> dict[str, float]:
    """Values that a lossy path would change: sevenths have no short binary or decimal form."""
    return {"reward/mean": step / 7, "optim/grad_norm": 1e-300 * (step + 1), "evaluation/maze/avg_at_8": -step / 3}


def add_steps(directory: Path, steps: Sequence[int] | range, attempt: int = 1) -> None:
    with (directory / "metrics.jsonl").open("ab") as file:
        for step in steps:
            file.write(encode(step, T0 + step + 0.123, attempt, metrics_of(step)))


def end_attempt(directory: Path, number: int, cause: str | None, started: float = T0) -> None:
    """cause None: the attempt has not ended; this process is its process."""
    path = directory / "attempts" / str(number)
    path.mkdir(parents=True, exist_ok=True)
    who = {"pid": os.getpid(), "process_start": lock.process_start(os.getpid()), **lock.machine()}
    (path / "job.json").write_text(json.dumps({"attempt": number, "host": f"node{number}", "started": started, **who}))
    if cause is not None:
        (path / "exit.json").write_text(json.dumps({"cause": cause, "code": 0, "time": T0 + 1000.5, "message": ""}))


def make_sweep(home: Path, sweep_id: str, run_ids: Sequence[str], *, study: str = "eta", created: float = T0) -> None:
    directory = home / "runs" / "sweeps" / sweep_id
    directory.mkdir(parents=True)
    sweep = {"sweep_id": sweep_id, "study": study, "command": COMMAND, "created": created, "format": FORMAT}
    (directory / "sweep.json").write_text(json.dumps(sweep))
    lines = [json.dumps({"run_id": r, "name": r, "overrides": [], "index": i}) + "\n" for i, r in enumerate(run_ids)]
    (directory / "manifest.jsonl").write_text("".join(lines))


def query(database: Path, sql: str) -> list[tuple]:
    connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True)
    try:
        return connection.execute(sql).fetchall()
    finally:
        connection.close()


def execute(database: Path, sql: str, *values: object) -> None:
    """As a damaged disk, another program or a person would change it."""
    connection = sqlite3.connect(database)
    connection.execute(sql, values)
    connection.commit()
    connection.close()


def stored(database: Path) -> dict[str, list[tuple]]:
    """{rlvr.run_id: sorted (name, step, milliseconds, value) rows} of the metrics of runs that are not deleted."""
    rows = query(
        database,
        "select t.value, m.key, m.step, m.timestamp, m.value, m.is_nan from metrics m join tags t "
        "on t.run_uuid = m.run_uuid and t.key = 'rlvr.run_id' join runs r on r.run_uuid = m.run_uuid "
        "where r.lifecycle_stage = 'active'",
    )
    rows_of_run: dict[str, list[tuple]] = {}
    for run_id, key, step, stamp, value, is_nan in rows:
        assert not is_nan
        rows_of_run.setdefault(run_id, []).append((key, step, stamp, value))
    return {run_id: sorted(run_rows) for run_id, run_rows in rows_of_run.items()}


def expected(steps: Sequence[int] | range) -> list[tuple]:
    """The rows that the steps of `add_steps` must give: the line's own time in whole milliseconds, values exact."""
    return sorted((k, s, int(T0 + s) * 1000 + 123, v) for s in steps for k, v in metrics_of(s).items())


def num_runs(database: Path) -> int:
    """MLflow runs that are not deleted, without the parent runs of sweeps."""
    ours = "key = 'rlvr.run_id' and lifecycle_stage = 'active'"
    return query(database, f"select count(*) from tags join runs using (run_uuid) where {ours}")[0][0]


def ship(home: Path, *arguments: str, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    """Start the command."""
    command = [sys.executable, "-m", "rlvr.tracker.mlflow", "--home", str(home), *arguments]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen(command, cwd=ROOT, env={**os.environ, **(env or {})}, text=True, **pipes)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """A real `mlflow server` on its own sqlite database. Restartable on the same port."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self.database = folder / "server.db"
        self.uri = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", f"sqlite:///{self.database}"]
        command += ["--artifacts-destination", str(self.folder / "artifacts"), "--workers", "1"]
        command += ["--host", "127.0.0.1", "--port", str(self.port)]
        environment = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
        log = (self.folder / "server.log").open("ab")
        self._process = subprocess.Popen(
            command, cwd=self.folder, env=environment, stdout=log, stderr=log, start_new_session=True
        )
        until = time.monotonic() + 90
        while not self._healthy():
            assert self._process.poll() is None, (self.folder / "server.log").read_text()
            assert time.monotonic() < until, (self.folder / "server.log").read_text()
            time.sleep(0.2)

    def _healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.uri}/health", timeout=2) as answer:
                return answer.status == 200
        except OSError:
            return False

    def kill(self) -> None:
        """Kill the whole process group at once, like a crash of the machine."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None
