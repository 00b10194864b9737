"""Reads runs and metrics back from MLflow. The only file of `analysis` that imports mlflow or SQLAlchemy, on use."""

from __future__ import annotations

import contextlib
import http.client
import math
import os
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import pandas as pd

from analysis.frames.frame import records
from analysis.frames.runs import RunRecord, tidy_metrics
from rlvr.ledger import tags as words
from rlvr.ledger.runs import Unreadable, lines_by_reason

ANSWER_S = 3.0  # how long a server may take to answer the first request
DATABASES, SERVERS = ("sqlite:", "postgresql", "mysql", "mssql"), ("http:", "https:", "databricks")  # begin addresses
LARGEST = 1.7976931348623157e308  # MLflow stores an infinity as the largest float64


class MlflowReader:
    """The runs of an MLflow store that carry the tag `rlvr.run_id`.

    A database URI is read with SQL: the client needs 29 s where SQL needs 0.25 s (500 runs x 50 metrics). A server is
    read through the client, its only interface.
    """

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.sql = uri.startswith(DATABASES)
        if not _is_address(uri):
            raise LookupError(
                f"{words.redact(uri)} is no address of MLflow's. Type one such as --uri sqlite:///mlflow.db or --uri "
                "http://127.0.0.1:5000; in a password write %5B for [, and so on."
            )
        if uri.startswith("sqlite:///") and not Path(uri.removeprefix("sqlite:///")).exists():
            raise LookupError(f"{uri}: there is no such database. Pass --uri or --home.")
        if fault := _fault_of_server(uri):
            raise LookupError(
                f"{words.redact(uri)}: {fault}. Is it the right address? Without --source the report reads runs/."
            )
        self._attempts: dict[str, list[str]] = {}  # run_id -> MLflow's own run ids, oldest first
        self.notes: list[str] = []  # what could not be read

    def runs(self) -> dict[str, RunRecord]:
        """Every run by its rlvr run_id. Of several MLflow runs of one rlvr run, the newest describes it."""
        records: dict[str, RunRecord] = {}
        foreign: list[Unreadable] = []
        for uuid, info, tags, params in sorted(self._catalogue(), key=lambda row: (row[1]["start"], row[0])):
            run_id = tags["rlvr.run_id"]
            if "rlvr.state" not in tags:
                why = "shipped to MLflow by another version of rlvr, and left out. Read it with that version."
                foreign.append(Unreadable(f"run {run_id}", why))
                continue
            self._attempts.setdefault(run_id, []).append(uuid)
            records[run_id] = _record(run_id, info, tags, params)
        self.notes = lines_by_reason(foreign)
        return records

    def metrics(self, run_ids: Sequence[str]) -> pd.DataFrame:
        """run_id, step, name, value of these runs."""
        owner = {uuid: run_id for run_id in run_ids for uuid in self._attempts.get(run_id, ())}
        if self.sql:
            return tidy_metrics([self._sql_metrics(owner)])
        with self._refusals_in_one_line():
            return tidy_metrics([self._client_metrics(owner)])

    def _catalogue(self) -> list[tuple[str, dict[str, Any], dict[str, str], dict[str, str]]]:
        if self.sql:
            return self._sql_catalogue()
        with self._refusals_in_one_line():
            return self._client_catalogue()

    @contextlib.contextmanager
    def _refusals_in_one_line(self) -> Iterator[None]:
        """Raise what a server refuses, such as a request without its password, as LookupError."""
        from mlflow.exceptions import MlflowException

        try:
            yield
        except MlflowException as error:
            raise LookupError(
                f"{words.redact(self.uri)} cannot be read ({self._fault(error)}). Without --source the "
                "report reads runs/."
            ) from None

    def _fault(self, error: BaseException) -> str:
        """The first line of an error's message, without secrets."""
        return words.without_secrets(str(error).partition("\n")[0], self.uri)

    def _query(self, statement: str) -> pd.DataFrame:
        import sqlalchemy
        import sqlalchemy.exc

        try:
            engine = sqlalchemy.create_engine(self.uri, poolclass=sqlalchemy.NullPool)
            with engine.connect() as connection:
                return pd.read_sql_query(sqlalchemy.text(statement), connection)
        except (sqlalchemy.exc.SQLAlchemyError, pd.errors.DatabaseError, ImportError, ValueError) as error:
            fault = self._fault(error.__cause__ or error)  # ImportError: no driver for such a database
            raise LookupError(
                f"{words.redact(self.uri)} cannot be read ({fault}). Without --source the report reads runs/; a "
                "damaged mlflow.db may be moved away: `python -m sweeps sync` restores all of it."
            ) from None

    def _sql_catalogue(self) -> list[tuple[str, dict[str, Any], dict[str, str], dict[str, str]]]:
        ours = "SELECT run_uuid FROM tags WHERE key = 'rlvr.run_id'"
        runs = self._query(
            "SELECT r.run_uuid, r.name, r.status, r.start_time, e.name AS study FROM runs r JOIN experiments e "
            f"ON r.experiment_id = e.experiment_id WHERE r.lifecycle_stage = 'active' AND r.run_uuid IN ({ours})"
        )
        values: dict[str, dict[str, dict[str, str]]] = {}  # by table and run
        for table in ("tags", "params"):
            rows = self._query(f"SELECT run_uuid, key, value FROM {table} WHERE run_uuid IN ({ours})")
            values[table] = {
                str(uuid): dict(zip(part["key"], part["value"], strict=True)) for uuid, part in rows.groupby("run_uuid")
            }
        return [
            (
                str(r["run_uuid"]),
                {"name": r["name"], "status": r["status"], "start": float(r["start_time"] or 0), "study": r["study"]},
                values["tags"].get(r["run_uuid"], {}),
                values["params"].get(r["run_uuid"], {}),
            )
            for r in records(runs)
        ]

    def _client_catalogue(self) -> list[tuple[str, dict[str, Any], dict[str, str], dict[str, str]]]:
        client = self._client()
        studies = {e.experiment_id: e.name for e in _pages(client.search_experiments)}
        runs = _pages(client.search_runs, experiment_ids=list(studies), filter_string="tags.`rlvr.run_id` != ''")
        return [
            (
                r.info.run_id,
                {
                    "name": r.info.run_name,
                    "status": r.info.status,
                    "start": float(r.info.start_time or 0),
                    "study": studies[r.info.experiment_id],
                },
                dict(r.data.tags),
                dict(r.data.params),
            )
            for r in runs
        ]

    def _client(self) -> Any:
        import mlflow

        return mlflow.MlflowClient(tracking_uri=self.uri)

    def _sql_metrics(self, owner: Mapping[str, str]) -> pd.DataFrame:
        parts = []
        uuids = sorted(owner)
        for start in range(0, len(uuids), 500):  # databases limit the length of a statement
            listed = ", ".join(f"'{u}'" for u in uuids[start : start + 500])
            parts.append(
                self._query(
                    "SELECT run_uuid, step, key AS name, value, is_nan, timestamp FROM metrics "
                    f"WHERE run_uuid IN ({listed})"
                )
            )
        frame = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=["run_uuid", "step"])
        return _tidy(frame, owner)

    def _client_metrics(self, owner: Mapping[str, str]) -> pd.DataFrame:
        client = self._client()
        rows = []
        for uuid in owner:
            for name in client.get_run(uuid).data.metrics:
                rows += [
                    (uuid, m.step, name, m.value, math.isnan(m.value), m.timestamp)
                    for m in client.get_metric_history(uuid, name)
                ]
        return _tidy(pd.DataFrame(rows, columns=["run_uuid", "step", "name", "value", "is_nan", "timestamp"]), owner)


