"""The submitting process is killed, at every point in turn; the repeated command makes everything good."""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlvr.ledger import layout
from rlvr.ledger.files import read_json
from rlvr.ledger.sweeps import Ledger
from sweeps.slurm import submissions
from tests.slurm.local_cluster import cluster as local
from tests.slurm.local_cluster.settings import Settings
from tests.slurm.place import SlurmHome

pytestmark = [pytest.mark.slow, pytest.mark.real, pytest.mark.timeout(1200)]

TWO_RUNS = [
    *("-m", "seed=0,1", "task.size=5", "task.test_problems=4", "model.steps=60", "tracker=none"),
    *("cluster.partition=preemptible", "cluster.time_min=10"),
]


@pytest.fixture
def held_partition(cluster: Settings) -> Iterator[None]:
    """Its jobs wait: what was submitted can be counted."""
    local.client(cluster, "scontrol", "update", "PartitionName=preemptible", "State=DOWN")
    yield
    local.client(cluster, "scancel", "-p", "preemptible", "--quiet", "-u", "root")
    local.client(cluster, "scontrol", "update", "PartitionName=preemptible", "State=UP")


@pytest.mark.usefixtures("held_partition")
@pytest.mark.parametrize(("kind", "at_least"), [("write", 30), ("sbatch", 3)])
def test_a_submitter_killed_anywhere_loses_and_doubles_nothing(
    cluster: Settings, tmp_path: Path, kind: str, at_least: int
) -> None:
    code, out = SlurmHome(tmp_path, cluster).python("-m", "tests.slurm.killed_launches", str(tmp_path), kind, *TWO_RUNS)
    assert code == 0, out
    launches = [tuple(map(int, line.split())) for line in out.splitlines() if re.fullmatch(r"\d+ -?\d+ \d+", line)]
    assert len(launches) > at_least
    assert [ended for _, ended, _ in launches] == [-9] * (len(launches) - 1) + [0]
    queue = local.client(cluster, "squeue", "-h", "-r", "-o", "%K|%j").splitlines()
    for number, _, repeated in launches:
        home = tmp_path / f"{kind}-{number}"
        assert repeated == 0, (number, Path(f"{home}.log").read_text())
        assert jobs(Ledger(home), queue) == {**dict.fromkeys(Ledger(home).runs(), 1), "stage": 1, "report": 1}, number
        assert (len(Ledger(home).runs()), len(Ledger(home).sweeps())) == (2, 1)


def jobs(ledger: Ledger, queue: list[str]) -> Counter[str]:
    """How many jobs each run of this home has, and how many build stages and reports."""
    counts: Counter[str] = Counter()
    for line in queue:
        index, name = line.split("|")
        path = layout.submissions(ledger.home) / submissions.token(name) / "submission.json"
        about = read_json(path) or {"runs": []}
        counts.update([word for word in ("stage", "report") if word in about])
        counts.update([about["runs"][int(index)]] if about["runs"] else [])
    return counts
