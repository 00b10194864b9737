"""The calls to MLflow, each safe to repeat. The only file of the tracker that imports mlflow."""

import logging
import math
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Experiment, Metric, Param, RunStatus, RunTag, ViewType
from mlflow.exceptions import MlflowException
from sqlalchemy import create_engine, text
from sqlalchemy.exc import SQLAlchemyError

from rlvr.ledger.files import private_mode, publish, temporary_path
from rlvr.ledger.journal import Record
from rlvr.ledger.lock import held_lock
from rlvr.tracker.presentation import VIEW_TAG, saved_view
from rlvr.tracker.store import NoFiles, Refused, StoreDown, sqlite_path

METRICS_PER_CALL, OTHERS_PER_CALL = 1000, 100  # the limits of MLflow
# The dashboard opens an experiment of this kind with its runs and curves, not with traces of agents.
KIND = {"mlflow.experimentKind": "custom_model_development"}
IDENTITY = "rlvr.identity"
DEFAULT = "Default"  # name of the experiment that MLflow itself creates
# Error codes of MLflow that concern one run or experiment; all other errors are treated as errors of the store.
_OF_ONE_RUN = {
    *("INVALID_PARAMETER_VALUE", "RESOURCE_DOES_NOT_EXIST", "RESOURCE_ALREADY_EXISTS", "INVALID_STATE", "BAD_REQUEST")
}
# Columns of MLflow's tables that contain the absolute place of artifacts.
_PLACES = (("experiments", "artifact_location"), ("runs", "artifact_uri"), ("logged_models", "artifact_location"))


@contextmanager
def _translated() -> Iterator[None]:
    """Raise errors of MLflow and of the database as Refused or StoreDown."""
    try:
        yield
    except MlflowException as error:
        kind = Refused if error.error_code in _OF_ONE_RUN else StoreDown
        raise kind(str(error)) from error
    except (OSError, SQLAlchemyError, ImportError) as error:  # ImportError: no driver for this kind of database
        raise StoreDown(str(error)) from error


