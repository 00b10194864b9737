import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlvr.ledger import layout

ROOT = Path(__file__).resolve().parents[2]
# Names of files and directories under the home. Those that are everyday words count as parts of a path alone.
FILES = {
    *("run.json", "config.yaml", "metrics.jsonl", "mlflow.json", "stages.json", "trainer.json", "manifest.jsonl"),
    *("sweep.json", "stage.json", "submission.json", "job.json", "heartbeat.json", "exit.json", "prune.json"),
    *("log.txt", "end.json", "mlflow.lock", "mlflow.db", "mlartifacts", "shipper.log", "optuna.journal", "best.md"),
    "trials.csv",
}
WORDS = {"runs", "attempts", "checkpoints", "samples", "rollouts", "stages", "submissions", "reports", "lock"}


def test_home_is_the_environment_variables_else_the_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RLVR_HOME", str(tmp_path / "there"))
    assert layout.home() == tmp_path / "there"
    monkeypatch.delenv("RLVR_HOME")
    assert layout.home() == Path(__file__).resolve().parents[2]


def test_a_home_that_leads_nowhere_is_an_error_of_its_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    for nowhere in ("~no-such-user/runs", str(tmp_path / "a" / "home")):
        monkeypatch.setenv("RLVR_HOME", nowhere)
        with pytest.raises(ValueError, match=f"RLVR_HOME={nowhere} leads nowhere"):
            layout.home()


@pytest.mark.parametrize(("directory", "named"), [("why?", "?"), ("a%41b", "%41"), ("50%ef", "%ef")])
def test_a_home_that_a_database_cannot_be_in_is_refused(
    directory: str, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLVR_HOME", str(tmp_path / directory / "home"))
    with pytest.raises(ValueError, match=re.escape(f'home: "{named}" cannot be in the path of mlflow.db')):
        layout.home()
    monkeypatch.setenv("RLVR_HOME", str(tmp_path / "50%"))
    assert layout.home() == tmp_path / "50%"


def test_a_step_is_read_back_from_the_name_of_a_path(tmp_path: Path) -> None:
    named = (layout.checkpoint, layout.evaluation, layout.policy, layout.rollouts)
    assert [layout.step_of(name(tmp_path, 120)) for name in named] == [120] * 4
    odd = ("step-x", ".step-00000080.tmp", "step-00000001.tmp", "test-1.csv", "other-00000001")
    assert [layout.step_of(tmp_path / name) for name in odd] == [None] * 5


def test_a_sweep_belongs_to_the_home_whose_runs_are_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    (tmp_path / "scratch" / "runs-of-mine").mkdir(parents=True)
    home.mkdir()
    layout.runs(home).symlink_to(tmp_path / "scratch" / "runs-of-mine")
    monkeypatch.chdir(home)
    for below in (layout.sweep(home, "s"), layout.submissions(home) / "token", Path("runs/sweeps/s")):
        assert layout.home_of(below) == home


def test_hidden_directories_and_those_without_files_of_a_launch_are_no_runs(tmp_path: Path) -> None:
    for path in ("a/run.json", "b/config.yaml", "c/notes.txt", ".d.1-ab.tmp/run.json", "sweeps/s/sweep.json"):
        (file := tmp_path / "runs" / path).parent.mkdir(parents=True)
        file.touch()
    assert layout.run_ids(tmp_path) == ["a", "b"]


@pytest.mark.slow
def test_no_other_module_contains_a_path_of_the_ledger() -> None:
    places = [ROOT / name for name in ("rlvr", "sweeps", "analysis", "slurm")]
    modules = [path for place in places for path in place.rglob("*.py") if path != Path(layout.__file__)]
    assert len(modules) > 200
    spelt = [f"{path.relative_to(ROOT)}: {name}" for path in modules for name in _spelt(ast.parse(path.read_text()))]
    assert spelt == []


def _spelt(tree: ast.Module) -> Iterator[str]:
    """Strings that are the name of a file, and words that are a part of a path: `home / "runs"`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and node.value in FILES:
            yield str(node.value)
        part = node.right if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) else None
        if isinstance(part, ast.Constant) and part.value in WORDS:
            yield str(part.value)
