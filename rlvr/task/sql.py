"""Text to SQL: a query earns 1 if it returns what the benchmark's right query returns on the same SQLite database."""

import logging
import sqlite3
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

from pydantic import PositiveFloat, PositiveInt

from rlvr.records import Problem, Reward, Split, name_part
from rlvr.task.fence import last_block
from rlvr.task.sources import Column, RowValue, check_template
from rlvr.task.verified import Verified
from rlvr.task.verify.sandbox import Sandbox

log = logging.getLogger("rlvr")

QUESTION_FIELDS = ("question", "prompt", "problem")
GOLD_FIELDS = ("gold_sql", "SQL", "sql", "query", "reward_model.ground_truth")
MATCHES = ("set", "table")
CHECK_S = 20.0  # seconds for the check of all right queries when the data are loaded
GUESSES = ("SELECT 1", "SELECT NULL", "SELECT 1 WHERE 0")
AT_ONCE = 16  # right queries that are run between two checks of the time


@dataclass(kw_only=True, eq=False)
class Sql(Verified):
    """Questions about databases. Other knobs: `rlvr.task.verified`.

    databases: the folder with NAME.sqlite or NAME/NAME.sqlite, or a list of such folders.
    template: the prompt, with {question}, {schema} (the CREATE statements) and {evidence} (the benchmark's hint or "").
    match: how results are compared. "set": the rows as a set (BIRD); "table": the rows as a bag, or in order if the
        right query orders them, with the columns in any order (Spider). Or {benchmark of `test`: "set" or "table"};
        other benchmarks and training problems are then compared by "set".
    empty_gold: what happens to training problems whose right query returns no row, or only nulls, as many wrong queries
        do: "refuse" the data, "drop" these problems, or "keep" them. With "refuse" the right queries run for at most
        `CHECK_S` seconds when the data are loaded; answers to the problems that were not reached are judged `error` if
        their right query returns nothing. With "drop" all right queries run. Test problems are always kept: benchmarks
        count them.
    constant: the verdict on a query that reads no table (SELECT 5) where the right one reads one.
    Queries run in a sandbox (`rlvr.task.verify.sandbox`) in which the databases are the only data of this machine.
    query_s, max_rows: limits of one query, in seconds and rows. timeout_s: both queries of an answer.
    """

    databases: str | Sequence[str]
    question_field: str | None
    gold_field: str | None
    database_field: str | None
    match: str | Mapping[str, str]
    query_s: PositiveFloat
    max_rows: PositiveInt
    empty_gold: Literal["refuse", "drop", "keep"] = "refuse"
    constant: Literal["wrong", "judged"] = "wrong"

    name = "sql"

    def __post_init__(self) -> None:
        self._match = (
            {} if isinstance(self.match, str) else {name_part(name): rule for name, rule in self.match.items()}
        )
        default = self.match if isinstance(self.match, str) else "set"
        for rule in (default, *self._match.values()):
            if rule not in MATCHES:
                raise ValueError(f"task.match={rule} must be {' or '.join(MATCHES)}.")
        check_template(self.template.replace("{question}", "{problem}"))
        columns = [
            Column("question_field", self.question_field, QUESTION_FIELDS),
            Column("gold_field", self.gold_field, GOLD_FIELDS),
            Column("database_field", self.database_field, ("db_id", "database")),
            Column("evidence_field", None, ("evidence",), optional=True),
        ]
        paths = [self.databases] if isinstance(self.databases, str) else self.databases
        self.load(columns, partial(_problem, self.template, [Path(path).expanduser() for path in paths]))
        known = {problem.source for problem in self._problems["test"]}
        if unknown := self._match.keys() - known:
            raise ValueError(
                f"task.match names {', '.join(sorted(unknown))}; task.test has {', '.join(sorted(known))}."
            )
        self._limits: dict[str, Any] = {"match": default, "query_s": self.query_s, "max_rows": self.max_rows}
        self._limits["reads_a_table"] = self.constant == "wrong"
        files = {Path(problem.answer["database"]) for rows in self._problems.values() for problem in rows}
        sandbox = Sandbox(shown=tuple(sorted(files)))
        sandbox.check()
        self.start_pool("sql_query", sandbox=sandbox)
        if self.empty_gold != "keep":
            self._problems = {**self._problems, **self._without_empty_rewards()}
            self._check_right_queries(drop=self.empty_gold == "drop")

    def _without_empty_rewards(self) -> dict[Split, list[Problem]]:
        """The training problems, changed so that no answer to one whose right query returns nothing is rewarded."""
        training: tuple[Split, ...] = ("train", "validation")
        strict = {"rewards_nothing": False}
        return {split: [replace(p, answer={**p.answer, **strict}) for p in self._problems[split]] for split in training}

    def _check_right_queries(self, *, drop: bool) -> None:
        """Drop the training problems whose right query returns nothing, or raise ValueError for the first of them.

        "Training problems" are those of the splits train and validation: both are rows of task.train.
        """
        training: dict[Split, list[Problem]] = {s: list(self._problems[s]) for s in ("train", "validation")}
        empty = self._problems_with_empty_result([p for rows in training.values() for p in rows], check_all=drop)
        if not empty:
            return
        if not drop:
            raise ValueError(
                f"The right query of training problem {empty[0].id} returns nothing, as many a wrong one does: "
                f"{empty[0].answer['gold']!r}. Pass task.empty_gold=drop to train without such problems (all right "
                "queries are then run first), or keep."
            )
        dropped = {problem.id for problem in empty}
        kept: dict[Split, Sequence[Problem]] = {
            s: [p for p in rows if p.id not in dropped] for s, rows in training.items()
        }
        if not kept["train"]:
            raise ValueError("All right queries of task.train return nothing: nothing is left to learn from.")
        log.warning("%d right queries of task.train return nothing: these problems are dropped.", len(dropped))
        self._problems = {**self._problems, **kept}

    def _problems_with_empty_result(self, problems: Sequence[Problem], *, check_all: bool) -> list[Problem]:
        """The problems whose right query returns nothing.

        Without `check_all` each query has at most one second, and the check ends after `CHECK_S` seconds or after the
        first chunk of AT_ONCE queries with such a problem.
        """
        limits = self._limits if check_all else {**self._limits, "query_s": min(self._limits["query_s"], 1.0)}
        end, empty = time.monotonic() + CHECK_S, list[Problem]()
        try:
            for first in range(0, len(problems), AT_ONCE):
                chunk = problems[first : first + AT_ONCE]
                replies = self._pool.ask([{**p.answer, **limits} for p in chunk])
                empty += [p for p, reply in zip(chunk, replies, strict=True) if reply["outcome"] == "nothing"]
                if not check_all and (empty or time.monotonic() > end):
                    break
        finally:
            self._pool.close()  # its processes start again when answers are to be judged
        return empty

    def reward(self, answers: Sequence[tuple[Problem, str]]) -> list[Reward]:
        """1 where the last ```sql block returns the right rows, else 0, with the reason."""
        queries = [last_block(text, ("sql", "sqlite")) for _, text in answers]
        return self.judge(
            [
                None if query is None else {**problem.answer, "query": query, **self._limits, **self._match_of(problem)}
                for (problem, _), query in zip(answers, queries, strict=True)
            ]
        )

    def guesses(self, problem: Problem) -> Mapping[str, str]:
        return {query: f"```sql\n{query}\n```" for query in GUESSES}

    def _match_of(self, problem: Problem) -> dict[str, str]:
        return {"match": self._match[problem.source]} if problem.source in self._match else {}


