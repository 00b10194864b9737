import contextlib
import json
import math
import re
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import rlvr
from analysis.frames.load import catalogue, frames, load, spent
from analysis.frames.samples import read_table
from analysis.scores.arm import arms
from analysis.scores.cell import last_points
from analysis.scores.comparison import study_level
from rlvr.ledger import layout
from rlvr.ledger.journal import encode
from rlvr.ledger.samples import write_parquet
from tests.analysis.ledger_factory import (
    BASE,
    FINAL,
    config,
    counts,
    curves,
    final,
    name_of,
    write_run,
    write_study,
    write_sweep,
)


def test_the_newest_launch_withdraws_claims_and_one_that_did_not_record_them_does_not(tmp_path):
    claim = {"says": "wins", "metric": "avg", "arm": "loss=lad", "relation": ">"}
    ids = [write_run(tmp_path, config("grpo", seed=seed), {0: {"maze7": counts(4)}}) for seed in (0, 1)]
    write_sweep(tmp_path, "old", [(ids[0], "s0", [])], created=1000.0, claims=[claim], baseline="loss=grpo")
    write_sweep(tmp_path, "new", [(ids[1], "s1", [])], created=2000.0)
    file = layout.sweep_info(layout.sweep(tmp_path, "new"))
    info = json.loads(file.read_text())
    del info["claims"]
    for withdrawn, num_claims, baseline in (
        ({"claims": [], "baseline": None}, 0, ""),
        ({"claims": []}, 0, "loss=grpo"),
        ({}, 1, "loss=grpo"),
    ):
        file.write_text(json.dumps({**info, **withdrawn}))
        frames = load(tmp_path)
        assert (len(frames.claims), frames.baseline) == (num_claims, baseline), withdrawn


def test_every_planned_run_is_a_row_in_any_state_described_by_its_plan_if_it_has_no_files(tmp_path):
    write_study(tmp_path, spoil=True)
    frames = load(tmp_path)
    state = frames.runs.set_index("name")["state"]
    assert (len(frames.runs), state["lad-js-eta0.5-s0"], state["lad-hd-eta4-s0"]) == (13, "finished", "failed")
    assert state["lad-tv-eta2-s0"] == "running"
    assert state["lad-tv-eta4-s0"] == "missing"  # no folder at all
    by_name = frames.runs.set_index("name")
    assert by_name.loc["lad-hd-eta4-s0", ["cause", "message"]].tolist() == ["host_oom", "out of memory"]
    gone = by_name.loc["lad-tv-eta4-s0", ["loss", "divergence", "eta", "task", "config.task.size"]]
    assert gone.tolist() == ["lad", "tv", 4.0, "maze", 7]  # of the task all its siblings agree


def planned(home: Path, configs: list[dict], typed: Callable[[dict], tuple[str, ...]]) -> None:
    plan = [(f"id-{name_of(frozen)}", name_of(frozen), typed(frozen)) for frozen in configs]
    write_sweep(home, "s", plan, configs=configs)


def test_a_planned_seed_without_files_joins_the_group_of_its_siblings(tmp_path):
    configs = [config(seed=s) for s in (0, 1)]
    write_run(tmp_path, configs[0], {0: BASE, 40: final((8, 8, 4, 0))})
    planned(tmp_path, configs, lambda frozen: ("eta=1", f"seed={frozen['seed']}"))
    runs = load(tmp_path).runs
    assert (runs["state"].tolist(), runs["group_id"].nunique()) == (["finished", "missing"], 1)
    assert runs["seed"].tolist() == [0, 1]
    assert runs["divergence"].tolist() == ["js", "js"]  # not in its overrides: as its siblings have it
    assert runs["config.lr"].tolist() == [1e-06, 1e-06]


def test_a_planned_run_without_files_takes_knobs_from_runs_of_its_own_loss_alone(tmp_path):
    configs = [config(eta=2.0), config(eta=2.0, divergence="hd"), config(loss="grpo"), config(loss="grpo", seed=1)]
    for run_config in configs[:2]:
        write_run(tmp_path, run_config, {0: BASE})
    planned(tmp_path, configs, lambda frozen: (f"loss={frozen['choices']['loss']}",))
    runs = load(tmp_path).runs.set_index("name")
    assert runs.loc["lad-hd-eta2-s0", "eta"] == 2.0
    assert runs.loc["grpo-s1", ["loss", "task", "seed"]].tolist() == ["grpo", "maze", 1]
    assert runs.loc[["grpo-s0", "grpo-s1"], "group_id"].nunique() == 1


