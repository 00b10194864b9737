"""Ray's real processes on a node: where they listen, and that they end with the process that started them."""

import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from rlvr.rollout.ray_node import (
    TOKEN,
    answers,
    command,
    directory_of_sockets,
    free_address,
    new_token,
    ray_environment,
)

STARTED = """
import sys, time
from rlvr.rollout.ray_node import RayNode
RayNode(sys.argv[1], 0, 0, 1)
time.sleep(600)
"""


def test_the_first_node_listens_and_the_others_connect_to_it() -> None:
    address = "127.0.0.1:6001"
    first, other = command(address, 0, 0, 2, "/tmp/a"), command(address, 3, 6, 6, "/tmp/b")
    assert {"--head", "--port=6001", "--num-cpus=2", "--num-gpus=0", "--labels=rlvr-node=0"} <= set(first)
    assert {f"--address={address}", "--num-gpus=6", "--labels=rlvr-node=3"} <= set(other)
    assert {"--node-ip-address=127.0.0.1"} <= set(first) & set(other)  # the address towards the first node
    assert "--head" not in other


def test_a_single_node_listens_on_loopback_alone_and_tokens_are_random() -> None:
    clustered = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
    assert (ray_environment("127.0.0.1:1")[clustered], ray_environment("10.0.0.1:1")[clustered]) == ("0", "1")
    assert ray_environment("10.0.0.1:1")["RAY_AUTH_MODE"] == "token"
    assert (len({new_token() for _ in range(9)}), len(new_token())) == (9, 64)


def test_sockets_are_in_the_temporary_directory_if_its_path_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    for parent, is_used in (("/local/me/rlvr-12345678", True), ("/local/a-user/rlvr-12345678", False)):
        made = list[str]()
        monkeypatch.setattr(tempfile, "gettempdir", lambda parent=parent: parent)
        monkeypatch.setattr(
            tempfile, "mkdtemp", lambda prefix, dir, made=made: made.append(dir) or f"{dir}/{prefix}abcdefgh"
        )
        socket = f"{directory_of_sockets()}/session_2026-01-31_23-59-59_123456_1234567/sockets/plasma_store"
        assert len(socket) <= 107  # of a UNIX socket on Linux, without the zero at the end
        assert made == [parent if is_used else "/tmp"]


def test_a_node_that_refuses_or_is_silent_does_not_answer() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server:  # room for one that waits to be accepted
        address = f"127.0.0.1:{server.getsockname()[1]}"
        assert [answers(address), answers(address)] == [True, False]
    assert not answers(address)


def name_of(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.NoSuchProcess:
        return ""


@pytest.mark.real
@pytest.mark.slow
def test_all_processes_end_with_their_starter_even_if_it_is_killed(tmp_path: Path) -> None:
    scratch = tmp_path / "local" / "a-user" / "rlvr-12345678"  # longer than Ray's sockets allow
    scratch.mkdir(parents=True)
    address = free_address()
    environment = {**os.environ, TOKEN: new_token(), "TMPDIR": str(scratch)}
    with subprocess.Popen([sys.executable, "-c", STARTED, address], env=environment) as starter:
        try:
            family = set[psutil.Process]()
            while not {"gcs_server", "raylet"} <= {process.name() for process in family}:
                assert starter.poll() is None
                time.sleep(0.2)
                family = set(psutil.Process(starter.pid).children(recursive=True))
            assert answers(address)
            sockets = [c for process in family for c in process.net_connections() if c.status == psutil.CONN_LISTEN]
            assert {socket.laddr.ip.removeprefix("::ffff:") for socket in sockets} == {"127.0.0.1"}
        finally:
            starter.kill()
    # Ray's two agents end by themselves after a minute
    agents = {process for process in family if "Agent" in name_of(process)}
    _, alive = psutil.wait_procs(family - agents, timeout=90)
    assert not alive
    assert not answers(address)


NO_ROOM = """
import os
from rlvr.rollout import ray_node
os.environ[ray_node.TOKEN] = ray_node.new_token()
node = ray_node.RayNode(ray_node.free_address(), 0, 0, 1)
os.environ |= {ray_node.ADDRESS: node.address, **ray_node.ray_environment(node.address)}
import torch
from rlvr.rollout import ray_cluster
ray_cluster.NODE_TIMEOUT_S = 10.0
try:
    ray_cluster.Cluster(2, 1, 0, torch.device("cpu"))
except RuntimeError as error:
    print(error)
node.close()
"""


@pytest.mark.real
@pytest.mark.slow
def test_workers_without_room_are_reported_with_what_ray_has() -> None:
    """Two workers, each of which needs a core, on a node that has one place."""
    ended = subprocess.run([sys.executable, "-c", NO_ROOM], capture_output=True, text=True, timeout=200, check=False)
    assert "Ray has no room for 2 workers: it has {" in ended.stdout, ended.stderr
    assert "'CPU': 1.0" in ended.stdout
