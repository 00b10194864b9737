import json
import os
import re
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from rlvr.config import own_code
from rlvr.config.schema import HUB
from rlvr.ledger import inputs, layout
from rlvr.ledger.attempt import Attempt
from rlvr.ledger.stages import record_stages
from rlvr.ledger.sweeps import Ledger
from sweeps import before_launch
from sweeps.before_launch import warn_of_changed_inputs
from sweeps.plan import Plan, plan, write
from sweeps.preview import _local_resources, _rounded, _size, differences, preview
from tests.support.composed import REGISTRY, composed
from tests.support.composing import composing
from tests.support.hollow import write_hollow_model
from tests.test_run import Command, command

__all__ = ["command"]  # a fixture


def planned(*points: list[str]) -> Plan:
    with composing():
        return plan([(overrides, *composed(*overrides)) for overrides in points], command="")


def finish(ledger: Ledger, run_id: str, steps: int, seconds: float) -> None:
    with Attempt.open(ledger.run_dir(run_id)) as attempt:
        attempt.heartbeat(steps, steps, "train")
        attempt._started -= seconds
        attempt.close("ok")


def finish_after_a_stage(ledger: Ledger, run_id: str, steps: int, seconds: float, of_these_waited: float) -> None:
    """A run that waited for a stage first."""
    run_dir = ledger.run_dir(run_id)
    stage = layout.stages_beside(run_dir) / "0123456789abcdef"
    stage.mkdir(parents=True)
    record_stages(run_dir, [stage.name])
    finish(ledger, run_id, steps, seconds)
    (job,) = run_dir.rglob("job.json")
    began = time.time() - seconds
    job.write_text(json.dumps(json.loads(job.read_text()) | {"started": began}))
    os.utime(stage, times=(began + of_these_waited, began + of_these_waited))


def test_where_names_would_be_too_long_they_keep_what_some_arms_alone_have() -> None:
    common = ["loss=grpo", "task.test_problems=123", "evaluation.samples=16", "trainer.weight_decay=0.0123"]
    common += ["rollout.temperature=0.987654321", "evaluation.temperature=0.987654321"]
    names = [run.name for run in planned(common, [*common, "loss.clip_high=0.28"]).runs]
    assert names == ["grpo-s0", "grpo-clip_high0.28-s0"]


def test_the_seed_of_a_model_is_named_as_such() -> None:
    names = [run.name for run in planned(["loss=grpo", "model.seed=1"], ["loss=grpo", "model.seed=2"]).runs]
    assert names == ["grpo-model.seed1-s0", "grpo-model.seed2-s0"]


@pytest.mark.slow
def test_a_run_differs_by_its_options_and_by_the_knobs_that_were_set_and_nothing_else() -> None:
    usual, other, study = planned(
        ["eta=0.25"], ["loss=grpo", "steps=9", "loss.clip_low=0.1"], ["study=eta", "eta=2"]
    ).runs
    assert differences(usual, REGISTRY) == {"eta": 0.25}
    assert differences(other, REGISTRY) == {"loss": "grpo", "steps": 9, "loss.clip_low": 0.1}
    assert differences(study, REGISTRY)["eta"] == 2
    (both,) = planned(["model=coins_tiny", "task=coins", "seed=1", "model.seed=1"]).runs
    assert differences(both, REGISTRY)["model.seed"] == 1  # is no copy of `seed`, as trainer.seed is
    assert "trainer.seed" not in differences(both, REGISTRY)
    assert "study" not in differences(study, REGISTRY)
    assert not {"baseline", "claims"} & set(differences(study, REGISTRY))
    (tuned,) = planned(["study=tuned", "loss=grpo"]).runs  # the launch says what is tuned, and may have typed its own
    assert "tune" not in differences(tuned, REGISTRY)


