"""The durable local journal of a run's metrics: one JSON line per step. Standard library only.

    {"step":12,"time":1795992000.25,"attempt":1,"metrics":{"reward/mean":0.5},"crc":"89edbc10"}

`crc` is the CRC-32 of the bytes before `,"crc"`, so a torn or damaged line is recognised without parsing it. Lines are
strict JSON: NaN and the infinities, which JSON lacks, are the strings "nan", "inf" and "-inf".

The record of a step is what the *first* attempt to reach it measured. A resumed attempt replays the steps after its
checkpoint; the journal drops their metrics, so no reader ever sees a step twice.

A damaged line costs only its own step: readers get all other lines, and the number of the damaged one. A torn last
line, left by a crash or a write in progress, is not read until it is complete; the next attempt truncates it.
"""

import json
import logging
import math
import operator
import os
import posixpath
import re
import time
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rlvr.ledger import layout
from rlvr.ledger.files import sync

_LOG = logging.getLogger(__name__)
_JSON = json.JSONEncoder(separators=(",", ":"), allow_nan=False)
_SEAL = re.compile(rb',"crc":"([0-9a-f]{8})"}')
_SEAL_BYTES = len(b',"crc":"00000000"}')
_NAME = re.compile(r"[A-Za-z0-9_\-./ ]{1,250}")


@dataclass(frozen=True)
class Record:
    """The metrics of one step."""

    step: int
    time: float  # seconds since the epoch
    attempt: int
    metrics: dict[str, float]


class Reading(NamedTuple):
    """The result of `read`."""

    records: list[Record]  # in the order of the file; both, if two attempts recorded the same step at once
    end: int  # byte offset at which the next `read` continues
    damaged: list[str]  # of each such line, which is skipped: `line 3 is damaged (its checksum does not match)`
    torn: bool  # whether an incomplete last line follows after `end`


def check_name(name: str) -> None:
    """Raises ValueError for a metric name that MLflow would reject: at the first step rather than at the first sync."""
    is_legal = _NAME.fullmatch(name) is not None
    # MLflow may use names as paths: "a//b", "/a" and "../a" would be other names then.
    if not is_legal or posixpath.normpath(name) != name or name.startswith((".", "/")):
        raise ValueError(
            f"metric name {name!r} is not allowed. A name has 1 to 250 ASCII letters, digits, '_', '-', '.', '/' or "
            f"spaces, does not start with '.' or '/' and has no empty or '..' parts; for example 'reward/mean'."
        )


def encode(step: int, seconds: float, attempt: int, metrics: Mapping[str, float]) -> bytes:
    """One line of the journal, with its newline. seconds: time since the epoch; the values of `metrics` are floats."""
    head: dict[str, Any] = {"step": step, "time": seconds, "attempt": attempt, "metrics": metrics}
    try:
        body = _JSON.encode(head)
    except ValueError:  # the encoder raises it for a value that is not finite
        head["metrics"] = {name: value if math.isfinite(value) else str(value) for name, value in metrics.items()}
        body = _JSON.encode(head)
    data = body[:-1].encode()
    return data + b',"crc":"%08x"}\n' % zlib.crc32(data)


def fault_of(line: bytes) -> str:
    """A few words on what is wrong with a line (without its newline); "" if its checksum matches. Does not parse it."""
    seal = _SEAL.fullmatch(line[-_SEAL_BYTES:])
    if seal is None:
        return "it does not end in a checksum"
    return "" if int(seal[1], 16) == zlib.crc32(line[:-_SEAL_BYTES]) else "its checksum does not match"


def decode(line: bytes) -> Record:
    """The inverse of `encode`, for a line without its newline. Raises ValueError if the line is damaged."""
    if fault := fault_of(line):
        raise ValueError(fault)
    fields = json.loads(line[:-_SEAL_BYTES] + b"}")
    metrics = {name: float(value) for name, value in fields["metrics"].items()}
    return Record(fields["step"], fields["time"], fields["attempt"], metrics)


