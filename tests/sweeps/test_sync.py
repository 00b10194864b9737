"""What a launch could not ship, and how it says so."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from sweeps.worker import Shipper
from tests.tracker.places import expected, make_run, make_sweep, stored


def test_a_shipper_that_left_something_says_why_and_what_to_type(tmp_path: Path) -> None:
    said = "MLflow: http://gone:5000 does not answer"
    shipper = Shipper([sys.executable, "-c", f"print({said!r}); raise SystemExit(3)"], tmp_path / "shipper.log")
    assert shipper.finish(60, hurry=lambda: False) == (
        f"MLflow has not got everything: http://gone:5000 does not answer ({tmp_path}/shipper.log). All metrics are "
        "safe in runs/: `python -m sweeps sync` ships the rest."
    )


@pytest.mark.slow
@pytest.mark.real
def test_sync_ships_each_sweep_to_the_store_that_its_launch_named(tmp_path: Path) -> None:
    named, other = tmp_path / "named.db", tmp_path / "other.db"
    for run_id, store in (("a" * 12, f"sqlite:///{named}"), ("b" * 12, None)):
        config = make_run(tmp_path, run_id, steps=4) / "config.yaml"
        config.write_text(yaml.safe_dump(yaml.safe_load(config.read_text()) | {"tracker": {"uri": store}}))
        make_sweep(tmp_path, f"sweep-{run_id[0]}", [run_id])
    environment = {**os.environ, "MLFLOW_TRACKING_URI": f"sqlite:///{other}"}
    command = [sys.executable, "-m", "sweeps", "sync", "--home", str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert stored(named) == {"a" * 12: expected(range(4))}
    assert stored(other) == {"b" * 12: expected(range(4))}
