"""`python -m rlvr.evaluate` on a run that was really trained: the same samples by any engine and in any parts."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from omegaconf import OmegaConf

from rlvr.config.freeze import group_of
from rlvr.evaluate import EvaluatedPolicy, _of_checkpoint, _with_distinct_names, main, policies_of
from rlvr.job.evaluation import _answers
from rlvr.ledger import layout
from rlvr.ledger.runs import read_config
from rlvr.ledger.stages import record_stages
from rlvr.ledger.sweeps import Ledger
from rlvr.rollout.evaluation import Answers
from tests.analysis.ledger_factory import config, write_run, write_sweep
from tests.support.hub_cache import cached

PROBLEMS, STEPS = 32, 4
PLAIN = {"name": "grpo@best", "digest": "d"}
HERE = ["cluster=local", "tracker=none"]
TRAINING = ["task=coins", "model=coins_tiny", "model.steps=60", f"task.test_problems={PROBLEMS}", "loss=grpo", *HERE]
TRAINING += [f"steps={STEPS}", "checkpoint.every=2", f"evaluation.every={STEPS}", "seed=1"]
pytestmark = [pytest.mark.slow, pytest.mark.real]


def python(home: Path, module: str, *words: str, **variables: str) -> str:
    environment = {**os.environ, "RLVR_HOME": str(home), "OMP_NUM_THREADS": "1", **variables}
    done = subprocess.run(
        [sys.executable, "-m", module, *words], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with one run of four steps."""
    home = tmp_path_factory.mktemp("home")
    python(home, "rlvr.run", *TRAINING)
    return home


def run_dirs(home: Path) -> list[Path]:
    """The directories of evaluations, oldest first."""
    runs = [layout.run(home, run) for run in layout.run_ids(home) if read_config(layout.run(home, run)).get("policy")]
    return sorted(runs, key=lambda path: json.loads(layout.info(path).read_text())["created"])


def rows(run_dir: Path) -> list[dict[str, Any]]:
    (file,) = layout.evaluations(run_dir)
    return pq.read_table(file).to_pylist()


def chunks(home: Path) -> dict[Path, int]:
    """Chunks of samples -> number of their samples."""
    return {path: pq.read_metadata(path).num_rows for path in home.glob("runs/evaluations/*/*.parquet")}


def test_samples_on_disk_are_read_with_their_rewards() -> None:
    """Two problems of two samples each, in the order of the table."""
    columns = {
        "source": ["a", "a", "b", "b"],
        "outcome": ["correct", "wrong", "error", "correct"],
        "answer": ["5", None, None, "6"],
        "reward": [1.0, 0.25, 0.0, 0.5],
        "num_tokens": [3, 4, 5, 6],
        "finished": [True, True, False, True],
    }
    assert list(_answers(pa.table(columns), 2)) == [
        ("a", Answers(("correct", "wrong"), ("5", None), (1.0, 0.25), (3, 4), (True, True))),
        ("b", Answers(("error", "correct"), (None, "6"), (0.0, 0.5), (5, 6), (False, True))),
    ]


