"""The local cluster itself: it comes up whole, twice is once, and a crash leaves nothing behind."""

from __future__ import annotations

import os
import signal
import socket
import time
from pathlib import Path

import pytest

from slurm.local_cluster import cluster as local
from slurm.local_cluster import processes
from slurm.local_cluster.settings import Settings, free_base_port, slurm_conf

pytestmark = pytest.mark.timeout(300)
real = [pytest.mark.real, pytest.mark.slow]


def test_a_port_in_use_is_passed_over() -> None:
    base = free_base_port(3)
    with socket.create_server(("127.0.0.1", base + 1)):
        assert free_base_port(3) > base + 1


def test_every_node_has_its_own_port_and_nothing_lies_outside_the_directory() -> None:
    made = Settings(Path("/tmp/x"), 17000, nodes=3)
    assert made.ports == [17000, 17001, 17002, 17011, 17012, 17013]
    words = slurm_conf(made, "host").replace(",", " ").split()
    paths = {word.rsplit("=/", 1)[1] for word in words if "=/" in word}
    assert {path for path in paths if not path.startswith("tmp/x/")} == {"bin/true"}


def test_a_long_path_is_refused_in_words() -> None:
    with pytest.raises(ValueError, match="at most 60 bytes"):
        local.up(Path("/tmp") / ("x" * 80))


class TestReal:
    pytestmark = real

    def test_up_again_leaves_a_running_cluster_as_it_is(self, cluster: Settings) -> None:
        before = sorted(processes.daemons(cluster.root))
        assert local.up(cluster.root) == cluster
        assert sorted(processes.daemons(cluster.root)) == before
        # munged, mariadbd, slurmdbd, slurmctld and its script runner, four slurmds
        assert len(before) >= 8

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
