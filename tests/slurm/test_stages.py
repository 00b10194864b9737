"""Stages on a real SLURM: built once, by a job of their own, for every run that starts from them."""

import json
import signal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rlvr.ledger.cause import Cause
from rlvr.ledger.stages import record_stages, recorded_stages
from rlvr.ledger.state import RunState
from rlvr.ledger.sweeps import Ledger
from slurm.client import QueuedTask
from slurm.supervise import Supervisor
from sweeps.slurm.job_of_stage import StageTask
from sweeps.slurm.stages import ranks_of_stage
from sweeps.slurm.submissions import Queue, by_kind, record, with_queue_states
from tests.slurm.local_cluster.settings import Settings
from tests.slurm.place import SlurmHome, causes, wait_for

real = [pytest.mark.slow, pytest.mark.real, pytest.mark.timeout(1200)]

# Arms that rehearse what the base policy solves: both stages, as small as they can be.
WORLD = [
    *("-m", "task.size=5", "task.test_problems=4", "model.steps=60", "model.batch=16", "steps=1"),
    *("rollout.prompts=4", "rollout.samples=4", "rollout.dynamic_sampling=none", "trainer.updates=1"),
    *("evaluation.samples=1", "evaluation.k=[1]", "presample.samples=choice(4)", "presample.threshold=choice(1)"),
    *("presample.problems=choice(16)", "presample.ratio=choice(4)", "tracker=none", "cluster.report=false"),
    "cluster.time_min=10",
]


def stage_jobs(place: SlurmHome) -> list[dict[str, Any]]:
    contents = [json.loads(path.read_text()) for path in place.home.glob("runs/submissions/*/submission.json")]
    return sorted((content for content in contents if "stage" in content), key=lambda content: content["created"])


class TestReal:
    pytestmark = real

    def test_two_jobs_feed_every_arm_of_two_sweeps(self, cluster: Settings, tmp_path: Path) -> None:
        place = SlurmHome(tmp_path, cluster)
        output = place.launch("loss=dph_js", world=WORLD)
        assert "1 runs submitted to SLURM" in output
        assert "after stage" in output
        assert "after stage" not in place.launch("loss=dph_forward_kl", world=WORLD)  # jobs build both already
        wait_for(lambda: not place.queue())
        runs = list(place.runs().values())
        assert [causes(run) for run in runs] == [["ok"], ["ok"]]
        pretrain, presample = stage_jobs(place)
        assert (pretrain["source"], presample["source"]) == ("pretrain", "presample")
        for run in runs:  # what was named before anything ran is what they used
            assert recorded_stages(run) == [pretrain["stage"], presample["stage"]]
            assert "building the" not in (run / "attempts/1/log.txt").read_text()
        stands = {path.name for path in tmp_path.glob("runs/stages/*") if path.is_dir()}
        assert stands == {pretrain["stage"], presample["stage"]}
        scripts = list(tmp_path.glob("runs/submissions/*/stage.sbatch"))
        assert [oct(path.stat().st_mode & 0o777) for path in scripts] == ["0o600"] * 2

    def test_answers_are_sampled_by_the_ranks_of_a_node_and_are_those_of_one(
        self, cluster: Settings, tmp_path: Path
    ) -> None:
        tables = list[pa.Table]()
        for ranks in (1, 2):
            place = SlurmHome(tmp_path / str(ranks), cluster)
            place.launch("loss=dph_js", f"cluster.ranks={ranks}", world=WORLD)
            wait_for(lambda place=place: not place.queue())
            assert [causes(run) for run in place.runs().values()] == [["ok"]]
            pretrain, presample = stage_jobs(place)
            assert (pretrain["ranks"], presample["ranks"]) == (1, ranks)
            tables.append(pq.read_table(place.home / "runs" / "stages" / presample["stage"] / "problems.parquet"))
        one, two = (table.drop_columns("logp").to_pylist() for table in tables)
        assert (len(one), one) == (16, two)

    def test_a_failed_stage_releases_nothing_and_says_why(self, cluster: Settings, tmp_path: Path) -> None:
        place = SlurmHome(tmp_path, cluster)
        wrong = "+model.architecture.hidden_act=nothing"
        assert "2 runs submitted to SLURM" in place.launch("loss=dph_js,dph_forward_kl", wrong, world=WORLD)
        wait_for(lambda: not place.queue())
        shown = list(place.status().values())
        assert [(run["state"], run["attempt"]) for run in shown] == [("failed", 0)] * 2
        pretrain, presample = stage_jobs(place)
        for run in shown:
            assert f"the pretrain stage {pretrain['stage']} that it starts from was not built" in run["message"]
            assert "KeyError: 'nothing'" in run["message"]
            assert Path(run["log"]).read_text()
        code, out = place.python("-m", "sweeps", "retry", "main")
        assert code == 0, out
        assert "2 runs submitted to SLURM" in out
        again = stage_jobs(place)[2:]
        assert [content["stage"] for content in again] == [pretrain["stage"], presample["stage"]]
        code, out = place.python("-m", "sweeps", "cancel", "main")
        assert code == 0, out
        wait_for(lambda: not place.queue())


