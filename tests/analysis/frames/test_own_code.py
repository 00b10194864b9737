"""Runs of different code are named in a report."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from analysis.frames.own_code import notes, refuse_mixed


def a_home(tmp_path: Path, versions_of: dict[str, dict[str, list[str]]]) -> pd.DataFrame:
    """Runs ARM-SEED with their record, and the frame of them."""
    rows = []
    for name, versions in versions_of.items():
        (tmp_path / "runs" / name).mkdir(parents=True)
        if versions:
            (tmp_path / "runs" / name / "own_code.json").write_text(json.dumps(versions))
        arm = name.split("-")[0]
        rows.append({"run_id": name, "name": name, "arm": arm, "group_id": f"group of {arm}"})
    return pd.DataFrame(rows)


def test_seeds_of_one_arm_with_different_code_are_named(tmp_path: Path) -> None:
    first, second = "1" * 64, "2" * 64
    versions_of = {"a-0": {"own": [first]}, "a-1": {"own": [second]}, "b-0": {"own": [first, second]}, "grpo-0": {}}
    assert notes(tmp_path, a_home(tmp_path, versions_of)) == [
        "`own`, code of your own, was not the same in all runs: 1111111 in a-0; 2222222 in a-1; 1111111 then 2222222 "
        "in b-0. Not of one version: a, b."
    ]


def test_runs_of_one_arm_with_different_code_are_not_averaged(tmp_path: Path) -> None:
    first, second = "1" * 64, "2" * 64
    arms = {f"{arm}-{seed}": {"rlvr.loss.lad": [first if arm == "a" else second]} for arm in "ab" for seed in (0, 1)}
    one = tmp_path / "one"
    refuse_mixed(one, a_home(one, arms))
    frame = a_home(tmp_path, {**arms, "a-2": {"rlvr.loss.lad": [second]}})
    with pytest.raises(
        LookupError, match=r"`rlvr.loss.lad`, code of the objective, .* Not of one version: a\. .* --mixed-code"
    ):
        refuse_mixed(tmp_path, frame)


def test_a_run_whose_code_changed_between_its_attempts_is_not_averaged_with_others(tmp_path: Path) -> None:
    """Also if it changed under all runs alike, as when a checkout moves to another commit."""
    both = {"rlvr.trainer": ["1" * 64, "2" * 64]}
    with pytest.raises(LookupError, match=r"`rlvr.trainer`, our code, .*: 1111111 then 2222222 in a-0, a-1\. Not of"):
        refuse_mixed(tmp_path, a_home(tmp_path, {"a-0": both, "a-1": both}))


def test_arms_with_different_code_are_named_too(tmp_path: Path) -> None:
    versions_of = {f"a-{seed}": {"own": ["1" * 64], "days": ["3" * 64]} for seed in range(5)}
    frame = a_home(tmp_path, {**versions_of, "b-0": {"own": ["2" * 64], "days": ["3" * 64]}})
    assert notes(tmp_path, frame) == [
        "`own`, code of your own, was not the same in all runs: 1111111 in a-0, a-1, a-2, 2 more; 2222222 in b-0."
    ]


def test_runs_of_one_version_or_without_a_record_need_no_line(tmp_path: Path) -> None:
    versions_of = {"a-0": {"own": ["1" * 64]}, "a-1": {"own": ["1" * 64]}, "a-2": {}}
    assert notes(tmp_path, a_home(tmp_path, versions_of)) == []
