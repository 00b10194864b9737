"""docs/extending.md, taken at its word: its files in a directory elsewhere, used as if they were built in."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hydra.utils import instantiate

from rlvr.config.registry import Registry
from rlvr.rollout.rewards import rewards_of
from tests.support.composing import composing
from tests.support.hollow import write_hollow_model
from tests.support.homes import runs
from tests.support.tasks import write_jsonl
from tests.support.words import newest

pytestmark = [pytest.mark.slow, pytest.mark.real, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
HERE = ["cluster=local", "tracker=none", "cluster.workers=1"]
ONE = ["task=weekdays", "model=table", "rollout.prompts=7", "trainer.updates=1", *HERE]


def written(folder: Path, page: str = "extending.md") -> Path:
    """The files of a page, as it gives them. Returns their directory."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    files = re.findall(r"^\*\*(mine/\S+)\*\*\n\n```\w+\n(.*?)^```", text, re.M | re.S)
    for name, text in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    assert {name for name, _ in files} == {f"mine/{name}" for name in FILES[page]}
    return folder / "mine"


FILES = {
    "extending.md": (
        *("filtered.py", "loss/filtered.yaml", "weekdays.py", "task/weekdays.yaml", "concise.py", "task/concise.yaml"),
        *("study/days.yaml", "tables/spread.py"),
    ),
    "programs.md": (
        *("reinforce.py", "program/reinforce.yaml", "study/width.yaml"),
        *("tinker_loop.py", "program/tinker.yaml"),
    ),
}


def start(*words: str, home: Path, cwd: Path) -> subprocess.Popen[str]:
    """The command as it is installed: nobody's working directory, nobody's PYTHONPATH but this checkout."""
    environment = {**os.environ, "RLVR_HOME": str(home), "PYTHONPATH": str(ROOT), "COLUMNS": "160"}
    command = [sys.executable, "-P", "-m", "rlvr", *words]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen(command, cwd=cwd, env=environment, text=True, start_new_session=True, **pipes)


def rlvr(*words: str, home: Path, cwd: Path) -> tuple[int, str]:
    process = start(*words, home=home, cwd=cwd)
    out, _ = process.communicate(timeout=500)
    return process.returncode, out


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("elsewhere"))


