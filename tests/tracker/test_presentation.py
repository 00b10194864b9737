import json
import os
from pathlib import Path

import numpy as np
import pytest
from mlflow import MlflowClient

from rlvr.ledger import layout
from rlvr.ledger.files import write_json
from rlvr.ledger.journal import JournalWriter
from rlvr.ledger.runs import to_yaml
from rlvr.ledger.samples import write_samples
from rlvr.ledger.sweeps import Ledger
from rlvr.records import Completion, Problem, Reward, Rollout
from rlvr.tracker.presentation import VIEW_TAG, files_of_run, is_behind, metric_columns, saved_view
from rlvr.tracker.shipper import Shipper


def test_columns_are_the_main_metrics_with_the_largest_k_of_pass_at_k() -> None:
    names = [f"evaluation/{b}/{m}" for b in ("b", "a") for m in ("error", "avg_at_8", "pass_at_1", "pass_at_8")]
    names += ["evaluation/a/pass_at_16", "validation/a/avg_at_8", "loss/total", "policy/entropy"]
    assert metric_columns(names) == [
        *("metrics.`evaluation/a/avg_at_8`", "metrics.`evaluation/b/avg_at_8`"),
        *("metrics.`evaluation/a/pass_at_16`", "metrics.`evaluation/b/pass_at_8`"),
        *("metrics.`validation/a/avg_at_8`", "metrics.`policy/entropy`"),
    ]
    assert metric_columns(["evaluation/bandit/expected_reward"]) == ["metrics.`evaluation/bandit/expected_reward`"]


