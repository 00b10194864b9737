from pathlib import Path

import pytest

from rlvr.config import own_code
from rlvr.run import main, one_line_errors

ROWS = {  # a study's file -> what is said of it
    "": "is empty. Fill it, or choose another study.",
    "seed: 1": "line 1: a study sets knobs of the whole run. Its first line must be `# @package _global_`.",
    "# @packge _global_\nseed: 1": "line 1: a study sets knobs of the whole run. Its first line must be",
    "# @package _global_\ndefault:\n  - /loss: lad": "line 2: default is not a knob of a run. Did you mean defaults?",
    "# @package _global_\nsteps: 1\nsed: 1": "line 3: sed is not a knob of a run. Did you mean seed?",
    "# @package _global_\ndefaults:\n  - /loss: lad": "line 3: every run has a loss. Write `- override /loss: lad`.",
    "# @package _global_\ndefaults:\n  - override task: sums": "line 3: every run has a task. Write "
    "`- override /task: sums`.",
    "# @package _global_\ndefaults:\n  - mine": "study/mine is based on itself: study/mine > study/mine.",
    "# @package _global_\nhydra:\n  sweeper:\n    param:\n      seed: 0,1": "line 4: param is not a knob of "
    "hydra.sweeper. Did you mean params?",
    "# @package _global_\nhydra:\n  sweeper:\n    params:\n      lr: [0.1, 0.5]": "line 5: the values of an axis are "
    "one text. Write `lr: 0.1,0.5`.",
}


def study(directory: Path, text: str) -> list[str]:
    """The words of a command whose study has this text."""
    (directory / "study").mkdir(exist_ok=True)
    (directory / "study/mine.yaml").write_text(text, encoding="utf-8")
    return [f"--config-dir={directory}", "study=mine"]


def test_a_fault_is_named_with_its_line(tmp_path: Path) -> None:
    for text, said in ROWS.items():
        with pytest.raises(ValueError) as error, one_line_errors(study(tmp_path, text)):
            pass
        place = "" if "based on itself" in said else f"{tmp_path}/study/mine.yaml{' ' if 'empty' in said else ', '}"
        assert str(error.value).startswith(place + said), text


@pytest.mark.parametrize(
    "text", ["# @package _global_\nseed: 1", "#@package  _global_\ndefaults:\n - override /loss: lad"]
)
def test_a_file_without_fault_passes_and_one_that_is_not_chosen_is_not_read(text: str, tmp_path: Path) -> None:
    words = study(tmp_path, text)
    (tmp_path / "study/loop.yaml").write_text("# @package _global_\ndefaults:\n  - loop\n", encoding="utf-8")
    with one_line_errors(words) as registry:
        assert registry.readable("study").count("mine") == 1
        assert "loop" not in registry.readable("study")


@pytest.mark.parametrize("value", ["${nothing.here}", "${lr}"])
def test_a_reference_that_leads_nowhere_is_named_with_its_line(
    value: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLVR_HOME", str(tmp_path / "home"))
    words = study(tmp_path, f"# @package _global_\nseed: 1\nlr: {value}\n")
    assert main([*words, "cluster=local", "--dry-run"]) == 2
    assert "mine.yaml, line 3: " in capsys.readouterr().err


def test_an_option_in_a_folder_of_its_group_is_checked_and_taken(tmp_path: Path) -> None:
    (tmp_path / "loss/team").mkdir(parents=True)
    (tmp_path / "loss/team/mine.yaml").write_text("_target_: rlvr.loss.grpo.grpo\n")
    words = [f"--config-dir={tmp_path}", "loss=team/mine"]
    with one_line_errors(words) as registry:
        assert registry.node("loss/team", "mine")["_target_"] == "rlvr.loss.grpo.grpo"
    (tmp_path / "loss/team/mine.yaml").write_text("")
    with pytest.raises(ValueError, match=r"team/mine\.yaml is empty"), one_line_errors(words):
        pass


def test_each_config_directory_counts(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    for directory in (first, second):
        (directory / "loss").mkdir(parents=True)
        (directory / f"loss/{directory.name}.yaml").write_text("_target_: rlvr.loss.grpo.grpo\n")
    with one_line_errors(["--config-dir", str(first), "loss=a", f"--config-dir={second}"]) as registry:
        assert {"a", "b"} <= set(registry.options("loss"))


def test_a_library_that_an_own_component_needs_is_missing_before_the_launch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_loss.py").write_text("import math\n\nfrom no_such_library.deep import thing\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ValueError, match=r"own_loss\.py, line 3: no module no_such_library is installed"):
        own_code.refuse_missing({"loss": {"_target_": "own_loss.loss"}}, [str(tmp_path)])
