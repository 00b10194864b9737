import os
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from rlvr.ledger.sweeps import Ledger
from rlvr.tracker.cursor import is_behind
from sweeps.plan import write
from sweeps.start import shipper_of
from sweeps.sync import sync_in_background, tracker_of
from sweeps.worker import ShipperProcess
from tests.slurm.place import BANDIT, wait_for
from tests.sweeps.test_plan import finish, planned
from tests.tracker.places import end_attempt, expected, make_run, make_sweep, stored


def test_a_shipper_that_left_something_says_why_and_what_to_type(tmp_path: Path) -> None:
    line, said = "MLflow: http://gone:5000 does not answer", list[str]()
    shipper = ShipperProcess([sys.executable, "-c", f"print({line!r}); raise SystemExit(3)"], tmp_path)
    shipper.start()
    shipper.finish(said.append)
    assert said == [
        f"Not all metrics are shipped yet: http://gone:5000 does not answer ({tmp_path}/shipper.log). All metrics "
        "are safe in runs/: `python -m sweeps sync` ships the rest."
    ]


def test_the_words_of_an_earlier_shipper_are_not_the_reason_of_one_that_was_killed(tmp_path: Path) -> None:
    (tmp_path / "shipper.log").write_text("MLflow: shipped 4 lines of 1 runs to sqlite:////x.db\n")
    kill = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    shipper, said = ShipperProcess([sys.executable, "-c", kill], tmp_path), list[str]()
    shipper.start()
    shipper.finish(said.append)
    assert "yet: its shipper ended with code -9" in said[0]


def ended_sweep(home: Path, letter: str, **tracker: object) -> Path:
    """A sweep of one run of four steps, which has ended; the run's directory."""
    run_dir = make_run(home, letter * 12, steps=4)
    config = yaml.safe_load((run_dir / "config.yaml").read_text())
    (run_dir / "config.yaml").write_text(yaml.safe_dump(config | {"tracker": {"enabled": True, **tracker}}))
    end_attempt(run_dir, 1, "ok")
    make_sweep(home, f"sweep-{letter}", [letter * 12])
    return run_dir


def test_commands_in_a_row_start_one_shipper(tmp_path: Path) -> None:
    """Though the log that the first one is to write is old, and it has written nothing yet."""
    ended_sweep(tmp_path, "a", uri="http://127.0.0.1:9")  # where nobody answers
    (log := tmp_path / "runs/sync.log").touch()
    os.utime(log, (time.time() - 600,) * 2)
    assert [sync_in_background(Ledger(tmp_path)) for _ in range(3)] == [True, False, False]
    wait_for(lambda: "does not answer" in log.read_text(), patience_s=100)


@pytest.mark.slow
def test_the_store_is_that_of_the_sweep_and_not_of_its_run_that_was_finished_before(tmp_path: Path) -> None:
    ledger, point = Ledger(tmp_path), [*BANDIT[1:], "seed=0"]
    before = planned([*point, "tracker=none"])
    write(before, ledger)
    finish(ledger, before.runs[0].run_id, steps=2, seconds=1.0)
    after = planned(*([*point[:-1], f"seed={seed}", "tracker.uri=sqlite:///named.db"] for seed in (0, 1)))
    write(after, ledger)
    trackers = {sweep.sweep_id: dict(tracker_of(ledger, sweep)) for sweep in ledger.sweeps()}
    assert trackers[before.sweep_id] == {"enabled": False, "uri": None}
    assert trackers[after.sweep_id] == {"enabled": True, "uri": "sqlite:///named.db"}
    assert after.runs[0].run_id == before.runs[0].run_id


@pytest.mark.slow
@pytest.mark.real
def test_sync_ships_each_sweep_to_the_store_that_its_launch_named(tmp_path: Path) -> None:
    named, other = tmp_path / "named.db", tmp_path / "other.db"
    ended_sweep(tmp_path, "a", uri=f"sqlite:///{named}")
    ended_sweep(tmp_path, "b", uri=None)
    environment = {**os.environ, "MLFLOW_TRACKING_URI": f"sqlite:///{other}"}
    command = [sys.executable, "-m", "sweeps", "sync", "--home", str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert stored(named) == {"a" * 12: expected(range(4))}
    assert stored(other) == {"b" * 12: expected(range(4))}


@pytest.mark.slow
@pytest.mark.real
def test_a_launch_with_a_store_of_its_own_ships_the_others_to_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep before it named none, and was not shipped."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    ended_sweep(tmp_path, "a", uri=None)
    own = f"sqlite:///{tmp_path}/own.db"
    tracker = {"enabled": True, "uri": own}
    assert (shipper_of(Ledger(tmp_path), "sweep-b", tracker) or [])[-2:] == ["--uri", own]
    log = tmp_path / "runs/sync.log"
    wait_for(lambda: log.exists() and "shipped 4 lines" in log.read_text(), patience_s=100)
    assert stored(tmp_path / "mlflow.db") == {"a" * 12: expected(range(4))}
    assert ("a" * 12).encode() not in (tmp_path / "own.db").read_bytes()


@pytest.mark.slow
@pytest.mark.real
def test_the_next_status_or_report_ships_what_a_dead_server_did_not_take(tmp_path: Path) -> None:
    """A run ended while the server was away; another one's launch wanted no tracker. The clock has been set back."""
    store = tmp_path / "store.db"
    for letter, enabled in (("a", True), ("b", False)):
        ended_sweep(tmp_path, letter, enabled=enabled, uri=f"sqlite:///{store}")
    assert is_behind(tmp_path / "runs" / ("a" * 12))
    in_an_hour = time.time() + 3600
    (tmp_path / "runs/sync.log").touch()
    os.utime(tmp_path / "runs/sync.log", (in_an_hour, in_an_hour))

    def all_is_there() -> bool:
        try:
            return store.exists() and stored(store) == {"a" * 12: expected(range(4))}
        except sqlite3.OperationalError:  # its tables are just being made
            return False

    for command in (["sweeps", "status"], ["analysis", "--no-figures"]):
        words = [sys.executable, "-m", *command, "--home", str(tmp_path)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=100, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        wait_for(all_is_there, patience_s=100)
        wait_for(lambda: "shipped 4 lines" in (tmp_path / "runs/sync.log").read_text(), patience_s=100)  # its last word
        assert not sync_in_background(Ledger(tmp_path))
        for path in (store, tmp_path / "runs/sync.log"):
            path.unlink()
        (tmp_path / "runs" / ("a" * 12) / "mlflow.json").unlink()
