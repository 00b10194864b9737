import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ANOTHER = """
import sys
import hydra
from hydra.core.plugins import Plugins

@hydra.main(version_base="1.3", config_path=None, config_name=None)
def app(config):
    print(sorted({"sweeps", "torch", "slurm"} & set(sys.modules)))
    print(sorted(name for name in Plugins.instance().class_name_to_class if name.startswith("hydra_plugins.rlvr.")))

app()
"""


def in_another(tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "app.py").write_text(ANOTHER)
    command = [sys.executable, "app.py", *words, "hydra.run.dir=out"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)


def test_another_application_finds_our_plugins_and_imports_nothing_for_them(tmp_path: Path) -> None:
    (tmp_path / "sweeps.py").write_text("raise RuntimeError('somebody else')\n")
    done = in_another(tmp_path)
    assert done.stdout.splitlines() == [
        "[]",
        "['hydra_plugins.rlvr.GridSweeper', 'hydra_plugins.rlvr.OptunaSweeper', 'hydra_plugins.rlvr.RlvrLauncher']",
    ], done.stderr


@pytest.mark.slow
def test_our_launcher_in_another_application_is_refused_with_a_message(tmp_path: Path) -> None:
    done = in_another(tmp_path, "-m", "+x=1,2", "hydra.launcher._target_=hydra_plugins.rlvr.RlvrLauncher")
    assert "belong to `python -m rlvr.run`" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("sweeper", ["basic", "grid"])
def test_other_sweepers_reach_our_launcher(sweeper: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "rlvr.run", "-m", "loss=grpo", "seed=0,1", f"hydra/sweeper={sweeper}", "--dry-run"]
    environment = {**os.environ, "RLVR_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*command, "cluster=local"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert "2 runs, 0 finished, 2 to do" in done.stdout, done.stderr
