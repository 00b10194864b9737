import contextlib
import errno
import json
import logging
import math
import os
import signal
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlvr.ledger import journal as spool
from rlvr.ledger.journal import JournalWriter, decode, encode, read

ROOT = Path(spool.__file__).parents[2]
names = st.from_regex(r"[A-Za-z0-9_\-]{1,8}(/[A-Za-z0-9_\- .]{1,8}x)?", fullmatch=True)
floats = st.floats(allow_nan=False)


def lines(run_dir: Path) -> list[dict]:
    """An independent reader: strict JSON, without our code."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    text = (run_dir / "metrics.jsonl").read_text()
    assert text == "" or text.endswith("\n")
    return [json.loads(line, parse_constant=refuse) for line in text.splitlines()]


def test_a_line_is_strict_json_with_the_fields_of_the_ledger_and_a_crc_of_what_precedes_it(tmp_path):
    tracker = JournalWriter(tmp_path, 3)
    tracker.record(7, {"reward/mean": 0.1, "optim/grad_norm": math.inf, "policy/kl_old": -math.inf, "a": math.nan})
    tracker.close()
    (line,) = lines(tmp_path)
    assert (list(line), line["step"], line["attempt"]) == (["step", "time", "attempt", "metrics", "crc"], 7, 3)
    assert line["metrics"] == {"reward/mean": 0.1, "optim/grad_norm": "inf", "policy/kl_old": "-inf", "a": "nan"}
    raw = (tmp_path / "metrics.jsonl").read_bytes()
    checked = raw[: raw.index(b',"crc"')]
    assert line["crc"] == f"{zlib.crc32(checked):08x}"


def test_the_examples_in_the_documents_are_lines_that_can_be_read():
    for text in (spool.__doc__, (Path(__file__).parents[2] / "docs/tracking.md").read_text(encoding="utf-8")):
        example = next(line.strip() for line in str(text).splitlines() if line.strip().startswith('{"step"'))
        assert decode(example.encode()).step == 12


@pytest.mark.slow
@given(st.dictionaries(names, floats, max_size=8), st.integers(0, 10**9), st.floats(0, 4e9))
def test_every_float_comes_back_bit_for_bit(metrics, step, seconds):
    record = decode(encode(step, seconds, 2, metrics)[:-1])
    assert (record.step, record.time, record.attempt) == (step, seconds, 2)
    assert {k: v.hex() for k, v in record.metrics.items()} == {k: v.hex() for k, v in metrics.items()}


@given(st.integers(0, 10**6), st.integers(0, 7))
def test_any_flipped_bit_is_found(position, bit):
    line = bytearray(encode(5, 1e9 + 0.5, 1, {"reward/mean": 0.25, "policy/entropy": 1.5})[:-1])
    line[position % len(line)] ^= 1 << bit
    with pytest.raises(ValueError, match="checksum"):
        decode(bytes(line))


def test_a_replayed_step_keeps_what_the_first_attempt_measured(tmp_path):
    first = JournalWriter(tmp_path, 1)
    for step in range(5):
        first.record(step, {"x": float(step)})
    first.close()
    second = JournalWriter(tmp_path, 2)
    for step in range(3, 8):  # resumed from the checkpoint of step 2
        second.record(step, {"x": 100.0 + step})
    second.close()
    expected = [*((step, 1, step) for step in range(5)), (5, 2, 105.0), (6, 2, 106.0), (7, 2, 107.0)]
    assert [(r["step"], r["attempt"], r["metrics"]["x"]) for r in lines(tmp_path)] == expected


def test_a_second_call_for_a_step_is_dropped_with_a_warning_and_a_value_that_is_no_number_refused(tmp_path, caplog):
    tracker = JournalWriter(tmp_path, 1)
    tracker.record(1, {"a": 1.0})
    with caplog.at_level(logging.WARNING):
        tracker.record(1, {"b": 2.0})
    assert "step 1 was recorded twice: its second metrics, b, are dropped" in caplog.text
    with pytest.raises(ValueError, match="metric 'reward/mean' is None, not a number"):
        tracker.record(2, {"reward/mean": None})  # type: ignore[dict-item]
    tracker.close()
    assert [r["metrics"] for r in lines(tmp_path)] == [{"a": 1.0}]


@pytest.mark.parametrize("kept", range(0, 60, 7))
def test_a_torn_last_line_is_ignored_by_the_reader_and_cut_by_the_next_attempt(tmp_path, kept):
    path = tmp_path / "metrics.jsonl"
    good = encode(1, 10.0, 1, {"x": 1.0})
    path.write_bytes(good + encode(2, 11.0, 1, {"x": 2.0})[:kept])
    records, offset, damaged, torn = read(path)
    assert ([r.step for r in records], offset, damaged, torn) == ([1], len(good), [], kept > 0)
    tracker = JournalWriter(tmp_path, 2)
    assert path.read_bytes() == good
    tracker.record(2, {"x": 3.0})
    tracker.close()
    assert [(r["step"], r["metrics"]["x"]) for r in lines(tmp_path)] == [(1, 1.0), (2, 3.0)]


def test_a_last_line_whose_middle_the_disk_lost_counts_as_torn(tmp_path):
    path = tmp_path / "metrics.jsonl"
    good, lost = encode(1, 10.0, 1, {"x": 1.0}), bytearray(encode(2, 11.0, 1, {"x": 2.0}))
    lost[10:20] = b"\0" * 10
    path.write_bytes(good + lost)
    assert read(path).end == len(good)
    JournalWriter(tmp_path, 2).close()
    assert path.read_bytes() == good


def test_a_damaged_line_in_the_middle_is_named_and_all_others_are_read(tmp_path):
    path = tmp_path / "metrics.jsonl"
    data = [bytearray(encode(step, 10.0, 1, {"x": 1.0})) for step in range(4)]
    data[2][12] ^= 1
    path.write_bytes(b"".join(data))
    for offset, steps in ((0, [0, 1, 3]), (len(data[0]), [1, 3])):  # the number counts from the start of the file
        records, end, damaged, torn = read(path, offset=offset)
        assert ([r.step for r in records], end, torn) == (steps, len(b"".join(data)), False)
        assert damaged == ["line 3 is damaged (its checksum does not match)"]


def test_a_resumed_attempt_records_the_step_of_a_damaged_line_again_and_keeps_the_line(tmp_path, caplog):
    path = tmp_path / "metrics.jsonl"
    data = [bytearray(encode(step, 10.0, 1, {"x": float(step)})) for step in range(4)]
    data[2][12] ^= 1
    path.write_bytes(b"".join(data))
    with caplog.at_level(logging.WARNING):
        tracker = JournalWriter(tmp_path, 2)
    assert "line 3 is damaged" in caplog.text
    for step in range(1, 5):  # resumed from a checkpoint of step 0
        tracker.record(step, {"x": 100.0 + step})
    tracker.close()
    assert path.read_bytes().startswith(b"".join(data))
    reading = read(path)
    assert [(r.step, r.attempt) for r in reading.records] == [(0, 1), (1, 1), (3, 1), (2, 2), (4, 2)]
    assert len(reading.damaged) == 1


def test_reading_goes_on_where_it_stopped(tmp_path):
    tracker = JournalWriter(tmp_path, 1)
    seen, offset = [], 0
    for step in range(6):
        tracker.record(step, {"x": 0.0})
        if step % 2:
            records, offset, _, _ = read(tmp_path / "metrics.jsonl", offset=offset)
            seen += [r.step for r in records]
            assert offset == (tmp_path / "metrics.jsonl").stat().st_size
    assert (seen, read(tmp_path / "none.jsonl")[:2]) == (list(range(6)), ([], 0))
    with pytest.raises(ValueError, match="cut or replaced"):
        read(tmp_path / "metrics.jsonl", offset=offset + 1)


def test_a_name_that_mlflow_refuses_is_refused_at_once_and_named(tmp_path):
    tracker = JournalWriter(tmp_path, 1)
    for name in ("a:b", "a@8", "", "/a", "a//b", "a/", "../a", ".", "é", "a" * 251, "a\n", "a/./b"):
        with pytest.raises(ValueError) as error:
            tracker.record(1, {"fine": 1.0, name: 1.0})
        assert repr(name) in str(error.value)
        assert "letters, digits, '_', '-', '.', '/' or spaces" in str(error.value)
    tracker.close()
    assert lines(tmp_path) == []


def test_a_flush_has_every_line_on_disk(tmp_path, monkeypatch):
    """Without it a power cut may leave a checkpoint of steps that the journal lacks."""
    path, synced = tmp_path / "metrics.jsonl", []
    with contextlib.closing(JournalWriter(tmp_path, 1)) as journal:
        monkeypatch.setattr(os, "fsync", lambda fd: synced.append((os.fstat(fd).st_ino, path.read_bytes())))
        journal.record(0, {"a": 0.0})
        journal.flush()
        assert synced == [(path.stat().st_ino, path.read_bytes())]
    assert len(lines(tmp_path)) == 1


def test_a_zombie_writes_nothing_and_repairs_nothing(tmp_path):
    lease = {"holder": 1}
    zombie = JournalWriter(tmp_path, 1, holds_lease=lambda: lease["holder"] == 1)
    zombie.record(1, {"x": 1.0})
    lease["holder"] = 2
    successor = JournalWriter(tmp_path, 2, holds_lease=lambda: lease["holder"] == 2)
    successor.record(2, {"x": 2.0})
    zombie.record(2, {"x": -1.0})
    zombie.record(3, {"x": -1.0})
    zombie.close()
    successor.record(3, {"x": 3.0})
    successor.close()
    assert [(r["step"], r["attempt"]) for r in lines(tmp_path)] == [(1, 1), (2, 2), (3, 2)]
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(path.read_bytes() + b'{"step":4')
    JournalWriter(tmp_path, 1, holds_lease=lambda: False).close()
    assert path.read_bytes().endswith(b'{"step":4')


def test_a_zombie_does_not_create_a_deleted_file_again(tmp_path):
    leased = [True]
    with contextlib.closing(JournalWriter(tmp_path, 1, holds_lease=lambda: leased[0])) as zombie:
        zombie.record(0, {"a": 0.0})
        leased[0] = False
        (tmp_path / "metrics.jsonl").unlink()
        zombie.record(1, {"a": 1.0})
    assert list(tmp_path.iterdir()) == []


def test_an_attempt_sees_lines_that_a_zombie_wrote_after_it_opened(tmp_path):
    zombie, successor = JournalWriter(tmp_path, 1), JournalWriter(tmp_path, 2)  # both hold a lease here
    zombie.record(5, {"x": 1.0})
    successor.record(5, {"x": 2.0})
    successor.record(6, {"x": 2.0})
    assert [(r["step"], r["attempt"]) for r in lines(tmp_path)] == [(5, 1), (6, 2)]


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from rlvr.ledger.journal import JournalWriter, encode
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
run = Path(sys.argv[1])
tracker = JournalWriter(run, 1)
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
tracker.record(0, {"x": 0.0})
size = (run / "metrics.jsonl").stat().st_size
resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20, hard))  # room for a part of the next line
for step in (1, 2, 3):
    tracker.record(step, {"x": float(step)})
try:
    tracker.flush()
except OSError as error:
    print("flush refused", (run / "metrics.jsonl").stat().st_size - size)
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
tracker.record(4, {"x": 4.0})
tracker.close()
"""