def test_metrics_are_long_and_the_first_record_of_a_step_counts(tmp_path):
    run_id = write_run(tmp_path, config(steps=3), {0: BASE}, training={"reward/mean": [0.25, 0.5]})
    file = tmp_path / "runs" / run_id / "metrics.jsonl"
    with file.open("ab") as spool:
        spool.write(encode(2, 9.0, 2, {"reward/mean": 0.75}))
        spool.write(encode(3, 9.0, 2, {"reward/mean": math.nan}))
        spool.write(b'{"step": 4, "time": 9.0, "att')
    frames = load(tmp_path)
    values = frames.metrics[frames.metrics["name"] == "reward/mean"]
    assert (values["step"].tolist(), values["value"].tolist()[:2]) == ([1, 2, 3], [0.25, 0.5])
    assert math.isnan(values["value"].iloc[2])
    assert frames.notes == (f"runs/{run_id}/metrics.jsonl: 1 unreadable line(s) left out: the last one is torn.",)


def test_unreadable_runs_are_named_and_the_others_are_read(tmp_path):
    configs = [config(seed=seed) for seed in range(4)]
    ids = [write_run(tmp_path, run_config, {0: BASE, 40: BASE}) for run_config in configs]
    planned(tmp_path, configs, lambda frozen: ("eta=1", f"seed={frozen['seed']}"))
    (tmp_path / "runs" / ids[1] / "config.yaml").write_text("loss: {")
    (tmp_path / "runs" / ids[2] / "run.json").write_text('{"name": "lad", "format": 0}')
    (tmp_path / "runs" / ids[3] / "run.json").write_text("")
    frames = load(tmp_path)
    assert frames.runs["state"].tolist() == ["finished", "unreadable", "unreadable", "unreadable"]
    assert (frames.runs["group_id"].nunique(), len(frames.notes)) == (1, 3)
    notes = " ".join(frames.notes)
    assert f"runs/{ids[1]}/config.yaml is no YAML" in notes
    assert f"run {ids[2]}: made by another version of rlvr (format 0; this one reads format 1)" in notes
    assert f"runs/{ids[3]}/run.json is missing or damaged" in notes


def test_a_home_of_another_version_is_one_clear_line(tmp_path):
    for seed in range(5):
        run_id = write_run(tmp_path, config(seed=seed), {0: BASE})
        (tmp_path / "runs" / run_id / "run.json").write_text('{"name": "lad"}')
    with pytest.raises(LookupError, match="no run in .*run id-lad-js-eta1-s0, .* and 2 more: made by another version"):
        load(tmp_path)


