"""The durable local journal of a run's metrics: one JSON line per step. Standard library only.

    {"step":12,"time":1795992000.25,"attempt":1,"metrics":{"reward/mean":0.5},"crc":"89edbc10"}

`crc` is the CRC-32 of the bytes before `,"crc"`, so a torn or rotten line is told from a good one without a parser's
help. Lines are strict JSON: NaN and the infinities, which JSON lacks, are the strings "nan", "inf" and "-inf".

The record of a step is what the *first* attempt to reach it measured. A resumed attempt replays the steps after its
checkpoint; the journal drops them, so no reader ever sees a step twice.

A line that is damaged costs its own step and nothing else: every reader is given the others, and its number. A torn
last line, the mark of a crash or of a write in progress, is not read until it is whole; the next attempt cuts it.
"""

from __future__ import annotations

import json
import logging
import math
import operator
import os
import posixpath
import re
import time
import zlib
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
    """What was measured at one step. `end`: byte offset in the journal just after this line."""

    step: int
    time: float  # seconds since the epoch
    attempt: int
    metrics: dict[str, float]
    end: int = 0


class Damage(NamedTuple):
    """A line that is left out. As text: "line 3 is damaged (its checksum does not match)"."""

    line: int  # counted from the start of the file, from 1
    fault: str
    end: int  # byte after it

    def __str__(self) -> str:
        return f"line {self.line} is damaged ({self.fault})"


class Reading(NamedTuple):
    """What `read` found."""

    records: list[Record]  # in the order of the file; of a step that two attempts raced for, both
    end: int  # byte to go on from
    damaged: list[Damage]
    torn: bool  # a last line that is not whole stands after `end`


def check_name(name: str) -> None:
    """Refuse a metric name that MLflow would refuse: better at the first step than at the first sync."""
    legal = _NAME.fullmatch(name) is not None
    # MLflow may use names as paths: "a//b", "/a" and "../a" are not the names they look like.
    if not legal or posixpath.normpath(name) != name or name.startswith((".", "/")):
        raise ValueError(
            f"metric name {name!r} is not allowed. A name has 1 to 250 ASCII letters, digits, '_', '-', '.', '/' or "
            f"spaces, does not start with '.' or '/' and has no empty or '..' parts; for example 'reward/mean'."
        )


def encode(step: int, seconds: float, attempt: int, metrics: Mapping[str, float]) -> bytes:
    """One line of the journal, newline included. `metrics` values are floats; `seconds` since the epoch."""
    head: dict[str, Any] = {"step": step, "time": seconds, "attempt": attempt, "metrics": metrics}
    try:
        body = _JSON.encode(head)
    except ValueError:  # the encoder's word for "not finite"
        head["metrics"] = {name: v if math.isfinite(v) else str(v) for name, v in metrics.items()}
        body = _JSON.encode(head)
    data = body[:-1].encode()
    return data + b',"crc":"%08x"}\n' % zlib.crc32(data)


def fault_of(line: bytes) -> str:
    """What is wrong with a line, without its newline; "" for one that is what was written, which need not be parsed."""
    seal = _SEAL.fullmatch(line[-_SEAL_BYTES:])
    if seal is None:
        return "it does not end in a checksum"
    return "" if int(seal[1], 16) == zlib.crc32(line[:-_SEAL_BYTES]) else "its checksum does not match"


def decode(line: bytes, end: int = 0) -> Record:
    """The inverse of `encode`, without the newline. ValueError if the line is not exactly what was written."""
    if fault := fault_of(line):
        raise ValueError(fault)
    fields = json.loads(line[:-_SEAL_BYTES] + b"}")
    metrics = {name: float(value) for name, value in fields["metrics"].items()}
    return Record(fields["step"], fields["time"], fields["attempt"], metrics, end)


def _sound(line: bytes) -> Record | None:
    """The record of a line; None if it is damaged."""
    try:
        return decode(line)
    except ValueError:
        return None


def read(path: Path, *, offset: int = 0) -> Reading:
    """What stands after byte `offset`, which must be one that `read` returned. A missing file is an empty one.

    Raises ValueError if the file is shorter than that.
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
        end = reading.end + len(line) + 1
        try:
            reading.records.append(decode(line, end))
        except ValueError as fault:
            if index == len(lines) - 1 and not tail:
                # Torn, though its last byte is a newline: a disk may lose the middle of a write.
                return reading._replace(torn=True)
            reading.damaged.append(Damage(_lines_before(path, reading.end) + 1, str(fault), end))
        reading = reading._replace(end=end)
    return reading


def _lines_before(path: Path, offset: int) -> int:
    with path.open("rb") as file:
        return file.read(offset).count(b"\n")


class Follower:
    """Reads a journal while it grows, each line once. Where it was changed before that place, all of it again.

    What it was changed by is somebody who deleted a damaged line, or put a copy back.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.news: list[Record] = []  # of the last `read`: of each step its first line, where that is new
        self.damaged: list[Damage] = []  # of all that was read
        self._forget()

    def _forget(self) -> None:
        self._offset, self._last = 0, b""  # byte to go on from, and the line before it: it ends in its checksum
        self._steps: set[int] = set()
        self.damaged = []

    def read(self) -> bool:
        """Read on. Returns whether the last line is torn."""
        if not self._is_as_it_was():
            self._forget()
        reading = read(self.path, offset=self._offset)
        self.damaged += reading.damaged
        self.news = []
        for record in reading.records:
            if record.step not in self._steps:
                self._steps.add(record.step)
                self.news.append(record)
        if reading.end > self._offset:
            self._last = self._before(reading.end)
            self._offset = reading.end
        return reading.torn

    def all(self) -> list[Record]:
        """Of each step its first line."""
        self._forget()
        self.read()
        return self.news

    def _is_as_it_was(self) -> bool:
        return self._offset == 0 or self._before(self._offset) == self._last

    def _before(self, end: int) -> bytes:
        """The bytes just before a place: as many as a checksum has, and what it seals."""
        try:
            with self.path.open("rb") as file:
                file.seek(max(0, end - _SEAL_BYTES - 64))
                return file.read(end - file.tell())
        except FileNotFoundError:
            return b""


