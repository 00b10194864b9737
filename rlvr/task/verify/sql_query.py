"""Does this query return what the right one returns? On SQLite, read only. Imported by a verifying child process only.

The process runs in a sandbox (`rlvr.task.verify.sandbox`) that shows it the databases, read-only. In it the database is
opened read-only and immutable, an authorizer allows reading and functions alone, SQLite's own limits bound every value,
and the query is interrupted when its time is up. What still hangs is killed by `rlvr.task.verify.pool`.
"""

from __future__ import annotations

import sqlite3
import time
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlvr.records import Outcome

ALLOWED = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
FORBIDDEN_FUNCTIONS = {"load_extension", "fts3_tokenizer"}
VALUE_BYTES = 10_000_000  # of one text or blob
STEPS_BETWEEN_LOOKS = 10_000  # instructions of SQLite's machine: well under a millisecond

Rows = list[tuple[Any, ...]]


class TooSlow(Exception):
    """The query took longer than it may."""


def judge(request: dict[str, Any]) -> dict[str, str]:
    """{"database", "gold", "query", "match", "query_s", "max_rows"} -> {"outcome": ...}.

    `error`: the right query itself fails, is too slow or returns too much.
    """
    limits = (request["query_s"], request["max_rows"])
    try:
        gold = _gold(request["database"], request["gold"], *limits)
    except (sqlite3.Error, sqlite3.Warning, TooSlow, ValueError, OverflowError):
        return {"outcome": "error"}
    return {"outcome": _outcome(request, gold, *limits)}


def _outcome(request: dict[str, Any], gold: Rows, query_s: float, max_rows: int) -> Outcome:
    try:
        found = execute(request["database"], request["query"], query_s, max_rows)
    except TooSlow:
        return "timeout"
    except (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError, MemoryError):
        return "wrong"  # ValueError: a null character; too much is the query's fault, not the verifier's
    if request["match"] == "set":
        return "correct" if set(found) == set(gold) else "wrong"
    return "correct" if same_table(gold, found, ordered="order by" in request["gold"].lower()) else "wrong"


@lru_cache(maxsize=4)  # the answers to a question come one after another
def _gold(database: str, query: str, query_s: float, max_rows: int) -> Rows:
    return execute(database, query, query_s, max_rows)


def execute(database: str, query: str, query_s: float, max_rows: int) -> Rows:
    """The rows of one SELECT. Raises sqlite3.Error, TooSlow, or OverflowError above `max_rows` rows."""
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
            rows = connection.execute(query).fetchmany(max_rows + 1)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode == sqlite3.SQLITE_INTERRUPT:
                raise TooSlow from None
            raise
        if len(rows) > max_rows:
            raise OverflowError(f"more than {max_rows} rows")
        return rows
    finally:
        connection.close()


def _authorize(action: int, first: str | None, second: str | None, database: str | None, trigger: str | None) -> int:  # noqa: ARG001
    if action not in ALLOWED or (action == sqlite3.SQLITE_FUNCTION and str(second).lower() in FORBIDDEN_FUNCTIONS):
        return sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK


def same_table(gold: Rows, found: Rows, *, ordered: bool) -> bool:
    """Equal rows, as a bag or in order, after some permutation of the columns: Spider's test-suite accuracy.

    (arXiv:2010.02840, section 3.) Columns are tried only where they hold the same values.
    """
    if len(gold) != len(found):
        return False
    if not gold:
        return True
    if len(gold[0]) != len(found[0]):
        return False
    columns = [Counter(column) for column in zip(*found, strict=True)]
    fits = [[i for i, have in enumerate(columns) if have == Counter(want)] for want in zip(*gold, strict=True)]
    wanted = gold if ordered else Counter(gold)
    return any(len(set(order)) == len(order) and _same(wanted, found, order) for order in product(*fits))


def _same(wanted: Rows | Counter[tuple[Any, ...]], found: Rows, order: Sequence[int]) -> bool:
    rows = [tuple(row[i] for i in order) for row in found]
    return rows == wanted if isinstance(wanted, list) else Counter(rows) == wanted