class Client:
    """An MLflow store, with its tables. artifacts: where new experiments store artifacts; None: its default.

    private: a SQLite file that does not exist yet is created for its user only.
    """

    def __init__(self, uri: str, artifacts: str | None, *, private: bool = False) -> None:
        for name in ("mlflow", "alembic"):
            logging.getLogger(name).setLevel(logging.WARNING)
        self.identities: dict[str, str] = {}  # {experiment id: `identity`}; to be cleared before each pass
        self._artifacts = artifacts
        path = sqlite_path(uri)
        # Processes that create the tables of one database at the same time crash in its migrations.
        with _translated(), _lock_of(path) if path else nullcontext():
            if path is not None:
                _create_database(path, private=private)
            self._mlflow = MlflowClient(tracking_uri=uri)
            self._mlflow.search_experiments(max_results=1)

    def move_artifacts(self, database: Path) -> None:
        """Let experiments that we created in another home keep their artifacts in this one. database: of this home.

        MLflow records absolute places, and has no call to change them: after a home was moved or copied, artifacts
        would be stored in the old one. Files are not touched: they are expected to have come along.
        """
        assert self._artifacts is not None
        parameters = {"identity": IDENTITY, "here": self._artifacts, "any": f"file:%/{Path(self._artifacts).name}"}
        engine = create_engine(f"sqlite:///{database}")
        with _translated(), engine.begin() as connection:
            elsewhere = connection.execute(
                text(
                    "select distinct artifact_location from experiments join experiment_tags using (experiment_id) "
                    "where key = :identity and artifact_location like :any and artifact_location != :here"
                ),
                parameters,
            )
            for place in elsewhere.scalars().all():
                for table, column in _PLACES:
                    statement = (
                        f"update {table} set {column} = :here || substr({column}, length(:there) + 1) "
                        f"where substr({column} || '/', 1, length(:there) + 1) = :there || '/'"
                    )
                    connection.execute(text(statement), {"here": self._artifacts, "there": place})
        engine.dispose()

    def identity(self, experiment_id: str) -> str:
        """A random tag of an experiment; "" if there is no such experiment.

        It shows whether an address still leads to the same database: after mlflow.db is deleted, say, it does not.
        """
        if experiment_id not in self.identities:
            try:
                with _translated():
                    experiment = self._mlflow.get_experiment(experiment_id)
            except Refused:
                return ""
            _check_active(experiment)
            self.identities[experiment_id] = experiment.tags.get(IDENTITY, "")
        return self.identities[experiment_id]

    def experiment(self, name: str) -> str:
        """Id of an experiment, which is created if need be."""
        with _translated():
            experiment = self._mlflow.get_experiment_by_name(name)
            if experiment is None:
                try:
                    self._mlflow.create_experiment(name, self._artifacts, tags={IDENTITY: uuid.uuid4().hex, **KIND})
                except MlflowException as error:
                    if error.error_code != "RESOURCE_ALREADY_EXISTS":  # another process was faster
                        raise
                if self._artifacts is not None and name != DEFAULT:
                    self._delete_empty_default()
                experiment = self._mlflow.get_experiment_by_name(name)
            assert experiment is not None
            _check_active(experiment)
            if IDENTITY not in experiment.tags:  # created by hand
                self._mlflow.set_experiment_tag(experiment.experiment_id, IDENTITY, uuid.uuid4().hex)
        return experiment.experiment_id

    def _delete_empty_default(self) -> None:
        """Delete MLflow's own experiment, if it is empty, from our store: it would be shown first."""
        default = self._mlflow.get_experiment_by_name(DEFAULT)
        if default is None or default.lifecycle_stage != "active":
            return
        if not self._mlflow.search_runs([default.experiment_id], run_view_type=ViewType.ALL, max_results=1):
            self._mlflow.delete_experiment(default.experiment_id)

    def save_view(self, experiment_id: str, columns: Sequence[str]) -> None:
        """Add these columns to the saved view of an experiment, unless it has them."""
        with _translated():
            before = self._mlflow.get_experiment(experiment_id).tags.get(VIEW_TAG, "")
            view = saved_view(before, columns, time.time())
            if view != before:
                self._mlflow.set_experiment_tag(experiment_id, VIEW_TAG, view)

    def send_file(self, run_id: str, name: str, text: str) -> None:
        """Store a text as an artifact of a run, replacing one of this name. Raises NoFiles if that fails."""
        try:
            self._mlflow.log_text(run_id, text, name)
        except (MlflowException, OSError) as error:
            raise NoFiles(f"{name} cannot be stored ({error})") from error

    def send_folder(self, run_id: str, name: str, folder: Path) -> None:
        """Store the files of a folder as artifacts of a run, below this name. Raises NoFiles if that fails."""
        try:
            self._mlflow.log_artifacts(run_id, str(folder), name)
        except (MlflowException, OSError) as error:
            raise NoFiles(f"{name} cannot be stored ({error})") from error

    def find_all(self, experiment_id: str, key: Mapping[str, str], created: float | None = None) -> list[str]:
        """Ids of the runs that have the tags `key`, and this start, and are not deleted, the oldest first."""
        conditions = [f"tags.`{name}` = '{value}'" for name, value in key.items()]
        where = " and ".join(conditions + ([f"attribute.start_time = {milliseconds(created)}"] if created else []))
        with _translated():
            runs = self._mlflow.search_runs([experiment_id], filter_string=where, order_by=["attribute.start_time"])
        return [run.info.run_id for run in runs]

    def create(self, experiment_id: str, name: str, tags: Mapping[str, str], created: float) -> str:
        """Create a run and return its id. created: start in seconds since the epoch; 0: now."""
        start = milliseconds(created) if created else None
        with _translated():
            return self._mlflow.create_run(experiment_id, start, dict(tags), name).info.run_id

    def delete_run(self, run_id: str) -> None:
        """Delete a run as the dashboard does: it can be restored until `mlflow gc` removes it for good."""
        with _translated():
            self._mlflow.delete_run(run_id)

    def send_metrics(self, run_id: str, records: Sequence[Record]) -> None:
        """Send the finite values of these lines of a journal, with the steps and times of the lines."""
        metrics = [
            Metric(name, value, milliseconds(record.time), record.step)
            for record in records
            for name, value in record.metrics.items()
            if math.isfinite(value)
        ]
        self._log(run_id, METRICS_PER_CALL, "metrics", metrics)

    def send_params(self, run_id: str, params: Mapping[str, str]) -> None:
        """Send params. MLflow accepts the same values again; for other values Refused is raised."""
        self._log(run_id, OTHERS_PER_CALL, "params", [Param(k, v) for k, v in params.items()])

    def send_tags(self, run_id: str, tags: Mapping[str, str]) -> None:
        self._log(run_id, OTHERS_PER_CALL, "tags", [RunTag(k, v) for k, v in tags.items()])

    def _log(self, run_id: str, per_call: int, kind: str, items: Sequence[Metric | Param | RunTag]) -> None:
        for start in range(0, len(items), per_call):
            parts: dict[str, Any] = {kind: items[start : start + per_call]}
            with _translated():
                self._mlflow.log_batch(run_id, **parts)

    def send_status(self, run_id: str, status: str, ended: float) -> None:
        """Send RUNNING, FINISHED, FAILED or KILLED. ended: time of the end in seconds since the epoch; 0: now."""
        with _translated():
            if RunStatus.is_terminated(RunStatus.from_string(status)):
                self._mlflow.set_terminated(run_id, status, milliseconds(ended) if ended else None)
            else:
                self._mlflow.update_run(run_id, status)


def milliseconds(seconds: float) -> int:
    """A time as MLflow stores it."""
    return round(1000 * seconds)


def _lock_of(database: Path) -> AbstractContextManager[int]:
    path = database.with_name(f"{database.name}.lock")
    return held_lock(path, 60, StoreDown(f"another process has held {path} for 60 s"))


def _create_database(path: Path, *, private: bool) -> None:
    """Create a SQLite file with MLflow's tables, in one step: MLflow can never use a file that was left half made."""
    from mlflow.store.db.utils import _initialize_tables, create_sqlalchemy_engine  # slow, and not for servers

    if path.exists() and path.stat().st_size:  # an empty one was created by connecting to it
        return
    aside = temporary_path(path)
    for leftover in (aside, aside.with_name(f"{aside.name}-journal")):
        leftover.unlink(missing_ok=True)
    if private:
        aside.touch(mode=private_mode())
    engine = create_sqlalchemy_engine(f"sqlite:///{aside}")
    try:
        _initialize_tables(engine)
    finally:
        engine.dispose()
    publish(aside, path)


def _check_active(experiment: Experiment) -> None:
    if experiment.lifecycle_stage != "active":
        raise Refused(
            f"experiment {experiment.name!r} is deleted in MLflow. Restore it: mlflow experiments restore "
            f"--experiment-id {experiment.experiment_id}"
        )
