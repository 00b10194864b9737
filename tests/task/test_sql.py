import gzip
import json
import os
import sqlite3
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest

from rlvr.task import sql
from rlvr.task.sql import Sql
from rlvr.task.verify.sql_query import execute, same_table
from tests.support.sandboxed import need_sandbox
from tests.support.tasks import DATA, make_task, write_jsonl

GOLD = "SELECT name, age FROM pets WHERE age > 2"
ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"


@pytest.fixture
def zoo(tmp_path: Path) -> Path:
    """databases/zoo/zoo.sqlite, BIRD's layout."""
    file = tmp_path / "databases" / "zoo" / "zoo.sqlite"
    file.parent.mkdir(parents=True)
    connection = sqlite3.connect(file)
    with connection:
        connection.execute("CREATE TABLE pets (name TEXT, age INT)")
        connection.executemany("INSERT INTO pets VALUES (?, ?)", [("a", 1), ("b", 3), ("c", 5), ("c", 5)])
    connection.close()
    return file


def make_sql(tmp_path: Path, rows: list[dict[str, Any]], databases: Path | None = None, **knobs: Any) -> Sql:
    need_sandbox()
    where = write_jsonl(tmp_path / "x.jsonl", rows)
    databases = databases or tmp_path / "databases"
    return make_task("sql", **{"train": where, "test": where, "databases": str(databases), **knobs})


def outcomes(task: Sql, *queries: str) -> list[str]:
    problem = task.problem("test", 0)
    return [r.outcome for r in task.reward([(problem, f"So\n```sql\n{query}\n```") for query in queries])]


ROW = {"question": "Who is old?", "db_id": "zoo", "gold_sql": GOLD, "evidence": "old means above 2"}


def test_the_prompt_holds_schema_hint_and_question(tmp_path: Path, zoo: Path) -> None:
    task = make_sql(tmp_path, [ROW], template="{schema}|{evidence}|{question}")
    problem = task.problem("test", 0)
    assert problem.prompt == "CREATE TABLE pets (name TEXT, age INT);|old means above 2|Who is old?"
    assert problem.answer == {"database": str(zoo), "gold": GOLD}


def test_rows_are_compared_as_sets_as_in_bird(tmp_path: Path, zoo: Path) -> None:
    task = make_sql(tmp_path, [ROW])
    cases = {
        GOLD: "correct",
        "SELECT name, age FROM pets WHERE age >= 3 ORDER BY age DESC;": "correct",
        "SELECT DISTINCT name, age FROM pets WHERE age > 2": "correct",  # BIRD ignores how often a row comes
        "SELECT age, name FROM pets WHERE age > 2": "wrong",
        "SELECT name, age FROM pets": "wrong",
        "SELECT name, no_such_column FROM pets": "wrong",
        "SELEC name": "wrong",
        "": "unparsable",
        "-- nothing": "wrong",
        "SELECT 1; SELECT 2": "wrong",
        "SELECT '\x00'": "wrong",
    }
    assert dict(zip(cases, outcomes(task, *cases), strict=True)) == cases
    assert [r.outcome for r in task.reward([(task.problem("test", 0), "SELECT 1")])] == ["unparsable"]


def test_a_query_that_reads_no_table_is_a_guess(tmp_path: Path, zoo: Path) -> None:
    count = {**ROW, "gold_sql": "SELECT count(*) FROM pets WHERE age > 2"}
    task = make_sql(tmp_path, [count])
    right = str(sqlite3.connect(zoo).execute(count["gold_sql"]).fetchone()[0])
    guesses = [f"SELECT {right}", f"WITH t(n) AS (SELECT {right}) SELECT n FROM t", f"VALUES ({right})"]
    guesses += [f"SELECT {right} FROM sqlite_master", f"WITH t(n) AS (VALUES (1)) SELECT {right} * count(*) FROM t"]
    assert outcomes(task, count["gold_sql"], *guesses) == ["correct"] + ["wrong"] * len(guesses)
    assert outcomes(make_sql(tmp_path, [count], constant="judged"), guesses[0]) == ["correct"]
    columnless = make_sql(tmp_path, [{**ROW, "gold_sql": "SELECT count(*) FROM pets"}])  # 4 rows, no null
    guesses = ["SELECT 4", "WITH pets(n) AS (VALUES (1), (2), (3), (4)) SELECT count(*) FROM pets"]
    assert outcomes(columnless, "SELECT count(name) FROM pets", *guesses) == ["correct", "wrong", "wrong"]
    assert outcomes(make_sql(tmp_path, [count]), "SELECT count(*) - 1 FROM pets") == ["correct"]
    constant = make_sql(tmp_path, [{**ROW, "gold_sql": "SELECT 3"}])
    assert outcomes(constant, "SELECT 1 + 2", "SELECT 4") == ["correct", "wrong"]