def read(path: Path, *, offset: int = 0) -> Reading:
    """The lines after byte `offset`, which must be 0 or the `end` of an earlier reading. A missing file reads as empty.

    Raises ValueError if the file is shorter than `offset`.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            if offset > size:
                raise ValueError(
                    f"{path} has {size} bytes, fewer than the {offset} read before: it was cut or replaced"
                )
            file.seek(offset)
            *lines, tail = file.read().split(b"\n")
    except FileNotFoundError:
        return Reading([], offset, [], torn=False)
    reading = Reading([], offset, [], torn=bool(tail))
    for index, line in enumerate(lines):
        try:
            reading.records.append(decode(line))
        except ValueError as fault:
            if index == len(lines) - 1 and not tail:
                # Torn although it ends in a newline: a disk may lose the middle of a write.
                return reading._replace(torn=True)
            number = path.read_bytes()[: reading.end].count(b"\n") + 1
            reading.damaged.append(f"line {number} is damaged ({fault})")
        reading = reading._replace(end=reading.end + len(line) + 1)
    return reading


class Follower:
    """Reads a journal while it grows, each line once. If the part already read has changed, reads all of it again.

    It changes if a person deletes a damaged line, or restores a copy of the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.news: list[Record] = []  # the first lines of steps that the last `read` was the first to see
        self.damaged: list[str] = []  # all damaged lines so far
        self.non_finite = Counter[str]()  # by metric: values that are not finite, in the records so far
        self._forget()

    def _forget(self) -> None:
        self._offset, self._last_bytes = 0, b""  # where to continue, and the bytes just before: they include a checksum
        self._steps: set[int] = set()
        self.damaged = []
        self.non_finite = Counter[str]()

    @property
    def count(self) -> int:
        """Number of records so far, `news` included."""
        return len(self._steps)

    def read(self) -> bool:
        """Read the lines added since the last call into `news`. Returns whether the last line is torn."""
        if self._offset and self._bytes_before(self._offset) != self._last_bytes:
            self._forget()
        reading = read(self.path, offset=self._offset)
        self.damaged += reading.damaged
        self.news = []
        for record in reading.records:
            if record.step not in self._steps:
                self._steps.add(record.step)
                self.news.append(record)
                self.non_finite.update(name for name, value in record.metrics.items() if not math.isfinite(value))
        if reading.end > self._offset:
            self._last_bytes = self._bytes_before(reading.end)
            self._offset = reading.end
        return reading.torn

    def all(self) -> list[Record]:
        """Read the whole journal again: the first line of each step."""
        self._forget()
        self.read()
        return self.news

    def _bytes_before(self, end: int) -> bytes:
        """A checksum, and 64 bytes before it."""
        try:
            with self.path.open("rb") as file:
                file.seek(max(0, end - _SEAL_BYTES - 64))
                return file.read(end - file.tell())
        except FileNotFoundError:
            return b""