def test_a_full_disk_delays_lines_and_loses_none(tmp_path):
    command = [sys.executable, "-c", FULL_DISK, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == "flush refused 20\n"
    assert [r["metrics"]["x"] for r in lines(tmp_path)] == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_half_a_line_that_was_cut_away_is_written_from_its_start(tmp_path, monkeypatch):
    write, room = os.write, [20]

    def almost_full(file: int, line: bytes) -> int:
        if not room:
            raise OSError(errno.ENOSPC, "no space")
        return write(file, line[: room.pop()])

    with contextlib.closing(JournalWriter(tmp_path, 1)) as journal:
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", almost_full)
            journal.record(0, {"x": 0.0})
        with (tmp_path / "metrics.jsonl").open("ab") as file:
            file.write(b"half a line of a zombie")
        journal.record(1, {"x": 1.0})
    assert [r["metrics"]["x"] for r in lines(tmp_path)] == [0.0, 1.0]


KILLED = """
import sys
from pathlib import Path
from rlvr.ledger.journal import JournalWriter
tracker = JournalWriter(Path(sys.argv[1]), int(sys.argv[2]))
for step in range(10**9):
    tracker.record(step, {"x": float(step), "y": 0.5})
"""


def test_kill_9_at_any_moment_leaves_a_gapless_record(tmp_path):
    for attempt in (1, 2, 3):
        child = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path), str(attempt)], cwd=ROOT)
        path = tmp_path / "metrics.jsonl"
        before = path.stat().st_size if path.exists() else 0
        while not path.exists() or path.stat().st_size < before + 20_000:
            assert child.poll() is None
        child.send_signal(signal.SIGKILL)
        child.wait()
    records = read(path).records
    assert [r.step for r in records] == list(range(len(records)))
    assert [r.metrics["x"] for r in records] == [float(r.step) for r in records]
    assert {r.attempt for r in records} == {1, 2, 3}