def test_tables_are_compared_as_in_spider(tmp_path: Path, zoo: Path) -> None:
    task = make_sql(tmp_path, [ROW], match="table")
    cases = {
        "SELECT age, name FROM pets WHERE age > 2 ORDER BY age DESC": "correct",
        "SELECT DISTINCT name, age FROM pets WHERE age > 2": "wrong",
        "SELECT name, age, 1 FROM pets WHERE age > 2": "wrong",
    }
    assert dict(zip(cases, outcomes(task, *cases), strict=True)) == cases
    in_order = make_sql(tmp_path, [{**ROW, "gold_sql": f"{GOLD} ORDER BY age"}], match="table")
    queries = (f"{GOLD} ORDER BY age", f"{GOLD} ORDER BY age DESC")
    assert outcomes(in_order, *queries) == ["correct", "wrong"]  # the right query asks for an order


def test_each_benchmark_is_compared_in_its_own_way(tmp_path: Path, zoo: Path) -> None:
    """Twice the same row is another table and the same set; columns in another order the reverse."""
    test = {name: write_jsonl(tmp_path / f"{name}.jsonl", [ROW]) for name in ("bird", "spider")}
    task = make_sql(tmp_path, [ROW], test=test, match={"spider": "table"})
    problems = {task.problem("test", i).source: task.problem("test", i) for i in range(2)}
    queries = ("SELECT DISTINCT name, age FROM pets WHERE age > 2", "SELECT age, name FROM pets WHERE age > 2")
    for name, wanted in {"bird": ["correct", "wrong"], "spider": ["wrong", "correct"]}.items():
        answers = [(problems[name], f"```sql\n{query}\n```") for query in queries]
        assert [reward.outcome for reward in task.reward(answers)] == wanted, name


@pytest.mark.parametrize(
    ("gold", "rows", "ordered", "same"),
    [
        ([(1, 2), (3, 4)], [(3, 4), (1, 2)], False, True),
        ([(1, 2), (3, 4)], [(3, 4), (1, 2)], True, False),
        ([(1, 2), (3, 4)], [(2, 1), (4, 3)], True, True),
        ([(1, 2), (2, 1)], [(1, 2), (1, 2)], False, False),
        ([(1, 1), (2, 2)], [(1, 2), (2, 1)], False, False),  # equal columns, different rows
        ([(1, 2), (2, 1)], [(2, 1), (1, 2)], True, True),  # by exchanging the columns
        ([(1,), (1,), (2,)], [(1,), (2,), (2,)], False, False),  # the same rows, not as often
        ([], [], True, True),
        ([(None, "a")], [("a", None)], False, True),
        ([(1,)], [(1, 1)], False, False),
    ],
)
def test_columns_may_be_permuted(gold: list[Any], rows: list[Any], ordered: bool, same: bool) -> None:
    assert same_table(gold, rows, ordered=ordered) is same


def test_equal_columns_do_not_make_the_comparison_exponential() -> None:
    """Twelve columns of one value each row: 12! orders, of which the first will do, or none."""
    gold = [(i, *[0] * 11) for i in range(50)]
    began = time.monotonic()
    assert same_table(gold, [(*[0] * 11, i) for i in range(50)], ordered=False)
    assert not same_table(gold, [(*[0] * 11, i) for i in range(1, 51)], ordered=False)
    last = [row[::-1] for row in gold]  # the column that differs is matched after the equal ones
    assert not same_table(last, [(*[0] * 11, i) for i in range(1, 51)], ordered=False)
    # The same values in every column, each time in another order: rows decide at the second column.
    shifted = [tuple((i + c) % 12 for c in range(12)) for i in range(12)]
    assert same_table(shifted, [row[::-1] for row in shifted], ordered=False)
    assert not same_table(shifted, [tuple((i * (c + 1)) % 12 for c in range(12)) for i in range(12)], ordered=False)
    assert time.monotonic() - began < 5