@pytest.mark.slow
def test_no_flipped_bit_of_a_file_of_samples_changes_what_is_read(tmp_path: Path) -> None:
    """Every 5th bit, in turn. A file that an earlier version wrote without checksums is read as ever."""
    file, columns = tmp_path / "test-00000040.parquet", ("source", "problem_id", "outcome")
    outcomes = ["correct", "wrong", "error", "wrong"] * 30
    names = {"source": ["maze7"] * 120, "problem_id": [f"p{i % 12}" for i in range(120)], "outcome": outcomes}
    table = pa.table({**names, "response": [f"text {i * i}" for i in range(120)]})
    pq.write_table(table, file)
    assert read_table(file, columns, optional=("prompt",)) == table.select(list(columns))
    assert read_table(file, (*columns, "reward")) is None
    write_parquet(table, file)
    intact = file.read_bytes()
    num_found = 0
    for bit in range(0, 8 * len(intact), 5):
        flipped = bytearray(intact)
        flipped[bit // 8] ^= 1 << bit % 8
        file.write_bytes(flipped)
        part = read_table(file, columns)
        assert part is None or part == table.select(list(columns)), bit
        num_found += part is None
    assert num_found > 1000


def test_errored_samples_leave_n_and_are_counted(tmp_path):
    write_run(tmp_path, config(steps=0), {0: {"maze7": [(6, 3, 2), (8, 8, 0)]}})
    frames = load(tmp_path)
    assert frames.counts[["n", "correct", "errors"]].to_numpy().tolist() == [[6, 3, 2], [8, 8, 0]]
    assert frames.notes == ("2 evaluation sample(s) whose verifier failed are left out of every average and counted.",)


def test_samples_are_of_the_first_and_last_evaluation_and_counts_of_all(tmp_path):
    write_run(tmp_path, config(), dict.fromkeys((0, 10, 20, 40), BASE))
    frames = load(tmp_path)
    assert sorted(frames.samples["step"].unique()) == [0, 40]
    assert len(frames.samples) == 2 * 64  # 2 benchmarks x 4 problems x 8 samples
    assert "response" not in frames.samples  # only the columns that are needed are read
    assert sorted(frames.counts["step"].unique()) == [0, 10, 20, 40]


def test_the_newest_study_is_the_default_and_a_sweep_can_be_named(tmp_path):
    old, new = config(eta=1.0), config(eta=2.0)
    write_run(tmp_path, old, {0: BASE}, study="old", created=1.0)
    write_run(tmp_path, new, {0: BASE}, study="new", created=2.0)
    write_sweep(tmp_path, "first", [(f"id-{name_of(old)}", name_of(old), ())], study="old", created=1.0)
    assert (catalogue(tmp_path).studies(), load(tmp_path).study) == (["new", "old"], "new")
    assert load(tmp_path, study="old").runs["eta"].tolist() == [1.0]
    assert load(tmp_path, sweep="first").study == "old"


def test_a_study_and_a_sweep_at_once_are_refused(tmp_path):
    write_study(tmp_path)
    with pytest.raises(ValueError, match="study=nosuch and sweep=abc12345: a sweep belongs to one study. Drop one"):
        rlvr.load("nosuch", sweep="abc12345", home=tmp_path)


def test_a_name_that_two_sweeps_had_is_listed_once(tmp_path):
    run_id = write_run(tmp_path, config(), {0: BASE})
    for created, name in enumerate(("first", "second", "first")):
        write_sweep(tmp_path, f"{created}abc", [(run_id, "x", ())], created=float(created), name=name)
    with pytest.raises(LookupError, match="newest first: first, second\\."):
        load(tmp_path, sweep="nosuch")


def test_a_mistyped_name_gets_what_may_have_been_meant(tmp_path):
    write_run(tmp_path, config(eta=1.0), {0: BASE}, study="alone", created=1.0, name="alone-s0")
    write_run(tmp_path, config(eta=2.0), {0: BASE}, created=2.0, name="swept-s0")
    write_sweep(tmp_path, "abc12345", [("id-swept-s0", "swept-s0", ())], created=2.0, name="first-try")
    for wrong, message in (
        ({"sweep": "first-tyr"}, "no study or sweep first-tyr here.* newest first: first-try. Did you mean first-try"),
        ({"sweep": "defualt"}, "Studies: default, alone; sweeps, .* Did you mean default"),
        ({"sweep": "alone"}, "^alone is a study without a sweep: python -m analysis alone$"),
        ({"sweep": "eta"}, "The study eta has no runs yet: python -m rlvr.run -m study=eta$"),
        ({"study": "eta"}, "no such study .*: default, alone. The study eta has no runs yet: python -m rlvr.run"),
        ({"study": "alon"}, "no such study .*: default, alone. Did you mean alone"),
    ):
        with pytest.raises(LookupError, match=message):
            load(tmp_path, **wrong)


def test_a_run_that_an_earlier_study_started_belongs_to_the_later_one_too(tmp_path):
    run_config = config()
    run_id = write_run(tmp_path, run_config, {0: BASE}, study="first", created=1.0)
    write_sweep(tmp_path, "later", [(run_id, name_of(run_config), ())], study="second", created=2.0)
    assert load(tmp_path, study="second").runs["run_id"].tolist() == [run_id]


def test_a_report_says_how_many_sweeps_are_on_its_test_problems(tmp_path: Path) -> None:
    of = {"a": config(), "b": config(loss="grpo"), "c": config(task={"size": 9})}
    for created, (sweep_id, frozen) in enumerate(of.items()):
        run_id = write_run(tmp_path, frozen, {40: BASE}, study=sweep_id, name=sweep_id)
        write_sweep(tmp_path, sweep_id, [(run_id, sweep_id, ())], study=sweep_id, created=float(created))
    unfinished = write_run(tmp_path, config(eta=2.0), {0: BASE}, study="d", name="d", cause="error")
    write_sweep(tmp_path, "d", [(unfinished, "d", ())], study="d", created=9.0)
    notes = {name: [n.partition(" were ")[0] for n in load(tmp_path, study=name).notes] for name in of}
    assert notes == {"a": ["3 sweeps of this home"], "b": ["3 sweeps of this home"], "c": []}
    assert "these runs are look 2." in load(tmp_path, study="b").notes[0]
    levels = [study_level(frames(catalogue(tmp_path), study=name, spend=True)) for name in of]
    first = 1 - 0.05 * 6 / math.pi**2  # of 1/k², which add up to π²/6
    assert levels == pytest.approx([first, 1 - (1 - first) / 4, first])
    assert sum(map(spent, range(1, 100_000))) == pytest.approx(0.05, rel=1e-4)


def test_a_final_query_is_one_look_however_often_it_is_repeated(tmp_path: Path) -> None:
    for created, query in enumerate(("1-of-1", "1-of-1", "2-of-2", "1-of-1", "")):
        of = config(eta=1.0 + created, policy={"query": query} if query else {})
        run_id = write_run(tmp_path, of, {40: BASE}, study="final" if query else "usual", name=f"r{created}")
        write_sweep(tmp_path, f"c{created}", [(run_id, "r", ())], study="final" if query else "usual", created=created)
    assert "2 final queries of this home were" in load(tmp_path, study="final").notes[0]
    for sweep, look in (("c0", 1), ("c1", 1), ("c2", 2), ("c3", 1)):
        assert f"these runs are look {look}." in load(tmp_path, sweep=sweep).notes[0]
    assert load(tmp_path, study="usual").notes == ()


def test_grpo_of_another_study_is_brought_in_only_from_the_same_setting(tmp_path):
    write_run(tmp_path, config(), {0: BASE, 40: BASE}, study="eta", created=9.0)
    write_run(tmp_path, config(loss="grpo"), {0: BASE, 40: BASE}, study="default", created=1.0)
    other_setting = config(loss="grpo", task={"size": 9}, seed=1)
    write_run(tmp_path, other_setting, {0: BASE, 40: BASE}, study="default", created=1.0)
    runs = load(tmp_path, study="eta").runs
    assert runs.loc[runs["reference"], "name"].tolist() == ["grpo-s0"]


def test_sweeps_without_a_study_are_shown_if_they_share_a_setting_with_the_newest_and_the_others_are_named(tmp_path):
    configs_of = {
        "a": [config(eta=0.5), config(eta=1.0)],  # the grid
        "b": [config(steps=5)],  # the odd one
        "c": [config(loss="grpo")],  # the baseline of the grid
    }
    for number, (sweep_id, configs) in enumerate(configs_of.items()):
        runs = [write_run(tmp_path, c, {0: BASE}, study="main", name=f"{sweep_id}-{c['eta']}-s0") for c in configs]
        plan = [(run_id, run_id.removeprefix("id-"), ()) for run_id in runs]
        write_sweep(tmp_path, sweep_id, plan, study="main", created=float(number))
    shown = load(tmp_path)
    assert sorted(shown.runs["name"]) == ["a-0.5-s0", "a-1.0-s0", "c-None-s0"]
    assert [sweep.sweep_id for sweep in shown.sweeps] == ["a", "c"]
    assert shown.notes[0] == "Not shown: 1 run of no study, which differ in steps: python -m analysis b"
    assert load(tmp_path, sweep="b").runs["name"].tolist() == ["b-1.0-s0"]
    assert load(tmp_path, study="main").runs.equals(shown.runs)


def test_a_sweep_is_named_by_its_name_or_the_beginning_of_its_id(tmp_path):
    run_id = write_run(tmp_path, config(), {0: BASE}, study="eta")
    write_sweep(tmp_path, "abc12345", [(run_id, "x", ())], study="eta", name="second-try")
    for text in ("second-try", "abc", "abc12345"):
        frames = load(tmp_path, sweep=text)
        assert (frames.study, frames.title) == ("eta", "eta, sweep second-try")


# --- MLflow ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def both(tmp_path_factory) -> Path:
    """A ledger, and an MLflow store filled from it."""
    home = tmp_path_factory.mktemp("both")
    for key in (("js", 0.5), ("hd", 2.0)):
        run_config = config(divergence=key[0], eta=key[1])
        write_run(home, run_config, {0: BASE, 40: final(FINAL[key])}, training=curves(*key), created=1000.5)
    write_run(home, config(divergence="tv"), {0: BASE}, cause="diverged")
    ship(home)
    return home


def ship(home: Path) -> None:
    """What the tracker ships, and a replayed step of each finished run."""
    from mlflow import MlflowClient

    from rlvr.tracker.mlflow import Shipper, run_dirs

    Shipper(home, None).ship(run_dirs(home))
    client = MlflowClient(f"sqlite:///{home / 'mlflow.db'}")
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    for run in client.search_runs(experiments, "tags.`rlvr.state` = 'finished'"):
        client.log_metric(run.info.run_id, "reward/accuracy", 99.0, timestamp=10**13, step=1)


@pytest.mark.slow
def test_mlflow_and_the_ledger_give_the_same_runs_numbers_and_tables(both):
    from analysis.report.render import markdown, to_csv
    from analysis.tables import divergence, eta

    ledger, store = load(both), load(both, source="mlflow")
    assert store.origin.startswith("sqlite:")
    pd.testing.assert_frame_equal(ledger.metrics, store.metrics)
    columns = sorted({*ledger.runs} - {"dashboard"})  # the address is the ledger's alone
    mine, theirs = (frames.runs[columns] for frames in (ledger, store))
    assert {*store.runs} == {*ledger.runs}
    pd.testing.assert_frame_equal(mine, theirs, check_dtype=False)
    for tables in (divergence, eta):
        assert to_csv(tables.table(ledger)) == to_csv(tables.table(store))
        assert markdown(tables.table(ledger)) == markdown(tables.table(store))


@pytest.mark.slow
def test_infinity_and_nan_come_back_from_mlflow(tmp_path):
    from mlflow import MlflowClient

    from analysis.frames.mlflow_reader import MlflowReader

    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    client = MlflowClient(uri)
    experiment = client.create_experiment("e", artifact_location=tmp_path.as_uri())
    run = client.create_run(experiment, tags={"rlvr.run_id": "a", "rlvr.state": "finished"}).info.run_id
    for step, value in enumerate((float("inf"), float("-inf"), float("nan"))):
        client.log_metric(run, "x", value, step=step, timestamp=1)
    reader = MlflowReader(uri)
    reader.runs()
    values = reader.metrics(["a"])["value"].tolist()
    assert values[:2] == [math.inf, -math.inf]
    assert math.isnan(values[2])


def test_an_unknown_source_is_refused(tmp_path):
    with pytest.raises(LookupError, match="source='legder' is neither of ledger, mlflow"):
        load(tmp_path, source="legder")


def test_the_address_of_a_store_is_named_without_its_password(tmp_path, monkeypatch):
    from analysis.frames.mlflow_reader import MlflowReader

    monkeypatch.setattr(MlflowReader, "runs", lambda _: {})  # the database is not asked
    origin = catalogue(tmp_path, source="mlflow", uri="postgresql://mlflow:hunter2@db.lab/mlflow").origin
    assert origin == "postgresql://***@db.lab/mlflow"


def test_numbers_without_samples_come_from_the_logged_means(tmp_path):
    """MLflow on another machine: no Parquet, two seeds."""
    from analysis.tables import divergence

    for seed, correct in ((0, (8, 8, 0, 0)), (1, (8, 0, 0, 0))):
        run_id = write_run(tmp_path, config(seed=seed), {0: BASE, 40: {"maze7": counts(*correct)}})
        for file in (tmp_path / "runs" / run_id / "samples").iterdir():
            file.unlink()
    cells = divergence.table(load(tmp_path)).cells
    cell = cells[(cells["row"] == "js") & (cells["metric"] == "avg@8")].iloc[0]
    assert cell["mean"] == 0.375  # of 1/2 and 1/4
    # t with one degree of freedom over the two seeds, 12.7062 standard errors of 0.125, is more than is possible.
    assert (cell["low"], cell["high"]) == (0, 1)


def test_a_server_that_is_away_or_never_answers_costs_seconds_and_is_one_line(tmp_path: Path) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        for uri in (f"http://ann:s3cret@127.0.0.1:{silent.getsockname()[1]}", "http://127.0.0.1:9"):
            began = time.monotonic()
            with pytest.raises(LookupError, match="it does not answer") as caught:
                load(tmp_path, source="mlflow", uri=uri)
            assert time.monotonic() - began < 10
            assert "s3cret" not in str(caught.value)


@pytest.mark.slow
def test_an_address_that_leads_nowhere_is_one_line_without_its_password(tmp_path: Path) -> None:
    (tmp_path / "empty.db").touch()
    for uri, message in (
        ("postgresql://ann:s3c@ret@127.0.0.1:9/x", "cannot be read"),
        ("postgresql://ann:s3cret@127.0.0.1:port/x", "'port'"),
        ("postgresql://ann:s3[cret@127.0.0.1/x", "in a password write %5B"),
        ("mysql+nodriver://ann:s3cret@127.0.0.1/x", "cannot be read"),
        ("foo://ann:s3cret@127.0.0.1", "is no address of MLflow's"),
        (f"sqlite:///{tmp_path / 'none.db'}", "there is no such database"),
        (f"sqlite:///{tmp_path / 'empty.db'}", "it has no table of runs"),
    ):
        with pytest.raises(LookupError, match=message) as caught:
            load(tmp_path, source="mlflow", uri=uri)
        assert not re.search("s3|ret@", str(caught.value)), uri
    assert (tmp_path / "empty.db").stat().st_size == 0  # MLflow would have written its tables


NULLS = {"info": {"run_id": "r", "experiment_id": "1"}, "data": {"tags": [{"key": "rlvr.run_id"}]}}
WRONG = {**NULLS, "data": {"tags": [{"key": f"rlvr.{key}", "value": "x"} for key in ("run_id", "state", "created")]}}
EXPERIMENT = {"experiments": [{"experiment_id": "1", "name": "main"}]}
# Answers of a server that is no MLflow → what is said of them. None: blanks without end.
FOREIGN: dict[str, tuple[dict[str, object], str]] = {
    "health": ({"health": None}, "its answer to /health is endless"),
    "experiments": ({"experiments": None}, "timed out|not answered within 1 s"),
    "pages": ({"experiments": {**EXPERIMENT, "next_page_token": "a"}}, "its pages have no end"),
    "nulls": ({"experiments": EXPERIMENT, "runs": {"runs": [NULLS]}}, "shipped to MLflow by another version"),
    "texts": ({"experiments": EXPERIMENT, "runs": {"runs": [WRONG]}}, "could not convert string to float"),
    "unknown": ({"experiments": EXPERIMENT, "runs": {"runs": [{}]}}, "cannot be read"),
    "password": ({"experiments": "You are not authenticated"}, "You are not authenticated"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", FOREIGN)
def test_what_is_no_mlflow_is_one_line_whatever_it_answers(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from analysis.frames import mlflow_reader

    monkeypatch.setattr(mlflow_reader, "REPLY_S", 1.0)
    answers, message = FOREIGN[case]

    class Foreign(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            kind = next(word for word in ("health", "experiments", "runs") if word in self.path)
            self.send_response(401 if isinstance(answers.get(kind), str) else 200)
            self.end_headers()
            with contextlib.suppress(OSError):
                while answers.get(kind, {}) is None:
                    self.wfile.write(b" " * 4096)
                    time.sleep(0.001)
                self.wfile.write(json.dumps(answers.get(kind, {})).encode())

        do_POST = do_GET

        def log_message(self, format: str, *args: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Foreign) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        uri = f"http://ann:s3cret@127.0.0.1:{server.server_port}"
        with ThreadPoolExecutor(1) as threads:  # as in a notebook's or a server's, not the main thread
            refusal = threads.submit(load, tmp_path, source="mlflow", uri=uri).exception(60)
        until = time.monotonic() + 10
        while any(thread.name == "MLflow" for thread in threading.enumerate()):
            assert time.monotonic() < until, "an answer without end is still read"
            time.sleep(0.01)
        server.shutdown()
    assert isinstance(refusal, LookupError)
    assert re.search(message, str(refusal))
    assert not re.search("s3cret|\n", str(refusal))


def test_a_damaged_database_gives_one_line_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "mlflow.db").write_text("not a database" * 999)
    with pytest.raises(LookupError, match="moved away: `python -m sweeps sync` restores all of it"):
        load(tmp_path, source="mlflow")


@pytest.mark.parametrize("cause", ["ok", "pruned", "diverged", "preempted"])
def test_a_finished_run_whose_journal_was_cut_has_no_score_and_is_named(tmp_path: Path, cause: str) -> None:
    """Cut to some of its three lines, or missing. A run that ended early lacks nothing. The other seed counts."""
    seeds = [config(seed=seed) for seed in range(2)]
    intact, cut = (
        write_run(tmp_path, frozen, {0: BASE, 20: final((8, 8, 4, 0)), 40: final((8, 6, 4, 2))}, cause=cause_of_seed)
        for frozen, cause_of_seed in zip(seeds, ("ok", cause), strict=True)
    )
    journal = tmp_path / f"runs/{cut}/metrics.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    for kept, fault in ((2, "at step 20 of 40"), (1, "at step 0 of 40"), (0, "at step 0 of 40"), (None, "is missing")):
        journal.unlink(missing_ok=True)
        if kept is not None:
            journal.write_bytes(b"".join(lines[:kept]))
        frames = load(tmp_path)
        (arm,) = arms(frames)
        assert list(last_points(frames, arm)) == [intact], kept
        states = dict(zip(frames.runs["run_id"], frames.runs["state"], strict=True))
        assert (states[intact], states[cut] == "unreadable") == ("finished", cause == "ok"), kept
        assert len(frames.notes) == (cause == "ok"), kept
        if cause == "ok":
            assert f"{name_of(seeds[1])} is finished, but runs/{cut}/metrics.jsonl " in frames.notes[0]
            assert f"{fault}: " in frames.notes[0]
    journal.write_bytes(b"".join(lines))
    whole = load(tmp_path)
    assert (whole.notes, len(last_points(whole, arms(whole)[0]))) == ((), 1 + (cause == "ok"))


def test_damaged_parquet_files_are_named_and_all_others_are_read(tmp_path: Path) -> None:
    """One evaluation is empty, one is no Parquet, a bandit's policy is cut: the other runs keep their counts."""
    write_study(tmp_path)
    before = load(tmp_path)
    files = sorted(tmp_path.glob("runs/*/samples/test-*.parquet"))
    files[0].write_bytes(b"")
    files[-1].write_bytes(b"PAR1 and no more")
    policy = files[0].parent / "policy-00000040.parquet"
    policy.write_bytes(files[1].read_bytes()[:-9])
    frames = load(tmp_path)
    for file in (files[0], files[-1], policy):
        assert any(note.startswith(f"{file.relative_to(tmp_path)} is damaged and left out.") for note in frames.notes)
    lost = {(file.parent.parent.name, int(file.stem.rpartition("-")[2])) for file in (files[0], files[-1])}
    rows = before.counts[
        [pair not in lost for pair in zip(before.counts["run_id"], before.counts["step"], strict=True)]
    ]
    assert len(rows) < len(before.counts)
    columns = ["run_id", "step", "problem_id"]
    left, right = (frame.sort_values(columns, ignore_index=True) for frame in (frames.counts, rows))
    pd.testing.assert_frame_equal(left, right)
    assert frames.policy.empty
    assert not frames.samples.empty