def test_the_journal_imports_only_the_standard_library():
    script = "import sys, rlvr.ledger.journal; print(*sorted({m.split('.')[0] for m in sys.modules}))"
    done = subprocess.run([sys.executable, "-S", "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    foreign = set(done.stdout.split()) - set(sys.stdlib_module_names) - {"rlvr", "__main__"}
    assert foreign == set()


def test_a_journal_that_is_replaced_or_removed_during_a_run_has_every_step_in_the_end(tmp_path):
    """As by sed -i, an editor, or a restored copy. Deleted lines of other attempts are not restored."""
    with contextlib.closing(JournalWriter(tmp_path, 1)) as before:
        before.record(0, {"a": 0.0})
    journal = tmp_path / "metrics.jsonl"
    with contextlib.closing(JournalWriter(tmp_path, 2)) as writer:
        writer.record(1, {"a": 1.0})
        copy = journal.read_bytes()
        writer.record(2, {"a": 2.0})
        (aside := tmp_path / "aside").write_bytes(copy)
        aside.replace(journal)
        writer.record(3, {"a": 3.0})
        assert [line["step"] for line in lines(tmp_path)] == [0, 1, 2, 3]
        journal.unlink()
        writer.flush()
        assert [line["step"] for line in lines(tmp_path)] == [1, 2, 3]
        writer.record(4, {"a": 4.0})
        assert writer.complete == -1  # step 0 is no longer recorded
    assert [line["metrics"]["a"] for line in lines(tmp_path)] == [1.0, 2.0, 3.0, 4.0]


def test_of_a_step_that_two_attempts_recorded_at_once_the_first_line_is_read(tmp_path):
    """On NFS a zombie may write after its successor, and a follower sees its line in a later reading."""
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(encode(1, 1.0, 1, {"a": 1.0}) + encode(2, 2.0, 1, {"a": 2.0}) + encode(2, 2.5, 2, {"a": 9.0}))
    follower = spool.Follower(path)
    follower.read()
    assert [(record.step, record.attempt) for record in follower.news] == [(1, 1), (2, 1)]
    with path.open("ab") as file:
        file.write(encode(1, 3.0, 2, {"a": math.nan}) + encode(3, 3.0, 2, {"a": math.inf}))
    follower.read()
    assert [(record.step, record.attempt) for record in follower.news] == [(3, 2)]
    assert follower.non_finite == {"a": 1}
    assert [record.metrics["a"] for record in follower.all()] == [1.0, 2.0, math.inf]