def _problem(
    template: str, folders: Sequence[Path], question: RowValue, gold: RowValue, database: RowValue, evidence: RowValue
) -> tuple[str, dict[str, str]]:
    """(prompt, answer) of one row."""
    file = _database_file(database, folders)
    prompt = template.replace("{schema}", schema(file)).replace("{evidence}", str(evidence.value or ""))
    return prompt.replace("{question}", question.text()), {"database": str(file), "gold": gold.text()}


def _database_file(cell: RowValue, folders: Sequence[Path]) -> Path:
    name = cell.text()
    if Path(name).name != name:
        raise cell.refuse("the name of a database, not a path")
    for folder in folders:
        for file in (folder / f"{name}.sqlite", folder / name / f"{name}.sqlite"):
            if file.is_file():
                return file.absolute()
    searched = ", ".join(map(str, folders))
    raise cell.refuse(f"a database in {searched}: {name}.sqlite or {name}/{name}.sqlite. Pass task.databases=FOLDER")


@cache
def schema(database: Path) -> str:
    """The CREATE statements of the tables, as stored in the file. ValueError if it is no SQLite database."""
    try:
        connection = sqlite3.connect(f"{database.as_uri()}?mode=ro&immutable=1", uri=True)
        try:
            rows = connection.execute("SELECT sql FROM sqlite_master WHERE type = 'table' AND sql IS NOT NULL")
            return "\n".join(f"{sql};" for (sql,) in rows if "sqlite_sequence" not in sql)
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise ValueError(f"{database} cannot be read as an SQLite database: {error}") from None
