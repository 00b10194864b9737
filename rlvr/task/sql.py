"""Text to SQL: a query earns 1 if it returns what the benchmark's own query returns on the same SQLite database."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path

from rlvr.records import Problem, Reward
from rlvr.task.fence import last_block
from rlvr.task.prompt_length import LongPrompts, PromptLimit
from rlvr.task.sources import Cell, Column, Selection, check_template, problems
from rlvr.task.verified import Verified
from rlvr.task.verify.pool import Pool
from rlvr.task.verify.sandbox import Sandbox

QUESTION_FIELDS = ("question", "prompt", "problem")
GOLD_FIELDS = ("gold_sql", "SQL", "sql", "query", "reward_model.ground_truth")
MATCHES = ("set", "table")


class Sql(Verified):
    """Questions about databases.

    train, test: see `rlvr.task.sources.problems`. databases: the folder with NAME.sqlite or NAME/NAME.sqlite, or a list
        of such folders.
    template: the prompt, with {question}, {schema} (the CREATE statements) and {evidence} (the benchmark's hint or "").
    match: "set", the rows as a set (BIRD); "table", the rows as a bag, or in order where the right query orders them,
        with the columns in any order (Spider).
    Queries run in a sandbox (`rlvr.task.verify.sandbox`) that shows the databases and none of this machine's data.
    max_tokens: default limit of a response.
    workers, timeout_s, memory_gb: verifying processes, wall-clock limit of an answer, address space of a process.
    query_s, max_rows: seconds and rows of one query.
    validation, train_problems: which training problems are held out or kept, see `rlvr.task.sources.Selection`.
    max_prompt_tokens, long_prompts, tokenizer: see `rlvr.task.prompt_length.PromptLimit`.
    """

    name = "sql"

    def __init__(
        self,
        *,
        train: str | Sequence[str] | Mapping[str, str],
        test: str | Sequence[str] | Mapping[str, str],
        databases: str | Sequence[str],
        template: str,
        question_field: str | None,
        gold_field: str | None,
        database_field: str | None,
        match: str,
        max_tokens: int,
        workers: int,
        timeout_s: float,
        query_s: float,
        max_rows: int,
        memory_gb: float,
        validation: float = 0.0,
        train_problems: int | None = None,
        max_prompt_tokens: int | None = None,
        long_prompts: LongPrompts = "refuse",
        tokenizer: str | None = None,
    ) -> None:
        if match not in MATCHES:
            raise ValueError(f"task.match={match} must be {' or '.join(MATCHES)}.")
        if query_s <= 0 or max_rows < 1:
            raise ValueError(f"task.query_s={query_s}, task.max_rows={max_rows}: both must be above 0.")
        check_template(template.replace("{question}", "{problem}"))
        self.max_tokens = max_tokens
        folders = [Path(folder).expanduser() for folder in ([databases] if isinstance(databases, str) else databases)]
        columns = [
            Column("question_field", question_field, QUESTION_FIELDS),
            Column("gold_field", gold_field, GOLD_FIELDS),
            Column("database_field", database_field, ("db_id", "database")),
            Column("evidence_field", None, ("evidence",), optional=True),
        ]
        limit = PromptLimit(max_prompt_tokens, long_prompts, tokenizer)
        selection = Selection(validation, train_problems, limit)
        splits = problems(train, test, columns, partial(_problem, template, folders), selection)
        self._limits = {"match": match, "query_s": query_s, "max_rows": max_rows}
        files = {Path(problem.answer["database"]) for rows in splits.values() for problem in rows}
        sandbox = Sandbox(shown=tuple(sorted(files)))
        sandbox.check()
        limits = {"workers": workers, "timeout_s": timeout_s, "memory_gb": memory_gb}
        pool = Pool("rlvr.task.verify.sql_query", **limits, sandbox=sandbox)
        super().__init__(splits, pool)

    def reward(self, answers: Sequence[tuple[Problem, str]]) -> list[Reward]:
        """1 where the last ```sql block returns the right rows, else 0, with the reason."""
        queries = [last_block(text, ("sql", "sqlite")) for _, text in answers]
        return self.judge(
            [
                None if query is None else {**problem.answer, "query": query, **self._limits}
                for (problem, _), query in zip(answers, queries, strict=True)
            ]
        )


def _problem(
    template: str, folders: Sequence[Path], question: Cell, gold: Cell, database: Cell, evidence: Cell
) -> tuple[str, dict[str, str]]:
    """(prompt, answer) of one row."""
    file = _find(database, folders)
    filled = template.replace("{schema}", schema(file)).replace("{evidence}", str(evidence.value or ""))
    return filled.replace("{question}", question.text()), {"database": str(file), "gold": gold.text()}


def _find(cell: Cell, folders: Sequence[Path]) -> Path:
    name = cell.text()
    if Path(name).name != name:
        raise cell.refuse("the name of a database, not a path")
    for folder in folders:
        for file in (folder / f"{name}.sqlite", folder / name / f"{name}.sqlite"):
            if file.is_file():
                return file.absolute()
    where = ", ".join(map(str, folders))
    raise cell.refuse(f"a database in {where}: {name}.sqlite or {name}/{name}.sqlite. Pass task.databases=FOLDER")


@cache
def schema(database: Path) -> str:
    """The statements that created the tables, as the file keeps them. ValueError if it is no SQLite database."""
    try:
        connection = sqlite3.connect(f"{database.as_uri()}?mode=ro&immutable=1", uri=True)
        try:
            rows = connection.execute("SELECT sql FROM sqlite_master WHERE type = 'table' AND sql IS NOT NULL")
            return "\n".join(f"{sql};" for (sql,) in rows if "sqlite_sequence" not in sql)
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise ValueError(f"{database} cannot be read as an SQLite database: {error}") from None
