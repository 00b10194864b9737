"""The local cluster itself: it comes up whole, twice is once, and a crash leaves nothing behind."""

import os
import signal
import socket
import stat
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from tests.slurm.local_cluster import cluster as local
from tests.slurm.local_cluster import processes
from tests.slurm.local_cluster.__main__ import main
from tests.slurm.local_cluster.packages import program
from tests.slurm.local_cluster.settings import Settings, free_base_port, slurm_conf

pytestmark = pytest.mark.timeout(1200)
real = [pytest.mark.real, pytest.mark.slow]


def test_a_port_in_use_is_passed_over() -> None:
    base = free_base_port(3)
    with socket.create_server(("127.0.0.1", base + 1)):
        assert free_base_port(3) > base + 1


def test_every_node_has_its_own_port_and_nothing_lies_outside_the_directory() -> None:
    settings = Settings(Path("/tmp/x"), 17000, nodes=3)
    ports = [settings.controller_port, settings.accounting_port, *map(settings.node_port, settings.node_names)]
    assert ports == [17000, 17001, 17011, 17012, 17013]
    words = slurm_conf(settings, "host").replace(",", " ").split()
    paths = {word.rsplit("=/", 1)[1] for word in words if "=/" in word}
    assert {path for path in paths if not path.startswith("tmp/x/")} == {"bin/true"}


def test_a_long_path_is_refused_in_words() -> None:
    with pytest.raises(ValueError, match="at most 60 bytes"):
        local.up(Path("/tmp") / ("x" * 80))


def test_nothing_of_it_has_a_name_that_others_could_take_first() -> None:
    for path in (local.ROOT, local.LOCK):
        parent = path.parent.stat()
        assert (parent.st_uid, parent.st_mode & 0o022) == (0, 0), path


@pytest.mark.parametrize("how", ["everybody may write there", "a link", "somebody else's", "in somebody else's"])
def test_a_directory_that_others_can_change_is_refused(
    how: str, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    """Root would run the programs and end the processes that they name there."""
    if os.geteuid() != 0:
        pytest.skip("only root starts a cluster")
    short = tmp_path_factory.mktemp("d")
    root = short / "c" if how == "in somebody else's" else short
    place = short
    if how == "everybody may write there":
        short.chmod(0o777)
    elif how == "a link":
        root = place = short / "l"
        (short / "t").mkdir()
        root.symlink_to(short / "t")
    else:
        os.chown(short, 65534, 65534)
    before = sorted(short.rglob("*"))
    for command in ("up", "down", "status"):
        assert main([command, "--dir", str(root)]) == 2
        assert f"{place} belongs to another user, or others may write there" in capsys.readouterr().err
        assert sorted(short.rglob("*")) == before


def as_nobody(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, user=65534, group=65534, extra_groups=[], cwd="/", capture_output=True, text=True, check=False
    )


class TestReal:
    pytestmark = real

    def test_up_again_leaves_a_running_cluster_as_it_is(self, cluster: Settings) -> None:
        def lasting() -> set[int]:
            """Without those of steps: a job of another test may be ending."""
            return {*processes.daemons(cluster.root)} - {*processes.daemons(cluster.root, "slurmstepd")}

        before = lasting()
        time.sleep(1)
        before &= lasting()  # a daemon forks before it starts a program
        assert (local.up(cluster.root), before - lasting()) == (cluster, set())
        # munged, mariadbd, slurmdbd, slurmctld and its script runner, four slurmds
        assert len(before) >= 8

    def test_no_daemon_listens_beyond_loopback(self, cluster: Settings) -> None:
        listening = {
            (psutil.Process(pid).name(), connection.laddr.ip)
            for pid in processes.daemons(cluster.root)
            for connection in psutil.Process(pid).net_connections("inet")
            if connection.status == psutil.CONN_LISTEN
        }
        assert listening == {(name, "127.0.0.1") for name in ("slurmctld", "slurmdbd", "slurmd")}

    def test_other_users_do_not_reach_the_database(self, cluster: Settings) -> None:
        (pid,) = processes.daemons(cluster.root, "mariadbd")
        assert psutil.Process(pid).username() == "mysql"
        client = [program("mariadb"), "--no-defaults", f"--socket={cluster.database_socket}"]
        for user in ("root", "mysql", "slurm"):
            assert "(13)" in as_nobody(*client, f"--user={user}", "-e", "select 1").stderr  # EACCES
        asked = subprocess.run([*client, "--user=slurm", "-e", "select 1"], capture_output=True, text=True, check=False)
        assert "Access denied" in asked.stderr, "even root needs the password of slurmdbd.conf"
        of_root = subprocess.run(
            [*client, "--user=root", "-Ne", "select 1"], capture_output=True, text=True, check=False
        )
        assert of_root.stdout == "1\n", "who is root here is root there"

    def test_other_users_read_no_secret(self, cluster: Settings) -> None:
        for name in (
            *("munge.key", "slurmdbd.conf", "database.sql", "database/db.sock", "log/slurmctld.log"),
            "state/job_state",
        ):
            assert "Permission denied" in as_nobody("cat", str(cluster.root / name)).stderr, name
        for path in cluster.root.rglob("*"):
            mode = path.lstat().st_mode
            assert not mode & 0o002 or not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)), path

    def test_a_job_sees_the_gpus_it_asked_for(self, cluster: Settings) -> None:
        out = local.client(cluster, "srun", "--gres=gpu:2", "printenv", "CUDA_VISIBLE_DEVICES")
        assert out.strip() == "0,1"

    def test_after_a_crash_down_ends_what_is_left_and_up_starts_afresh(self, cluster: Settings) -> None:
        local.client(cluster, "sbatch", "--output=/dev/null", "--wrap", "exec sleep 1000")
        deadline = time.monotonic() + 20
        while not processes.jobs(cluster.root):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        for kind in ("slurmctld", "slurmd", "slurmstepd", "munged"):
            for pid in processes.daemons(cluster.root, kind):
                os.kill(pid, signal.SIGKILL)
        left = processes.jobs(cluster.root)
        assert left, "the job survives its daemons: that is what must be cleaned up"
        assert local.down(cluster.root) >= 1 + len(left)
        assert processes.daemons(cluster.root) == processes.jobs(cluster.root) == []
        began = time.monotonic()
        local.up(cluster.root, nodes=cluster.nodes)  # as other tests know it
        assert time.monotonic() - began < 60
        assert local.client(cluster, "squeue", "-h") == ""
