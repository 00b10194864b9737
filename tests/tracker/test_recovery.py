"""MLflow after a journal, a cursor or MLflow itself was damaged. Expected rows are computed without our code."""

import shutil
from pathlib import Path

import pytest
from mlflow import MlflowClient

from rlvr.ledger import layout
from rlvr.ledger.files import write_json
from rlvr.ledger.journal import encode
from rlvr.ledger.sweeps import Ledger
from rlvr.tracker import presentation
from rlvr.tracker.cursor import forget
from rlvr.tracker.mlflow import Shipper, run_dirs
from sweeps.commands import main
from tests.tracker.conftest import Store
from tests.tracker.places import T0, add_steps, end_attempt, execute, expected, make_run, make_sweep, query, stored

NAME = "lad-js-r"


def lines(run: Path) -> list[bytes]:
    return (run / "metrics.jsonl").read_bytes().splitlines(keepends=True)


def damage(run: Path, step: int) -> None:
    all_lines = lines(run)
    all_lines[step] = all_lines[step].replace(b"reward", b"rewerd")
    (run / "metrics.jsonl").write_bytes(b"".join(all_lines))


@pytest.mark.slow
def test_deleting_a_damaged_line_skips_no_row_of_a_live_shipper_or_of_the_next_one(local: Store, home: Path) -> None:
    """Lines 2 and 4 of six are damaged before they are shipped, and deleted; then the run takes four more steps."""
    live = Shipper(home, local.uri)
    run = make_run(home, "r", steps=6)
    damage(run, 2)
    damage(run, 4)
    report = live.ship([run])
    assert "line 3 is damaged" in str(report)
    kept = [line for step, line in enumerate(lines(run)) if step not in (2, 4)]
    (run / "metrics.jsonl").write_bytes(b"".join(kept))
    add_steps(run, range(6, 8))
    assert not live.ship([run]).problems
    with (run / "metrics.jsonl").open("ab") as file:  # the next attempt takes one of the lost steps again
        file.write(encode(2, T0 + 2.123, 2, dict(zip(("reward/mean",), (2 / 7,), strict=True))))
    add_steps(run, range(8, 10))
    assert Shipper(home, local.uri).ship([run]).shipped == {NAME: 3}
    again = [row for row in expected([2]) if row[0] == "reward/mean"]
    assert stored(local.database)["r"] == sorted([*expected([0, 1, 3, 5, 6, 7, 8, 9]), *again])


def active(store: Store, run_id: str) -> int:
    """Number of MLflow runs of a run that are not deleted."""
    ours = f"key = 'rlvr.run_id' and lifecycle_stage = 'active' and value = '{run_id}'"
    return query(store.database, f"select count(*) from runs join tags using (run_uuid) where {ours}")[0][0]


def test_a_run_whose_journal_lost_a_line_that_was_sent_is_replaced_when_the_step_is_taken_again(
    local: Store, home: Path
) -> None:
    run = make_run(home, "r", steps=4)
    live = Shipper(home, local.uri)
    live.ship([run])
    (run / "metrics.jsonl").write_bytes(b"".join(lines(run)[:3]))  # the disk lost step 3
    for shipper in (live, Shipper(home, local.uri)):
        assert shipper.ship([run]).shipped == {NAME: 0}  # it may be an old view of a file server
        assert stored(local.database)["r"] == expected(range(4))
    with (run / "metrics.jsonl").open("ab") as file:
        file.write(encode(3, T0 + 900.0, 2, {"reward/mean": 3 / 7}))
    assert live.ship([run]).shipped == {NAME: 4}
    for shipper in (live, Shipper(home, local.uri)):
        assert shipper.ship([run]).shipped == {NAME: 0}
        again = ("reward/mean", 3, round(1000 * (T0 + 900.0)), 3 / 7)
        assert stored(local.database)["r"] == sorted([*expected(range(3)), again])
        assert active(local, "r") == 1


@pytest.mark.slow
@pytest.mark.real
def test_a_run_that_is_sent_again_has_the_rows_of_its_journal_and_no_other_run_is_touched(
    local: Store, home: Path
) -> None:
    """Rows of MLflow vanish, change and move to another step: no pass looks at them."""
    for run_id in ("r", "other"):
        make_run(home, run_id, steps=5)
    make_sweep(home, "s", ["other"])
    Shipper(home, local.uri).ship(run_dirs(home))
    execute(local.database, "delete from metrics where step in (1, 4) and key = 'reward/mean'")
    execute(local.database, "update metrics set value = 9.5 where step = 2 and key = 'reward/mean'")
    execute(local.database, "update metrics set step = 7 where step = 3 and key = 'reward/mean'")
    damaged = stored(local.database)
    assert Shipper(home, local.uri).ship(run_dirs(home)).shipped == {NAME: 0, "lad-js-other": 0}
    assert stored(local.database) == damaged
    for name, left in ((NAME, damaged["other"]), ("s", expected(range(5)))):
        assert main(["sync", "--home", str(home), "--uri", local.uri, "--resend", name]) == 0
        assert stored(local.database) == {"r": expected(range(5)), "other": left}
        assert (active(local, "r"), active(local, "other")) == (1, 1)
    assert query(local.database, "select count(*) from tags where key = 'rlvr.kind'") == [(1,)]


