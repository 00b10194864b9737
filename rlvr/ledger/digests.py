"""SHA-256 of every file of a directory whose content must not change: a checkpoint, a stage, an export.

`digests.json` in the directory contains them. A disk, a network file system or a copy may return other bytes than were
written: training would continue from weights with one wrong bit, and every later number would silently be wrong.
"""

import errno
import functools
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from rlvr.ledger.files import read_json, write_json

FILE = "digests.json"
WHOLE = 2**26  # bytes, see `sampled_digest`
PIECE = 2**20  # bytes of each piece, which are at the beginning, in the middle and at the end of a file
MANY = 256  # of many pieces of a sixteenth of that, at equal distances: of merged adapters some are in these
DAMAGED = "damaged-"  # prefix of the names of directories that were set aside


def files_of(directory: Path) -> list[str]:
    """Paths of all files in the directory but digests.json, relative to it, sorted."""
    inside = (path for path in directory.rglob("*") if path.is_file() and path != directory / FILE)
    return sorted(path.relative_to(directory).as_posix() for path in inside)


def digests(directory: Path, names: Sequence[str]) -> dict[str, str]:
    """{name: SHA-256 of the file as it is now, in hexadecimal digits}; "" if it is missing or its disk cannot read it.

    Other OSErrors (an unreachable server, an expired ticket) do not mean that a file is damaged, and are raised.
    """
    return {name: _digest(directory / name) for name in names}


def _digest(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return ""
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return ""


Reading = Literal["three pieces", "many pieces", "whole"]


def sampled_digest(path: Path, reading: Reading = "three pieces") -> str:
    """SHA-256 of a file of at most `WHOLE` bytes; of a larger one, of its size and pieces of its content."""
    status = path.stat()
    reading = "whole" if status.st_size <= WHOLE else reading
    return _sampled_digest(path, status.st_size, status.st_mtime_ns, reading)


@functools.lru_cache(4096)  # the runs of a sweep read the same files
def _sampled_digest(path: Path, size: int, _time_ns: int, reading: Reading) -> str:
    with path.open("rb") as file:
        if reading == "whole":
            return hashlib.file_digest(file, "sha256").hexdigest()
        length, starts = PIECE, [0, size // 2, size - PIECE]
        if reading == "many pieces":
            length = PIECE // 16
            starts = [(size - length) * number // (MANY - 1) for number in range(MANY)]
        digest = hashlib.sha256(str(size).encode())
        for start in starts:
            file.seek(start)
            digest.update(file.read(length))
        return digest.hexdigest()


def write_digests(directory: Path, known: Mapping[str, str] | None = None) -> None:
    """Write digests.json. known: the digests, if they have been computed already."""
    if known is None:
        known = digests(directory, files_of(directory))
    write_json(directory / FILE, dict(known))


def read_digests(directory: Path) -> Mapping[str, str]:
    """The content of digests.json; {} if it is missing or damaged."""
    return read_json(directory / FILE) or {}


def fault_of(directory: Path, current: Mapping[str, str] | None = None) -> str:
    """A few words on what is wrong with a directory; "" if every file is as it was written.

    current: the digests of its files as they are now, if they have been computed already.
    """
    expected = read_digests(directory)
    if not expected:
        return f"{FILE} is missing or damaged"
    if current is None:
        current = digests(directory, list(expected))
    wrong = [name for name, digest in expected.items() if current.get(name) != digest]
    if not wrong:
        return ""
    is_gone = not (directory / wrong[0]).is_file()
    more = f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
    return f"{wrong[0]} is {'missing' if is_gone else 'not as it was written'}{more}"


def set_aside(path: Path) -> Path:
    """Rename a damaged directory or file, so that nothing uses it but it is kept. Returns its new path."""
    aside = path.with_name(f"{DAMAGED}{path.name}")
    number = 2
    while aside.exists():
        aside = path.with_name(f"{DAMAGED}{path.name}-{number}")
        number += 1
    return path.rename(aside)
