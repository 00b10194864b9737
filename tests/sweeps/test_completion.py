import os
import shutil
import sys
from pathlib import Path

import pytest

from rlvr.__main__ import COMMANDS
from sweeps.completion import SCRIPT, words
from tests.analysis.ledger_factory import write_planned


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two runs of the sweep `s` of the study `default`."""
    monkeypatch.setenv("RLVR_HOME", str(tmp_path))
    write_planned(tmp_path, {"loss=grpo seed=0": {}, "loss=pacs seed=0": {}})
    return tmp_path


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("rlvr sta", ["status"]),
        ("rlvr run loss=gr", ["loss=grpo"]),
        ("rlvr run -m loss=lad,gr", ["loss=lad,grpo"]),
        ("rlvr run paper=small/coins_r", ["paper=small/coins_rare", "paper=small/coins_rare_pacs"]),
        ("python -m rlvr.run +loss=lad_", ["+loss=lad_theoretical"]),
        ("python -m rlvr.run rollout.samp", ["rollout.samples="]),
        ("python -m rlvr.run --dry", ["--dry-run"]),
        ("rlvr status d", ["default"]),
        ("rlvr logs loss", ["lossgrpo-seed0", "losspacs-seed0"]),
        ("rlvr sweeps cancel lossp", ["losspacs-seed0"]),
        ("python -m sweeps wa", ["watch"]),
        ("python -m sweeps status ", ["default", "s"]),
        ("python -m analysis def", ["default"]),
        ("python -m ana", ["analysis"]),
        ("python train.py loss=", []),
        ("rlvr run lr=", []),
        ("rlvr run loss._", []),
        ("rlvr docs opt", ["optuna"]),
    ],
)
def test_the_last_word_is_completed(home: Path, line: str, expected: list[str]) -> None:
    assert words(line) == expected
    assert words("rlvr ") == sorted(COMMANDS)


def test_options_of_a_directory_of_the_users_are_completed(tmp_path: Path) -> None:
    (tmp_path / "loss").mkdir()
    (tmp_path / "loss/grown.yaml").write_text("_target_: rlvr.loss.grpo.grpo\n")
    assert words(f"rlvr run --config-dir={tmp_path} loss=gr") == ["loss=grown", "loss=grpo"]


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.parametrize("shell", [["bash", "--norc"], ["zsh", "-f"]], ids=["bash", "zsh"])
def test_the_tab_key_completes(home: Path, shell: list[str]) -> None:
    """In a terminal. bash replaces what stands after `=`, zsh the word."""
    pexpect = pytest.importorskip("pexpect")
    if not shutil.which(shell[0]):
        pytest.skip(f"apt-get install {shell[0]}")
    script = home / "completion.sh"
    script.write_text(SCRIPT.format(python=sys.executable))
    environment = {**os.environ, "TERM": "dumb", "PS1": "$ ", "HOME": str(home)}
    terminal = pexpect.spawn(shell[0], [*shell[1:], "-i"], env=environment, encoding="utf-8", timeout=30, cwd=home)
    terminal.sendline(f". {script}; echo rea''dy")
    terminal.expect("ready")
    for typed, rest in (
        ("rlvr run -m loss=lad,grp", "o"),
        ("rlvr run stu", "dy="),
        ("rlvr run study=et", "a"),
        ("rlvr run paper=small/smo", "llm"),
        ("rlvr logs lossg", "rpo-seed0"),
        ("rlvr report def", "ault"),
        ("rlvr docs opt", "una"),
        ("python -m sweeps stat", "us"),
        ("python compl", "etion.sh"),
    ):
        terminal.send(f"{typed}\t")
        terminal.expect_exact(typed + rest)
        terminal.sendcontrol("u")
    terminal.close(force=True)
