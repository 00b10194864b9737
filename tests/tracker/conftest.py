"""A SQLite store with MLflow's tables, and a home for runs beside it."""

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from rlvr.tracker.mlflow import Shipper
from tests.tracker.places import make_run


@dataclass
class Store:
    uri: str
    database: Path  # read without MLflow


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Creating MLflow's tables takes 1.5 s: done once, then copied."""
    home = tmp_path_factory.mktemp("template")
    Shipper(home, None).ship([make_run(home, "warm")])
    return home / "mlflow.db"


@pytest.fixture
def local(tmp_path: Path, empty_database: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    database = tmp_path / "store" / "mlflow.db"
    database.parent.mkdir()
    shutil.copy(empty_database, database)
    return Store(f"sqlite:///{database}", database)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    path = tmp_path / "home"
    path.mkdir()
    return path
