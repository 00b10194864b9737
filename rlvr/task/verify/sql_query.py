"""Judges SQL queries: same result as the right query on a SQLite database? Imported by a verifying child process only.

The process runs in a sandbox (`rlvr.task.verify.sandbox`) in which the databases are readable. The database is opened
read-only and immutable, an authorizer allows only reading and functions, SQLite's own limits bound every value, and the
query is interrupted at its time limit. A process that hangs nevertheless is killed by `rlvr.task.verify.pool`.
"""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from functools import lru_cache
from pathlib import Path
from threading import Timer
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlvr.records import Outcome

ALLOWED = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
FORBIDDEN_FUNCTIONS = {"load_extension", "fts3_tokenizer"}
EXPLAINED_ROWS = 1_000_000  # of the program of a query
VALUE_BYTES = 10_000_000  # largest text or blob

Rows = list[tuple[Any, ...]]


class TooSlow(Exception):
    """Raised when a query exceeds its time limit."""


def judge(request: dict[str, Any]) -> dict[str, str]:
    """{"database", "gold", "query", "match", "query_s", "max_rows"} -> {"outcome": ...}. Optional:
    "reads_a_table", whether a query that reads no table is wrong if the right one reads one (default: true).

    `error`: the right query itself fails, is too slow or returns too much; or it returns nothing and the request has
    "rewards_nothing": false. Without "query" the outcome describes the right query: `nothing`, `something` or `error`.
    """
    limits = (request["query_s"], request["max_rows"])
    try:
        gold = _gold(request["database"], request["gold"], *limits)
    except (sqlite3.Error, sqlite3.Warning, TooSlow, ValueError, OverflowError):
        return {"outcome": "error"}
    nothing = all(value is None for row in gold for value in row)  # many wrong queries return the same
    if "query" not in request:
        return {"outcome": "nothing" if nothing else "something"}
    if nothing and not request.get("rewards_nothing", True):
        return {"outcome": "error"}
    return {"outcome": _outcome(request, gold, *limits)}


def _outcome(request: dict[str, Any], gold: Rows, query_s: float, max_rows: int) -> Outcome:
    try:
        answer = execute(request["database"], request["query"], query_s, max_rows)
        guessed = (
            request.get("reads_a_table", True)
            and not _reads_a_table(request["database"], request["query"], query_s)
            and _reads_a_table(request["database"], request["gold"], query_s)
        )
    except TooSlow:
        return "timeout"
    except (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError, MemoryError):
        return "wrong"  # ValueError: a null character. A result that is too large is the query's fault
    if guessed:
        return "wrong"  # SELECT 5: a guess, of which the data know nothing
    if request["match"] == "set":
        return "correct" if set(answer) == set(gold) else "wrong"
    ordered = re.search(r"\border\s+by\b", request["gold"], re.IGNORECASE) is not None
    return "correct" if same_table(gold, answer, ordered=ordered) else "wrong"


@lru_cache(maxsize=4)  # the answers to one question are judged one after another
def _gold(database: str, query: str, query_s: float, max_rows: int) -> Rows:
    return execute(database, query, query_s, max_rows)


def _reads_a_table(database: str, query: str, query_s: float) -> bool:
    """Whether the program of a query opens a table of the data, or an index of one.

    The authorizer does not tell: for count(*), which reads no column, it names a table and a WITH of its name alike.
    """
    pages = "SELECT rootpage FROM sqlite_master WHERE tbl_name NOT GLOB 'sqlite_*'"
    roots = execute(database, pages, query_s, EXPLAINED_ROWS)
    program = execute(database, f"EXPLAIN {query}", query_s, EXPLAINED_ROWS)
    return any(opcode == "OpenRead" and (page,) in roots for _, opcode, _, page, *_ in program)


def execute(database: str, query: str, query_s: float, max_rows: int) -> Rows:
    """The rows of one SELECT. Raises sqlite3.Error, TooSlow, or OverflowError above `max_rows` rows."""
    uri = f"{Path(database).absolute().as_uri()}?mode=ro&immutable=1"
    connection = sqlite3.connect(uri, uri=True)
    try:
        connection.text_factory = lambda raw: raw.decode(errors="replace")
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, VALUE_BYTES)
        connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
        connection.execute("PRAGMA temp_store = MEMORY")  # a temporary file would be truncated at the sandbox's limit
        connection.set_authorizer(_authorize)
        timer = Timer(query_s, connection.interrupt)
        timer.start()
        try:
            rows = connection.execute(query).fetchmany(max_rows + 1)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode == sqlite3.SQLITE_INTERRUPT:
                raise TooSlow from None
            raise
        finally:
            timer.cancel()
            timer.join()  # it must not interrupt a connection that is closed
        if len(rows) > max_rows:
            raise OverflowError(f"more than {max_rows} rows")
        return rows
    finally:
        connection.close()


def _authorize(action: int, first: str | None, second: str | None, database: str | None, trigger: str | None) -> int:  # noqa: ARG001
    if action not in ALLOWED or (action == sqlite3.SQLITE_FUNCTION and str(second).lower() in FORBIDDEN_FUNCTIONS):
        return sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK


def same_table(gold: Rows, answer: Rows, *, ordered: bool) -> bool:
    """Whether the rows are equal, as a bag or in order, after some permutation of the columns.

    This is Spider's test-suite accuracy (arXiv:2010.02840, section 3). The columns in their order are compared first.
    Then a backtracking search matches each gold column with a column of the same values, and backtracks as soon as the
    rows of the matched columns differ. Of identical columns only one is tried.
    """
    if len(gold) != len(answer):
        return False
    if not gold:
        return True
    if len(gold[0]) != len(answer[0]):
        return False
    if gold == answer or (not ordered and Counter(gold) == Counter(answer)):
        return True
    gold_columns, answer_columns = ([tuple(column) for column in zip(*rows, strict=True)] for rows in (gold, answer))
    if ordered:  # equal rows in order mean that each column has an equal one
        return Counter(gold_columns) == Counter(answer_columns)
    values = [Counter(column) for column in answer_columns]

    def can_match(chosen: tuple[int, ...]) -> bool:
        """chosen: indices of the answer's columns that are matched with the first gold columns."""
        place = len(chosen)
        if place == len(gold_columns):
            return True
        gold_values = Counter(gold_columns[place])
        tried = set[tuple[Any, ...]]()
        for i, column in enumerate(answer_columns):
            if i in chosen or column in tried or values[i] != gold_values:
                continue
            tried.add(column)
            order = (*chosen, i)
            rows = Counter(zip(*(answer_columns[j] for j in order), strict=True))
            if rows == Counter(zip(*gold_columns[: place + 1], strict=True)) and can_match(order):
                return True
        return False

    return can_match(())