def test_an_evaluation_draws_what_training_drew_and_more_samples_are_the_missing_ones_alone(home: Path) -> None:
    source = next(run for run in layout.run_ids(home) if not read_config(layout.run(home, run)).get("policy"))
    fewer = "also=['evaluation.samples=50 evaluation.problems=8']"
    python(home, "rlvr.evaluate", source, "evaluation.samples=8,100", fewer, "cluster.workers=1", *HERE)
    by_samples = {read_config(run)["evaluation"]["samples"]: run for run in run_dirs(home)}
    ours, more, part = (rows(by_samples[n]) for n in (8, 100, 50))
    trained = pq.read_table(layout.evaluation(layout.run(home, source), STEPS)).to_pylist()
    shared = [key for key in trained[0] if key != "step"]
    assert [{key: row[key] for key in shared} for row in ours] == [{key: row[key] for key in shared} for row in trained]
    assert all(row["prompt"].startswith("pay ") and row["logp"] < 0 for row in ours)
    drawn = [pq.read_table(path, columns=["sample"])["sample"].to_pylist() for path in chunks(home)]
    assert sorted(map(max, drawn)) == [7, *[99] * (len(drawn) - 1)]  # a chunk of the first eight samples, and others
    assert sorted(sample for chunk in drawn for sample in chunk) == sorted([*range(100)] * PROBLEMS)
    assert [row for row in more if row["sample"] < 8] == ours
    assert [(row["problem_id"], row["sample"]) for row in more] == [
        (f"coins-test-{p}", i) for p in range(PROBLEMS) for i in range(100)
    ]
    assert part == [r for r in more if r["sample"] < 50 and int(r["problem_id"].split("-")[-1]) < 8]
    metrics = json.loads(layout.journal(by_samples[50]).read_text())["metrics"]
    right = [sum(r["outcome"] == "correct" for r in part[50 * p : 50 * p + 50]) for p in range(8)]
    assert metrics["evaluation/coins/avg_at_50"] == pytest.approx(sum(right) / 400)
    assert metrics["evaluation/coins/coverage_at_50"] == sum(c > 0 for c in right) / 8
    assert metrics["evaluation/coins/pass_at_50"] == sum(c > 0 for c in right) / 8
    assert 0 <= metrics["evaluation/coins/maj_at_50"] <= 1


def base_policy(home: Path) -> Path:
    (stage,) = [
        path.parent
        for path in home.glob("runs/stages/*/stage.json")
        if OmegaConf.load(path)["identity"]["source"] == "pretrain"
    ]
    return stage


