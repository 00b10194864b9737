import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import rlvr
from analysis import command
from analysis.frames.load import catalogue, frames
from analysis.frames.own_code import notes, refuse_mixed, with_code
from tests.analysis.ledger_factory import counts, write_planned


def a_home(tmp_path: Path, versions_of: dict[str, dict[str, list[str]]]) -> pd.DataFrame:
    """Runs ARM-SEED with their record, and the frame of them."""
    rows = []
    for name, versions in versions_of.items():
        (tmp_path / "runs" / name).mkdir(parents=True)
        if versions:
            (tmp_path / "runs" / name / "own_code.json").write_text(json.dumps(versions))
        arm = name.split("-")[0]
        rows.append({"run_id": name, "name": name, "arm": arm, "group_id": f"group of {arm}"})
    return with_code(tmp_path, pd.DataFrame(rows))


def test_seeds_of_one_arm_with_different_code_are_named(tmp_path: Path) -> None:
    first, second = "1" * 64, "2" * 64
    versions_of = {"a-0": {"own": [first]}, "a-1": {"own": [second]}, "b-0": {"own": [first, second]}, "grpo-0": {}}
    assert notes(a_home(tmp_path, versions_of)) == [
        "`own`, code of your own, was not the same in all runs: 1111111 in a-0; 2222222 in a-1; 1111111 then 2222222 "
        "in b-0. Not of one version: a, b."
    ]


def test_runs_of_one_arm_with_different_code_are_not_averaged(tmp_path: Path) -> None:
    first, second = "1" * 64, "2" * 64
    arms = {f"{arm}-{seed}": {"rlvr.loss.lad": [first if arm == "a" else second]} for arm in "ab" for seed in (0, 1)}
    one = tmp_path / "one"
    refuse_mixed(a_home(one, arms))
    frame = a_home(tmp_path, {**arms, "a-2": {"rlvr.loss.lad": [second]}})
    with pytest.raises(
        LookupError, match=r"`rlvr.loss.lad`, code of the objective, .* Not of one version: a\. .* --mixed-code"
    ):
        refuse_mixed(frame)


def test_runs_of_one_arm_that_read_other_content_at_one_path_are_not_averaged(tmp_path: Path) -> None:
    versions_of = {f"{arm}-{seed}": {"own": ["1" * 64]} for arm in "abc" for seed in (0, 1)}
    path_of = {"a": "/data/a", "b": "/data/b", "c": "/data/b"}
    frame = a_home(tmp_path, versions_of).assign(**{"config.task.test.x": [path_of[name[0]] for name in versions_of]})

    def with_digests(digests: str) -> pd.DataFrame:
        for name, digest in zip(versions_of, digests, strict=True):
            (tmp_path / "runs" / name / "inputs.json").write_text(json.dumps({"task.test.x": digest * 16}))
        return with_code(tmp_path, frame)

    assert notes(with_digests("112222")) == []  # of two paths
    refuse_mixed(with_digests("112233"))
    assert notes(with_digests("112233")) == [
        "`task.test.x=/data/b`, content that runs read, was not the same in all runs: 2222222 in b-0, b-1; 3333333 in "
        "c-0, c-1."
    ]
    with pytest.raises(LookupError, match=r"`task.test.x=/data/a`, content .*: 1{7} in a-0; 2{7} in a-1\. Not of one"):
        refuse_mixed(with_digests("122222"))


def test_a_run_whose_code_changed_between_its_attempts_is_not_averaged_with_others(tmp_path: Path) -> None:
    """Also if it changed under all runs alike, as when a checkout moves to another commit."""
    both = {"rlvr.trainer": ["1" * 64, "2" * 64]}
    with pytest.raises(LookupError, match=r"`rlvr.trainer`, our code, .*: 1111111 then 2222222 in a-0, a-1\. Not of"):
        refuse_mixed(a_home(tmp_path, {"a-0": both, "a-1": both}))