EMPTY = {**ROW, "gold_sql": "SELECT name FROM pets WHERE age > 99"}


@pytest.mark.parametrize("row", [EMPTY, {**ROW, "gold_sql": "SELECT max(age) FROM pets WHERE age > 99"}])
def test_training_problems_that_any_empty_query_would_solve_are_refused(tmp_path: Path, zoo: Path, row: Any) -> None:
    with pytest.raises(ValueError, match=r"The right query of training problem x-1 returns nothing.*empty_gold=drop"):
        make_sql(tmp_path, [ROW, row])
    task = make_sql(tmp_path, [ROW, row], empty_gold="drop")
    assert (task.size("train"), task.size("test")) == (1, 2)  # a benchmark loses nothing
    with pytest.raises(ValueError, match="nothing is left to learn from"):
        make_sql(tmp_path, [row], empty_gold="drop")


def test_what_was_not_run_in_time_is_judged_an_error_in_training_and_compared_in_tests(
    tmp_path: Path, zoo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql, "CHECK_S", -1.0)
    monkeypatch.setattr(sql, "AT_ONCE", 1)
    task = make_sql(tmp_path, [ROW, EMPTY])
    answer = "```sql\nSELECT name FROM pets WHERE age > 98\n```"
    trained, tested = task.problem("train", 1), task.problem("test", 1)
    assert [r.outcome for r in task.reward([(trained, answer), (tested, answer)])] == ["error", "correct"]
    other = "```sql\nSELECT name, age FROM pets WHERE age > 98\n```"  # empty too: BIRD and Spider count no columns then
    assert task.reward([(tested, other)])[0].outcome == "correct"


def test_hostile_queries_read_the_database_and_nothing_else(tmp_path: Path, zoo: Path) -> None:
    task = make_sql(tmp_path, [ROW], query_s=1.0, max_rows=1000)
    other = tmp_path / "other.sqlite"
    sqlite3.connect(other).close()
    before = zoo.read_bytes()
    cases = {
        ENDLESS: "timeout",
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i, i FROM n": "wrong",  # too many rows
        "SELECT a.age FROM " + ", ".join(f"pets {c}" for c in "abcdefghijklmnopq"): "wrong",
        "SELECT count(*) FROM " + ", ".join(f"pets {c}" for c in "abcdefghijklmnopq"): "timeout",
        "DELETE FROM pets": "wrong",
        "UPDATE pets SET age = 9": "wrong",
        "DROP TABLE pets": "wrong",
        "CREATE TEMP TABLE t AS SELECT 1": "wrong",
        f"ATTACH '{other}' AS o": "wrong",
        f"ATTACH '{tmp_path}/new.sqlite' AS o": "wrong",
        f"VACUUM INTO '{tmp_path}/new.sqlite'": "wrong",
        "PRAGMA writable_schema = 1": "wrong",
        "SELECT * FROM pragma_database_list": "wrong",
        "SELECT load_extension('x')": "wrong",
        "SELECT readfile('/etc/passwd')": "wrong",
        "SELECT hex(zeroblob(2000000000))": "wrong",
        "SELECT randomblob(1000000000)": "wrong",
        "SELECT length(randomblob(9000000)) FROM pets a, pets b, pets c, pets d": "timeout",  # few, long steps
        "BEGIN": "wrong",
    }
    assert dict(zip(cases, outcomes(task, *cases), strict=True)) == cases
    assert zoo.read_bytes() == before
    assert not (tmp_path / "new.sqlite").exists()
    assert (sorted(p.name for p in zoo.parent.iterdir()), outcomes(task, GOLD)) == (["zoo.sqlite"], ["correct"])


def test_a_value_has_at_most_ten_million_bytes(zoo: Path) -> None:
    assert execute(str(zoo), "SELECT length(zeroblob(10000000))", 10.0, 10) == [(10_000_000,)]
    with pytest.raises(sqlite3.Error, match="too big"):
        execute(str(zoo), "SELECT length(zeroblob(10000001))", 10.0, 10)


