import base64
import os
import re
import shutil
import stat
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from rlvr.ledger import lock
from rlvr.tracker import server as tracking
from rlvr.tracker.server import TrackingServer, main
from tests.tracker.places import expected, free_port, make_run, make_sweep, ship


def install() -> None:
    """Install PostgreSQL from Debian, if it is missing and available."""
    if Path("/usr/lib/postgresql").exists() or shutil.which("initdb"):
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        pytest.skip("PostgreSQL is not here, and can be installed by root on Debian only")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", "postgresql"]):
        subprocess.run(["apt-get", *command], env=environment, check=True, capture_output=True, timeout=400)


@pytest.fixture(scope="module")
def server() -> Iterator[TrackingServer]:
    install()
    tracking_server = TrackingServer(Path(f"/tmp/rlvr-tracking-{os.getpid()}"))  # that the database's user can enter
    try:
        yield tracking_server
    finally:
        tracking_server.down()
        shutil.rmtree(tracking_server.root, ignore_errors=True)


def credentials(server: TrackingServer) -> dict[str, str]:
    """What `. client.env` sets in a shell."""
    return dict(re.findall(r"^export (\w+)=(.*)$", server.client_env.read_text(), re.MULTILINE))


def rows(server: TrackingServer) -> list[tuple[object, ...]]:
    """(run, name, step, milliseconds, value) of every metric in the database, by SQL."""
    import psycopg

    sql = (
        "select t.value, m.key, m.step, m.timestamp, m.value from metrics m join tags t "
        "on t.run_uuid = m.run_uuid and t.key = 'rlvr.run_id'"
    )
    with psycopg.connect(f"host={server.root}/socket user=postgres dbname=mlflow") as connection:
        return sorted(connection.execute(sql).fetchall())