@pytest.mark.timeout(600)
def test_1024_samples_after_8_are_those_drawn_at_once_of_a_model_on_the_hub(home: Path, tmp_path: Path) -> None:
    words = ["task=coins", f"task.test_problems={PROBLEMS}", "evaluation.problems=2", "rollout.max_tokens=13", *HERE]
    grown, whole = tmp_path / "grown", tmp_path / "whole"
    model = base_policy(home)
    python(grown, "rlvr.evaluate", str(model), "evaluation.samples=8,1024", "cluster.workers=1", *words)
    drawn = [pq.read_table(path, columns=["sample"])["sample"].to_pylist() for path in chunks(grown)]
    few, *more = sorted(drawn, key=len)
    assert sorted(few) == sorted([*range(8)] * 2)
    assert sorted(sample for chunk in more for sample in chunk) == sorted([*range(8, 1024)] * 2)
    cached(tmp_path / "hf", "tiny/coins", model)
    offline = {"HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "1"}
    python(whole, "rlvr.evaluate", "tiny/coins", "evaluation.samples=1024", *words, **offline)
    (at_once,) = run_dirs(whole)
    assert read_config(at_once)["policy"]["name"] == "coins"
    of_grown = next(run for run in run_dirs(grown) if read_config(run)["evaluation"]["samples"] == 1024)
    check_same(rows(of_grown), rows(at_once), 2 * 1024)


def check_same(ours: list[dict[str, Any]], others: list[dict[str, Any]], number: int) -> None:
    """Equal up to the rounding of float32: a sum depends on the other sequences in the batch."""
    rounded = {"logp", "logp_sampling"}
    assert len(ours) == len(others) == number
    assert [{k: v for k, v in row.items() if k not in rounded} for row in ours] == [
        {k: v for k, v in row.items() if k not in rounded} for row in others
    ]
    for key in rounded:
        assert [row[key] for row in ours] == pytest.approx([row[key] for row in others], abs=1e-4)


PYTHON = Path(__file__).parents[1] / ".venv-vllm" / "bin" / "python"
VLLM = [
    *("rollout=vllm", f"rollout.engine.python={PYTHON}", "rollout.engine.eager=true"),
    *("rollout.engine.max_cache_gb=0.1", "rollout.engine.max_batch_sequences=64", "rollout.engine.dtype=float32"),
]
needs_vllm = pytest.mark.skipif(not PYTHON.exists(), reason="no environment with vLLM: make vllm-env")


@pytest.mark.timeout(600)
@needs_vllm
def test_vllm_answers_what_the_native_engine_does(home: Path, tmp_path: Path) -> None:
    """Greedy: the same answers, of the same log-probability to the rounding of float32."""
    words = [
        *("task=coins", f"task.test_problems={PROBLEMS}", "evaluation.temperature=0", "rollout.max_tokens=13"),
        *HERE,
    ]
    python(tmp_path, "rlvr.evaluate", str(base_policy(home)), *words)
    python(tmp_path, "rlvr.evaluate", str(base_policy(home)), *words, *VLLM)
    native, vllm = (rows(run) for run in run_dirs(tmp_path))
    assert len(native) == len(vllm) == PROBLEMS
    for one, other in zip(native, vllm, strict=True):
        keys = ("problem_id", "sample", "prompt", "response", "answer", "outcome", "num_tokens", "finished")
        assert [one[key] for key in keys] == [other[key] for key in keys]
        assert one["logp"] == pytest.approx(other["logp"], abs=1e-3)


def test_killed_in_the_middle_or_shared_by_two_ranks_it_gives_the_same_bytes(home: Path, tmp_path: Path) -> None:
    words = ["evaluation.samples=192", "evaluation.temperature=0.9", *HERE]
    files: list[bytes] = []
    for ranks in (1, 2):
        (tmp_path / str(ranks)).mkdir()
        subprocess.run(["cp", "-r", str(home / "runs"), str(tmp_path / str(ranks))], check=True)
    killed, shared = tmp_path / "1", tmp_path / "2"
    for place in (killed, shared):
        subprocess.run(["rm", "-rf", *map(str, run_dirs(place)), str(place / "runs/evaluations")], check=True)
    source = layout.run_ids(killed)[0]
    python(shared, "rlvr.evaluate", source, *words, "cluster.ranks=2")
    files.append(layout.evaluations(run_dirs(shared)[0])[0].read_bytes())

    run_dir, there = killed_amid(killed, source, *words)
    assert len(there) < 6  # of 32 · 192 / 1024
    python(killed, "rlvr.evaluate", source, *words)
    assert there < set(chunks(killed))
    files.append(layout.evaluations(run_dir)[0].read_bytes())
    assert files[0] == files[1]


def killed_amid(home: Path, source: str, *words: str) -> tuple[Path, set[Path]]:
    """An evaluation, killed with its launcher once it has added to the sample sets of a home: its directory, and all
    chunks that are there."""
    before, runs = set(chunks(home)), set(run_dirs(home))
    environment = {**os.environ, "RLVR_HOME": str(home), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "rlvr.evaluate", source, *words]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, start_new_session=True)
    while not set(chunks(home)) - before:
        assert process.poll() is None
        time.sleep(0.01)
    (run_dir,) = set(run_dirs(home)) - runs
    job = json.loads(layout.job(layout.attempt(run_dir, 1)).read_text())
    os.kill(process.pid, 9)
    os.kill(job["pid"], 9)
    process.wait()
    assert not layout.evaluations(run_dir)
    return run_dir, set(chunks(home))


@pytest.mark.timeout(600)
@needs_vllm
def test_vllm_grown_from_8_samples_and_killed_amid_128_draws_what_it_draws_at_once(home: Path, tmp_path: Path) -> None:
    words = ["task=coins", f"task.test_problems={PROBLEMS}", "rollout.max_tokens=13", *HERE, *VLLM]
    model, grown, whole = str(base_policy(home)), tmp_path / "grown", tmp_path / "whole"
    python(grown, "rlvr.evaluate", model, "evaluation.samples=8", *words)
    run_dir, there = killed_amid(grown, model, "evaluation.samples=128", *words)
    python(grown, "rlvr.evaluate", model, "evaluation.samples=128", *words)
    assert there < set(chunks(grown))
    drawn = [pq.read_table(path, columns=["sample"])["sample"].to_pylist() for path in chunks(grown)]
    assert sorted(sample for chunk in drawn for sample in chunk) == sorted([*range(128)] * PROBLEMS)  # each once
    python(whole, "rlvr.evaluate", model, "evaluation.samples=128", *words)
    (at_once,) = run_dirs(whole)
    check_same(rows(run_dir), rows(at_once), PROBLEMS * 128)


