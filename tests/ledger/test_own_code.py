"""A run records which versions of the user's code it used."""

from __future__ import annotations

from pathlib import Path

from rlvr.ledger import layout, own_code


def test_before_its_first_step_a_run_records_only_the_newest_version(tmp_path: Path) -> None:
    assert own_code.recorded(tmp_path) == {}
    assert own_code.record(tmp_path, {"filtered": "a"}) == []
    assert own_code.record(tmp_path, {"filtered": "b"}) == []
    assert own_code.recorded(tmp_path) == {"filtered": ("b",)}


def test_a_run_that_continues_after_an_edit_records_both_versions(tmp_path: Path) -> None:
    own_code.record(tmp_path, {"filtered": "a", "days": "d"})
    layout.journal(tmp_path).write_text("a step\n")
    assert own_code.record(tmp_path, {"filtered": "b", "days": "d"}) == ["filtered"]
    assert own_code.record(tmp_path, {"filtered": "b", "days": "d"}) == []
    assert own_code.recorded(tmp_path) == {"days": ("d",), "filtered": ("a", "b")}


def test_a_run_without_the_users_own_code_has_no_record(tmp_path: Path) -> None:
    assert own_code.record(tmp_path, {}) == []
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_record_reads_as_empty(tmp_path: Path) -> None:
    layout.own_code(tmp_path).write_text('{"filtered": "a"}')
    assert own_code.recorded(tmp_path) == {}
    layout.own_code(tmp_path).write_text('{"filt')
    assert own_code.recorded(tmp_path) == {}