@pytest.mark.smoke
@pytest.mark.real
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_metrics_of_a_dead_server_arrive_once_when_it_is_up(
    server: TrackingServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
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
    for name, value in credentials(server).items():
        monkeypatch.setenv(name, value)
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


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_after_the_database_was_killed_up_starts_it_with_its_data(server: TrackingServer) -> None:
    options = ["--dir", str(server.root), "--port", str(free_port())]
    assert main(["up", *options]) == 0
    server._sql("create table kept (x int)")
    file = server.root / "database/postmaster.pid"
    for fault in ("none", "a process that hangs", "given away", "empty"):
        database = psutil.Process(int(file.read_text().split()[0]))
        children = database.children()
        if fault == "a process that hangs":
            children[0].suspend()
        database.kill()
        database.wait()
        if fault in ("given away", "empty"):  # as after a power cut: another process has the database's number
            _, *others = file.read_text().split("\n")
            file.write_text("\n".join([str(os.getpid()), *others]) if fault == "given away" else "")
        if fault == "empty":
            assert main(["down", *options]) == 0
            assert main(["up", *options]) == 0
        else:  # without MLflow, which takes long to start
            server._start_database()
        assert server._sql("select to_regclass('kept')") == "kept"
    assert answer(server.uri, credentials(server)["MLFLOW_TRACKING_PASSWORD"]) == 200
    assert main(["down", *options]) == 0
    assert not file.exists()


def answer(uri: str, password: str = "", path: str = "/api/2.0/mlflow/experiments/search?max_results=1") -> int:
    """Status of a request, with a password if there is one."""
    request = urllib.request.Request(uri + path)
    if password:
        request.add_header("Authorization", "Basic " + base64.b64encode(f"rlvr:{password}".encode()).decode())
    try:
        with urllib.request.urlopen(request, timeout=30) as reply:
            return reply.status
    except urllib.error.HTTPError as error:
        return error.code


PATHS = (
    *("/", "/api/2.0/mlflow/experiments/search?max_results=1", "/graphql", "/metrics", "/v1/traces"),
    *("/get-artifact?path=x&run_uuid=y", "/api/2.0/mlflow-artifacts/artifacts", "/ajax-api/3.0/jobs/1"),
)


def as_nobody(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, user=65534, group=65534, extra_groups=[], cwd="/", capture_output=True, text=True, check=False
    )


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_other_users_of_the_machine_have_no_access(server: TrackingServer, capsys: pytest.CaptureFixture[str]) -> None:
    port = free_port()
    uri, options = f"http://127.0.0.1:{port}", ["--dir", str(server.root), "--port", str(port)]
    assert main(["up", *options]) == 0
    password = credentials(server)["MLFLOW_TRACKING_PASSWORD"]
    printed = capsys.readouterr().out
    assert f". {server.client_env}" in printed
    assert password not in printed
    for path in PATHS:
        assert answer(uri, path=path) == answer(uri, "guess", path=path) == 401, path
    assert (answer(uri, password), stat.S_IMODE(server.client_env.stat().st_mode)) == (200, 0o600)
    assert not server.root.stat().st_mode & 0o007
    for name in ("database", "socket", "artifacts"):
        assert stat.S_IMODE((server.root / name).stat().st_mode) == 0o700
    if os.geteuid() == 0:
        for path in (server.client_env, server.root / "auth.ini", server.root / "mlflow.log"):
            assert "Permission denied" in as_nobody("cat", str(path)).stderr
        reached = as_nobody("psql", "-h", f"{server.root}/socket", "-U", "postgres", "-c", "select 1", "mlflow")
        assert "Permission denied" in reached.stderr
    main(["down", *options])
    server.client_env.unlink()  # to replace a password that is no longer secret
    assert main(["up", *options]) == 0
    assert (answer(uri, password), answer(uri, credentials(server)["MLFLOW_TRACKING_PASSWORD"])) == (401, 200)
    main(["down", *options])


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(os.geteuid() != 0, reason="only root is replaced by another user")
def test_started_by_root_no_process_runs_as_root(server: TrackingServer) -> None:
    """With the system's Python, which every user can read, and this environment's packages."""
    system = shutil.which("python3", path="/usr/bin:/usr/local/bin")
    packages = [path for path in sys.path if path.endswith("site-packages") and os.access(path, os.R_OK)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *packages])}
    path = f"PYTHONPATH={environment['PYTHONPATH']}"
    if system is None or as_nobody("env", path, system, "-c", "import mlflow").returncode:
        pytest.skip("no Python that another user can run")
    root, port = Path(f"{server.root}-other"), free_port()
    command = [system, "-m", "rlvr.tracker.server"]
    options = ["--dir", str(root), "--port", str(port)]
    try:
        up = subprocess.run([*command, "up", *options], env=environment, capture_output=True, text=True, check=False)
        assert up.returncode == 0, up.stderr
        named = [p for p in psutil.process_iter() if str(root).encode() in commandline(p.pid)]
        family = {p for parent in named for p in (parent, *parent.children(recursive=True))}
        assert len(family) > 4, "MLflow and its workers, PostgreSQL and its processes"
        assert {p.username() for p in family} == {"postgres"}
        assert answer(f"http://127.0.0.1:{port}", credentials(TrackingServer(root))["MLFLOW_TRACKING_PASSWORD"]) == 200
    finally:
        subprocess.run([*command, "down", *options], env=environment, check=False, capture_output=True)
        shutil.rmtree(root, ignore_errors=True)


def commandline(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@pytest.mark.parametrize("how", ["everybody may write there", "a link", "somebody else's", "in somebody else's"])
def test_a_directory_others_can_change_is_refused(how: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its files name processes that `down` would kill."""
    root = tmp_path / "place" if how == "in somebody else's" else tmp_path
    place = tmp_path
    if how == "everybody may write there":
        tmp_path.chmod(0o777)
    elif how == "a link":
        root = place = tmp_path / "link"
        (tmp_path / "target").mkdir()
        root.symlink_to(tmp_path / "target")
    elif os.geteuid() != 0:
        pytest.skip("only root can give a directory away")
    else:
        os.chown(tmp_path, 65534, 65534)
    before = sorted(tmp_path.rglob("*"))
    for command in ("up", "down", "status"):
        assert main([command, "--dir", str(root)]) == 2
        assert f"tracking: {place} belongs to another user, or others may write there" in capsys.readouterr().err
        assert sorted(tmp_path.rglob("*")) == before


def test_what_is_missing_is_named_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tracking, "DEBIAN", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["up", "--dir", str(tmp_path)]) == 2
    assert "PostgreSQL is not installed. As root on Debian: apt-get install postgresql" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["up", "down"])
def test_a_directory_that_is_a_file_is_an_error_of_one_line(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tracking, "_check_requirements", lambda _: None)
    (file := tmp_path / "file").touch()
    assert main([command, "--dir", str(file)]) == 2
    printed = capsys.readouterr().err
    assert (printed.startswith(f"tracking: {file}"), printed.count("\n")) == (True, 1)


def test_nothing_to_stop_is_no_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["down", "--dir", str(tmp_path)]) == 0
    assert "Nothing was running" in capsys.readouterr().out
