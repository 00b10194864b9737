"""Reads runs and metrics back from MLflow. The only file of `analysis` that imports mlflow or SQLAlchemy, on use."""

import contextlib
import ctypes
import math
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import pandas as pd

from analysis.frames.runs import RunRecord
from rlvr.ledger import tags as words
from rlvr.ledger.health import fault_of_server
from rlvr.ledger.runs import Unreadable, lines_by_reason

R = TypeVar("R")

REPLY_S = 60.0  # how long a server may take to answer a request
MOST_PAGES = 10_000  # of a search
_FOREIGN = (TypeError, AttributeError, LookupError, TimeoutError)
DATABASES, SERVERS = ("sqlite:", "postgresql", "mysql", "mssql"), ("http:", "https:", "databricks")  # begin addresses
LARGEST = 1.7976931348623157e308  # MLflow stores an infinity as the largest float64
_ADVICE = "Without --source the report reads runs/"
_RESTORED = "; a damaged mlflow.db may be moved away: `python -m sweeps sync` restores all of it"


class MlflowReader:
    """The runs of an MLflow store that carry the tag `rlvr.run_id`, read through MLflow's client."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        if not _is_address(uri):
            raise LookupError(
                f"{words.redact(uri)} is no address of MLflow's. Type one such as --uri sqlite:///mlflow.db or --uri "
                "http://127.0.0.1:5000; in a password write %5B for [, and so on."
            )
        if uri.startswith("sqlite:///") and not Path(uri.removeprefix("sqlite:///")).exists():
            raise LookupError(f"{uri}: there is no such database. Pass --uri or --home.")
        if uri.startswith("http"):
            os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")  # MLflow's default retries take minutes
            os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")
        if uri.startswith("http") and (fault := fault_of_server(uri)):
            raise LookupError(f"{words.redact(uri)}: it {fault}. Is it the right address? {_ADVICE}.")
        self._attempts: dict[str, list[Any]] = {}  # by our run id, MLflow's runs, oldest first
        self.notes: list[str] = []  # what could not be read

    def runs(self) -> dict[str, RunRecord]:
        """Every run by its rlvr run_id. Of several MLflow runs of one rlvr run, the newest describes it."""
        records: dict[str, RunRecord] = {}
        foreign: list[Unreadable] = []
        with self._faults_in_one_line():
            client = self._client()
            studies = {e.experiment_id: e.name for e in _pages(client.search_experiments)}
            ours = _pages(client.search_runs, experiment_ids=list(studies), filter_string="tags.`rlvr.run_id` != ''")
            for run in sorted(ours, key=lambda run: (run.info.start_time or 0, run.info.run_id)):
                run_id = run.data.tags["rlvr.run_id"]
                if "rlvr.state" not in run.data.tags:
                    why = "shipped to MLflow by another version of rlvr, and left out. Read it with that version."
                    foreign.append(Unreadable(f"run {run_id}", why))
                    continue
                self._attempts.setdefault(run_id, []).append(run)
                records[run_id] = _record(run_id, run, studies[run.info.experiment_id])
        self.notes = lines_by_reason(foreign)
        return records

    def metrics(self, run_ids: Sequence[str]) -> pd.DataFrame:
        """run_id, step, name, value of these runs, which `runs` has returned. Of a repeated step the oldest value."""
        rows = []
        with self._faults_in_one_line():
            client = self._client()
            for run_id in run_ids:
                for run in self._attempts.get(run_id, ()):
                    for name in run.data.metrics:
                        history = _answered(client.get_metric_history, run.info.run_id, name)
                        rows += [(run_id, m.step, name, m.value, m.timestamp) for m in history]
        frame = pd.DataFrame(rows, columns=["run_id", "step", "name", "value", "timestamp"])
        first = frame.sort_values("timestamp", kind="stable").drop_duplicates(["run_id", "step", "name"])
        value = first["value"].mask(first["value"] >= LARGEST, math.inf).mask(first["value"] <= -LARGEST, -math.inf)
        return first.drop(columns="timestamp").assign(value=value)

    def _client(self) -> Any:
        import mlflow

        if self.uri.startswith(DATABASES):
            self._connect_once()
        return mlflow.MlflowClient(tracking_uri=self.uri)

    def _connect_once(self) -> None:
        """Raises an error of SQLAlchemy's for a database that does not answer, which MLflow would ask for 27 minutes,
        and for one that is no store of MLflow's, in which it would create its tables."""
        import sqlalchemy

        engine = sqlalchemy.create_engine(self.uri, poolclass=sqlalchemy.NullPool)
        if "runs" not in sqlalchemy.inspect(engine).get_table_names():
            raise ValueError("it has no table of runs")

    @contextlib.contextmanager
    def _faults_in_one_line(self) -> Iterator[None]:
        """Raise what a store refuses, such as a request without its password, as LookupError without secrets."""
        from mlflow.exceptions import MlflowException
        from sqlalchemy.exc import SQLAlchemyError

        try:
            yield
        # ImportError: no driver. The last four: what answers is no MLflow.
        except (MlflowException, SQLAlchemyError, ImportError, ValueError, *_FOREIGN) as error:
            first_line = str(error).partition("\n")[0] or type(error).__name__
            fault = words.without_secrets(first_line, self.uri)
            restored = _RESTORED if self.uri.startswith(DATABASES) else ""
            raise LookupError(f"{words.redact(self.uri)} cannot be read ({fault}). {_ADVICE}{restored}.") from None


