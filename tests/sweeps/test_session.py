import os
import sys
from pathlib import Path

import pytest

from rlvr.config.registry import Registry
from rlvr.run import carry_out
from sweeps import session
from sweeps.session import Session


def test_a_session_is_current_in_its_block_alone_and_hydra_of_another_application_is_told_so(tmp_path: Path) -> None:
    outer, inner = Session(["a"]), Session(["b"])
    with outer.entered():
        with inner.entered():
            assert session.current() is inner
        assert session.current() is outer
    with pytest.raises(RuntimeError, match="belong to `python -m rlvr.run`"):
        session.current()


def fail_in(made: Session) -> None:
    with made.entered():
        os.environ |= {"KEPT": "changed", "NEW": "x"}
        assert sys.path[-1] == made.registry.folders[0]
        raise ZeroDivisionError


def test_environment_and_path_are_put_back_even_after_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEPT", "before")
    path = list(sys.path)
    with pytest.raises(ZeroDivisionError):
        fail_in(Session(registry=Registry([str(tmp_path)])))
    assert (sys.path, os.environ["KEPT"], "NEW" in os.environ) == (path, "before", False)


@pytest.mark.slow
def test_a_dry_run_keeps_its_plans_and_their_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RLVR_HOME", str(tmp_path / "home"))
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "own.yaml").write_text(
        "# @package _global_\n# Why?\nhydra: {mode: MULTIRUN, sweeper: {params: {seed: '0,1'}}}\n"
    )
    words = ["--config-dir", str(tmp_path), "study=own", "loss=grpo", "cluster=local"]
    (launch,) = carry_out(words, Registry.of(words), dry_run=True).launches
    assert [run.name for run in launch.plan.runs] == ["grpo-s0", "grpo-s1"]
    assert (launch.plan.study, launch.plan.question) == ("own", "Why?")
    assert (launch.plan.config_dirs, launch.plan.about["swept"]) == ((str(tmp_path),), {"seed": ["0", "1"]})
    assert "own " in capsys.readouterr().out
    assert not (tmp_path / "home").exists()


def test_one_run_is_no_sweep(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"study=eta is a sweep, not one run"):
        carry_out(["study=eta"], Registry(), dry_run=True, one_run=True)