@pytest.mark.slow
def test_a_recipe_says_at_which_scale_it_is_and_what_was_typed_beside_it_counts(tmp_path: Path) -> None:
    """The numbers of conf/paper/maxrl_maze.yaml and of conf/paper/small/smollm.yaml."""
    mazes, sums, usual = (
        preview(planned([*words, "cluster=local"]), Ledger(tmp_path), slurm=False).splitlines()
        for words in (
            ["paper=maxrl_maze", "steps=2000"],
            ["paper=small/smollm", f"model.revision={'a' * 40}"],
            ["steps=9"],
        )
    )
    shape = "2,000 steps of 32 problems with 128 answers"
    assert f"paper=maxrl_maze: model=maze_3m task=maze task.size=17, {shape}" in mazes
    model = f"model=HuggingFaceTB/SmolLM2-135M-Instruct@{'a' * 40} task=sums task.level=1"
    assert f"paper=small/smollm: {model}, 20 steps of 8 problems with 8 answers of up to 16 tokens" in sums
    assert not any(line.startswith("paper=") for line in usual)


def test_what_all_runs_have_is_said_once_and_a_control_that_repeats_an_arm_is_marked(tmp_path: Path) -> None:
    new_plan = planned(["steps=9", "seed=0"], ["steps=9", "seed=1"])
    marked = replace(new_plan, runs=(new_plan.runs[0], replace(new_plan.runs[1], control="seeds")))
    text = preview(marked, Ledger(tmp_path), slurm=False)
    assert "2 runs, 0 finished, 2 to do" in text
    assert [text.count(part) for part in ("steps=9", "seed=1", "seed=1 control=seeds")] == [1, 1, 1]


@pytest.mark.slow
def test_a_pretrained_model_that_trains_alone_has_all_cores_unless_threads_are_typed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(before_launch, "available_cores", lambda: 6)
    monkeypatch.setattr(before_launch, "available_gpus", list[str])

    def threads(*points: list[str], model: str = HUB) -> list[int]:
        runs = tuple(replace(run, config={**run.config, "model": {"_target_": model}}) for run in planned(*points).runs)
        given = before_launch.with_all_cores(replace(planned(*points), runs=runs))
        return [run.config["cluster"]["threads"] for run in given.runs]

    assert (threads(["seed=1"]), threads(["cluster.ranks=2"])) == ([6], [3])
    assert (threads(["cluster.threads=1"]), threads(["seed=1"], ["seed=2"])) == ([1], [1, 1])
    assert threads(["seed=1"], model="rlvr.model.tiny.tiny") == [1]


@pytest.mark.slow
def test_time_is_that_of_finished_runs_alike(tmp_path: Path) -> None:
    """A run of 10 steps took 3600 s: 40 steps on 2 threads take 4 h, 8 CPU-hours; a larger rollout is another kind."""
    ledger = Ledger(tmp_path)
    past = planned(["steps=10", "seed=7"])
    write(past, ledger)
    finish(ledger, past.runs[0].run_id, 10, 3600)
    cluster = ["cluster=slurm", "cluster.cpus=3"]
    coming = planned(["steps=40", "eta=2", "cluster.threads=2", *cluster], ["rollout.prompts=64", *cluster])
    text = preview(coming, ledger, slurm=True)
    assert "about 8 CPU-hours (from 1 finished run alike; 1 run by the cost model of cpu, an order of size)" in text
    assert "2 runs: SLURM, 1 rank, 3 CPUs, 0 GPUs, 4 GB" in text
    gpu = preview(planned(["steps=40", "cluster.gpus=2", *cluster]), ledger, slurm=True)
    assert "about 8 GPU-hours" in gpu


def test_the_pace_of_finished_runs_is_without_the_stage_that_the_first_one_built(tmp_path: Path) -> None:
    """10 steps in 1000 of 3600 s, after the base policy was built: 36 steps on one thread take an hour."""
    ledger, past = Ledger(tmp_path), planned(["steps=10", "seed=7"])
    write(past, ledger)
    finish_after_a_stage(ledger, past.runs[0].run_id, 10, 3600, of_these_waited=2600)
    assert "about 1 CPU-hours (from 1 finished run alike)" in preview(planned(["steps=36"]), ledger, slurm=True)


