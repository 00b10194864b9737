"""A real SLURM for these tests, in a directory of its own; skipped where there can be none.

RLVR_TEST_CLUSTER=DIR keeps it there, up, for the next time: who works on these tests need not wait for it.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.slurm.local_cluster import cluster as local
from tests.slurm.local_cluster.packages import obstacle
from tests.slurm.local_cluster.settings import Settings
from tests.slurm.place import INTERRUPTED, SlurmHome
from tests.slurm.stand_in import FakeSlurm


@pytest.fixture(scope="session")
def slurm() -> Iterator[Settings]:
    if why := obstacle():
        pytest.skip(why)
    if kept := os.environ.get("RLVR_TEST_CLUSTER"):
        yield local.up(Path(kept), nodes=5)
        return
    root = Path(f"/tmp/rlvr-slurm-{os.getpid()}")
    try:
        yield local.up(root, nodes=5)
    finally:
        local.down(root)
        shutil.rmtree(root, ignore_errors=True)


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    return FakeSlurm.installed(tmp_path, monkeypatch)


@pytest.fixture(scope="session")
def undisturbed(slurm: Settings, tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Path]:
    """Where the runs of five seeds are, trained on this machine when they are first asked for."""
    place = SlurmHome(tmp_path_factory.mktemp("undisturbed"), slurm)

    def trained() -> Path:
        if not place.runs():
            place.launch(*INTERRUPTED, "seed=0,1,2,3,4", "cluster=local")
        return place.home / "runs"

    return trained


@pytest.fixture(scope="module")
def cluster(slurm: Settings) -> Iterator[Settings]:
    """What a test that failed left in the queue is not the next module's to wait for."""
    yield slurm
    local.client(slurm, "scancel", f"--user={os.geteuid()}")
