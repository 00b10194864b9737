import os
import subprocess
import sys
from pathlib import Path

import pytest

from rlvr import __version__
from rlvr.__main__ import COMMANDS, main
from rlvr.ledger import pages

ROOT = Path(__file__).parents[1]


def rlvr(*words: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs the command like the script that pip installs for the entry point."""
    script = "import sys; sys.argv[0] = 'rlvr'; from rlvr.__main__ import main; sys.exit(main())"
    env = {**os.environ, "PYTHONPATH": str(ROOT), "RLVR_HOME": str(cwd), **environment}
    command = [sys.executable, "-P", "-c", script, *words]
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False, timeout=120)


def test_help_lists_every_command_and_imports_little(tmp_path: Path) -> None:
    for words in ([], ["--help"], ["-h"]):
        done = rlvr(*words, cwd=tmp_path, PYTHONPROFILEIMPORTTIME="1")
        assert done.returncode == 0
        assert [line.split()[1] for line in done.stdout.splitlines() if line.startswith("  rlvr ")] == list(COMMANDS)
    imported = {line.rsplit("|")[-1].strip() for line in done.stderr.splitlines()}
    assert "rlvr.__main__" in imported
    assert not imported & {"hydra", "torch", "omegaconf"}


def test_the_version_is_ours(tmp_path: Path) -> None:
    for words in (["--version"], ["run", "--version"]):
        assert rlvr(*words, cwd=tmp_path).stdout == f"rlvr {__version__}\n"


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "tracking"])
def test_each_command_explains_itself(name: str, tmp_path: Path) -> None:
    done = rlvr(name, "--help", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) > 3
    assert done.stderr == ""


def test_an_unknown_command_is_refused_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for words, message in (
        (["loss=grpo"], "loss=grpo belongs to a command: rlvr run loss=grpo ..."),
        (["-m", "eta=1,2"], "-m belongs to a command: rlvr run -m ..."),
        (["reprot"], "there is no command reprot. Did you mean report? Commands: run, status, "),
        (["analysis"], "there is no command analysis. Did you mean report?"),
        (["train"], "there is no command train. Did you mean run?"),
    ):
        assert main(words) == 2
        printed = capsys.readouterr()
        assert (printed.out, printed.err.count("\n")) == ("", 1)
        assert message in printed.err


@pytest.mark.slow
def test_files_with_our_names_in_the_working_directory_are_ignored(tmp_path: Path) -> None:
    for name in ("slurm", "sweeps", "rlvr", "yaml", "torch"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('somebody else')\n")
    (tmp_path / "analysis").mkdir()
    (tmp_path / "analysis" / "__init__.py").write_text("raise RuntimeError('somebody else')\n")
    done = rlvr("run", "loss=grpo", "cluster=local", "--dry-run", cwd=tmp_path)
    assert "1 run, 0 finished, 1 to do" in done.stdout, done.stderr
    assert rlvr("status", cwd=tmp_path).stdout.startswith("Nothing has been launched yet")
    assert "no run in" in rlvr("report", cwd=tmp_path).stderr


def test_a_foreign_package_that_is_found_first_is_named(tmp_path: Path) -> None:
    (tmp_path / "slurm.py").write_text("")
    done = rlvr("status", cwd=tmp_path, PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}")
    assert done.returncode == 2
    assert f"rlvr: `import slurm` finds {tmp_path}/slurm.py" in done.stderr


@pytest.mark.slow
def test_exit_codes_are_those_of_the_command(tmp_path: Path) -> None:
    assert rlvr("run", "loss=gripo", cwd=tmp_path).returncode == 2
    assert rlvr("logs", "nothing", cwd=tmp_path).returncode == 2
    assert rlvr("sweeps", "status", cwd=tmp_path).returncode == 0


def test_docs_prints_the_pages_that_messages_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert pages.main(["docs/optuna.md"]) == 0
    assert capsys.readouterr().out.startswith("# Search")
    assert pages.main(["optun"]) == 2
    assert "no page optun. Did you mean optuna?" in capsys.readouterr().err
