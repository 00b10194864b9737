import json
import math
import resource
import shutil
import signal
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from pathlib import Path

import pytest

from rlvr.ledger import state, tags
from rlvr.ledger.journal import encode, read
from rlvr.ledger.lock import held_lock
from rlvr.ledger.runs import read_info
from rlvr.tracker import shipper as shipping
from rlvr.tracker.cursor import is_behind
from rlvr.tracker.mlflow import Shipper, main, run_dirs
from tests.tracker import places
from tests.tracker.conftest import Store
from tests.tracker.places import T0, Server, add_steps, end_attempt, expected, make_run, make_sweep, query, ship, stored


@pytest.fixture(scope="session")
def running_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("server"))
    server.start()
    try:
        yield server
    finally:
        server.kill()


@pytest.fixture(params=["sqlite", pytest.param("server", marks=[pytest.mark.real, pytest.mark.slow])])
def any_store(request: pytest.FixtureRequest) -> Store:
    if request.param == "sqlite":
        return request.getfixturevalue("local")
    server = request.getfixturevalue("running_server")
    return Store(server.uri, server.database)


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A run id that only this test uses: the server is shared."""
    return "".join(c if c.isalnum() else "-" for c in request.node.name)[-40:].strip("-")


@pytest.mark.slow
def test_steps_times_and_values_arrive_exactly_in_the_database_and_through_its_client(any_store, home, name):
    from mlflow import MlflowClient

    run = make_run(home, name, steps=20)
    report = Shipper(home, any_store.uri).ship([run])
    assert report.complete
    assert (report.shipped, stored(any_store.database)[name]) == ({f"lad-js-{name}": 20}, expected(range(20)))
    client = MlflowClient(tracking_uri=any_store.uri)
    experiment = client.get_experiment_by_name("eta")
    assert experiment is not None
    (mlflow_run,) = client.search_runs([experiment.experiment_id], f"tags.`rlvr.run_id` = '{name}'")
    for metric in places.metrics_of(0):
        history = client.get_metric_history(mlflow_run.info.run_id, metric)
        assert [(m.step, m.value) for m in history] == [(s, places.metrics_of(s)[metric]) for s in range(20)]


def test_a_crash_before_its_cursor_adds_no_row_and_a_run_without_one_is_sent_again_as_a_whole(any_store, home, name):
    run = make_run(home, name, steps=3)
    Shipper(home, any_store.uri).ship([run])
    cursor, before = (run / "mlflow.json").read_bytes(), places.num_runs(any_store.database)
    add_steps(run, range(3, 9))
    Shipper(home, any_store.uri).ship([run])
    (run / "mlflow.json").write_bytes(cursor)  # as if the process had died between the two writes
    add_steps(run, range(9, 11))
    assert Shipper(home, any_store.uri).ship([run]).complete
    assert stored(any_store.database)[name] == expected(range(11))
    (run / "mlflow.json").unlink()
    add_steps(run, range(11, 13))
    assert Shipper(home, any_store.uri).ship([run]).shipped == {f"lad-js-{name}": 13}
    assert (places.num_runs(any_store.database), stored(any_store.database)[name]) == (before, expected(range(13)))


def test_runs_of_a_sweep_stay_together_in_an_experiment_that_was_renamed(local, home):
    from mlflow import MlflowClient

    runs = [make_run(home, run_id, steps=2, study="renamed") for run_id in ("a", "b")]
    make_sweep(home, "s", ["a", "b", "c"], study="renamed")
    Shipper(home, local.uri).ship(runs)
    client = MlflowClient(tracking_uri=local.uri)
    experiment = client.get_experiment_by_name("renamed")
    assert experiment is not None
    client.rename_experiment(experiment.experiment_id, "old")
    (runs[0] / "mlflow.json").unlink()
    add_steps(runs[0], range(2, 4))
    runs.append(make_run(home, "c", steps=2, study="renamed"))
    assert Shipper(home, local.uri).ship(runs).shipped == {"lad-js-a": 4, "lad-js-b": 0, "lad-js-c": 2}
    assert query(local.database, "select count(*) from experiments where name = 'renamed'") == [(0,)]
    of_old = "join experiments e using (experiment_id) where e.name = 'old' and r.lifecycle_stage = 'active'"
    in_it = query(local.database, f"select r.name from runs r {of_old} and r.name like 'lad%' order by 1")
    assert in_it == [("lad-js-a",), ("lad-js-b",), ("lad-js-c",)]


@pytest.mark.slow
def test_a_home_that_was_moved_keeps_its_artifacts_and_changes_no_other_place(home, tmp_path, monkeypatch):
    from mlflow import MlflowClient

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    make_run(home, "a", steps=1)
    assert Shipper(home).ship(run_dirs(home)).complete
    MlflowClient(f"sqlite:///{home}/mlflow.db").create_experiment("of somebody else", "file:///data/mlartifacts")
    moved = home.rename(tmp_path / "moved to 100%")
    for present in (moved, shutil.copytree(moved, tmp_path / "copied")):
        make_sweep(present, "s", ["a"])
        assert Shipper(present).ship(run_dirs(present)).complete
        artifacts = (present / "mlartifacts").as_uri()
        places = "select artifact_location from experiments where name in ('eta', 'of somebody else') order by name"
        assert query(present / "mlflow.db", places) == [(artifacts,), ("file:///data/mlartifacts",)]
        for run_uuid, place in query(present / "mlflow.db", "select run_uuid, artifact_uri from runs"):
            assert place == f"{artifacts}/{run_uuid}/artifacts"
        (configs,) = present.glob("mlartifacts/*/artifacts/configs.yaml")
        assert "eta: 0.5" in configs.read_text()


def test_a_pass_sends_only_new_lines_and_a_torn_one_waits_until_it_is_whole(local, home):
    run = make_run(home, "r", steps=4)
    shipper = Shipper(home, local.uri)
    sent = []
    for steps in (range(4, 6), range(0), range(6, 7)):
        sent.append(shipper.ship([run]).shipped["lad-js-r"])
        add_steps(run, steps)
    sent.append(shipper.ship([run]).shipped["lad-js-r"])
    assert (sent, stored(local.database)["r"]) == ([4, 2, 0, 1], expected(range(7)))
    line = encode(7, T0 + 7.123, 1, places.metrics_of(7))
    with (run / "metrics.jsonl").open("ab", buffering=0) as file:
        file.write(line[:30])
        report = Shipper(home, local.uri).ship([run])
        assert (report.shipped, report.complete) == ({"lad-js-r": 0}, True)
        file.write(line[30:])
    Shipper(home, local.uri).ship([run])
    assert stored(local.database)["r"] == expected(range(8))


def test_values_that_are_not_finite_are_counted_not_sent(local, home):
    run = make_run(home, "r")
    lines = [{"loss": math.inf, "x": 1.0}, {"loss": math.nan, "x": 2.0}, {"loss": 0.5, "x": -math.inf}]
    shipper = Shipper(home, local.uri)
    for step, metrics in enumerate(lines):
        with (run / "metrics.jsonl").open("ab") as file:
            file.write(encode(step, T0 + step, 1, metrics))
        shipper.ship([run])
    rows = [(key, step, value) for key, step, _, value in stored(local.database)["r"]]
    assert rows == [("loss", 2, 0.5), ("x", 0, 1.0), ("x", 1, 2.0)]
    assert json.loads(tags_of(local, "r")["rlvr.non_finite"]) == {"loss": 2, "x": 1}


def tags_of(store: Store, run_id: str) -> dict[str, str]:
    where = f"where run_uuid = (select run_uuid from tags where key = 'rlvr.run_id' and value = '{run_id}')"
    return dict(query(store.database, f"select key, value from tags {where}"))


def run_of(store: Store, run_id: str) -> tuple:
    where = f"where run_uuid = (select run_uuid from tags where key = 'rlvr.run_id' and value = '{run_id}')"
    return query(store.database, f"select name, status, start_time, end_time from runs {where}")[0]


@pytest.mark.slow
def test_a_line_of_more_than_a_thousand_metrics_arrives_whole(local, home):
    run = make_run(home, "r")
    many = {f"m/{i}": i / 3 for i in range(2345)}
    (run / "metrics.jsonl").write_bytes(encode(0, T0, 1, many) + encode(1, T0, 1, {"x": 1.0}))
    assert Shipper(home, local.uri).ship([run]).complete
    assert {key: value for key, _, _, value in stored(local.database)["r"]} == {**many, "x": 1.0}


def test_params_are_the_config_without_paths_and_long_values_are_cut_and_named(any_store, home, name):
    run = make_run(home, name)
    with (run / "config.yaml").open("a") as file:
        file.write("keep_rollouts: true\nprompt: " + "p" * 7000 + "\n")
        file.write("many: {" + ", ".join(f"k{i}: {i}" for i in range(230)) + "}\n")
    assert Shipper(home, any_store.uri).ship([run]).complete
    where = f"where run_uuid = (select run_uuid from tags where key = 'rlvr.run_id' and value = '{name}')"
    params = dict(query(any_store.database, f"select key, value from params {where}"))
    for i in range(230):
        assert params.pop(f"many.k{i}") == str(i)
    assert params == {
        **{"eta": "0.5", "beta": "null", "seed": "0", "lr": "2e-4", "empty": "", "task.size": "7"},
        **{"task.test": '["a", "b"]', "loss._target_": "rlvr.loss.lad.lad", "loss._partial_": "true"},
        "prompt": "p" * 6000,
    }
    assert tags_of(any_store, name)["rlvr.params_cut"] == "prompt"


@pytest.mark.slow
@pytest.mark.parametrize("used", [False, True])
def test_mlflows_own_experiment_is_deleted_while_it_is_empty(home, monkeypatch, used):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    if used:
        from mlflow import MlflowClient

        MlflowClient(tracking_uri=f"sqlite:///{home}/mlflow.db").create_run("0")
    make_run(home, "a", steps=1)
    assert Shipper(home, None).ship(run_dirs(home)).complete
    active = query(home / "mlflow.db", "select name from experiments where lifecycle_stage = 'active'")
    assert (("Default",) in active) == used
    assert len(active) == 1 + used


def test_a_run_has_its_name_its_tags_and_its_parent(local, home):
    for run_id in ("a", "b"):
        make_run(home, run_id, steps=1)
    make_sweep(home, "s1", ["a"])
    make_sweep(home, "s2", ["a", "b"], created=T0 + 60)
    end_attempt(home / "runs" / "a", 1, "preempted")
    end_attempt(home / "runs" / "a", 2, None)
    shipper = Shipper(home, local.uri)
    assert shipper.ship(run_dirs(home)).complete
    tags = tags_of(local, "a")
    parent = tags.pop("mlflow.parentRunId")
    assert tags == {
        **{"rlvr.run_id": "a", "rlvr.group_id": "g-a", "rlvr.arm": "lad-js-a", "rlvr.created": str(T0)},
        **{"rlvr.git_sha": "0123abc", "rlvr.git_dirty": "true", "rlvr.host": "node2", "rlvr.attempts": "2"},
        **{"rlvr.state": "running", "rlvr.cause": "", "rlvr.sweep_id": "s1", "rlvr.sweeps": "s1,s2"},
        **{"rlvr.loss": "lad", "rlvr.divergence": "js", "mlflow.runName": "lad-js-a"},
        **{"mlflow.source.name": places.COMMAND, "mlflow.source.git.commit": "0123abc"},
    }
    of_parents = "key = 'rlvr.sweep_id' and run_uuid in (select run_uuid from tags where key = 'rlvr.kind')"
    parents = query(local.database, f"select run_uuid, value from tags where {of_parents}")
    assert {s: r for r, s in parents} == {"s1": parent, "s2": tags_of(local, "b")["mlflow.parentRunId"]}
    assert query(local.database, "select count(*) from experiments where name = 'eta'") == [(1,)]
    assert query(local.database, "select count(*) from runs r join experiments e using (experiment_id) "
                 "where e.name = 'eta'") == [(5,)]  # fmt: skip  # a, b, two parents, the warm run of the template


def test_what_a_later_attempt_or_launch_takes_back_is_taken_back_in_mlflow(local, home):
    """The first attempt had its GPU to itself, and a launch tagged and named the run; neither holds any more."""
    run = make_run(home, "a", steps=1)
    make_sweep(home, "s1", ["a"])
    sweep, job = home / "runs" / "sweeps" / "s1" / "sweep.json", run / "attempts" / "1" / "job.json"
    plain = json.loads(sweep.read_text())
    sweep.write_text(json.dumps({**plain, "tags": "pilot", "name": "first"}))
    end_attempt(run, 1, "preempted")
    job.write_text(json.dumps({**json.loads(job.read_text()), "own_gpus": True}))
    names = ("rlvr.own_gpus", "rlvr.tags", "rlvr.name")
    assert Shipper(home, local.uri).ship([run]).complete
    assert [tags_of(local, "a")[name] for name in names] == ["true", "pilot", "first"]
    end_attempt(run, 2, "preempted")
    sweep.write_text(json.dumps(plain))
    assert Shipper(home, local.uri).ship([run]).complete
    assert [tags_of(local, "a")[name] for name in names] == ["", "", ""]


def test_equal_sweeps_of_two_homes_have_a_parent_each_also_after_their_cursors_are_lost(local, tmp_path):
    parents = "select run_uuid, name from runs join tags using (run_uuid) where key = 'rlvr.kind' order by start_time"
    active = "t.key = 'mlflow.parentRunId' and r.lifecycle_stage = 'active'"
    of_runs = f"select r.start_time, t.value from runs r join tags t using (run_uuid) where {active}"
    homes = [tmp_path / "first", tmp_path / "second"]
    for number, home in enumerate(homes):
        for run_id in ("a", "b"):
            run = make_run(home, run_id, created=T0 + 100 * number)
            (run / "metrics.jsonl").write_bytes(encode(0, T0 + 100 * number + 1, 1, {"x": 0.5}))
            end_attempt(run, 1, "ok", started=T0 + 100 * number)
        make_sweep(home, "s", ["a", "b"], created=T0 + 100 * number)
        Shipper(home, local.uri).ship(run_dirs(home))
    (first, _), (second, _) = query(local.database, parents)
    start = 1000 * int(T0)
    assert sorted(query(local.database, of_runs)) == [(start, first)] * 2 + [(start + 100_000, second)] * 2
    for home in homes:
        for cursor in home.glob("runs/**/mlflow.json"):
            cursor.unlink()
    info = homes[1] / "runs/a/run.json"  # a launch wrote it again
    info.write_text(json.dumps({**json.loads(info.read_text()), "created": T0 + 300}))
    make_run(homes[1], "c", steps=1)
    (homes[1] / "runs/sweeps/s/manifest.jsonl").open("a").write('{"run_id": "c"}\n')
    for home in homes:
        Shipper(home, local.uri).ship(run_dirs(home))
    assert [run_uuid for run_uuid, _ in query(local.database, parents)] == [first, second]
    assert sorted(value for _, value in query(local.database, of_runs)) == sorted([first] * 2 + [second] * 3)
    statuses = "select status from runs join tags using (run_uuid) where key = 'rlvr.kind' order by start_time"
    assert query(local.database, statuses) == [("FINISHED",), ("RUNNING",)]


def test_a_run_has_the_times_of_its_start_and_end_and_its_parent_ends_with_it(local, home):
    ends = {"ok": "FINISHED", "gpu_oom": "FAILED", "preempted": "RUNNING"}
    for cause in ends:
        run = make_run(home, f"r-{cause}", steps=1)
        make_sweep(home, f"s-{cause}", [run.name])
        end_attempt(run, 1, "error")
        end_attempt(run, 2, cause)
    assert Shipper(home, local.uri).ship(run_dirs(home)).running == 1
    both = "join tags t using (run_uuid) join tags s using (run_uuid)"
    of_parents = "t.key = 'rlvr.kind' and s.key = 'rlvr.sweep_id'"
    parents = dict(query(local.database, f"select s.value, r.status from runs r {both} where {of_parents}"))
    for cause, status in ends.items():
        name, shipped_status, start, end = run_of(local, f"r-{cause}")
        assert (name, shipped_status, start) == (f"lad-js-r-{cause}", status, int(T0) * 1000), cause
        assert status == "RUNNING" or end == int(T0 + 1000) * 1000 + 500, cause
        assert parents[f"s-{cause}"] == status, cause


def test_a_run_that_waited_for_a_core_has_the_duration_of_its_work(local, home):
    """Planned at T0, begun 200 s later, ended at T0 + 1000.5: MLflow shows 800.5 s, and before it begins no run."""
    run = make_run(home, "waited")
    run.joinpath("metrics.jsonl").unlink()
    make_sweep(home, "s-waited", ["waited"])
    count = "select count(*) from tags where value = 'waited'"
    shipper = Shipper(home, local.uri)
    assert shipper.ship(run_dirs(home)).complete
    assert query(local.database, count) == [(0,)]
    add_steps(run, range(1))
    end_attempt(run, 1, "ok", started=T0 + 200)
    assert shipper.ship(run_dirs(home)).shipped == {"lad-js-waited": 1}
    _, _, start, end = run_of(local, "waited")
    assert end - start == 800_500
    assert query(local.database, count) == [(1,)]


def test_another_store_gets_everything_from_the_start(local, home, tmp_path, empty_database):
    run = make_run(home, "r", steps=3)
    Shipper(home, local.uri).ship([run])
    second = tmp_path / "second.db"
    shutil.copy(empty_database, second)
    add_steps(run, range(3, 5))
    assert Shipper(home, f"sqlite:///{second}").ship([run]).shipped == {"lad-js-r": 5}
    assert Shipper(home, local.uri).ship([run]).shipped == {"lad-js-r": 2}  # its cursor was kept
    assert stored(second)["r"] == stored(local.database)["r"] == expected(range(5))


@pytest.mark.slow
@pytest.mark.real
def test_a_database_that_was_deleted_is_filled_again(home, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    run = make_run(home, "r", steps=3)
    end_attempt(run, 1, "ok")
    for _ in range(2):
        done = ship(home)
        assert done.communicate(timeout=120)[0].startswith("MLflow: shipped 3 lines of 1 runs to sqlite:///")
        assert stored(home / "mlflow.db")["r"] == expected(range(3))
        ((place,),) = query(home / "mlflow.db", "select artifact_location from experiments where name = 'eta'")
        assert place == (home / "mlartifacts").as_uri()
        own = (home / "mlflow.db", home / "mlartifacts", run / "mlflow.json")
        assert [oct(path.stat().st_mode & 0o777) for path in own] == ["0o600", "0o700", "0o600"]
        (home / "mlflow.db").unlink()
    assert not (places.ROOT / "mlruns").exists()


def test_a_run_that_was_deleted_and_created_again_is_another_mlflow_run(local, home):
    run = make_run(home, "r", steps=3)
    Shipper(home, local.uri).ship([run])
    shutil.rmtree(run)
    run = make_run(home, "r", created=T0 + 99)
    (run / "metrics.jsonl").write_bytes(encode(0, T0 + 100, 1, {"x": 0.0}))
    Shipper(home, local.uri).ship([run])
    assert query(local.database, "select count(*) from tags where key = 'rlvr.run_id' and value = 'r'") == [(2,)]


def test_a_damaged_line_delays_no_other_and_remains_named(local, home):
    bad, good = make_run(home, "bad", steps=3), make_run(home, "good", steps=3)
    data = bytearray((bad / "metrics.jsonl").read_bytes())
    data[10] ^= 1
    (bad / "metrics.jsonl").write_bytes(data)
    for _ in range(2):  # the second pass is that of a new process
        report = Shipper(home, local.uri).ship([bad, good])
        assert report.complete  # trying again would not help
        assert "lad-js-bad: line 1 is damaged (its checksum does not match): left out" in str(report)
    assert tags_of(local, "bad")["rlvr.damaged_lines"] == "line 1 is damaged (its checksum does not match)"
    assert stored(local.database) == {"bad": expected(range(1, 3)), "good": expected(range(3))}


def test_an_unreadable_run_delays_no_other_and_is_named(local, home):
    _, torn, foreign = (make_run(home, run_id, steps=3) for run_id in ("good", "torn", "foreign"))
    (torn / "config.yaml").write_text("loss: {")
    (foreign / "run.json").write_text('{"run_id": "foreign", "name": "lad"}')
    make_sweep(home, "s", ["good", "torn", "foreign", "gone"])
    (home / "runs/sweeps/s/manifest.jsonl").open("a").write('{"run_id": "go')
    report = Shipper(home, local.uri).ship(run_dirs(home))
    assert report.left == {"lad-js-torn": 3}  # its config may be put back
    problems = " ".join(report.problems.values())
    assert "run foreign: made by another version of rlvr (no number of a format; this one reads format 1)" in problems
    assert "config.yaml is no YAML" in problems
    assert "sweep s: line 5 is torn in" in problems
    assert set(stored(local.database)) == {"good"}


def test_the_torn_last_line_of_a_finished_run_is_named(local, home):
    run = make_run(home, "r", steps=3)
    data = (run / "metrics.jsonl").read_bytes()
    (run / "metrics.jsonl").write_bytes(data[:-5])
    assert not Shipper(home, local.uri).ship([run]).problems  # it may be a write in progress
    end_attempt(run, 1, "ok")
    report = Shipper(home, local.uri).ship([run])
    assert "metrics.jsonl is torn: left out" in str(report)
    assert stored(local.database)["r"] == expected(range(2))
    assert not is_behind(run)  # or every look at the state would ship it again


def test_a_run_deleted_in_mlflow_delays_no_other_and_is_named(local, home):
    from mlflow import MlflowClient

    gone, good = make_run(home, "gone", steps=1), make_run(home, "good", steps=1)
    shipper = Shipper(home, local.uri)
    shipper.ship([gone, good])
    ((run_uuid,),) = query(local.database, "select run_uuid from tags where key = 'rlvr.run_id' and value = 'gone'")
    MlflowClient(tracking_uri=local.uri).delete_run(run_uuid)
    for run in (gone, good):
        add_steps(run, range(1, 3))
    report = shipper.ship([gone, good])
    assert report.left == {"lad-js-gone": 2}
    assert "must be in the 'active' state" in str(report)
    assert stored(local.database)["good"] == expected(range(3))


def test_a_store_that_does_not_answer_costs_seconds_and_nothing_is_lost(local, home, tmp_path):
    run = make_run(home, "r", steps=4)
    (tmp_path / "notes.db").write_text("not a database, just some text that is long enough to be read as a header" * 9)
    with socket.socket() as silent:  # accepts, and never answers
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        for uri, fault in (
            (f"http://ann:s3cret@127.0.0.1:{places.free_port()}", "does not answer"),
            (f"http://127.0.0.1:{silent.getsockname()[1]}", "does not answer"),
            (f"sqlite:///{tmp_path / 'notes.db'}", "cannot be used as a database"),
        ):
            start = time.monotonic()
            report = Shipper(home, uri).ship([run])
            assert time.monotonic() - start < 10, uri
            assert fault in (report.error or "")
            assert report.left == {"lad-js-r": 4}
            assert "left 4 lines of 1 runs: lad-js-r (4)" in str(report)
    assert Shipper(home, local.uri).ship([run]).complete
    assert stored(local.database)["r"] == expected(range(4))


@pytest.mark.real
@pytest.mark.slow
def test_a_run_that_a_proxy_does_not_let_through_delays_no_other_and_is_named(running_server, home):
    """The proxy of a lab that answers 413 to one run's requests, as to any that are too large for it."""

    class Proxy(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if b"lad-js-too-large" in body:
                self.send_error(413)
                return
            kind = {"Content-Type": self.headers["Content-Type"]} if body else {}
            request = urllib.request.Request(running_server.uri + self.path, body or None, kind, method=self.command)
            try:
                with urllib.request.urlopen(request) as response:
                    status, answer = response.status, response.read()
            except urllib.error.HTTPError as error:
                status, answer = error.code, error.read()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        do_POST = do_PUT = do_PATCH = do_GET

        def log_message(self, *_: object) -> None: ...

    runs = [make_run(home, run_id, steps=2) for run_id in ("before-it", "too-large", "after-it", "too-large-2")]
    with ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as proxy:
        threading.Thread(target=proxy.serve_forever).start()
        report = Shipper(home, f"http://127.0.0.1:{proxy.server_port}").ship(runs)
        proxy.shutdown()
    assert (report.left, report.error) == ({"lad-js-too-large": 2, "lad-js-too-large-2": 2}, None)
    assert "lad-js-too-large: " in str(report)
    assert "413" in str(report)
    in_store = stored(running_server.database)
    assert in_store["before-it"] == in_store["after-it"] == expected(range(2))


def test_messages_of_a_server_are_shown_without_secrets(home):
    class Refusing(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(403, "http://ann:s3cret@here: s3cret is not the password")

        do_POST = do_GET

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Refusing) as server:
        threading.Thread(target=server.serve_forever).start()
        uri = f"http://ann:s3cret@127.0.0.1:{server.server_port}"
        report = Shipper(home, uri).ship([make_run(home, "r", steps=1)])
        server.shutdown()
    assert "http://***@here: *** is not the password" in (report.error or "")
    assert "s3cret" not in str(report)
    # SQLAlchemy reads the host of ann:s3c@ret@db.lab as ret@db.lab, and says that it cannot resolve it.
    assert tags.secrets("postgresql://ann:s3c@ret@db.lab/mlflow") == ["s3c@ret", "ret", "s3c"]


@contextmanager
def disk_with(kilobytes: int) -> Iterator[None]:
    """Let no file grow beyond this size, as on a disk that is full."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024 * kilobytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.slow
@pytest.mark.real
def test_a_shipper_killed_while_it_creates_the_database_does_no_lasting_harm(home, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    make_run(home, "r", steps=3)
    for kilobytes in (1, 100, 400):
        process = ship(home)
        while not any(size(path) >= 1024 * kilobytes for path in home.glob("*mlflow.db*")):
            assert process.poll() is None, "it was to be killed at work"
            time.sleep(0.002)
        process.kill()
        process.communicate()
    done = ship(home)
    assert done.communicate(timeout=120)[0].startswith("MLflow: shipped 3 lines"), done.stderr
    assert stored(home / "mlflow.db")["r"] == expected(range(3))


@pytest.mark.slow
def test_a_database_that_is_half_made_is_reported_with_its_remedy(home, tmp_path, monkeypatch):
    """Earlier versions left one if they were killed while they created it, and so does `mlflow ui`."""
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import OperationalError

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with disk_with(400), pytest.raises((MlflowException, OperationalError)):
        MlflowClient(f"sqlite:///{tmp_path}/half.db").search_experiments()
    shutil.copy(tmp_path / "half.db", home / "mlflow.db")
    run = make_run(home, "r", steps=1)
    shipper = Shipper(home)
    error = shipper.ship([run]).error or ""
    assert "already exists" in error
    assert f"Move {home / 'mlflow.db'} away" in error
    (home / "mlflow.db").rename(tmp_path / "away.db")
    assert shipper.ship([run]).complete


def test_a_pass_waits_for_another_one_and_reports_when_it_gives_up(local, home, monkeypatch):
    run = make_run(home, "r", steps=2)
    monkeypatch.setattr(shipping, "LOCK_S", 0.2)
    with held_lock(home / "runs" / "mlflow.lock", 0, AssertionError("nobody else holds it")):
        report = Shipper(home, local.uri).ship([run])
    assert "another pass has held" in (report.error or "")
    assert report.left == {"lad-js-r": 2}


def test_no_secret_is_written_to_disk(home):
    run = make_run(home, "r", command="python -m rlvr.run tracker.uri=http://ann:s3cret@host")
    shipper = Shipper(home, f"http://ann:s3cret@127.0.0.1:{places.free_port()}")
    shipping.Cursor("1", "x", "y").save(run, shipper.uri)
    assert "s3cret" not in (run / "mlflow.json").read_text()
    assert shipping.Cursor.load(run, shipper.uri).mlflow_run_id == "y"
    assert "s3cret" not in str(tags.tags(read_info(run), state.read(run), []))


def test_an_unknown_sweep_and_an_ambiguous_one_are_user_errors_and_a_damaged_one_is_reported(home, capsys):
    make_run(home, "r")
    make_sweep(home, "s1", ["r"])
    (home / "runs/sweeps/s1/manifest.jsonl").write_text("{")
    for typed in ("s1", "s"):
        assert main(["--home", str(home), "--sweep", typed]) == 0
        assert "sweep s1: line 1 is torn in" in capsys.readouterr().out
    make_sweep(home, "s2", ["r"])
    for words, message in (
        (["--sweep", "s"], "s begins 2 sweeps"),
        (["--sweep", "s9"], "no sweep s9 here"),
        (["--uri", "file:///x"], "Allowed: sqlite, http"),
    ):
        assert main(["--home", str(home), *words]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.real
def test_two_shippers_at_once_on_a_fresh_database_double_nothing(home):
    ids = [f"r{i}" for i in range(6)]
    directories = [make_run(home, run_id, steps=40) for run_id in ids]
    make_sweep(home, "s", ids)
    uri = f"sqlite:///{home / 'fresh.db'}"
    both = [ship(home, "--uri", uri, "--follow") for _ in range(2)]
    for batch in range(40, 100, 10):
        for directory in directories:
            add_steps(directory, range(batch, batch + 10))
        time.sleep(1.0)
    for process in both:
        process.send_signal(signal.SIGTERM)
    for process in both:
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, out + err
    assert stored(home / "fresh.db") == {run_id: expected(range(100)) for run_id in ids}
    assert places.num_runs(home / "fresh.db") == 6
    assert query(home / "fresh.db", "select count(*) from tags where key = 'rlvr.kind'") == [(1,)]


@pytest.mark.slow
@pytest.mark.real
def test_a_server_killed_in_the_middle_and_restarted_has_everything_once(home, tmp_path):
    server = Server(tmp_path)
    server.start()
    runs = [make_run(home, f"r{i}", steps=5) for i in range(3)]
    process = ship(home, "--uri", server.uri, "--follow", "--until-done")
    try:
        for batch in range(5, 155, 5):
            for run in runs:
                add_steps(run, range(batch, batch + 5))
            time.sleep(0.3)
            if batch == 50:
                server.kill()
            if batch == 80:
                server.start()
        for run in runs:
            end_attempt(run, 1, "ok")
        out, err = process.communicate(timeout=120)
    finally:
        process.kill()
        server.kill()
    assert process.returncode == 0, out + err
    assert "shipped 465 lines of 3 runs" in out  # 3 x 155: none sent twice, or the second sending is not counted
    assert "does not answer" in err or "failed with" in err
    assert stored(server.database) == {f"r{i}": expected(range(155)) for i in range(3)}


@pytest.mark.slow
@pytest.mark.real
def test_a_shipper_killed_at_any_moment_doubles_nothing(home, local):
    runs = [make_run(home, f"r{i}", steps=1000) for i in range(4)]
    make_sweep(home, "s", [f"r{i}" for i in range(4)])

    def cursors() -> str:
        return "".join(path.read_text() for path in sorted(home.glob("runs/**/mlflow.json")))

    for delay in (0.0, 0.02, 0.05, 0.11, 0.2):
        before = cursors()
        process = ship(home, "--uri", local.uri)
        while cursors() == before:
            assert process.poll() is None
            time.sleep(0.005)
        time.sleep(delay)
        assert process.poll() is None, "it was to be killed at work"
        process.kill()
        process.communicate()
        for run in runs:
            first = len(read(run / "metrics.jsonl").records)
            add_steps(run, range(first, first + 300))
    done = ship(home, "--uri", local.uri)
    out, err = done.communicate(timeout=120)
    assert done.returncode == 0, out + err
    assert stored(local.database) == {f"r{i}": expected(range(2500)) for i in range(4)}
    assert places.num_runs(local.database) == 4 + 1  # and the run of the template
    assert query(local.database, "select count(*) from tags where key = 'rlvr.kind'") == [(1,)]


def size(path: Path) -> int:
    """Bytes of a file; 0 if it is gone, as a journal of the database may be at any moment."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