class JournalWriter:
    """Appends the steps of one attempt of a run to `run_dir`/metrics.jsonl.

    holds_lease: called before every write; an attempt that lost its lease (a zombie on a node that the scheduler gave
    up) does not change the file. A full disk does not stop training: lines are kept in memory, and `flush`, which is
    called before each checkpoint, raises OSError if they still cannot be written.
    """

    def __init__(self, run_dir: Path, attempt: int, *, holds_lease: Callable[[], bool] = lambda: True) -> None:
        self._path = layout.journal(run_dir)
        self._attempt = attempt
        self._holds_lease = holds_lease
        self._checked_names: set[str] = set()  # legal names of metrics: each is checked once
        self._steps: set[int] = set()  # recorded by any attempt
        self._own_steps: set[int] = set()  # recorded by this object
        self._pending: list[bytes] = []  # lines that are not yet completely in the file
        self._num_written = 0  # bytes of the first pending line that are in the file: a full disk may take half a line
        self._size = 0  # bytes in the file when this object last wrote or read it
        self._warnings: set[str] = set()  # messages already logged
        run_dir.mkdir(parents=True, exist_ok=True)
        self._file: int | None = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
        sync(run_dir)
        self._read_file()

    @property
    def steps(self) -> Set[int]:
        """Steps recorded by any attempt."""
        return self._steps

    @property
    def complete(self) -> int:
        """The last step up to which every step is recorded; -1 if step 0 is not."""
        step = -1
        while step + 1 in self._steps:
            step += 1
        return step

    def record(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append the metrics of a step, all of them in one call. A step that is recorded already is not changed."""
        if self._file is None:
            raise ValueError(f"the journal of {self._path.parent.name} is closed: step {step} came after close()")
        step = operator.index(step)
        values = self._checked(metrics)
        self._detect_changes()
        if step in self._steps:
            if step in self._own_steps:
                self._warn(f"step {step} was recorded twice: its second metrics, {', '.join(values)}, are dropped")
            return
        if not self._holds_lease():
            self._warn("this attempt lost its lease: its metrics are no longer recorded")
            return
        self._pending.append(encode(step, time.time(), self._attempt, values))
        self._steps.add(step)
        self._own_steps.add(step)
        try:
            self._append()
        except OSError as error:
            self._warn(f"cannot write ({error}): metrics are kept in memory")

    def flush(self) -> None:
        """Write every recorded step to disk. Call it before each checkpoint: none may be ahead of the journal."""
        if self._file is None or not self._holds_lease():
            return
        self._detect_changes()
        self._append()
        os.fsync(self._file)

    def close(self) -> None:
        """Flush and close; a second call does nothing."""
        try:
            self.flush()
        finally:
            if self._file is not None:
                os.close(self._file)
                self._file = None

    def _checked(self, metrics: Mapping[str, float]) -> dict[str, float]:
        values: dict[str, float] = {}
        for name, value in metrics.items():
            if name not in self._checked_names:
                check_name(name)
                self._checked_names.add(name)
            try:
                values[name] = float(value)
            except (TypeError, ValueError) as error:
                raise ValueError(f"metric {name!r} is {value!r}, not a number. Pass a float.") from error
        return values

    def _detect_changes(self) -> None:
        """React if another attempt has written to the file (one of the two is a zombie), or if it was replaced."""
        assert self._file is not None
        opened = os.fstat(self._file)
        try:
            on_disk = self._path.stat()
            is_same_file = (on_disk.st_dev, on_disk.st_ino) == (opened.st_dev, opened.st_ino)
        except FileNotFoundError:
            is_same_file = False
        except OSError:
            return  # an unreachable file server: the next write reports it
        if not is_same_file:
            if self._holds_lease():
                self._reopen()
        elif opened.st_size != self._size:
            self._read_file()

    def _reopen(self) -> None:
        """Continue in the file that now has this path, and copy to it what this attempt recorded in the old one."""
        assert self._file is not None
        lines = os.pread(self._file, os.fstat(self._file).st_size, 0).split(b"\n")[:-1]
        reopened = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
        os.close(self._file)
        self._file = reopened
        sync(self._path.parent)
        pending_steps = {json.loads(line)["step"] for line in self._pending}
        self._steps, self._num_written = pending_steps, 0
        self._read_file()
        own_lines: dict[int, bytes] = {}
        for line in lines:
            record = None if fault_of(line) else decode(line)
            if record is not None and record.attempt == self._attempt:
                own_lines[record.step] = line
        missing = [line + b"\n" for step, line in own_lines.items() if step not in self._steps]
        self._pending, self._steps = missing + self._pending, self._steps | own_lines.keys()
        self._warn(f"the file was replaced: {len(missing)} lines of this attempt that it lacked are written again")

    def _append(self) -> None:
        assert self._file is not None
        while self._pending:
            line = self._pending[0]
            count = os.write(self._file, line[self._num_written :])
            self._size += count
            self._num_written += count
            if self._num_written == len(line):
                self._pending.pop(0)
                self._num_written = 0

    def _read_file(self) -> None:
        """Note which steps are recorded, and truncate a torn last line if this attempt holds the lease."""
        assert self._file is not None
        size = os.fstat(self._file).st_size
        reading = read(self._path)
        self._steps.update(record.step for record in reading.records)
        if reading.damaged:
            damaged = ", ".join(reading.damaged)
            self._warn(f"{damaged}: the metrics of a damaged line are lost, unless its step is trained again")
        if reading.end < size and self._holds_lease():
            # One atomic system call: after a crash before it, the next attempt truncates the torn line.
            os.ftruncate(self._file, reading.end)
            os.fsync(self._file)
            size = reading.end
            self._num_written = 0
        self._size = size

    def _warn(self, message: str) -> None:
        if message not in self._warnings:
            self._warnings.add(message)
            _LOG.warning("%s: %s", self._path, message)