class JournalWriter:
    """Appends the steps of one attempt of a run to `run_dir`/metrics.jsonl.

    holds_lease: asked before anything is written; an attempt that lost its lease (a zombie on a node that the
    scheduler gave up) leaves the file alone. A full disk does not stop training: lines wait in memory, and `flush`,
    called before each checkpoint, raises OSError if they still cannot be written.
    """

    def __init__(self, run_dir: Path, attempt: int, *, holds_lease: Callable[[], bool] = lambda: True) -> None:
        self._path = layout.journal(run_dir)
        self._attempt = attempt
        self._holds_lease = holds_lease
        self._names: set[str] = set()  # checked once each
        self._steps: set[int] = set()  # on record, by any attempt
        self._own: set[int] = set()  # recorded by this object
        self._pending: list[bytes] = []  # lines that are not, or not wholly, in the file
        self._written = 0  # bytes of the first of them that are: a full disk may take half a line
        self._size = 0  # of the file, as far as we know
        self._warned: set[str] = set()
        run_dir.mkdir(parents=True, exist_ok=True)
        self._file: int | None = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
        sync(run_dir)
        self._learn()

    @property
    def steps(self) -> Set[int]:
        """Steps on record, by any attempt."""
        return self._steps

    @property
    def complete(self) -> int:
        """The last step up to which every step is on record; -1: not even the first."""
        step = -1
        while step + 1 in self._steps:
            step += 1
        return step

    def record(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append the metrics of a step, all of them in one call: a step already on record is left as it is."""
        if self._file is None:
            raise ValueError(f"the tracker of {self._path.parent.name} is closed: step {step} came after close()")
        step = operator.index(step)
        values = self._checked(metrics)
        self._look()
        if step in self._steps:
            if step in self._own:
                self._warn(f"step {step} was recorded twice: its second metrics, {', '.join(values)}, are dropped")
            return
        if not self._holds_lease():
            self._warn("this attempt lost its lease: its metrics are no longer recorded")
            return
        self._pending.append(encode(step, time.time(), self._attempt, values))
        self._steps.add(step)
        self._own.add(step)
        try:
            self._append()
        except OSError as error:
            self._warn(f"cannot write ({error}): metrics wait in memory")

    def flush(self) -> None:
        """Bring every recorded step to the disk. Call before a checkpoint: it must never be ahead of the record."""
        if self._file is None or not self._holds_lease():
            return
        self._look()
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
            if name not in self._names:
                check_name(name)
                self._names.add(name)
            try:
                values[name] = float(value)
            except (TypeError, ValueError) as error:
                raise ValueError(f"metric {name!r} is {value!r}, not a number. Pass a float.") from error
        return values

    def _look(self) -> None:
        """At what became of the file: another attempt writes (one of us is a zombie), or somebody has replaced it."""
        assert self._file is not None
        ours = os.fstat(self._file)
        try:
            there = self._path.stat()
            is_ours = (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino)
        except FileNotFoundError:
            is_ours = False
        except OSError:
            return  # a file server that is away: whoever writes hears of it
        if not is_ours:
            if self._holds_lease():
                self._reopen()
        elif ours.st_size != self._size:
            self._learn()

    def _reopen(self) -> None:
        """Go on in the file that has the name now, with what this attempt recorded in the one that had it before."""
        assert self._file is not None
        lines = os.pread(self._file, os.fstat(self._file).st_size, 0).split(b"\n")[:-1]
        there = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
        os.close(self._file)
        self._file = there
        sync(self._path.parent)
        waiting = {json.loads(line)["step"] for line in self._pending}
        self._steps, self._written = waiting, 0
        self._learn()
        own = {record.step: line for line in lines if (record := _sound(line)) and record.attempt == self._attempt}
        back = [line + b"\n" for step, line in own.items() if step not in self._steps]
        self._pending, self._steps = back + self._pending, self._steps | own.keys()
        self._warn(f"it was replaced: {len(back)} lines that it lacked are put back")

    def _append(self) -> None:
        assert self._file is not None
        while self._pending:
            line = self._pending[0]
            count = os.write(self._file, line[self._written :])
            self._size += count
            self._written += count
            if self._written == len(line):
                self._pending.pop(0)
                self._written = 0

    def _learn(self) -> None:
        """Learn which steps are on record, and cut a torn last line if the lease is ours."""
        assert self._file is not None
        size = os.fstat(self._file).st_size
        reading = read(self._path)
        self._steps.update(record.step for record in reading.records)
        if reading.damaged:
            self._warn(
                f"{', '.join(map(str, reading.damaged))}: what it said is lost, unless its step is trained again"
            )
        if reading.end < size and self._holds_lease():
            # Cutting is one atomic system call; a crash before it leaves the torn line for the next attempt.
            os.ftruncate(self._file, reading.end)
            os.fsync(self._file)
            size = reading.end
            self._written = 0
        self._size = size

    def _warn(self, message: str) -> None:
        if message not in self._warned:
            self._warned.add(message)
            _LOG.warning("%s: %s", self._path, message)