def test_a_vllm_on_several_gpus_has_as_many_ranks_to_sample_before_training() -> None:
    node = {"ranks": 1, "nodes": 1, "sampling_nodes": 0, "gpus": 5}
    of_ray = {"workers": 2, "tensor_parallel": 2}
    assert ranks_of_stage(node, of_ray) == 2  # 1 + 2·2 GPUs: two of them
    assert ranks_of_stage({**node, "ranks": 3}, of_ray) == 2
    assert ranks_of_stage({**node, "ranks": 12, "nodes": 4, "sampling_nodes": 1}, {"tensor_parallel": 4}) == 4
    assert ranks_of_stage({**node, "gpus": 0}, {"tensor_parallel": 2}) == 1  # a CPU's vLLM has as many as it likes


def test_a_run_waits_while_its_stage_has_a_job_or_stands_and_has_failed_when_its_stage_has(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    record_stages(ledger.create_run("a", "{}", {"name": "a"}), ["s1"])
    stage = record(ledger, "sweep", [], {"stage": "s1", "source": "pretrain"})

    def shown(**stages: QueuedTask) -> RunState:
        return with_queue_states(ledger, ledger.states("a"), Queue({}, stages=stages))[0]

    assert shown().state == "planned"  # its launch was killed before sbatch
    task = QueuedTask("7", f"rlvr-{stage.name}", None, "RUNNING", "None", "n1")
    assert (by_kind(ledger, [task], "stage"), shown(s1=task).state) == ({"s1": task}, "planned")
    (stage / "end.json").write_text('{"cause": "host_oom", "message": "raise cluster.memory_gb"}')
    state = shown()
    assert (state.state, state.cause, state.log) == ("failed", "stage", stage / "stage.out")
    assert "the pretrain stage s1" in state.message
    assert "host_oom: raise cluster.memory_gb" in state.message
    (tmp_path / "runs/stages/s1").mkdir(parents=True)  # built by another job
    assert shown().state == "planned"


def test_a_preempted_job_of_a_stage_that_cannot_be_requeued_records_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    about = {"stage": "s1", "source": "pretrain", "run": "a", "ranks": 1, "threads": 1, "container": None}
    submission = record(Ledger(tmp_path), "sweep", [], {**about, "retries": 0, "requeues": 3, "time_min": 10})
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    monkeypatch.setenv("PATH", "/nowhere")  # SLURM does not answer
    with Supervisor() as supervisor:
        supervisor.stop_signal = signal.SIGTERM
        assert StageTask(submission, supervisor).run() == Cause.PREEMPTED.code
    assert json.loads((submission / "end.json").read_text())["cause"] == "preempted"
    assert "not requeued: scontrol is not on PATH" in capfd.readouterr().out