def test_the_final_split_answers_once_on_problems_that_training_has_not_evaluated(home: Path, tmp_path: Path) -> None:
    source = next(run for run in layout.run_ids(home) if not read_config(layout.run(home, run)).get("policy"))
    shutil.copytree(home, tmp_path / "home")
    home = tmp_path / "home"
    for message, words in (("no SLURM here", ["cluster=slurm"]), ("has no GPU", [*HERE, "cluster.gpus=9"])):
        assert message in refused(home, source, "--final", "evaluation.samples=8", *words)
    assert not layout.final_queries(home).exists()
    for _ in range(2):  # the same query
        python(home, "rlvr.evaluate", source, "--final", "evaluation.samples=8", *HERE)
        run_dir = run_dirs(home)[-1]
        asked = rows(run_dir)
        assert {row["source"] for row in asked} == {"coins.final-1-of-1"}
        assert "evaluation/coins.final-1-of-1/avg_at_8" in json.loads(layout.journal(run_dir).read_text())["metrics"]
    tested = pq.read_table(layout.evaluation(layout.run(home, source), STEPS)).to_pylist()
    prompts = {row["prompt"] for row in asked}
    assert len(prompts) == PROBLEMS
    assert not prompts & {row["prompt"] for row in tested}
    (recorded,) = map(json.loads, layout.final_queries(home).read_text().splitlines())
    assert (recorded["query"], recorded["command"].split()[3:5]) == ("1-of-1", [source, "--final"])
    words = (source, "--final", "--with-base", "evaluation.samples=8", *HERE)
    assert "was asked 1 of 1 times" in refused(home, *words)
    python(home, "rlvr.evaluate", *words, "--final-budget", "2")
    assert {row["source"] for row in rows(run_dirs(home)[-1])} == {"coins.final-2-of-2"}
    message = refused(home, source, "task.test_problems=700", "evaluation.samples=1", *HERE)
    assert "of 700 problems, such as coins-test-" in message
    assert "So evaluate on other problems." in message  # --final would ask a split of the task's own
    assert "queries of a final split. Add --final." in refused(home, source, "--final-budget", "2", *HERE)
    for word, message in (
        ("task.test_problems=64", "task.test_problems would ask other problems than those that training left out"),
        ("task=digits", "task=digits has no problems that evaluations of training leave alone"),
    ):
        assert message in refused(home, source, "--final", word, *HERE)


