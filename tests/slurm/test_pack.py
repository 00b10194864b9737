import subprocess
from pathlib import Path

import pytest

from rlvr.ledger.sweeps import Ledger
from slurm.client import QueuedTask
from sweeps.slurm.job_of_runs import share
from sweeps.slurm.jobs import cluster_of, of_runs
from sweeps.slurm.launch import Array, chunks
from sweeps.slurm.submissions import by_run, record
from tests.end_to_end.test_sweep import deterministic
from tests.slurm.local_cluster.settings import Settings
from tests.slurm.place import SlurmHome, causes, freeze, process_of, wait_for

CLUSTER = {
    **{"threads": 2, "ranks": 1, "nodes": 1, "sampling_nodes": 0, "pack": 3, "cpus": None, "memory_gb": 4, "gpus": 1},
    **{"time_min": 10, "partition": None, "account": None, "qos": None, "environment": {}, "scratch": None},
    **{"setup": [], "sbatch": {}},
}


def test_a_packed_job_asks_for_the_cpus_and_memory_of_all_and_shares_its_gpus() -> None:
    asked = of_runs(CLUSTER)
    assert (asked.cpus, asked.memory_gb, asked.gpus) == (9, 12, 1)  # three runs of 2 threads and a verifier
    assert [share("0,1,2,3", place, 2) for place in range(2)] == ["0,1", "2,3"]
    assert [share("4,5", place, 4) for place in range(4)] == ["4", "4", "5", "5"]
    assert share(None, 0, 2) is None


def test_engines_have_cpus_beside_their_ranks() -> None:
    """On each of two nodes a rank and three workers of Ray, of 2 threads each, and a verifier. Then eight ranks and as
    many vLLMs beside them."""
    cluster = {**CLUSTER, "ranks": 2, "nodes": 2, "pack": 1, "gpus": 4}
    config = {"cluster": cluster, "rollout": {"engine": {"workers": 6}}}
    asked = of_runs(cluster_of(config))
    assert (asked.nodes, asked.cpus, asked.gpus) == (2, 9, 4)
    assert of_runs(cluster_of({**config, "cluster": {**cluster, "cpus": 5}})).cpus == 5
    assert of_runs(cluster_of({**config, "rollout": {"engine": {}}})).cpus == 3
    eight = {"cluster": {**CLUSTER, "ranks": 8, "pack": 1, "gpus": 8}, "rollout": {"engine": {"python": None}}}
    assert of_runs(cluster_of(eight)).cpus == 33


def test_nodes_without_ranks_have_cores_for_their_workers_and_a_token_that_no_file_knows() -> None:
    """Two nodes of a rank each, and one of three workers with 2 threads and a verifier."""
    cluster = {**CLUSTER, "ranks": 2, "nodes": 3, "sampling_nodes": 1, "pack": 1, "gpus": 0}
    asked = of_runs(cluster_of({"cluster": cluster, "rollout": {"engine": {"workers": 3}}}))
    assert (asked.nodes, asked.cpus) == (3, 7)
    drawn = [subprocess.check_output(["sh", "-c", "\n".join([*asked.lines, 'echo "$RAY_AUTH_TOKEN"'])]) for _ in "12"]
    assert [len(bytes.fromhex(token.decode().strip())) for token in drawn] == [32, 32]
    assert drawn[0] != drawn[1]
    assert "RAY_AUTH_TOKEN" not in of_runs(cluster_of({"cluster": cluster, "rollout": {"engine": {}}})).environment


def test_a_task_of_an_array_stands_for_each_of_its_runs(tmp_path: Path) -> None:
    groups = [Array({"pack": 2}, ["a", "b", "c", "d", "e"])]
    assert [array.run_ids for array in chunks(groups, 2)] == [["a", "b", "c", "d"], ["e"]]
    name = f"rlvr-{record(Ledger(tmp_path), 's', ['a', 'b', 'c'], {'pack': 2}).name}"
    first, second = (QueuedTask(f"7_{k}", name, k, "RUNNING", "None", "n1") for k in range(2))
    assert by_run(Ledger(tmp_path), [first, second]) == {"a": first, "b": first, "c": second}


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.timeout(1200)
def test_a_run_that_fails_harms_none_beside_it_and_is_not_repeated_when_the_job_is(
    cluster: Settings, tmp_path: Path
) -> None:
    place = SlurmHome(tmp_path, cluster)
    long = ["steps=300", "evaluation.every=300", "checkpoint.every=50", "tracker=none", "cluster.report=false"]
    packed = [*long, "seed=0,1,2", "cluster.pack=3", "cluster.cpus=1", "cluster.retries=0"]
    place.launch(*packed)
    runs = list(place.runs().values())
    freeze(runs)
    (task,) = place.queue()
    process_of(runs[1]).kill()
    wait_for(lambda: causes(runs[1]) == ["error"])
    place.client("scancel", "-s", "USR2", task)  # time is nearly up
    for run in (runs[0], runs[2]):
        process_of(run).resume()
    wait_for(lambda: place.queue() == {task: "PENDING"})
    wait_for(lambda: not place.queue())
    assert [causes(run) for run in runs] == [["time_limit", "ok"], ["error"], ["time_limit", "ok"]]
    assert list(deterministic(runs[0])) == list(deterministic(runs[2])) == list(range(301))
    assert "1 runs submitted to SLURM" in place.launch(*packed)  # the one that failed, when asked
    wait_for(lambda: not place.queue())
    assert causes(runs[1]) == ["error", "ok"]
