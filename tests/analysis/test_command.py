"""`python -m analysis`: what it prints of claims, and its exit codes for scripts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from analysis import command
from rlvr.ledger import layout
from tests.analysis.ledger_factory import config, counts, write_run, write_sweep

CLAIM = {"says": "PACS ends more accurate", "metric": "avg", "arm": "loss=pacs", "relation": ">", "printed": "61.5"}


def study(home: Path, of_seeds: tuple[int, ...], *, claimed: bool = True, claim: Mapping[str, str] = CLAIM) -> Path:
    """GRPO with 4 of 8 right, and PACS with so many, by seed."""
    plan = []
    for loss, rights in (("grpo", (4,) * len(of_seeds)), ("pacs", of_seeds)):
        for seed, right in enumerate(rights):
            ends = {"maze7": counts(*(right + (0, 1, -1)[i % 3] for i in range(30)))}
            run_id = write_run(home, config(loss, seed=seed), {0: {"maze7": counts(*(2,) * 30)}, 40: ends})
            plan.append((run_id, f"{loss}-s{seed}", [f"loss={loss}", f"seed={seed}"]))
    write_sweep(home, "s", plan, claims=[claim] if claimed else [])
    return home


@pytest.mark.parametrize(
    ("of_seeds", "word", "code"),
    [((6, 6, 7), "holds", 0), ((2, 2, 1), "contradicted", 1), ((4, 5, 3), "undecided", 3), ((6,), "not tested", 3)],
)
def test_the_verdicts_alone_and_an_exit_code_by_request(tmp_path, capsys, of_seeds, word, code):
    home = str(study(tmp_path, of_seeds))
    assert command.main(["--home", home, "--claims", "--exit-code"]) == code
    shown = capsys.readouterr().out
    assert f"{word}: PACS ends more accurate" in shown
    assert "printed: 61.5" in shown
    assert "avg@8" not in shown.split("PACS")[0]  # no table
    assert not list(tmp_path.glob("reports/*/index.html"))
    assert command.main(["--home", home, "--claims"]) == 0


def test_a_claim_that_cannot_be_read_is_open_for_the_exit_code(tmp_path, capsys):
    home = str(study(tmp_path, (6, 6, 7), claim={"says": "PACS ends more accurate", "arm": "loss=pacs"}))
    for more in (["--claims"], ["--no-figures"]):
        assert command.main(["--home", home, "--exit-code", *more]) == 3
        assert "lacks metric, relation" in capsys.readouterr().out


def test_only_runs_that_are_in_a_store_can_be_browsed(tmp_path, capsys):
    home = study(tmp_path, (6, 6, 7))
    for is_there in (False, True):
        if is_there:
            layout.mlflow_database(home).touch()
        assert command.main(["--home", str(home), "--no-figures"]) == 0
        assert ("mlflow ui --backend-store-uri sqlite:////" in capsys.readouterr().out) == is_there


def test_a_report_opens_with_its_verdicts(tmp_path, capsys):
    home = str(study(tmp_path, (6, 6, 7)))
    assert command.main(["--home", home, "--no-figures", "--exit-code"]) == 0
    shown = capsys.readouterr().out
    assert shown.index("holds: PACS ends more accurate") < shown.index("Comparison")
    page = (tmp_path / "reports" / "default-part" / "index.html").read_text(encoding="utf-8")
    assert page.index("<b>holds</b>PACS ends more accurate") < page.index('id="table-comparison"')


def test_a_part_of_a_report_leaves_the_whole_one_as_it_is(tmp_path, capsys):
    home = str(study(tmp_path, (6, 6, 7)))
    complete = tmp_path / "reports" / "default" / "index.html"
    complete.parent.mkdir(parents=True)
    complete.write_text("all of it")
    for part in (["--no-figures"], ["--tables", "comparison", "--no-figures"]):
        assert command.main(["--home", home, *part]) == 0
        assert f"{tmp_path}/reports/default-part/index.html" in capsys.readouterr().out
    assert complete.read_text() == "all of it"


def test_without_claims_the_command_explains_where_they_are_written(tmp_path, capsys):
    home = str(study(tmp_path, (6, 6, 7), claimed=False))
    assert command.main(["--home", home, "--claims"]) == 0
    assert command.main(["--home", home, "--claims", "--exit-code"]) == 3  # nothing was shown to hold
    assert "no claims. A study's file lists them" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--metrics", "avgg"], "--metrics avgg: no run measured it. Did you mean avg"),
        (["--against", "loss=ppo"], "--against loss=ppo: there is no such arm"),
        (["--across", "lr"], "--across lr: it was not swept. Swept here: loss."),
    ],
)
def test_an_unknown_name_gives_one_line_and_exit_code_2(tmp_path, capsys, arguments, message):
    assert command.main(["--home", str(study(tmp_path, (6, 6, 7))), "--no-figures", *arguments]) == 2
    shown = capsys.readouterr()
    assert message in shown.err
    assert len(shown.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--claims", "--metrics", "avg"], "--metrics: no effect with --claims, which judges each claim by its own"),
        (["--claims", "--tables", "eta", "--against", "loss=grpo"], "--against and --tables: no effect with --claims"),
        (["--uri", "sqlite:///x.db"], "--uri has no effect without --source mlflow. Type both for MLflow"),
        (["x.rlvr", "--uri", "sqlite:///x.db"], "--source and --uri have no effect with bundles"),
        (["x.rlvr", "--source", "mlflow"], "--source and --uri have no effect with bundles"),
        (["--metrics", ","], "--metrics ,: there is no name in it."),
        (["--tables", " ,"], "--tables  ,: there is no name in it."),
    ],
)
def test_an_option_without_effect_is_refused(tmp_path, capsys, arguments, message):
    assert command.main(["--home", str(study(tmp_path, (6, 6, 7))), *arguments]) == 2
    shown = capsys.readouterr()
    assert message in shown.err
    assert shown.out == ""


def test_a_word_is_a_study_or_a_sweep_and_only_one_of_them(tmp_path, capsys):
    home = str(study(tmp_path, (6, 6, 7)))
    for words in (["default"], ["s"], ["--sweep", "s"]):
        assert command.main(["--home", home, "--claims", *words]) == 0
    assert capsys.readouterr().out.count("holds: PACS ends more accurate") == 3
    assert command.main(["--home", home, "nope"]) == 2
    nothing = "there is no study or sweep nope here. Studies: default; sweeps, newest first: s.\n"
    assert capsys.readouterr().err == f"analysis: {nothing}"
    for words in (["default", "s"], ["default", "--all"], ["s", "x.rlvr"]):
        assert command.main(["--home", home, *words]) == 2
        assert "names several. To compare them: `python -m analysis bundle NAME` of each" in capsys.readouterr().err
    assert command.main(["--home", home, "default", "--no-figures", "--sweep", "s"]) == 2
    assert ": default --sweep s names several" in capsys.readouterr().err


def test_the_size_of_a_small_bundle_is_not_zero(tmp_path, capsys, monkeypatch):
    home = study(tmp_path, (6, 6, 7))
    monkeypatch.chdir(tmp_path)
    assert command.main(["bundle", "study=default", "--home", str(home)]) == 0
    size = (tmp_path / "default.rlvr").stat().st_size
    assert size < 100_000
    assert f"default.rlvr ({size / 1000:.1f} kB)" in capsys.readouterr().out


def test_a_file_that_is_no_bundle_does_not_hide_the_study_of_its_name(tmp_path, capsys, monkeypatch):
    home = study(tmp_path, (6, 6, 7))
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    (here / "default").write_text("notes")
    assert command.main(["--home", str(home), "--claims", "default"]) == 0
    assert "holds: PACS ends more accurate" in capsys.readouterr().out
    assert command.main(["bundle", "study=default", "--home", str(home), "--out", str(here / "all.rlvr")]) == 0
    (here / "all.rlvr").rename(here / "default")  # a bundle by another name is one still
    assert command.main(["--home", str(here), "--claims", "default"]) == 0
    assert "holds: PACS ends more accurate" in capsys.readouterr().out
