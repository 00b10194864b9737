"""Tab completion: words of every command, and what a shell makes of them."""

import os
import subprocess
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
def test_bash_replaces_what_stands_after_the_sign_of_equality(home: Path) -> None:
    script = SCRIPT.format(python=sys.executable) + '\nCOMP_POINT=${#COMP_LINE}\n_rlvr\necho "${COMPREPLY[@]}"'
    for line, expected in (("rlvr run loss=lad,gr", "lad,grpo"), ("rlvr logs lossg", "lossgrpo-seed0")):
        environment = {**os.environ, "COMP_LINE": line, "COMP_WORDBREAKS": " \t\n\"'><=;|&(:"}
        done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == expected