@pytest.fixture(scope="module")
def trained(mine: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The study, by the words of the page."""
    home = tmp_path_factory.mktemp("home")
    code, out = rlvr("run", "--config-dir", "mine", "study=days", "keep_rollouts=1", *HERE, home=home, cwd=mine.parent)
    assert code == 0, out
    assert "4 of 4 runs finished" in out
    return home


def test_a_dry_run_shows_what_differs_from_the_default_and_from_the_options_own(mine: Path, tmp_path: Path) -> None:
    words = ["run", "--config-dir", str(mine), *ONE, "loss=filtered", "--dry-run"]
    code, out = rlvr(*words, "loss.push=0.5", home=tmp_path, cwd=tmp_path)
    assert code == 0, out
    (line,) = (line for line in out.splitlines() if "filtered-" in line)
    assert {"loss=filtered", "task=weekdays", "loss.push=0.5", "advantage=none"} <= set(line.split())
    _, out = rlvr(*words, "loss.push=0.1", "task.ahead=2", home=tmp_path, cwd=tmp_path)
    assert "push=" not in out.partition("Time:")[0].replace("push0.1", "")
    _, out = rlvr("run", "--config-dir", str(mine), "--help", home=tmp_path, cwd=tmp_path)
    assert ", filtered," in out
    assert ", weekdays" in out
    assert not list(tmp_path.iterdir())


MISTAKES = {
    "a name": (["loss=filterd"], "loss takes: cispo, clip_cov, cross_entropy, .*Did you mean filtered?"),
    "a type": (["loss=filtered", "loss.push=hard"], "loss.push=hard: "),
    "the task's own": (["loss=filtered", "task.ahead=9"], "task.ahead=9 must be from 1 to 6. Type task.ahead=2, for"),
    "the loss's own": (["loss=filtered", "loss.push=-1"], "loss.push=-1 must be 0 or more. Type loss.push=0.1, for"),
    "a task's ability": (
        ["loss=cross_entropy", "rollout.dynamic_sampling=none"],
        "loss=cross_entropy learns known answers and task=weekdays gives none",
    ),
    "a study": (["study=dais"], "study takes: alpha, .*days, .*Did you mean days?"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_told_as_of_what_is_built_in(mine: Path, mistake: str, tmp_path: Path) -> None:
    words, message = MISTAKES[mistake]
    more = ["rollout.prompts=1"] if "task=bandit" in words else []
    typed = newest([*ONE, *more, *words])
    code, out = rlvr("run", "--config-dir", str(mine), *typed, home=tmp_path, cwd=tmp_path)
    assert code == 2
    (line,) = out.splitlines()
    assert re.search(message.replace("(", r"\(").replace("?", r"\?"), line), line


SMALL = {
    **{"model_type": "qwen2", "num_hidden_layers": 1, "hidden_size": 8, "intermediate_size": 8, "vocab_size": 64},
    **{"num_attention_heads": 1, "num_key_value_heads": 1, "tie_word_embeddings": True},
}


def math_data(folder: Path) -> list[str]:
    problems = {
        "train": [("What is 1/3 + 1/3?", "2/3"), ("How much is a score?", "20")],
        "test": [("What is 1/2 + 1/4?", "3/4"), ("How much is a dozen?", "12")],
    }
    rows = {split: [{"problem": asked, "answer": answer} for asked, answer in problems[split]] for split in problems}
    return [f"task.{split}={write_jsonl(folder / f'{split}.jsonl', rows[split])}" for split in rows]


def test_a_subclass_of_a_built_in_task_is_one_with_its_knobs_and_its_own(mine: Path, tmp_path: Path) -> None:
    write_hollow_model(tmp_path, SMALL)
    words = ["run", "--config-dir", str(mine), "task=concise", *math_data(tmp_path), *HERE, "--dry-run"]
    words += ["model=hf", f"model.path={tmp_path}"]
    code, out = rlvr(*words, "loss=grpo", "task.words=9", "task.boxed=false", home=tmp_path / "home", cwd=tmp_path)
    assert code == 0, out
    (line,) = (line for line in out.splitlines() if " grpo-" in line)
    assert {"task=concise", "task.words=9", "task.boxed=false"} <= set(line.split())
    for more, message in (
        (["loss=grpo", "task.words=0"], "task.words=0 must be greater than 0"),
        (["loss=grpo", "+task.wrods=9"], "unexpected keyword argument 'wrods'"),
        (["loss=grpo", "task.unevaluated=maybe"], "task.unevaluated=maybe must be wrong or right"),
        (["loss=filtered"], "loss=filtered takes rewards 0 and 1 only and task=concise gives others"),
    ):
        code, out = rlvr(*words, *more, home=tmp_path / "home", cwd=tmp_path)
        assert (code, len(out.splitlines())) == (2, 1), out
        assert message in out


def test_a_subclass_of_a_built_in_task_gives_its_own_rewards(
    mine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four words earn 1; of eight words, a half; a wrong answer nothing, however short."""
    monkeypatch.syspath_prepend(str(mine))
    words = [f"hydra.searchpath=[{mine}]", "task=concise", *math_data(tmp_path), "model=hf", "model.path=x"]
    with composing():
        config, _ = Registry.of(words).compose([*words, "loss=grpo", "task.words=4", "task.reader.path=null"])
    task = instantiate(config.task, _convert_="all")
    try:
        problem = task.problem("test", 0)
        texts = ["that is \\boxed{0.75} exactly", "I add both and then it is \\boxed{3/4}", "\\boxed{1}"]
        texts.append("many words " * 9)
        rewards = rewards_of(task, [(problem, text) for text in texts])
    finally:
        task.close()
    assert [reward.value for reward in rewards] == [1.0, 0.5, 0.0, 0.0]
    assert [reward.outcome for reward in rewards] == ["correct", "correct", "wrong", "unparsable"]


def test_a_loss_whose_file_says_nothing_of_advantages_may_do_without_one(mine: Path, tmp_path: Path) -> None:
    (tmp_path / "loss").mkdir()
    (tmp_path / "loss/silent.yaml").write_text("_target_: filtered.filtered\n_partial_: true\npush: 0\n")
    folders = [f"hydra.searchpath=[{tmp_path},{mine}]"]
    words = ["run", *folders, *ONE, "loss=silent", "advantage=none", "--dry-run"]
    code, out = rlvr(*words, home=tmp_path / "home", cwd=tmp_path)
    assert code == 0, out


def test_a_file_that_leaves_partial_out_is_refused_before_launch(mine: Path, tmp_path: Path) -> None:
    for group, target in (
        ("loss", "filtered.filtered\npush: 0.1"),
        ("advantage", "rlvr.objective.advantage.rloo"),
        ("divergence", "rlvr.objective.divergence.js"),
    ):
        (tmp_path / group).mkdir()
        (tmp_path / group / "whole.yaml").write_text(f"_target_: {target}\n")
        others = [] if group == "loss" else ["loss=lad"]
        words = ["run", f"hydra.searchpath=[{tmp_path},{mine}]", *ONE, *others, f"{group}=whole", "--dry-run"]
        code, out = rlvr(*words, home=tmp_path / "home", cwd=tmp_path)
        assert code == 2
        assert "Add `_partial_: true` there." in out


def test_the_study_learns_the_days_and_says_what_it_asked(trained: Path, mine: Path) -> None:
    assert set(runs(trained)) == {f"filtered-push{p}-s0" for p in ("0", "0.1", "0.5")} | {"grpo-s0"}
    for name, run_dir in runs(trained).items():
        last = json.loads((run_dir / "metrics.jsonl").read_text().splitlines()[-1])["metrics"]
        assert last["evaluation/weekdays/avg_at_8"] > 0.9, name  # uniform over seven days at the start
        assert json.loads((run_dir / "run.json").read_text())["import_paths"] == [str(mine)]  # of the task, at least
    (sweep,) = trained.glob("runs/sweeps/*/sweep.json")
    about = json.loads(sweep.read_text())
    assert about["question"] == "Does it help to push wrong answers away?"
    assert about["config_dirs"] == about["import_paths"] == [str(mine)]


def test_the_same_command_trains_nothing_again_from_anywhere(trained: Path, mine: Path, tmp_path: Path) -> None:
    words = ["run", "--config-dir", str(mine), "study=days", "keep_rollouts=1", *HERE]
    assert "4 of 4 runs finished (4 before)" in rlvr(*words, home=trained, cwd=tmp_path)[1]
    searched = ["run", f"hydra.searchpath=[file://{mine}]", "study=days", "keep_rollouts=1", *HERE]
    assert "4 of 4 runs finished (4 before)" in rlvr(*searched, home=trained, cwd=tmp_path)[1]


def test_runs_of_an_edited_loss_are_told_at_launch_and_in_the_report(tmp_path: Path) -> None:
    mine, home = written(tmp_path), tmp_path / "home"
    words = ["run", "--config-dir", "mine", *ONE, "loss=filtered", "steps=1"]
    assert rlvr(*words, home=home, cwd=tmp_path)[0] == 0
    (before,) = runs(home).values()
    kept = json.loads((before / "own_code.json").read_text())
    assert {"filtered", "weekdays", "rlvr.objective.advantage", "rlvr.objective.micro_batch"} <= set(kept)
    with (mine / "filtered.py").open("a") as file:
        file.write("\nEDITED = True\n")
    code, out = rlvr(*words, "-m", "seed=0,1", home=home, cwd=tmp_path)
    assert code == 0, out
    (line,) = (line for line in out.splitlines() if "another version" in line)
    assert line.startswith(f"{mine}/filtered.py: 1 finished run was made with another version, and is not run again.")
    remove = re.search(r"To train anew: rm -r (\S+), and the same command", line)
    assert remove is not None
    assert Path(remove[1]) == before
    assert "its code or data changed: " in rlvr("status", home=home, cwd=tmp_path)[1]
    assert json.loads((before / "attempts/1/job.json").read_text())["code"]
    code, out = rlvr("report", home=home, cwd=tmp_path)
    assert code == 2
    assert "`filtered`, code of your own, was not the same in all runs: " in out
    assert "pass --mixed-code to average them all the same" in out
    assert rlvr("report", "--mixed-code", home=home, cwd=tmp_path)[0] == 0
    page = (home / "reports/main/index.html").read_text()
    assert "<code>filtered</code>, code of your own, was not the same in all runs: " in page
    shutil.rmtree(before)
    code, out = rlvr(*words, "-m", "seed=0,1", home=home, cwd=tmp_path)
    assert "2 of 2 runs finished (1 before)" in out
    assert "another version" not in out


def test_evaluate_needs_no_directory(trained: Path, mine: Path, tmp_path: Path) -> None:
    """Of what lies in several directories, those that are typed are searched too."""
    (tmp_path / "more/task").mkdir(parents=True)
    (tmp_path / "more/task/tomorrow.yaml").write_text("_target_: weekdays.Weekdays\nahead: 1\n")
    words = ["evaluate", "filtered-push0.5-s0", "evaluation.samples=4", "task=weekdays,tomorrow", *HERE[:2]]
    code, out = rlvr(words[0], *words[1:3], *HERE[:2], "--dry-run", home=trained, cwd=tmp_path)
    assert code == 0, out
    for more in (["--config-dir", "more"], [f"hydra.searchpath=[{tmp_path}/more]"]):
        code, out = rlvr(*words, *more, "--dry-run", home=trained, cwd=tmp_path)
        assert code == 0, out
        assert "2 runs, 0 finished" in out


def test_a_table_of_the_users_is_reported_with_their_directory(mine: Path, trained: Path, tmp_path: Path) -> None:
    words = ["report", "--study", "days", "--config-dir", str(mine), "--tables", "spread", "--no-figures"]
    code, out = rlvr(*words, home=trained, cwd=tmp_path)
    assert code == 0, out
    assert "How far do the seeds of an arm lie apart?" in out


def test_report_export_and_replay_need_no_directory(trained: Path, tmp_path: Path) -> None:
    code, out = rlvr("report", "--study", "days", home=trained, cwd=tmp_path)
    assert code == 0, out
    assert "Does it help to push wrong answers away?" in (trained / "reports/days/index.html").read_text()
    run_dir = runs(trained)["filtered-push0.5-s0"]
    code, out = rlvr("export", str(run_dir), str(tmp_path / "policy"), home=trained, cwd=tmp_path)
    assert code == 0, out
    assert (tmp_path / "policy/model.safetensors").exists()
    stored = run_dir / "rollouts/step-00000001.parquet"
    code, out = rlvr("replay", f"rollouts={stored}", "loss=filtered,grpo", "loss.push=0,1", home=trained, cwd=tmp_path)
    assert code == 0, out
    assert "filtered loss.push=1" in out
    assert list(trained.glob("reports/replay/*/replay.png"))


def test_what_was_killed_is_retried_without_its_directory(mine: Path, tmp_path: Path) -> None:
    home, words = tmp_path / "home", ["run", "--config-dir", "mine", "study=days", "steps=200", "evaluation.every=200"]
    process = start(*words, *HERE, "loss.push=0.1", home=home, cwd=mine.parent)
    deadline = time.monotonic() + 300
    while not list(home.glob("runs/*/attempts/1/heartbeat.json")):
        assert time.monotonic() < deadline
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    (sweep,) = home.glob("runs/sweeps/*")
    code, out = rlvr("retry", sweep.name, home=home, cwd=tmp_path)
    assert code == 0, out
    assert "runs finished" in out
    ends = [json.loads(p.read_text())["cause"] for p in home.glob("runs/*/attempts/2/exit.json")]
    assert ends.count("ok") >= 1


def test_another_file_of_its_name_is_not_taken_for_it(trained: Path, tmp_path: Path) -> None:
    """A PYTHONPATH with another `weekdays`: the run is not exported with somebody else's task."""
    (tmp_path / "weekdays.py").write_text("class Weekdays: ...\n")
    environment = {**os.environ, "RLVR_HOME": str(trained), "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}
    run_dir = runs(trained)["filtered-push0-s0"]
    command = [sys.executable, "-P", "-m", "rlvr", "export", str(run_dir), str(tmp_path / "policy")]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert f"`import weekdays` finds {tmp_path}/weekdays.py, which hides weekdays in" in done.stderr