def test_a_view_gets_new_columns_with_knobs_first_and_is_else_unchanged() -> None:
    first = saved_view("", ["params.`lr`", "metrics.`a`"], 1.0)
    assert saved_view(first, ["metrics.`a`"], 2.0) == first
    grown = json.loads(saved_view(first, ["params.`eta`"], 3.0))
    assert json.loads(grown["state"])["orderByKey"] == "metrics.`a`"
    assert "orderByKey" not in json.loads(json.loads(saved_view("", ["params.`lr`"], 1.0))["state"])
    assert (grown["createdAt"], grown["updatedAt"]) == (1000, 3000)
    assert json.loads(grown["state"])["selectedColumns"] == ["params.`lr`", "params.`eta`", "metrics.`a`"]
    assert json.loads(saved_view("of somebody else", ["params.`lr`"], 4.0))["createdAt"] == 4000


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A named sweep of two runs, shipped while there was no report yet."""
    home = tmp_path_factory.mktemp("home")
    ledger = Ledger(home)
    lines = []
    for number, (loss, lr) in enumerate((("grpo", 1e-4), ("rloo", 4e-4))):
        config = to_yaml({"lr": lr, "choices": {"loss": loss}, "tracker": {"uri": "http://me:secret@host"}})
        info = {"run_id": f"run{number}", "name": f"{loss}-s0", "study": "pilot", "created": 1.0}
        ledger.create_run(f"run{number}", config, info)
        lines.append({"run_id": f"run{number}", "name": f"{loss}-s0"})
        spool = JournalWriter(ledger.run_dir(f"run{number}"), 1)
        spool.record(0, {"evaluation/maze/avg_at_8": 0.5, "evaluation/maze/pass_at_8": 0.75})
        spool.close()
    about = {"study": "pilot", "name": "pilot", "tags": "cpu, first", "question": "Is it so?", "created": 1.0}
    about |= {"command": "python -m rlvr.run -m name=pilot", "swept": {"loss": ["rloo", "grpo"], "lr": [1e-4, 4e-4]}}
    ledger.record_sweep("abc12345", about, lines)
    assert ship(home) == []
    return home


def ship(home: Path) -> list[str]:
    report = Shipper(home).ship([Ledger(home).run_dir(f"run{number}") for number in range(2)])
    return [*report.problems.values(), *([report.error] if report.error else [])]


def parent(home: Path) -> tuple[MlflowClient, str, dict[str, str], dict[str, str]]:
    client = MlflowClient(f"sqlite:///{home}/mlflow.db")
    experiment = client.get_experiment_by_name("pilot")
    (run,) = client.search_runs([experiment.experiment_id], "tags.`rlvr.kind` = 'sweep'")
    return client, run.info.run_id, run.data.tags, run.data.params


@pytest.mark.slow
def test_a_parent_run_has_the_name_the_swept_values_and_the_configs_without_secrets(home: Path) -> None:
    client, run_id, tags, params = parent(home)
    expected = {"mlflow.runName": "pilot", "rlvr.name": "pilot", "rlvr.tags": "cpu, first", "rlvr.runs": "2"}
    assert {key: tags[key] for key in expected} == expected
    assert (tags["rlvr.loss"], params) == ("grpo, rloo", {"lr": "0.0001, 0.0004"})
    note = tags["mlflow.note.content"]
    assert note.startswith("Is it so?\n\n    python -m rlvr.run -m name=pilot\n\nSwept: `loss` = rloo, grpo; `lr` = ")
    assert "Report: `python -m analysis pilot`" in note
    configs = Path(client.download_artifacts(run_id, "configs.yaml")).read_text()
    assert configs.count("---") == 2
    assert "lr: 0.0004" in configs
    assert "secret" not in configs
    view = client.get_experiment_by_name("pilot").tags[VIEW_TAG]
    assert json.loads(json.loads(view)["state"])["selectedColumns"] == [
        "tags.`rlvr.loss`",
        "params.`lr`",
        "metrics.`evaluation/maze/avg_at_8`",
        "metrics.`evaluation/maze/pass_at_8`",
    ]


@pytest.mark.slow
def test_a_report_reaches_the_parent_run_once_and_its_verdicts_with_it(home: Path) -> None:
    sweep = Ledger(home).sweep("abc12345")
    assert not is_behind(home, sweep)
    folder = layout.reports(home) / "pilot"
    folder.mkdir(parents=True)
    for when, page in enumerate(("<b>first</b>", "<b>second</b>")):
        layout.report_page(folder).write_text(page)
        os.utime(layout.report_page(folder), (2e9 + when, 2e9 + when))
        verdicts = [
            {"outcome": "holds", "says": "It is so.", "found": "+3 [1, 5]"},
            {"outcome": "undecided", "says": "And so?", "found": ""},
        ]
        shown = {
            "colours": {"run0": "#000000", "gone": "#0072B2"},
            "scores": {"sweep/maze/avg_at_8/best": 0.5 + when / 4},
        }
        write_json(layout.report_summary(folder), {"sweeps": ["abc12345"], "verdicts": verdicts, **shown})
        assert is_behind(home, sweep)
        assert ship(home) == []
        assert not is_behind(home, sweep)
        client, run_id, tags, _ = parent(home)
        assert tags["rlvr.verdicts"] == "1 holds, 1 undecided"
        assert "- **holds**: It is so. +3 [1, 5]\n- **undecided**: And so?\n" in tags["mlflow.note.content"]
        assert client.get_run(run_id).data.metrics == shown["scores"]
        runs = client.search_runs(["1"], "tags.`rlvr.run_id` LIKE 'run%'")
        colours = {run.data.tags["rlvr.run_id"]: run.data.tags.get("mlflow.runColor") for run in runs}
        assert colours == {"run0": "#000000", "run1": None}
        artifact = Path(client.download_artifacts(run_id, "report.html"))
        assert artifact.read_text() == page
        stored = home / "mlartifacts" / run_id / "artifacts" / "report.html"
        before = stored.stat().st_mtime_ns
        assert (ship(home), stored.stat().st_mtime_ns) == ([], before)


def test_a_store_that_takes_no_artifacts_still_gets_the_metrics(home: Path) -> None:
    _, run_id, *_ = parent(home)
    place = home / "mlartifacts" / run_id / "artifacts"
    place.rename(place.with_name("away"))
    place.write_text("a file, where a folder should be")
    page = layout.report_page(layout.reports(home) / "pilot")
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text("<b>third</b>")
    write_json(layout.report_summary(page.parent), {"sweeps": ["abc12345"], "verdicts": []})
    spool = JournalWriter(Ledger(home).run_dir("run0"), 1)
    spool.record(1, {"loss/total": 1.0})
    spool.close()
    (problem,) = ship(home)
    assert "report.html cannot be stored" in problem
    client = MlflowClient(f"sqlite:///{home}/mlflow.db")
    (run,) = client.search_runs(["1"], "tags.`rlvr.run_id` = 'run0'")
    assert run.data.metrics["loss/total"] == 1.0


def test_the_files_of_a_run_are_its_config_without_secrets_its_log_and_samples_as_a_table(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    config = to_yaml({"lr": 0.1, "tracker": {"uri": "http://me:secret@host"}})
    ledger.create_run("r", config, {"run_id": "r", "name": "r", "study": "pilot", "created": 1.0})
    run_dir = ledger.run_dir("r")
    assert set(files_of_run(run_dir)) == {"config.yaml"}
    log = layout.log(layout.attempt(run_dir, 1))
    log.parent.mkdir(parents=True)
    log.write_text("step 1\n")
    problem, nats = Problem("p", "prompt", source="maze"), np.zeros(1, np.float32)
    completion = Completion(np.zeros(1, np.int64), nats, nats, True)
    of_problem = Rollout(problem, np.zeros(1, np.int64), (completion,), ("UP",), (Reward(1.0, "correct"),))
    write_samples([of_problem] * 500, run_dir, step=0, right_answer=lambda _: "UP DONE")
    files = files_of_run(run_dir)
    assert files["log.txt"] == "step 1\n"
    assert "lr: 0.1" in files["config.yaml"]
    assert "secret" not in files["config.yaml"]
    table = json.loads(files["samples.json"])
    assert len(table["data"]) == 400
    first = dict(zip(table["columns"], table["data"][0], strict=True))
    assert (first["prompt"], first["right_answer"], first["response"]) == ("prompt", "UP DONE", "UP")
