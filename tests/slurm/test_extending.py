"""A loss, a task and a study from a directory elsewhere, on SLURM: no node and no retry is told where it lies."""

import json
import os
from pathlib import Path

import pytest

from slurm.local_cluster.settings import Settings
from tests.end_to_end.test_extending import rlvr, written
from tests.slurm.place import SlurmHome, causes, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.real, pytest.mark.timeout(1200)]

ON_SLURM = ["cluster=slurm", "cluster.time_min=10", "tracker=none"]


def test_what_lies_elsewhere_runs_on_nodes_is_cancelled_and_retried_from_anywhere(
    cluster: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_CONF", str(cluster.conf))
    mine, home, away = written(tmp_path), tmp_path / "home", tmp_path / "away"
    away.mkdir()
    place = SlurmHome(home, cluster)
    place.client("scontrol", "update", "PartitionName=main", "State=DOWN")
    try:
        words = ["run", "--config-dir", "mine", "study=days", *ON_SLURM]
        code, out = rlvr(*words, home=home, cwd=mine.parent)
        assert code == 0, out
        assert "4 runs submitted to SLURM" in out
        (sweep,) = home.glob("runs/sweeps/*")
        assert rlvr("cancel", sweep.name, home=home, cwd=away)[0] == 0
        wait_for(lambda: len(place.queue()) == 1)  # the report's job, which waits for no run any more
        code, out = rlvr("retry", sweep.name, home=home, cwd=away)
        assert code == 0, out
        assert "4 runs submitted to SLURM" in out
    finally:
        place.client("scontrol", "update", "PartitionName=main", "State=UP")
    wait_for(lambda: not place.queue())
    assert len(place.runs()) == 4
    for name, run_dir in place.runs().items():
        assert causes(run_dir) == ["ok"], name
        last = json.loads((run_dir / "metrics.jsonl").read_text().splitlines()[-1])["metrics"]
        assert last["evaluation/weekdays/avg_at_8"] > 0.9, name
    page = (home / "reports/days/index.html").read_text()  # by the job that waited for all of them
    assert "Does it help to push wrong answers away?" in page
    script = next(home.glob("runs/submissions/*/array.sbatch")).read_text()
    assert str(mine) not in script
    assert str(mine) not in os.environ.get("PYTHONPATH", "")
    run_dir = place.runs()["filtered-push0.1-s0"]
    code, out = rlvr("export", str(run_dir), str(away / "policy"), home=home, cwd=away)
    assert code == 0, out
