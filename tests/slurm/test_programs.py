"""Another program than our trainer, on SLURM: its jobs are preempted twice, and every step is recorded once."""

import json
from pathlib import Path

import pytest

from slurm.local_cluster.settings import Settings
from tests.end_to_end.test_extending import rlvr, written
from tests.end_to_end.test_programs_page import recorded
from tests.slurm.place import SlurmHome, causes, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.real, pytest.mark.timeout(1200)]

STUDY = ["run", "--config-dir", "mine", "study=width", "steps=1500", "evaluation.every=1500"]
ON_SLURM = ["cluster=slurm", "cluster.time_min=10", "cluster.report=false", "tracker=none"]


def test_the_pages_study_is_preempted_twice_and_decided(
    cluster: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two knobs with two values each, and three seeds. A preempted job saves, and its next attempt goes on."""
    monkeypatch.setenv("SLURM_CONF", str(cluster.conf))
    mine, place = written(tmp_path, "programs.md"), SlurmHome(tmp_path / "home", cluster)
    code, out = rlvr(*STUDY, *ON_SLURM, home=place.home, cwd=mine.parent)
    assert code == 0, out
    assert "12 runs submitted to SLURM" in out

    def steps() -> int:
        return sum(len(recorded(path)) for path in place.runs().values() if (path / "metrics.jsonl").exists())

    for _ in range(2):
        before = steps()
        wait_for(lambda before=before: steps() > before + 100, every_s=0.1)
        for task in (task for task, state in place.queue().items() if state == "RUNNING"):
            place.client("scontrol", "requeue", task)
    wait_for(lambda: not place.queue())
    for name, path in place.runs().items():
        assert recorded(path).keys() == set(range(1501)), name
        assert causes(path)[-1] == "ok"
    assert sum(causes(path).count("preempted") for path in place.runs().values()) >= 2
    code, out = rlvr("report", "--study", "width", "--json", home=place.home, cwd=tmp_path)
    assert code == 0, out
    (study,) = json.loads(out[out.index("[") :])
    assert [v["outcome"] for v in study["verdicts"] if v["says"].startswith("a wide network")] == ["holds"]
