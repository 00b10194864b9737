import json
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from analysis import command, figures, tables
from analysis.exchange import folder_name
from rlvr.ledger import layout
from rlvr.ledger.files import write_json
from rlvr.ledger.sweeps import Ledger
from rlvr.tracker.presentation import newest_report
from sweeps import commands as sweeps
from tests.analysis.ledger_factory import counts, write_planned
from tests.support.disks import permissions_hold

CLAIM = {"says": "PACS ends more accurate", "metric": "avg", "arm": "loss=pacs", "relation": ">", "printed": "61.5"}


def study(home: Path, of_seeds: tuple[int, ...], *, claimed: bool = True, claim: Mapping[str, str] = CLAIM) -> Path:
    """GRPO with 4 of 8 right, and PACS with so many, by seed."""
    starts, ends_of = {"maze7": counts(*(2,) * 30)}, {}
    for loss, rights in (("grpo", (4,) * len(of_seeds)), ("pacs", of_seeds)):
        for seed, right in enumerate(rights):
            ends = {"maze7": counts(*(right + (0, 1, -1)[i % 3] for i in range(30)))}
            ends_of[f"loss={loss} seed={seed}"] = {0: starts, 40: ends}
    write_planned(home, ends_of, claims=[claim] if claimed else [])
    return home


@pytest.fixture(scope="module")
def decided(tmp_path_factory) -> str:
    """A home whose study is decided."""
    return str(study(tmp_path_factory.mktemp("decided"), (6, 6, 7)))


def test_the_verdicts_alone_and_an_exit_code_by_request(tmp_path, capsys):
    cases = {"holds": ((6, 6, 7), 0), "contradicted": ((2, 2, 1), 1), "undecided": ((4, 5, 3), 3)}
    cases |= {"not tested": ((6,), 3)}
    for word, (of_seeds, code) in cases.items():
        home = study(tmp_path / word, of_seeds)
        assert command.main(["--home", str(home), "--claims", "--exit-code"]) == code, word
        shown = capsys.readouterr().out
        assert f"{word}: PACS ends more accurate" in shown
        assert "printed: 61.5" in shown
        assert "avg@8" not in shown.split("PACS")[0], f"{word}: a table"
        assert not list(home.glob("reports/*/index.html")), word
        assert command.main(["--home", str(home), "--claims"]) == 0, word


def test_what_decides_is_printed_and_with_all_every_table(decided, tmp_path, capsys):
    arguments = ["--home", decided, "--no-figures", "--out", str(tmp_path)]
    assert command.main(arguments) == 0
    shown = capsys.readouterr().out
    assert len(shown.splitlines()) <= 25
    # PACS has 6, 7, 5 right of 8 in turn, a seed one more; GRPO 4, 5, 3: the means are 6⅓ and 4 of 8
    assert "│ loss=pacs            │ 79.2 ±" in shown
    assert "+29.2 [" in shown
    assert "What decides" not in shown
    assert f"Page: {tmp_path}/default-part/index.html\nTables (here with --all) and figures are beside it.\n" in shown
    assert command.main([*arguments, "--metrics", "pass,avg"]) == 0  # in the order in which they were typed
    assert re.search(r"pass@8 . +difference . +avg@8 . +difference . seeds", capsys.readouterr().out)
    assert command.main([*arguments, "--all"]) == 0
    assert "maze7: what decides" in capsys.readouterr().out


def test_json_has_verdicts_tables_and_files_of_every_study(decided, tmp_path, capsys):
    """The fields are those of docs/analysis.md."""
    assert command.main(["--home", decided, "--no-figures", "--out", str(tmp_path), "--json", "--exit-code"]) == 0
    (of_study,) = json.loads(capsys.readouterr().out)
    page = (Path(__file__).parents[2] / "docs/analysis.md").read_text(encoding="utf-8")
    (verdict,) = of_study["verdicts"]
    comparison = next(table for table in of_study["tables"] if table["name"] == "comparison")
    (difference,) = verdict["differences"]
    for name in (*of_study, *verdict, *comparison, *difference):
        assert f"`{name}`" in page, name
    assert (of_study["title"], of_study["num_runs"], of_study["states"]) == ("default", 6, {"finished": 6})
    assert (verdict["outcome"], verdict["says"]) == ("holds", "PACS ends more accurate")
    assert difference["estimate"] == pytest.approx(7 / 24)  # 6⅓ − 4 of 8
    assert difference["low"] < 7 / 24 < difference["high"]
    assert (difference["num_seeds"], difference["num_problems"]) == (3, 30)
    base, _, pacs = (cell for cell in comparison["cells"] if cell["metric"] == "avg@8")
    assert (base["row"], base["mean"], base["difference"]) == ("base policy (step 0)", 0.25, None)
    assert (pacs["row"], pacs["verdict"], pacs["mean"]) == ("loss=pacs", "▲", pytest.approx(19 / 24))
    assert all(Path(file).is_file() for file in of_study["files"])
    assert command.main(["--home", decided, "--claims", "--json"]) == 0
    (alone,) = json.loads(capsys.readouterr().out)
    assert (alone["verdicts"], alone["tables"], alone["files"]) == (of_study["verdicts"], [], [])


