"""Does this query return what the right one returns? On SQLite, read only. Imported by a verifying child process only.

The process runs in a sandbox (`rlvr.task.verify.sandbox`) that shows it the databases, read-only. In it the database is
opened read-only and immutable, an authorizer allows reading and functions alone, SQLite's own limits bound every value,
and the query is interrupted when its time is up. What still hangs is killed by `rlvr.task.verify.pool`.
"""

from __future__ import annotations

import re
import sqlite3
import time
from collections import Counter
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from rlvr.records import Outcome

ALLOWED = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
FORBIDDEN_FUNCTIONS = {"load_extension", "fts3_tokenizer"}
VALUE_BYTES = 10_000_000  # of one text or blob
STEPS_BETWEEN_LOOKS = 10_000  # instructions of SQLite's machine: well under a millisecond

Rows = list[tuple[Any, ...]]


class QueryResult(NamedTuple):
    """What a query returns."""

    rows: Rows
    num_columns: int

    @property
    def nothing(self) -> bool:
        """No row, or nulls alone: many a query returns that, whatever it asks."""
        return all(value is None for row in self.rows for value in row)


class TooSlow(Exception):
    """The query took longer than it may."""


def judge(request: dict[str, Any]) -> dict[str, str]:
    """{"database", "gold", "query", "match", "query_s", "max_rows"} -> {"outcome": ...}.

    `error`: the right query itself fails, is too slow or returns too much; or it returns nothing and the request says
    "rewards_nothing": false. Without "query" the outcome says of the right query: `nothing`, `something` or `error`.
    """
    limits = (request["query_s"], request["max_rows"])
    try:
        gold = _gold(request["database"], request["gold"], *limits)
    except (sqlite3.Error, sqlite3.Warning, TooSlow, ValueError, OverflowError):
        return {"outcome": "error"}
    if "query" not in request:
        return {"outcome": "nothing" if gold.nothing else "something"}
    if gold.nothing and not request.get("rewards_nothing", True):
        return {"outcome": "error"}
    return {"outcome": _outcome(request, gold, *limits)}


def _outcome(request: dict[str, Any], gold: QueryResult, query_s: float, max_rows: int) -> Outcome:
    try:
        answer = execute(request["database"], request["query"], query_s, max_rows)
    except TooSlow:
        return "timeout"
    except (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError, MemoryError):
        return "wrong"  # ValueError: a null character; too much is the query's fault, not the verifier's
    if answer.num_columns != gold.num_columns:
        return "wrong"
    if request["match"] == "set":
        return "correct" if set(answer.rows) == set(gold.rows) else "wrong"
    ordered = re.search(r"\border\s+by\b", request["gold"], re.IGNORECASE) is not None
    return "correct" if same_table(gold.rows, answer.rows, ordered=ordered) else "wrong"


@lru_cache(maxsize=4)  # the answers to a question come one after another
def _gold(database: str, query: str, query_s: float, max_rows: int) -> QueryResult:
    return execute(database, query, query_s, max_rows)


def execute(database: str, query: str, query_s: float, max_rows: int) -> QueryResult:
    """What one SELECT returns. Raises sqlite3.Error, TooSlow, or OverflowError above `max_rows` rows."""
    uri = f"{Path(database).absolute().as_uri()}?mode=ro&immutable=1"
    connection = sqlite3.connect(uri, uri=True)
    try:
        connection.text_factory = lambda raw: raw.decode(errors="replace")
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, VALUE_BYTES)
        connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
        connection.execute("PRAGMA temp_store = MEMORY")  # a file would be cut off at the sandbox's limit
        connection.set_authorizer(_authorize)
        end = time.monotonic() + query_s
        connection.set_progress_handler(lambda: time.monotonic() > end, STEPS_BETWEEN_LOOKS)
        try:
            cursor = connection.execute(query)
            rows = cursor.fetchmany(max_rows + 1)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode == sqlite3.SQLITE_INTERRUPT:
                raise TooSlow from None
            raise
        if len(rows) > max_rows:
            raise OverflowError(f"more than {max_rows} rows")
        return QueryResult(rows, len(cursor.description or ()))
    finally:
        connection.close()


def _authorize(action: int, first: str | None, second: str | None, database: str | None, trigger: str | None) -> int:  # noqa: ARG001
    if action not in ALLOWED or (action == sqlite3.SQLITE_FUNCTION and str(second).lower() in FORBIDDEN_FUNCTIONS):
        return sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK


def same_table(gold: Rows, found: Rows, *, ordered: bool) -> bool:
    """Equal rows, as a bag or in order, after some permutation of the columns: Spider's test-suite accuracy.

    (arXiv:2010.02840, section 3.) The columns as they stand come first. Otherwise places are filled one by one, with
    columns that hold the same values, and given up as soon as the rows so far differ: columns that equal each other
    from row to row are tried once.
    """
    if len(gold) != len(found):
        return False
    if not gold:
        return True
    if len(gold[0]) != len(found[0]):
        return False
    if gold == found or (not ordered and Counter(gold) == Counter(found)):
        return True
    wanted, offered = ([tuple(column) for column in zip(*rows, strict=True)] for rows in (gold, found))
    if ordered:  # each column has its equal, or none will do
        return Counter(wanted) == Counter(offered)
    values = [Counter(column) for column in offered]

    def fill(place: int, chosen: tuple[int, ...]) -> bool:
        if place == len(wanted):
            return True
        holds = Counter(wanted[place])
        tried = set[tuple[Any, ...]]()
        for i, column in enumerate(offered):
            if i in chosen or column in tried or values[i] != holds:
                continue
            tried.add(column)
            order = (*chosen, i)
            rows = Counter(zip(*(offered[j] for j in order), strict=True))
            if rows == Counter(zip(*wanted[: place + 1], strict=True)) and fill(place + 1, order):
                return True
        return False

    return fill(0, ())
