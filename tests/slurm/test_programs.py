"""Another program than our trainer, on SLURM: its job is preempted twice, and every step is recorded once."""

from collections.abc import Callable
from pathlib import Path

import pytest

from slurm.local_cluster.settings import Settings
from tests.end_to_end.test_extending import rlvr, written
from tests.end_to_end.test_programs_page import recorded
from tests.slurm.place import SlurmHome, causes, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.real, pytest.mark.timeout(1200)]

WORDS = ["program=reinforce", "task=digits", "program.width=2,4", "steps=1500", "evaluation.every=1500"]
ON_SLURM = ["cluster=slurm", "cluster.time_min=10", "cluster.report=false", "tracker=none"]


def has_logged(run_dir: Path, steps: int) -> Callable[[], bool]:
    return lambda: (run_dir / "metrics.jsonl").exists() and len(recorded(run_dir)) > steps


def test_a_requeued_job_goes_on_from_the_state_that_its_program_saved(
    cluster: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_CONF", str(cluster.conf))
    mine, place = written(tmp_path, "programs.md"), SlurmHome(tmp_path / "home", cluster)
    words = ["run", "--config-dir", "mine", "-m", *WORDS, *ON_SLURM]
    code, out = rlvr(*words, home=place.home, cwd=mine.parent)
    assert code == 0, out
    assert "2 runs submitted to SLURM" in out
    run_dir = next(path for name, path in place.runs().items() if "width2" in name)
    for steps in (50, 200):
        wait_for(has_logged(run_dir, steps), every_s=0.1)
        for task in place.queue():
            place.client("scontrol", "requeue", task)
    wait_for(lambda: not place.queue())
    for name, path in place.runs().items():
        assert recorded(path).keys() == set(range(1501)), name
        assert causes(path)[-1] == "ok"
    assert causes(run_dir) == ["preempted", "preempted", "ok"]