def test_arms_with_different_code_are_named_too(tmp_path: Path) -> None:
    versions_of = {f"a-{seed}": {"own": ["1" * 64], "days": ["3" * 64]} for seed in range(5)}
    frame = a_home(tmp_path, {**versions_of, "b-0": {"own": ["2" * 64], "days": ["3" * 64]}})
    assert notes(frame) == [
        "`own`, code of your own, was not the same in all runs: 1111111 in a-0, a-1, a-2, 2 more; 2222222 in b-0."
    ]


def test_runs_of_one_version_or_without_a_record_need_no_line(tmp_path: Path) -> None:
    versions_of = {"a-0": {"own": ["1" * 64]}, "a-1": {"own": ["1" * 64]}, "a-2": {}}
    assert notes(a_home(tmp_path, versions_of)) == []


def test_what_averages_runs_refuses_other_code_unless_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Reports, the frames of `rlvr.load`, bundles (also of one seed each, read together), the papers' tables, and looks
    of `until=`."""
    end: dict[int, Any] = {0: {"maze7": counts(4)}, 40: {"maze7": counts(6)}}
    files = list[Path]()
    for seed in (0, 1):
        typed = f"loss=grpo seed={seed}"
        write_planned(tmp_path, {typed: end}, f"s{seed}")
        (new,) = (
            file for file in (tmp_path / "runs").glob("*/config.yaml") if not file.with_name("own_code.json").exists()
        )
        new.with_name("own_code.json").write_text(json.dumps({"rlvr.loss.grpo": [f"{seed}" * 64]}))
        files.append(tmp_path / f"{seed}.rlvr")
        home = ["--home", str(tmp_path)]
        assert command.main(["bundle", f"sweep=s{seed}", *home, "--out", str(files[-1])]) == 0
    of_files, both = [str(file) for file in files], str(tmp_path / "both.rlvr")
    for arguments in (home, [*of_files, *home], ["bundle", "--out", both, *home], ["paper", "lad_table_1", *home]):
        capsys.readouterr()
        assert command.main(arguments) == 2
        assert "A mean of both belongs to neither" in capsys.readouterr().err
        plain = [] if arguments[0] in ("bundle", "paper") else ["--no-figures"]
        assert command.main([*arguments, *plain, "--mixed-code"]) == 0
    assert command.main([both, *home]) == 2  # it knows the code of its runs
    with pytest.raises(ValueError, match="mixed_code=True"):
        rlvr.load("default", home=tmp_path)
    assert len(rlvr.load("default", home=tmp_path, mixed_code=True).runs) == 2
    with pytest.raises(LookupError, match="A mean of both belongs to neither"):
        frames(catalogue(tmp_path), study="default")


def test_a_study_of_mixed_code_keeps_no_other_from_its_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither an older nor a newer one; the exit code is that of bad input all the same."""
    end: dict[int, Any] = {0: {"maze7": counts(4)}, 40: {"maze7": counts(6)}}
    for number, study in enumerate(("older", "mixed", "newer")):
        loss = ("rloo", "grpo", "pacs")[number]
        typed = [f"loss={loss} seed={seed}" for seed in (0, 1)]
        ids = write_planned(tmp_path, dict.fromkeys(typed, end), study, study=study, created=1000.0 + number)
        for seed, run_id in enumerate(ids):
            version = f"{seed}" if study == "mixed" else "1"
            (tmp_path / "runs" / run_id / "own_code.json").write_text(json.dumps({"rlvr.loss.x": [version * 64]}))
    assert command.main(["--home", str(tmp_path), "--studies", "--no-figures", "--json"]) == 2
    shown = capsys.readouterr()
    assert [study["title"] for study in json.loads(shown.out)] == ["newer", "older"]
    assert "1 of 3 studies not reported. mixed: `rlvr.loss.x`" in shown.err
    assert len(list(tmp_path.glob("reports/*/index.html"))) == 2