def test_the_process_that_runs_queries_sees_databases_but_no_network_secrets_or_other_files(
    tmp_path: Path, zoo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLVR_TEST_SECRET", "hunter2")
    (zoo.parent / "private.txt").write_text("x")
    task = make_sql(tmp_path, [ROW], workers=1)
    assert outcomes(task, GOLD) == ["correct"]
    (outer,) = task._pool.pids()
    process = psutil.Process(outer).children(recursive=True)[-1]
    inner = Path("/proc") / str(process.pid)
    assert b"sql_query" in (inner / "cmdline").read_bytes()
    assert b"hunter2" not in (inner / "environ").read_bytes()
    for namespace in ("net", "pid", "mnt", "ipc"):
        assert (inner / "ns" / namespace).readlink() != Path(f"/proc/self/ns/{namespace}").readlink()
    inside = inner / "root"
    assert [p.name for p in (inside / zoo.parent.relative_to("/")).iterdir()] == ["zoo.sqlite"]
    assert not (inside / Path(__file__).relative_to("/")).exists()
    assert not (inside / "etc" / "passwd").exists()
    assert process.uids().real != 0
    task.close()
    psutil.wait_procs([process], timeout=60)  # it dies with its parent, a moment after it
    assert not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may read what others may not")
def test_a_database_that_only_root_can_read_is_refused_with_the_cure(tmp_path: Path, zoo: Path) -> None:
    zoo.chmod(0o600)
    with pytest.raises(ValueError, match=r"zoo.sqlite cannot be read by another user than root.* chmod a\+r /"):
        make_sql(tmp_path, [ROW])


@pytest.mark.parametrize("gold", ["SELECT x FROM pets", ENDLESS, "SELECT a.age FROM pets a, pets b, pets c, pets d"])
def test_a_right_query_that_fails_is_an_error_not_a_wrong_answer(tmp_path: Path, zoo: Path, gold: str) -> None:
    task = make_sql(tmp_path, [{**ROW, "gold_sql": gold}], query_s=1.0, max_rows=100)
    assert outcomes(task, "SELECT 1") == ["error"]


def test_what_is_missing_is_named(tmp_path: Path, zoo: Path) -> None:
    (zoo.parents[1] / "ark.sqlite").write_bytes(b"no database at all, " * 100)
    cases: list[tuple[list[dict[str, Any]], dict[str, Any], str]] = [
        ([ROW, {**ROW, "db_id": "zo"}], {}, r"x.jsonl:2: db_id is 'zo', expected a database in .*task.databases=FOLD"),
        ([{**ROW, "db_id": "../zoo"}], {}, "expected the name of a database, not a path"),
        ([{"question": "?", "db_id": "zoo"}], {}, "no column any of gold_sql, SQL, sql"),
        *(([ROW], {"match": match}, "task.match=bag must be set or table") for match in ("bag", {"x": "bag"})),
        ([ROW], {"match": {"spider": "table"}}, "task.match names spider; task.test has x."),
        ([{**ROW, "db_id": "ark"}], {}, r"ark.sqlite cannot be read as an SQLite database"),
    ]
    for rows, knobs, message in cases:
        with pytest.raises(ValueError, match=message):
            make_sql(tmp_path, rows, **knobs)


@pytest.mark.skipif(not DATA.is_dir(), reason=f"no real data at {DATA}")
@pytest.mark.parametrize("match", ["set", "table"])
def test_right_queries_of_spider_are_right_and_those_of_other_questions_are_not(tmp_path: Path, match: str) -> None:
    lines = gzip.decompress((DATA / "spider" / "dev.jsonl.gz").read_bytes()).splitlines()
    rows = [row for row in map(json.loads, lines) if row["db_available"]]
    task = make_sql(tmp_path, rows, DATA / "spider" / "databases", match=match, empty_gold="keep")
    problems = [task.problem("test", i) for i in range(task.size("test") or 0)]
    assert len(problems) == 856
    right = task.reward([(p, f"```sql\n{p.answer['gold']}\n```") for p in problems])
    assert Counter(r.outcome for r in right) == {"correct": 856}
    others = [problems[(i + 200) % 856].answer["gold"] for i in range(856)]  # of another database
    wrong = task.reward([(p, f"```sql\n{gold}\n```") for p, gold in zip(problems, others, strict=True)])
    assert Counter(r.outcome for r in wrong) == {"wrong": 856}
