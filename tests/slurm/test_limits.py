"""Mistakes of users, each answered in one line that says what to type: without a cluster, and by a real one."""

import os
import re
import sys
from pathlib import Path

import pytest

from rlvr.run import main
from slurm.limits import Node, check, nodes
from slurm.submit import Resources
from tests.slurm.local_cluster.settings import Settings
from tests.slurm.place import BANDIT, SlurmHome, causes, wait_for
from tests.support.words import newest

real = [pytest.mark.slow, pytest.mark.real, pytest.mark.timeout(1200)]
SMALL = Node("main", True, cpus=4, memory_gb=16.0, gpus=0, time_min=60)
LARGE = Node("gpu", False, cpus=64, memory_gb=500.0, gpus=8, time_min=2880)


TOO_MUCH = [
    (Resources(10, 5, 1.0), r"cpus=5 on a node, but no node of partition main has more than 4"),
    (Resources(10, 1, 17.0), r"memory_gb=17 on a node, but no node of partition main has more than 16"),
    (Resources(10, 1, 1.0, gpus=1), r"gpus=1 on a node, but no node of partition main has more than 0"),
    (Resources(61, 1, 1.0), r"cluster.time_min=61 is more than partition main allows: 60. Pass"),
    (Resources(10, 1, 1.0, partition="gup"), r"cluster.partition=gup does not exist here. Partitions: main, gpu"),
    (Resources(10, 1, 1.0, options={"mem": "1G"}), r"cluster.sbatch.mem: pass cluster.memory_gb"),
    (Resources(10, 1, 1.0, options={"job_name": "x"}), r"cluster.sbatch.job_name: the launch needs it"),
    (Resources(10, 1, 1.0, nodes=2), r"2 nodes with 1 CPUs, 0 GPUs and 1 GB each, but 1 of 1"),
]


def test_what_no_node_can_hold_is_refused_and_what_one_can_hold_accepted() -> None:
    for asked, said in TOO_MUCH:
        with pytest.raises(ValueError, match=said):
            check(asked, [SMALL, LARGE])
    check(Resources(60, 4, 16.0), [SMALL, LARGE])
    check(Resources(2000, 64, 400.0, gpus=8, partition="main,gpu"), [SMALL, LARGE])
    check(Resources(10, 1, 99.0), [Node("main", True, cpus=4, memory_gb=0, gpus=0, time_min=60)])  # it does not say


def test_nodes_are_read_as_sinfo_lists_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Several kinds of GPUs, a memory that is not known, and limits in days, in minutes, and none."""
    lines = [
        "main*|4|16384+|(null)|1-02:03:30",
        "gpu|64+|512000|gpu:a100:2(S:0-1),gpu:v100:1,shard:8|90:30",
        "long|2|1|gpu:4|infinite",
    ]
    (program := tmp_path / "sinfo").write_text("#!/bin/sh\ncat <<'END'\n" + "\n".join(lines) + "\nEND\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert nodes() == [
        Node("main", True, cpus=4, memory_gb=16.0, gpus=0, time_min=1440 + 120 + 3 + 0.5),
        Node("gpu", False, cpus=64, memory_gb=500.0, gpus=3, time_min=90.5),
        Node("long", False, cpus=2, memory_gb=0.0, gpus=4, time_min=float("inf")),
    ]


class TestReal:
    pytestmark = real

    def test_a_mistake_is_answered_in_one_line_and_leaves_nothing_behind(
        self, cluster: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        place = SlurmHome(tmp_path, cluster)
        monkeypatch.setenv("SLURM_CONF", str(cluster.conf))
        monkeypatch.setenv("RLVR_HOME", str(tmp_path))
        largest = "on a node, but no node of partition main has more than"
        for mistake, line in {
            "cluster.partition=nowhere": "Partitions: main, preemptible, urgent. Pass cluster.partition=main.",
            "cluster.account=nobody": "Yours: root. Pass cluster.account=root.",
            "cluster.qos=best": "Yours: normal. Pass cluster.qos=normal.",
            "cluster.gpus=3": f"gpus=3 {largest} 2.",
            "cluster.cpus=64": f"cpus=64 {largest} 4.",
            "cluster.memory_gb=64": f"memory_gb=64 {largest} 15.6.",
        }.items():
            assert main(newest([*BANDIT, "tracker=none", mistake])) == 2, mistake
            out, err = capsys.readouterr()
            assert (len(f"{out}{err}".splitlines()), line in err) == (1, True), err
            assert not place.queue()
            assert place.runs() == {}
            assert not list(tmp_path.glob("runs/sweeps/*"))

    def test_what_a_profile_says_reaches_the_run(
        self, cluster: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("USER", "ada")
        place, seen = SlurmHome(tmp_path / "home", cluster), tmp_path / "seen"
        container = tmp_path / "container"
        container.write_text(f'echo "$USED $HF_HOME $TMPDIR" > {seen}; ls -d "$TMPDIR" >> {seen}\n')
        container.write_text(container.read_text() + f'shift; exec {sys.executable} "$@"\n')  # for `python`
        here = [
            *("cluster=example", "cluster.partition=main", "cluster.account=root", "cluster.gpus=0"),
            *("cluster.cpus=1", "cluster.memory_gb=4", "cluster.time_min=10", "cluster.setup=['export USED=module']"),
            *("cluster.report=false", f"cluster.scratch={tmp_path}/local", f"cluster.container='sh {container}'"),
            "+cluster.sbatch.comment=ours",
        ]
        world = [word for word in BANDIT if not word.startswith("cluster.")]
        place.launch(*here, "steps=1", "tracker=none", world=world)
        wait_for(lambda: not place.queue())
        (run_dir,) = place.runs().values()
        assert causes(run_dir) == ["ok"]
        setting, scratch = seen.read_text().splitlines()
        assert setting == f"module /shared/ada/huggingface {scratch}"
        assert re.fullmatch(rf"{tmp_path}/local/rlvr-\d+", scratch)
        assert not list((tmp_path / "local").iterdir())  # removed

    def test_a_tracking_server_that_does_not_answer_is_no_obstacle(self, cluster: Settings, tmp_path: Path) -> None:
        place = SlurmHome(tmp_path, cluster)
        out = place.launch("steps=1", "tracker.uri=http://127.0.0.1:9", "cluster.report=false")
        (line,) = [line for line in out.splitlines() if "127.0.0.1:9" in line]
        assert "does not answer" in line
        assert "python -m sweeps sync" in line
        assert "1 runs submitted to SLURM" in out
        place.client("scancel", "-u", "root")
