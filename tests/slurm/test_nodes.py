"""One run on several nodes of a real SLURM is the run that it would be on one."""

import json
from pathlib import Path

import psutil
import pytest

from sweeps.slurm.nodes import own_ip
from sweeps.slurm.supervised_run import on_nodes
from tests.end_to_end.test_sweep import deterministic
from tests.slurm.local_cluster.settings import Settings
from tests.slurm.place import BANDIT, SlurmHome, causes, wait_for
from tests.support.words import newest

TWO_RANKS = [
    *newest([*BANDIT, "rollout.prompts=4", "rollout.samples=8", "cluster.ranks=2", "steps=6", "evaluation.every=3"]),
    *("tracker=none", "cluster.report=false"),
]


def test_a_node_has_its_share_of_the_ranks_or_none(tmp_path: Path) -> None:
    """Four ranks on two nodes, and a third for workers of Ray."""
    settings = {"ranks": 4, "nodes": 3, "sampling_nodes": 1, "container": None}
    commands = [on_nodes(settings, node, [f"--node={node}"], tmp_path) for node in range(3)]
    ends = [[f"--node={node}", ranks, "-m", "rlvr.job", str(tmp_path)] for node, ranks in enumerate("220")]
    assert [command[-5:] for command in commands] == ends


def test_other_nodes_come_by_the_interface_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "lo")
    assert own_ip() == "127.0.0.1"
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "")
    assert own_ip() in {address.address for every in psutil.net_if_addrs().values() for address in every}


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.timeout(1200)
def test_two_nodes_train_one_run_as_one_node_does(cluster: Settings, tmp_path: Path) -> None:
    """With shards on both nodes, and with a copy of the weights on each."""
    alone, spread, copied = (SlurmHome(tmp_path / name, cluster) for name in ("alone", "spread", "copied"))
    spread.launch("cluster.nodes=2", world=TWO_RANKS)
    copied.launch("cluster.nodes=2", "cluster.shard_over=node", world=TWO_RANKS)
    alone.launch("cluster=local", world=TWO_RANKS)
    wait_for(lambda: not spread.queue() and not copied.queue())
    ((name, run_dir),) = spread.runs().items()
    assert deterministic(copied.runs()[name]) == deterministic(run_dir)
    assert causes(run_dir) == ["ok"], next(spread.home.glob("runs/submissions/*/task_0.out")).read_text()
    (nodes,) = spread.home.glob("runs/submissions/*/task_0.nodes-0")
    ended = [json.loads((nodes / f"1.{node}.json").read_text()) for node in range(2)]
    assert [end["status"] for end in ended] == [0, 0]  # ranks on each of the two
    assert json.loads((run_dir / "attempts/1/job.json").read_text())["ranks"] == 2
    assert deterministic(run_dir) == deterministic(alone.runs()[name])
    assert list(deterministic(run_dir)) == list(range(7))