@pytest.mark.parametrize("removed", [False, True])
def test_a_parent_run_deleted_in_mlflow_holds_up_no_pass_and_is_created_again(
    local: Store, home: Path, removed: bool
) -> None:
    for run_id in ("a", "b"):
        end_attempt(make_run(home, run_id, steps=1), 1, "ok")
    make_sweep(home, "s", ["a", "b"])
    shipper = Shipper(home, local.uri)
    assert shipper.ship(run_dirs(home)).complete
    client = MlflowClient(tracking_uri=local.uri)
    ((parent,),) = query(local.database, "select run_uuid from tags where key = 'rlvr.kind'")
    client.delete_run(parent)
    if removed:  # for good, as by `mlflow gc`
        for table in ("tags", "latest_metrics", "metrics", "params", "runs"):
            execute(local.database, f"delete from {table} where run_uuid = ?", parent)
    folder = layout.reports(home) / "eta"
    folder.mkdir(parents=True)
    layout.report_page(folder).write_text("<b>report</b>")
    write_json(layout.report_summary(folder), {"sweeps": ["s"], "verdicts": []})
    sweep = Ledger(home).sweep("s")
    assert presentation.is_behind(home, sweep)
    for _ in range(2):
        report = shipper.ship(run_dirs(home))
        assert report.complete
        assert "python -m sweeps sync --resend s" in report.problems["s"]
        assert not presentation.is_behind(home, sweep)  # or every `status` would ship it again
    forget(home, [layout.sweep(home, "s"), *run_dirs(home)])
    assert not shipper.ship(run_dirs(home)).problems
    ((present, status, stage),) = query(
        local.database,
        "select r.run_uuid, r.status, r.lifecycle_stage from runs r join tags t using (run_uuid) "
        "where t.key = 'rlvr.kind' and r.lifecycle_stage = 'active'",
    )
    assert (status, stage) == ("FINISHED", "active")
    assert present != parent
    child = "key = 'mlflow.parentRunId' and lifecycle_stage = 'active'"
    below = query(local.database, f"select value from tags join runs using (run_uuid) where {child}")
    assert below == [(present,), (present,)]
    assert Path(client.download_artifacts(present, "report.html")).read_text() == "<b>report</b>"


def test_values_that_are_not_finite_are_counted_from_the_journal_whatever_was_sent_again(
    local: Store, home: Path
) -> None:
    run = make_run(home, "r")
    ours = "key = 'rlvr.non_finite' and lifecycle_stage = 'active'"
    count = f"select value from tags join runs using (run_uuid) where {ours}"

    def take(step: int) -> None:
        with (run / "metrics.jsonl").open("ab") as file:
            file.write(encode(step, T0 + step, 1, {"loss": float("nan"), "x": 1.0}))

    take(0)
    take(1)
    Shipper(home, local.uri).ship([run])
    (run / "mlflow.json").unlink()  # the steps that have arrived are then read from MLflow
    take(2)
    live = Shipper(home, local.uri)
    live.ship([run])
    assert query(local.database, count) == [('{"loss": 3}',)]
    execute(local.database, "delete from metrics where key = 'x'")
    forget(home, [run])
    live.ship([run])
    take(3)
    live.ship([run])
    assert query(local.database, count) == [('{"loss": 4}',)]


def test_runs_of_a_deleted_experiment_are_reported_and_go_on_after_it_is_restored(local: Store, home: Path) -> None:
    run = make_run(home, "r", steps=5)
    Shipper(home, local.uri).ship([run])
    add_steps(run, range(5, 7))
    assert len(query(local.database, "select 1 from experiments where lifecycle_stage = 'active'")) == 1
    execute(local.database, "update experiments set lifecycle_stage = 'deleted'")
    report = Shipper(home, local.uri).ship([run])
    assert report.left == {NAME: 2}
    assert "Restore it: mlflow experiments restore" in str(report)
    execute(local.database, "update experiments set lifecycle_stage = 'active'")
    assert Shipper(home, local.uri).ship([run]).shipped == {NAME: 2}
    assert stored(local.database)["r"] == expected(range(7))


