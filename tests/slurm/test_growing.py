"""A sweep that adds seeds until it is decided, on a real SLURM: the last job of a wave hands in the next."""

from pathlib import Path

import pytest

from rlvr.ledger.sweeps import Ledger
from tests.slurm.local_cluster.settings import Settings
from tests.slurm.place import SlurmHome, wait_for
from tests.sweeps.growing.test_growing import CONTRAST

pytestmark = [pytest.mark.slow, pytest.mark.real, pytest.mark.timeout(1200)]
HERE = ("cluster=local", "budget=12")
WORDS = [*(w for w in CONTRAST if w not in HERE), "budget=24", "cluster.time_min=10", "cluster.memory_gb=1.5"]


def test_waves_of_seeds_go_on_without_the_launcher_until_it_is_decided(cluster: Settings, tmp_path: Path) -> None:
    place = SlurmHome(tmp_path, cluster)
    assert "submitted to SLURM" in place.launch(world=WORDS)
    (planned,) = place.home.glob("runs/sweeps/*/planned.jsonl")
    ledger, sweep_id = Ledger(place.home), planned.parent.name
    # Between two waves the queue holds the job that looks, so that an empty one is the end.
    wait_for(lambda: not place.queue())
    sweep = ledger.sweep(sweep_id)
    until = sweep.info["until"]
    assert until["stopped"] == "decided", until
    assert [look["seeds"] for look in until["looks"]] == until["seeds"][: len(until["looks"])]
    assert 1 < len(until["looks"]) < len(until["seeds"])
    assert len(sweep.run_ids) == 2 * until["looks"][-1]["seeds"]  # of two arms, and none beyond
    assert len(list(place.home.glob("runs/submissions/*"))) >= len(until["looks"])
    code, out = place.python("-m", "rlvr.run", *WORDS)
    assert (code, place.queue()) == (0, {}), out  # nothing is left to do