def _is_address(uri: str) -> bool:
    try:
        return uri.startswith((*DATABASES, *SERVERS)) and bool(urlsplit(uri))
    except ValueError:  # a bracket where none may be
        return False


def _pages(search: Any, **arguments: Any) -> list[Any]:
    """The results of all pages of a search. Raises ValueError for pages without end."""
    results, token = list[Any](), None
    for _ in range(MOST_PAGES):
        page = _answered(search, **arguments, **({} if token is None else {"page_token": token}))
        results += page
        if not page.token:
            return results
        if page.token == token:
            break
        token = page.token
    raise ValueError("its pages have no end")


def _answered(request: Callable[..., R], *arguments: Any, **named: Any) -> R:
    """The result of a request. Raises TimeoutError after REPLY_S: MLflow's own timeout is that of a part of an answer,
    which may have parts without end. It has a thread of its own, since signals reach the main thread alone.
    """
    outcome: Future[R] = Future()

    def ask() -> None:
        try:
            outcome.set_result(request(*arguments, **named))
        except BaseException as error:  # noqa: BLE001 - it is raised below
            outcome.set_exception(error)

    asking = threading.Thread(target=ask, name="MLflow", daemon=True)
    asking.start()
    try:
        return outcome.result(REPLY_S)
    except TimeoutError:
        if asking.is_alive():  # reads on, and fills the memory
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(asking.ident or 0), ctypes.py_object(SystemExit))
        raise TimeoutError(f"it has not answered within {REPLY_S:.0f} s") from None


def _record(run_id: str, run: Any, study: str) -> RunRecord:
    tags: Mapping[str, str] = run.data.tags
    values = {key: words.as_value(value) for key, value in run.data.params.items()}
    choices = {f"choices.{group}": option for group, option in words.choices_of(tags).items()}
    return RunRecord(
        run_id=run_id,
        group_id=tags.get("rlvr.group_id", ""),
        name=run.info.run_name,
        arm=tags.get("rlvr.arm", ""),
        study=study,
        state=tags["rlvr.state"],
        cause=tags.get("rlvr.cause", ""),
        created=float(tags.get("rlvr.created") or (run.info.start_time or 0) / 1000),
        git_sha=tags.get("rlvr.git_sha", ""),
        git_dirty=tags.get("rlvr.git_dirty") == "true",
        host=tags.get("rlvr.host", ""),
        own_gpus=tags.get("rlvr.own_gpus") == "true",
        command=tags.get("mlflow.source.name", ""),
        config={**values, **choices},
    )