def _is_address(uri: str) -> bool:
    try:
        return uri.startswith((*DATABASES, *SERVERS)) and bool(urlsplit(uri))
    except ValueError:  # a bracket where none may be
        return False


def _fault_of_server(uri: str) -> str:
    """Why a server cannot be used; "" for one that answers within ANSWER_S, and for a database."""
    parts = urlsplit(uri)
    if parts.scheme not in ("http", "https"):
        return ""
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")  # MLflow's default retries take minutes
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")
    server = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
    try:
        urllib.request.urlopen(f"{server}/health", timeout=ANSWER_S).close()
    except urllib.error.HTTPError as error:
        return f"it answers {error.code} {error.reason}" if error.code >= 500 else ""
    except (OSError, http.client.HTTPException, ValueError) as error:
        return f"it does not answer ({getattr(error, 'reason', error)})"
    return ""


def _pages(search: Any, **arguments: Any) -> list[Any]:
    """The results of all pages of a search."""
    page = search(**arguments)
    results = list(page)
    while page.token:
        page = search(**arguments, page_token=page.token)
        results += page
    return results


def _record(run_id: str, info: Mapping[str, Any], tags: Mapping[str, str], params: Mapping[str, str]) -> RunRecord:
    values = {key: words.as_value(value) for key, value in params.items()}
    choices = {f"choices.{group}": option for group, option in words.choices_of(tags).items()}
    return RunRecord(
        run_id=run_id,
        group_id=tags.get("rlvr.group_id", ""),
        name=info["name"],
        arm=tags.get("rlvr.arm", ""),
        study=info["study"],
        state=tags["rlvr.state"],
        cause=tags.get("rlvr.cause", ""),
        created=float(tags.get("rlvr.created") or info["start"] / 1000),
        git_sha=tags.get("rlvr.git_sha", ""),
        git_dirty=tags.get("rlvr.git_dirty") == "true",
        host=tags.get("rlvr.host", ""),
        own_gpus=tags.get("rlvr.own_gpus") == "true",
        command=tags.get("mlflow.source.name", ""),
        config={**values, **choices},
    )


def _tidy(frame: pd.DataFrame, owner: Mapping[str, str]) -> pd.DataFrame:
    """MLflow's rows as run_id, step, name, value: NaN and infinities restored; of a repeated step the oldest row is
    first."""
    if frame.empty:
        return frame
    frame = frame.assign(run_id=frame["run_uuid"].map(owner)).sort_values("timestamp", kind="stable")
    value = frame["value"].astype(float).mask(frame["is_nan"].astype(bool), math.nan)
    value = value.mask(value >= LARGEST, math.inf).mask(value <= -LARGEST, -math.inf)
    return frame.assign(step=frame["step"].astype(int), value=value)[["run_id", "step", "name", "value"]]