def test_a_claim_that_cannot_be_read_is_open_for_the_exit_code(tmp_path, capsys):
    home = str(study(tmp_path, (6, 6, 7), claim={"says": "PACS ends more accurate", "arm": "loss=pacs"}))
    for more in (["--claims"], ["--no-figures"]):
        assert command.main(["--home", home, "--exit-code", *more]) == 3
        assert "lacks metric, relation" in capsys.readouterr().out


def test_the_runs_that_a_store_has_are_browsed_in_the_experiment_that_they_were_shipped_to(tmp_path, capsys):
    home = study(tmp_path, (6, 6, 7))
    assert command.main(["--home", str(home), "--no-figures"]) == 0
    assert "mlflow ui" not in capsys.readouterr().out
    layout.mlflow_database(home).touch()
    (sweep,) = (home / "runs" / "sweeps").iterdir()
    (sweep / "mlflow.json").write_text(json.dumps({"sqlite:///mlflow.db": {"experiment_id": "3"}}))
    assert command.main(["--home", str(home), "--no-figures"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "Browse the runs" in line]
    assert "mlflow ui --backend-store-uri sqlite:////" in line
    assert line.endswith("   then http://127.0.0.1:5000/#/experiments/3/runs?viewStateShareKey=rlvr")


def test_a_part_of_a_report_leaves_the_whole_one_as_it_is(tmp_path, capsys):
    home = str(study(tmp_path, (6, 6, 7)))
    complete = tmp_path / "reports" / "default" / "index.html"
    complete.parent.mkdir(parents=True)
    complete.write_text("all of it")
    (sweep,) = Ledger(tmp_path).sweeps()
    write_json(layout.report_summary(complete.parent), {"sweeps": [sweep.sweep_id]})
    for part in (["--no-figures"], ["--tables", "comparison", "--no-figures"]):
        assert command.main(["--home", home, *part]) == 0
        assert f"{tmp_path}/reports/default-part/index.html" in capsys.readouterr().out
    assert complete.read_text() == "all of it"
    assert newest_report(tmp_path, sweep).page == complete  # what MLflow shows


def test_without_claims_the_command_explains_where_they_are_written(tmp_path, capsys):
    home = str(study(tmp_path, (6, 6, 7), claimed=False))
    assert command.main(["--home", home, "--claims"]) == 0
    assert command.main(["--home", home, "--claims", "--exit-code"]) == 3  # nothing was shown to hold
    assert "no claims. A study's file lists them" in capsys.readouterr().out


def test_what_cannot_be_meant_gives_one_line_and_exit_code_2(decided, capsys):
    messages = {
        "--metrics avgg": "--metrics avgg: no run measured it. Did you mean avg",
        "--against loss=ppo": "--against loss=ppo: there is no such arm",
        "--across lr": "--across lr: it was not swept. Swept here: loss.",
        "--claims --metrics avg": "--metrics: no effect with --claims, which judges each claim by its own",
        "--claims --tables eta --against loss=grpo": "--against and --tables: no effect with --claims",
        "--claims --all": "--all: no effect with --claims",
        "--all --tables eta": "--all has no effect with --tables, which prints those that it names.",
        "--all --json": "--all has no effect with --json, which has every table.",
        "--uri sqlite:///x.db": "--uri has no effect without --source mlflow. Type both for MLflow",
        "x.rlvr --uri sqlite:///x.db": "--source, --uri and --spend have no effect with bundles",
        "x.rlvr --source mlflow": "--source, --uri and --spend have no effect with bundles",
        "--metrics ,": "--metrics ,: there is no name in it.",
        "--tables ,": "--tables ,: there is no name in it.",
        "nope": "analysis: there is no study or sweep nope here. Studies: default; sweeps, newest first: s.\n",
        "default s": "names several. To compare them: `python -m analysis bundle NAME` of each",
        "default --studies": ": default --studies names several",
        "s x.rlvr": ": s x.rlvr names several",
        "default --sweep s": ": default --sweep s names several",
    }
    for typed, message in messages.items():
        assert command.main(["--home", decided, "--no-figures", *typed.split()]) == 2, typed
        shown = capsys.readouterr()
        assert message in shown.err, typed
        assert (len(shown.err.splitlines()), shown.out) == (1, ""), typed


def test_a_word_is_a_study_or_a_sweep(decided, capsys):
    for words in (["default"], ["s"], ["--sweep", "s"]):
        assert command.main(["--home", decided, "--claims", *words]) == 0
    assert capsys.readouterr().out.count("holds: PACS ends more accurate") == 3


def test_a_file_that_is_no_bundle_does_not_hide_the_study_of_its_name(decided, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("default").write_text("notes")
    assert command.main(["--home", decided, "--claims", "default"]) == 0
    assert "holds: PACS ends more accurate" in capsys.readouterr().out
    capsys.readouterr()
    assert command.main(["bundle", "study=default", "--home", decided, "--out", "all.rlvr"]) == 0
    assert f"all.rlvr ({Path('all.rlvr').stat().st_size / 1000:.1f} kB)" in capsys.readouterr().out
    Path("all.rlvr").rename("default")  # a bundle by another name is one still
    assert command.main(["--home", str(tmp_path), "--claims", "default"]) == 0
    assert "holds: PACS ends more accurate" in capsys.readouterr().out


PARTS = (".", "run.json", "config.yaml", "metrics.jsonl", "attempts")


def test_one_run_that_may_not_be_read_stops_no_report_and_no_status(tmp_path, capsys):
    """Whatever part of it: the others are reported, and it is named with what to type."""
    for number, part in enumerate(PARTS):
        home = study(tmp_path / str(number), (6, 6, 7))
        path = sorted(home.glob("runs/*/run.json"))[0].parent / part
        before = path.stat().st_mode
        path.chmod(0)
        with permissions_hold():
            assert command.main(["--home", str(home), "--claims"]) == 0, part
            assert sweeps.main(["status", "--home", str(home), "--json"]) == 0, part
        (record,) = json.loads(capsys.readouterr().out.partition("\n[")[2].join(["[", ""]))
        path.chmod(before)
        unreadable = {run["run_id"]: run["message"] for run in record["runs"] if run["state"] == "unreadable"}
        named = path / "run.json" if part == "." else path
        assert list(unreadable) == [path.name if part == "." else path.parent.name], part
        assert f"chmod u+rX {path.resolve()}" in unreadable.popitem()[1], (part, named)


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone gives files away")
def test_a_report_of_another_user_is_kept(tmp_path, capsys, monkeypatch):
    home = study(tmp_path / "home", (6, 6, 7))
    assert command.main(["--home", str(home), "--no-figures"]) == 0
    (page,) = home.glob("reports/*/index.html")
    os.chown(page, 12345, -1)
    monkeypatch.setattr(os, "geteuid", lambda: 12346)  # of a colleague
    before = page.stat()
    assert command.main(["--home", str(home), "--no-figures"]) == 2
    assert f"{page} is the report of another user, and is kept. Pass --out DIR" in capsys.readouterr().err
    assert page.stat() == before
    monkeypatch.setenv("RLVR_SHARED", "1")
    umask = os.umask(0o022)
    try:
        assert command.main(["--home", str(home), "--no-figures"]) == 0
    finally:
        os.umask(umask)


def test_no_two_titles_have_one_folder() -> None:
    titles = ["eta", "eta, sweep a", "eta-a", "eta a", "eta/a", "C++", "C#", "é", "e", "main, sweep 2024"]
    folders = [folder_name(title) for title in titles]
    assert len({*folders}) == len(titles)
    assert folders[:3] == ["eta", "eta@a", "eta-a"]
    assert not [folder for folder in folders if "/" in folder]


OWN = """
from matplotlib.figure import Figure
from mine_words import QUESTION
def figure(frames):
    return Figure() if len(frames.runs) else None
"""


def test_figures_of_a_directory_of_the_users_are_drawn_and_their_mistakes_named(decided, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    for package in (figures, tables):
        monkeypatch.setattr(package, "__path__", [*package.__path__])
    mine, arguments = tmp_path / "mine", ["--home", decided, "--out", str(tmp_path / "out"), "--json", "--config-dir"]
    (mine / "figures").mkdir(parents=True)
    assert command.main([*arguments, str(mine)]) == command.BAD_INPUT
    assert "it has no tables/NAME.py and no figures/NAME.py" in capsys.readouterr().err
    (mine / "mine_words.py").write_text("QUESTION = 'Is it so?'")
    (mine / "figures" / "eta.py").write_text(OWN)
    assert command.main([*arguments, str(mine)]) == command.BAD_INPUT
    assert f"{mine}/figures/eta.py has the name of another one, {figures.__path__[0]}/eta.py" in capsys.readouterr().err
    (mine / "figures" / "eta.py").rename(mine / "figures" / "mine_empty.py")
    assert command.main([*arguments, str(mine)]) == 0
    (study,) = json.loads(capsys.readouterr().out)
    assert any(file.endswith("figures/mine_empty.png") for file in study["files"])
    (tmp_path / "wrong" / "tables").mkdir(parents=True)
    (tmp_path / "wrong" / "tables" / "mine_wrong.py").write_text(
        "QUESTION = ''\n\ndef table(frames):\n    return 1 / 0"
    )
    assert command.main([*arguments, str(tmp_path / "wrong")]) == command.BAD_INPUT
    assert f"{tmp_path}/wrong/tables/mine_wrong.py, line 4: ZeroDivisionError: division by" in capsys.readouterr().err