def refused(home: Path, *words: str) -> str:
    """What an evaluation that is refused prints on standard error."""
    command = [sys.executable, "-m", "rlvr.evaluate", *words]
    done = subprocess.run(
        command, env={**os.environ, "RLVR_HOME": str(home)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2, done.stdout + done.stderr
    return done.stderr


def test_sources_are_runs_studies_checkpoints_models_and_base_policies(home: Path, tmp_path: Path) -> None:
    ledger = Ledger(home)
    (run,) = [run for run in layout.run_ids(home) if not read_config(layout.run(home, run)).get("policy")]
    run_dir = layout.run(home, run)
    name = json.loads(layout.info(run_dir).read_text())["arm"]
    for source in (run, str(run_dir), "main"):
        (policy,) = policies_of([source], ledger, "newest")
        assert (policy.name, policy.step) == (f"{name}@{STEPS}", STEPS)
    assert [policy.step for policy in policies_of([run], ledger, "all", with_base=True)] == [2, 4, 0]
    assert policies_of([run], ledger, "2")[0].path == layout.checkpoint(layout.checkpoints(run_dir), 2).resolve()
    base = policies_of([run], ledger, "base")[0]
    assert base.name == "base"
    assert policies_of([str(base.path)], ledger, "newest")[0].trained is None
    for source, which, message in (
        ("no-such", "newest", "There is no run"),
        ("runs/no-such", "newest", "There is no run"),  # no name of the hub
        (run, "7", "It has: steps 2, 4"),
        (run, "best", "no such checkpoint"),
        (run, "last", "pass newest, best"),
    ):
        with pytest.raises(ValueError, match=message):
            policies_of([source], ledger, which)


def test_what_chooses_a_policy_is_never_ignored(home: Path) -> None:
    """A checkpoint and a model are policies already; a run beside them still has several."""
    ledger = Ledger(home)
    (run,) = [run for run in layout.run_ids(home) if not read_config(layout.run(home, run)).get("policy")]
    checkpoint = str(layout.checkpoint(layout.checkpoints(layout.run(home, run)), 2))
    model = str(policies_of([run], ledger, "base")[0].path)
    assert [policy.step for policy in policies_of([checkpoint], ledger, "newest", with_base=True)] == [2, 0]
    assert [policy.step for policy in policies_of([checkpoint, run], ledger, "all")] == [2, 2, 4]
    for sources, which, with_base, message in (
        ([checkpoint], "best", False, "--checkpoint best chooses among the checkpoints of a run, and no run is named"),
        ([checkpoint, model], "all", False, "--checkpoint all chooses among"),
        ([model], "newest", True, "--with-base adds the base policies of runs, and no run is named"),
    ):
        with pytest.raises(ValueError, match=message):
            policies_of(sources, ledger, which, with_base=with_base)


def test_of_a_study_finished_untuned_runs_are_evaluated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of 40 steps: one finished, one that failed at 20, one still at work at its last, and one of tuning."""
    plan = []
    for seed, (step, cause) in enumerate(((40, "ok"), (20, "error"), (40, None), (40, "ok"))):
        run_id = write_run(tmp_path, config("grpo", seed=seed), {}, cause=cause)
        layout.checkpoint(layout.checkpoints(layout.run(tmp_path, run_id)), step).mkdir(parents=True)
        plan.append((run_id, f"grpo-s{seed}", ["loss=grpo"]))
    write_sweep(tmp_path, "7c46ff00", plan, study="eta")
    manifest = layout.manifest(layout.sweep(tmp_path, "7c46ff00"))
    *lines, tuning = map(json.loads, manifest.read_text().splitlines())
    manifest.write_text("".join(json.dumps(line) + "\n" for line in [*lines, {**tuning, "stage": "tuning"}]))
    for source in ("eta", "7c46"):
        policies = policies_of([source], Ledger(tmp_path), "newest")
        assert [policy.path.parents[1].name for policy in policies] == ["id-grpo-s0", "id-grpo-s2"]
        assert "left out: grpo-s1 (failed) is at step 20 of 40." in capsys.readouterr().err
    assert [policy.name for policy in policies_of(["runs/grpo-s1"], Ledger(tmp_path), "newest")] == ["grpo@20"]
    assert "grpo-s1 (failed) is at step 20 of 40." in capsys.readouterr().err
    assert len(policies_of(["eta"], Ledger(tmp_path), "all")) == 3


def test_a_base_policy_is_a_stage_a_directory_or_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that sampled before training has a stage that is no policy; its base is where its model says."""
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    snapshot = cached(tmp_path / "hf", "tiny/model", model)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hf" / "hub"))
    for number, (named, expected) in enumerate(((str(model), model), ("tiny/model", snapshot))):
        home = tmp_path / str(number)
        run_dir = layout.run(home, write_run(home, config("grpo", model={"path": named}), {}))
        record_stages(run_dir, ["presampled"])
        (base,) = policies_of([str(run_dir)], Ledger(home), "base")
        assert base.path == expected.resolve()


def test_the_best_checkpoints_of_an_arm_are_one_arm_and_bases_of_two_tasks_are_each_their_tasks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = []
    for seed, step in ((0, 20), (1, 40)):
        run_id = write_run(tmp_path, config("grpo", seed=seed), {})
        run_dir = layout.run(tmp_path, run_id)
        runs.append(_of_checkpoint(layout.checkpoint(layout.checkpoints(run_dir), step), "@best"))
    one, other = runs
    assert (one.name, one.group, one.step, other.step) == (other.name, other.group, 20, 40)
    assert group_of({"policy": {**PLAIN, "group": one.group, "step": 20}}) == group_of(
        {"policy": {**PLAIN, "group": one.group, "step": 40}}
    )
    bases = [
        EvaluatedPolicy(tmp_path, "base", group, 0, {"task": {"name": task, "reader": {"path": group}}})
        for group, task in (("aaaa1", "coins"), ("bbbb1", "coins"), ("cccc1", "maze"))
    ]
    assert [policy.name for policy in _with_distinct_names(bases[1:], one_task=False)] == ["base", "base"]
    assert not capsys.readouterr().err
    assert [policy.name for policy in _with_distinct_names(bases, one_task=False)] == ["base-aaaa", "base-bbbb", "base"]
    assert "several base policies of one task" in capsys.readouterr().err
    assert [policy.name for policy in _with_distinct_names(bases[1:], one_task=True)] == ["base-bbbb", "base-cccc"]


def test_a_word_too_long_for_a_path_is_no_path(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["no-such-run", f"policy.system={'careful ' * 50}", "policy.chat=true"]) == 2
    assert "There is no run" in capsys.readouterr().err


def test_a_model_from_elsewhere_needs_a_task_whose_prompts_it_can_read(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RLVR_HOME", str(home))
    stage = base_policy(home)
    before = sorted(home.glob("runs/*"))
    assert main([str(stage), *HERE]) == 2
    assert "Pass task=" in capsys.readouterr().err
    assert main([str(stage), "task=coins", "--dry-run", *HERE]) == 0
    assert "1 to do. Dry run" in capsys.readouterr().out
    assert main([str(stage), "task=coins", "lr=1", *HERE]) == 2
    assert "lr has no effect on an evaluation" in capsys.readouterr().err
    for word, message in (
        ("rollout.max_tokens=100000", "is over the context of policy="),
        ("task=bandit", "task=bandit cannot be evaluated: its policy is read off"),
        ("+cluster.environment.HF_TOKEN=s3cret", "cluster.environment.HF_TOKEN would be kept in runs/."),
    ):
        task = [] if word.startswith("task") else ["task=coins"]
        assert main([str(stage), *task, word, "--dry-run", *HERE]) == 2
        assert message in capsys.readouterr().err
    trained = next(run for run in layout.run_ids(home) if not read_config(layout.run(home, run)).get("policy"))
    unread = "task=maze has prompts with GOAL, GRID_END, GRID_START and 5 more words, which"
    for policy in (str(stage), trained):
        assert main([policy, "task=maze", "--dry-run", *HERE]) == 2
        assert unread in capsys.readouterr().err
    slurm = ["task=coins", "cluster=slurm", "cluster.nodes=2", "--dry-run", "tracker=none"]
    for words, message in (
        (["cluster.ranks=3"], "do not divide over cluster.nodes=2 nodes. Pass cluster.ranks=2"),
        (["cluster.ranks=2", "cluster.shard_over=node"], "has no effect: an evaluation trains nothing. Drop it."),
    ):
        assert main([str(stage), *slurm, *words]) == 2
        assert message in capsys.readouterr().err
    data = tmp_path / "long.jsonl"
    data.write_text(json.dumps({"problem": "pay " * 120, "answer": "1"}) + "\n")  # of a context of 128
    words = ["task=math", "task.template='{problem}'", f"task.train={data}", f"task.test={data}", *HERE]
    words += ["rollout.max_tokens=20", "--dry-run"]
    assert main([str(stage), *words]) == 2
    assert "more than 108 tokens (the model's context of 128 without 20 of a response)" in capsys.readouterr().err
    assert sorted(home.glob("runs/*")) == before