@pytest.mark.slow
def test_gpus_that_a_recipe_asks_for_and_this_machine_lacks_are_told_on_paper(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A launch is refused for them with one rank too, which could train on the CPU."""
    ledger, local = Ledger(tmp_path), ["cluster=local", "cluster.gpus=4"]
    past, coming = planned(["steps=10", "seed=7", *local]), planned(["steps=40", *local])
    on_cpu = planned(["steps=40", "cluster=local", "cluster.workers=3"])
    write(past, ledger)
    finish(ledger, past.runs[0].run_id, 10, 3600)
    for visible, has, num in (("", "no GPU", 0), ("0", "1 GPU", 1), ("0,1", "2 GPUs", 2)):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        text = preview(coming, ledger, slurm=False)
        refusal = f"cluster.gpus=4, and this machine has {has}. Pass cluster.gpus={num},"
        assert f"1 rank with 1 thread each; not here: {refusal}" in text
        assert " here (from" not in text
        text = preview(on_cpu, ledger, slurm=False)
        assert "1 rank with 1 thread each, 3 at a time on this machine" in text
        assert " here (from" in text


def test_the_gpus_of_an_engine_beside_the_ranks_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seven GPUs hold two runs of one rank and two workers each."""
    monkeypatch.setattr("sweeps.machine.available_cores", lambda: 64)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3,4,5,6")
    cluster = {"workers": None, "threads": 1, "ranks": 1, "nodes": 1, "gpus": 0}
    config = {"cluster": cluster, "rollout": {"engine": {"workers": 2}}}
    assert _local_resources(config) == "1 rank with 1 thread each, 2 at a time on this machine"


@pytest.mark.slow
def test_disk_is_what_finished_runs_alike_left(tmp_path: Path) -> None:
    """A run left 4 MB and kept a checkpoint of 2 MB: two runs that keep three each will need 2·(4 + 3·2) = 20 MB."""
    ledger, past = Ledger(tmp_path), planned(["steps=10", "seed=7"])
    write(past, ledger)
    finish(ledger, past.runs[0].run_id, 10, 20)
    run_dir = ledger.run_dir(past.runs[0].run_id)
    for name, megabytes in (("checkpoints/step-10/data", 2), ("samples/all", 4)):
        (run_dir / name).parent.mkdir(parents=True)
        (run_dir / name).write_bytes(bytes(megabytes * 2**20))
    coming = planned(["steps=40", "checkpoint.keep=3"], ["steps=40", "eta=2", "checkpoint.keep=3"])
    assert "\nDisk: about 20 MB, " in preview(coming, ledger, slurm=False)


def test_disk_and_gpu_memory_of_a_model_of_known_size(tmp_path: Path) -> None:
    """Qwen2.5-1.5B: 1.54 billion parameters, 12 bytes of each in a checkpoint, two checkpoints kept: 34.5 GB."""
    numbers = {"model_type": "qwen2", "num_hidden_layers": 28, "hidden_size": 1536, "intermediate_size": 8960}
    numbers |= {"vocab_size": 151936, "num_attention_heads": 12, "num_key_value_heads": 2, "tie_word_embeddings": True}
    write_hollow_model(tmp_path, numbers)
    model = ["model=hf", f"model.path={tmp_path}", "rollout.max_tokens=256"]
    gpus = ["cluster=slurm", "cluster.gpus=2", "cluster.ranks=2", "cluster.gpu_memory_gb=141"]
    text = preview(planned([*model, *gpus]), Ledger(tmp_path), slurm=True)
    assert "\nDisk: about 35 GB, " in text
    assert re.search(r"\nGPU memory: about [\d.]+ GB of 141 GB \(activations [\d.]+, ", text)
    # The remedies are those of the largest parts: activations here, and the engine's cache if it is larger.
    largest = {
        (): "trainer.activation_checkpointing=true or a smaller trainer.token_budget",
        ("rollout.engine.max_cache_gb=64", "trainer.token_budget=512"): "a smaller rollout.engine.max_cache_gb",
    }
    for words, remedy in largest.items():
        fault = r"cluster\.gpu_memory_gb=16, and a GPU of this run needs about .*Pass "
        with pytest.raises(ValueError, match=fault + re.escape(remedy)):
            planned([*model, *gpus[:-1], "cluster.gpu_memory_gb=16", *words])


def test_each_process_has_a_gpu_of_its_own() -> None:
    with pytest.raises(ValueError, match=r"cluster\.gpus=1\. Pass cluster\.gpus=2, or fewer ranks"):
        planned(["cluster=slurm", "cluster.gpus=1", "cluster.ranks=2"])


@pytest.mark.slow
def test_what_is_finished_is_not_to_do(tmp_path: Path) -> None:
    ledger, both = Ledger(tmp_path), planned(["steps=10", "seed=0"], ["steps=10", "seed=1"])
    write(both, ledger)
    finish(ledger, both.runs[1].run_id, 10, 20)
    text = preview(both, ledger, slurm=False)
    assert "2 runs, 1 finished, 1 to do" in text
    lines = {line.split()[0]: line for line in text.splitlines() if line.startswith("  ")}
    assert "new" in lines[both.runs[0].run_id]
    assert "finished" in lines[both.runs[1].run_id]
    write(one := planned(["steps=10", "seed=1"]), ledger)
    assert "Nothing to do." in preview(one, ledger, slurm=False)


@pytest.mark.slow
def test_a_dry_run_writes_and_starts_nothing(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, cwd = tmp_path / "home", tmp_path / "cwd"
    home.mkdir()
    cwd.mkdir()
    monkeypatch.chdir(cwd)
    for arguments in (["-m", "loss=lad,grpo", "seed=0,1"], ["eta=2"], ["study=eta"]):
        code, out, errors = command(*arguments, "cluster=local", "--dry-run", home=home)
        assert code == 0, errors
        assert "Dry run: nothing was written or started." in out
        assert not [*home.iterdir(), *cwd.iterdir()]


UNREAD = {
    "cluster=local cluster.time_min=10": "No effect with cluster=local: cluster.time_min=10.",
    "cluster=local +cluster.environment.A=b cluster.partition=gpu cluster.threads=2": (
        "No effect with cluster=local: +cluster.environment.A=b, cluster.partition=gpu."
    ),
    "cluster=slurm cluster.workers=2": "No effect with cluster=slurm: cluster.workers=2.",
    "cluster=local cluster.time_min=240 cluster.workers=2": "",  # 240 is what it is anyway
    "cluster=slurm cluster.time_min=10": "",
    "cluster=auto cluster.time_min=10 cluster.workers=2": "",
}


@pytest.mark.slow
def test_a_launch_names_the_knobs_of_the_cluster_that_it_does_not_read() -> None:
    for words, line in UNREAD.items():
        runs = planned([*words.split(), "seed=0"], [*words.split(), "seed=1"])
        assert before_launch._unread_lines(runs, REGISTRY, words.split()) == [line] * bool(line), words
        assert before_launch._unread_lines(runs, REGISTRY, ["study=mine"]) == []


@pytest.mark.slow
def test_what_a_study_expects_is_kept_with_the_sweep_and_makes_no_other_run(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    claiming = planned(["study=eta", "eta=2"], ["study=eta", "loss=grpo"])
    write(claiming, ledger)
    (sweep,) = ledger.sweeps()
    assert sweep.info["baseline"] == "loss=grpo"
    assert [claim["metric"] for claim in sweep.info["claims"]] == ["avg", "avg", "pass", "right answers", "pass"]
    silent = planned(["study=eta", "eta=2", "claims=[]", "baseline=null"], ["study=eta", "loss=grpo"])
    assert silent.runs[0].run_id == claiming.runs[0].run_id
    write(silent, ledger)
    (sweep,) = ledger.sweeps()
    assert (sweep.info["baseline"], sweep.info["claims"]) == (None, [])


def test_only_a_launch_that_speaks_of_claims_withdraws_them() -> None:
    """More seeds of arms whose claims were typed at their first launch."""
    more = planned(["loss=grpo", "seed=1"])
    assert not {"claims", "baseline"} & more.about.keys()
    withdrawn = replace(more, command="python -m rlvr.run loss=grpo seed=1 claims=[] 'name=a b'")
    assert withdrawn.about["claims"] == []
    assert "baseline" not in withdrawn.about


def test_a_claim_that_cannot_be_read_is_refused_before_anything_is_launched() -> None:
    for claim, message in (
        ("{says: wins, metric: avg, arm: 'loss=lad', relation: better}", "a relation is >, <, ~ MARGIN"),
        ("{says: wins, metric: avg, relation: '>'}", "lacks arm"),
        ("{says: same, metric: avg, arm: 'loss=lad', relation: '~ 0'}", "that two arms are the same within 0. Name a"),
        ("wins", "got 'wins'"),
    ):
        with pytest.raises(ValueError, match=f"claim 1: .*{re.escape(message)}"):
            planned(["study=eta", "eta=2", f"claims=[{claim}]"])


def test_hours_of_runs_like_none_are_modelled(tmp_path: Path) -> None:
    text = preview(planned(["steps=40", "rollout.prompts=64"]), Ledger(tmp_path), slurm=False)
    line = r"Time: about \S+ CPU-hours, \S+ here \(1 run by the cost model of cpu, an order of size\)"
    assert re.search(line, text), text


def test_hours_and_gigabytes_are_whole_from_ten_up() -> None:
    rows = {7660.4: "7,660", 1183: "1,183", 110: "110", 54.4: "54", 9.96: "10", 9.94: "9.9", 0.123: "0.12"}
    for amount, shown in rows.items():
        assert _rounded(amount) == shown
        assert _size(amount * 2**30).removesuffix(" GB") == shown or amount < 0.5


def test_a_number_typed_in_two_forms_is_one_run() -> None:
    for key in ("trainer.clip_norm", "rollout.temperature", "lr"):
        with pytest.raises(ValueError, match=f"{key}=1 and {key}=1.0 make the same run"):
            planned([f"{key}=1"], [f"{key}=1.0"])
    own = ["program=trl", "loss=grpo"]
    assert len(planned([*own, "lr=1e-3"], [*own, "lr=1e-2"]).runs) == 2  # a program reads `lr` itself


def test_a_launch_names_finished_runs_that_read_something_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, ledger = tmp_path / "train.jsonl", Ledger(tmp_path)
    config = {"task": {"train": str(data)}, "steps": 1}
    data.write_text("before")
    for run_id in ("a" * 12, "b" * 12, "c" * 12):
        ledger.create_run(run_id, f"steps: 1\ntask: {{train: {data}}}\n", {"name": run_id[0], "overrides": []})
        inputs.record(ledger.run_dir(run_id), config)
    configs = dict.fromkeys(ledger.runs(), config)
    for run_id in ("a" * 12, "b" * 12):
        finish(ledger, run_id, 1, 1)
    warn_of_changed_inputs(ledger, configs)
    assert capsys.readouterr().err == ""
    data.write_text("after that")
    warn_of_changed_inputs(ledger, configs)
    assert capsys.readouterr().err == (
        f"task.train={data}: 2 finished runs read other content than is there now, and are not run again. Give the new "
        "one another path, which makes other runs.\n"
    )


def test_a_launch_names_finished_runs_of_other_code_and_what_to_type(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, ledger = tmp_path / "mine", Ledger(tmp_path)
    mine.mkdir()
    (mine / "launched_loss.py").write_text("before")
    monkeypatch.setattr(sys, "path", [*sys.path, str(mine)])
    config = {"task": {}, "loss": {"_target_": "launched_loss.f"}, "steps": 1}
    for run_id in ("a" * 12, "b" * 12, "c" * 12):
        ledger.create_run(run_id, "steps: 1\n", {"name": run_id[0], "overrides": []})
        inputs.record_code(ledger.run_dir(run_id), own_code.versions(config, [str(mine)]))
    configs = dict.fromkeys(ledger.runs(), config)
    finish(ledger, "a" * 12, 1, 1)
    warn_of_changed_inputs(ledger, configs)
    assert capsys.readouterr().err == ""
    (mine / "launched_loss.py").write_text("after that")
    own_name = " To have both: a module of another name for the new one, in its `_target_`, which makes other runs.\n"
    for run_id, runs, be, folders in (
        ("a" * 12, "1 finished run was", "is", "a" * 12),
        ("b" * 12, "2 finished runs were", "are", f"{{{'a' * 12},{'b' * 12}}}"),
    ):
        if run_id == "b" * 12:
            finish(ledger, run_id, 1, 1)
        warn_of_changed_inputs(ledger, configs)
        assert capsys.readouterr().err == (
            f"{mine}/launched_loss.py: {runs} made with another version, and {be} not run again. To train anew: "
            f"rm -r {tmp_path}/runs/{folders}, and the same command.{own_name}"
        )
