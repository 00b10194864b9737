"""SHA-256 of every file of a directory that must come back as it was written: a checkpoint, a stage, an export.

`digests.json` in the directory holds them. A disk, a network file system or a copy may return other bytes than were
written: weights with one wrong bit train on, and every number after them is wrong without a word.
"""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from rlvr.ledger.files import read_json, write_json

FILE = "digests.json"
DAMAGED = "damaged-"  # what the names of directories begin with that were set aside


def files_of(directory: Path) -> list[str]:
    """What has a digest: every file of the directory, by its path in it, in order."""
    inside = (path for path in directory.rglob("*") if path.is_file() and path != directory / FILE)
    return sorted(path.relative_to(directory).as_posix() for path in inside)


def digests(directory: Path, names: Sequence[str]) -> dict[str, str]:
    """SHA-256 of files, in hexadecimal digits, as they are read now; "" of one that is missing, or that its disk cannot
    read. Other OSErrors say nothing of a file (a server that is away, a ticket that has expired) and are raised.
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


def seal(directory: Path, known: Mapping[str, str] | None = None) -> None:
    """Write digests.json. known: the digests, where somebody has computed them already."""
    write_json(directory / FILE, dict(digests(directory, files_of(directory)) if known is None else known))


def sealed(directory: Path) -> Mapping[str, str]:
    """What digests.json says; {} where it is missing or damaged."""
    return read_json(directory / FILE) or {}


def fault_of(directory: Path, found: Mapping[str, str] | None = None) -> str:
    """What is wrong with a directory, in a few words; "" if every file is as it was written.

    found: the digests of its files as they are now, where somebody has computed them already.
    """
    expected = sealed(directory)
    if not expected:
        return f"{FILE} is missing or damaged"
    found = digests(directory, list(expected)) if found is None else found
    wrong = [name for name, digest in expected.items() if found.get(name) != digest]
    if not wrong:
        return ""
    is_gone = not (directory / wrong[0]).is_file()
    more = f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
    return f"{wrong[0]} is {'missing' if is_gone else 'not as it was written'}{more}"


def set_aside(directory: Path) -> Path:
    """Give a damaged directory a name under which nothing looks for it, and keep it. Returns where it is now."""
    number = 1
    while (aside := directory.with_name(f"{DAMAGED}{directory.name}" + (f"-{number}" if number > 1 else ""))).exists():
        number += 1
    return directory.rename(aside)
