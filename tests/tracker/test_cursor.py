import os
import time
from dataclasses import replace
from pathlib import Path

from rlvr.ledger import layout
from rlvr.ledger.attempt import Attempt
from rlvr.ledger.journal import JournalWriter, Record
from rlvr.tracker.cursor import Cursor, checksum_of, is_behind, signature

URI = "sqlite:////x.db"


RECORDS = [Record(step, step + 0.5, 1, {"x": float(step)}) for step in range(5)]


def test_the_checksum_of_what_was_sent_does_not_depend_on_batches_and_changes_with_every_record() -> None:
    whole, in_parts = Cursor(), Cursor()
    whole.add(RECORDS)
    for part in (RECORDS[:2], [], RECORDS[2:]):
        in_parts.add(part)
    assert (whole, whole.sent) == (in_parts, 5)
    for other in (replace(RECORDS[1], time=9.5), replace(RECORDS[1], attempt=2), replace(RECORDS[1], metrics={"x": 0})):
        assert checksum_of([RECORDS[0], other, *RECORDS[2:]]) != whole.checksum
    assert checksum_of([RECORDS[0], *RECORDS[2:]]) != whole.checksum


def test_each_store_has_its_own_cursor_and_that_of_another_version_is_ignored(tmp_path: Path) -> None:
    first = Cursor("1", "x", "y", sent=5)
    first.save(tmp_path, URI)
    Cursor("2").save(tmp_path, "sqlite:////z.db")
    assert (Cursor.load(tmp_path, URI), Cursor.load(tmp_path, "sqlite:////z.db")) == (first, Cursor("2"))
    text = (tmp_path / "mlflow.json").read_text()
    (tmp_path / "mlflow.json").write_text(text.replace('"sent"', '"offset"'))
    assert Cursor.load(tmp_path, URI) == Cursor()


def test_a_run_is_behind_until_a_store_has_its_lines_and_its_end(tmp_path: Path) -> None:
    """The shipper read the state before the run ended, or was killed between its last lines and its state."""
    with Attempt.open(tmp_path) as attempt:
        JournalWriter(tmp_path, attempt.number).record(0, {"x": 1.0})
        attempt.close("ok")
    cursor = Cursor("1", "x", "y", journal=signature(layout.journal(tmp_path)))
    for state, attempts in (("running", "1"), ("preempted", "1"), ("preempted", "0")):
        cursor.tags = {"rlvr.state": state, "rlvr.attempts": attempts}
        cursor.save(tmp_path, URI)
        assert is_behind(tmp_path)
    cursor.tags = {"rlvr.state": "finished", "rlvr.attempts": "1"}
    cursor.save(tmp_path, URI)
    assert not is_behind(tmp_path)
    Cursor("2", tags={"rlvr.state": "running"}).save(tmp_path, "sqlite:////z.db")
    assert not is_behind(tmp_path)
    cursor.journal = []
    cursor.save(tmp_path, URI)
    assert is_behind(tmp_path)


def test_a_run_that_goes_on_is_behind_unless_it_was_shipped_in_the_last_minute(tmp_path: Path) -> None:
    assert not is_behind(tmp_path)  # not begun
    with Attempt.open(tmp_path) as attempt:
        JournalWriter(tmp_path, attempt.number).record(0, {"x": 1.0})
        assert is_behind(tmp_path)
        Cursor("1", "x", "y", journal=[1, 1]).save(tmp_path, URI)
        assert not is_behind(tmp_path)
        os.utime(layout.cursor(tmp_path), (0, 0))
        assert is_behind(tmp_path)
        attempt.close("ok")


def test_whether_a_run_is_behind_does_not_depend_on_the_clock_of_its_node(tmp_path: Path) -> None:
    with Attempt.open(tmp_path) as attempt:
        attempt.close("preempted")
    Cursor(journal=[0, 0], tags={"rlvr.state": "preempted", "rlvr.attempts": "1"}).save(tmp_path, URI)
    for ahead_s in (-3600, 3600):
        os.utime(layout.end(attempt.path), times=(time.time() + ahead_s,) * 2)
        assert not is_behind(tmp_path)


def test_a_run_that_failed_before_it_had_a_journal_is_not_behind_for_ever(tmp_path: Path) -> None:
    with Attempt.open(tmp_path) as attempt:
        attempt.close("user_error")
    assert is_behind(tmp_path)
    Cursor(tags={"rlvr.state": "failed", "rlvr.attempts": "1"}).save(tmp_path, URI)
    assert not is_behind(tmp_path)
