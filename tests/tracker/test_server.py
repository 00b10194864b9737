"""The shared set-up: an MLflow server on PostgreSQL that comes up whole, keeps what it was given, and stops cleanly."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlvr.ledger import lock
from rlvr.tracker import server as tracking
from rlvr.tracker.server import Server, main
from tests.tracker.places import expected, free_port, make_run, make_sweep, ship


def install() -> None:
    """PostgreSQL from Debian, where it is missing and can be had."""
    if Path("/usr/lib/postgresql").exists() or shutil.which("initdb"):
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        pytest.skip("PostgreSQL is not here, and can be installed by root on Debian only")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", "postgresql"]):
        subprocess.run(["apt-get", *command], env=environment, check=True, capture_output=True, timeout=400)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    install()
    made = Server(Path(f"/tmp/rlvr-tracking-{os.getpid()}"))  # the database's user must be able to enter
    try:
        yield made
    finally:
        made.down()
        shutil.rmtree(made.root, ignore_errors=True)


def rows(server: Server) -> list[tuple[object, ...]]:
    """(run, name, step, milliseconds, value) of every metric in the database, by SQL."""
    import psycopg

    sql = (
        "select t.value, m.key, m.step, m.timestamp, m.value from metrics m join tags t "
        "on t.run_uuid = m.run_uuid and t.key = 'rlvr.run_id'"
    )
    with psycopg.connect(f"host={server.root}/socket user=postgres dbname=mlflow") as connection:
        return sorted(connection.execute(sql).fetchall())


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_metrics_of_a_dead_server_arrive_once_when_it_is_up(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    port, runs = free_port(), ["a" * 12, "b" * 12]
    uri, options = f"http://127.0.0.1:{port}", ["--dir", str(server.root), "--port", str(port)]
    for run_id in runs:
        make_run(tmp_path, run_id, steps=40)
    make_sweep(tmp_path, "s", runs)
    down = ship(tmp_path, "--uri", uri)
    out, error = down.communicate(timeout=120)
    assert (down.returncode, "left 80 lines of 2 runs" in out) == (3, True), out + error
    assert main(["up", *options]) == 0
    assert f"tracker.uri={uri}" in capsys.readouterr().out
    before = server.state
    for _ in range(2):  # the second time there is nothing to send
        up = ship(tmp_path, "--uri", uri)
        assert up.wait(180) == 0, up.communicate()
    wanted = sorted((run_id, *row) for run_id in runs for row in expected(range(40)))
    assert rows(server) == wanted
    assert main(["up", *options]) == 0
    assert server.state == before, "a running one is left as it is"
    assert main(["down", *options]) == 0
    assert not lock.is_alive(before)
    assert (main(["status", *options]), server.uri) == (1, "")


def test_what_is_missing_is_named_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tracking, "DEBIAN", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["up", "--dir", str(tmp_path)]) == 2
    assert "PostgreSQL is not installed. As root on Debian: apt-get install postgresql" in capsys.readouterr().err


def test_nothing_to_stop_is_no_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["down", "--dir", str(tmp_path)]) == 0
    assert "Nothing was running" in capsys.readouterr().out