def test_a_lost_run_json_and_a_lost_run_make_no_second_run_that_counts_and_leave_none_running(
    local: Store, home: Path
) -> None:
    """Repeating the command of a launch writes run.json again, with another time of creation."""
    standing = (
        "select r.status from runs r join tags t using (run_uuid) where t.key = 'rlvr.run_id' and t.value = 'r' "
        "and r.lifecycle_stage = 'active'"
    )
    run = make_run(home, "r", steps=3)
    make_run(home, "other", steps=1)
    make_sweep(home, "s", ["r", "other"])
    Shipper(home, local.uri).ship(run_dirs(home))
    assert query(local.database, standing) == [("RUNNING",)]
    (run / "run.json").unlink()
    Shipper(home, local.uri).ship(run_dirs(home))
    assert query(local.database, standing) == [("FAILED",)]  # its state cannot be read
    for lost in ("run.json", "mlflow.json"):
        (run / lost).unlink(missing_ok=True)
    keep = (run / "metrics.jsonl").read_bytes()
    shutil.rmtree(run)
    make_run(home, "r", created=T0 + 50)
    (run / "metrics.jsonl").write_bytes(keep)
    add_steps(run, range(3, 5))
    assert Shipper(home, local.uri).ship(run_dirs(home)).shipped[NAME] == 5
    assert query(local.database, standing) == [("RUNNING",)]
    assert stored(local.database)["r"] == expected(range(5))
    shutil.rmtree(run)
    Shipper(home, local.uri).ship(run_dirs(home, ["s"]))
    assert query(local.database, standing) == [("FAILED",)]
    make_run(home, "r", created=T0 + 99)
    (run / "metrics.jsonl").write_bytes(encode(0, T0 + 100, 1, {"x": 0.5}))
    Shipper(home, local.uri).ship(run_dirs(home))
    assert query(local.database, standing) == [("RUNNING",)]
    rows = "select key, value from metrics join runs r using (run_uuid) where lifecycle_stage = 'active' and key = 'x'"
    assert query(local.database, rows) == [("x", 0.5)]


def test_a_run_whose_run_json_and_both_cursors_are_lost_is_found_below_its_parent_run(local: Store, home: Path) -> None:
    run = make_run(home, "r", steps=3)
    make_sweep(home, "s", ["r"])
    Shipper(home, local.uri).ship(run_dirs(home))
    keep = (run / "metrics.jsonl").read_bytes()
    shutil.rmtree(run)
    (layout.sweeps(home) / "s/mlflow.json").unlink()
    make_run(home, "r", created=T0 + 50)
    (run / "metrics.jsonl").write_bytes(keep)
    add_steps(run, range(3, 5))
    assert (Shipper(home, local.uri).ship(run_dirs(home)).shipped[NAME], active(local, "r")) == (5, 1)
    assert stored(local.database)["r"] == expected(range(5))
    assert query(local.database, "select count(*) from tags where key = 'rlvr.kind'") == [(1,)]


def test_a_run_without_parent_run_whose_run_json_and_cursor_are_lost_is_found_by_its_start(
    local: Store, home: Path
) -> None:
    run = make_run(home, "r", steps=3)
    end_attempt(run, 1, "ok", started=T0 + 7.25)
    Shipper(home, local.uri).ship(run_dirs(home))
    keep = (run / "metrics.jsonl").read_bytes()
    shutil.rmtree(run)
    make_run(home, "r", created=T0 + 50)
    end_attempt(run, 1, "ok", started=T0 + 7.25)
    (run / "metrics.jsonl").write_bytes(keep)
    make_sweep(home, "s", ["r"])  # it could not be read before
    assert (Shipper(home, local.uri).ship(run_dirs(home)).shipped[NAME], active(local, "r")) == (3, 1)
    assert stored(local.database)["r"] == expected(range(3))


@pytest.mark.slow
def test_a_database_deleted_or_cut_under_a_live_shipper_is_recovered_by_it(local: Store, home: Path) -> None:
    run = make_run(home, "r", steps=3)
    shipper = Shipper(home, local.uri)
    shipper.ship([run])
    local.database.unlink()
    add_steps(run, range(3, 5))
    assert (shipper.ship([run]).shipped, stored(local.database)["r"]) == ({NAME: 5}, expected(range(5)))
    half = local.database.read_bytes()
    local.database.write_bytes(half[: len(half) // 2])
    add_steps(run, range(5, 7))
    error = shipper.ship([run]).error or ""
    assert "malformed" in error
    assert f"Move {local.database} away" in error
    assert "`python -m sweeps sync` restores all from runs/" in error
    local.database.unlink()
    assert (shipper.ship([run]).shipped, stored(local.database)["r"]) == ({NAME: 7}, expected(range(7)))
