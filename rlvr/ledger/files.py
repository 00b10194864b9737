"""How files are written, read and removed so that no reader ever sees half of one. Standard library only.

What is being written, and what is being deleted, has the name `.<name>.<owner>.tmp` beside its place: hidden from every
reader, and collected by `python -m sweeps gc` where the process that wrote it died. The owner is that process; none is
named where a lock keeps all others out of the directory.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import secrets
import shutil
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any, cast

SUFFIX = ".tmp"
FULL = (errno.ENOSPC, errno.EDQUOT)  # the disk, or what a user may have of it


def denied(error: BaseException, home: Path) -> str:
    """What to do about a file that may not be written, in one line; "" for any other error. home: of runs/."""
    if not isinstance(error, OSError):
        return ""
    # In /proc, or below a file, no directory can be made.
    file = Path(str(error.filename or ""))
    no_home = error.errno in (errno.ENOENT, errno.ENOTDIR) and (file.parent == home or file in (home, *home.parents))
    if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM) and not (no_home and not home.exists()):
        return ""
    return (
        f"{target_of(error.filename)} cannot be written: {error.strerror}. Runs go to {home}: set RLVR_HOME to a "
        "directory that you may write to (on SLURM, one that the nodes see too)."
    )


# --- writing


@contextlib.contextmanager
def whole(path: Path, *, durable: bool = True, new: bool = False) -> Generator[Path, None, None]:
    """Write a file, or make a directory, at the path that this gives: at the end it becomes `path`, in one step.

    After an error nothing of it stays. durable=False skips the fsync: after a power cut it may be empty. new: raises
    FileExistsError if a directory with something in it has the name already, instead of taking its place.
    """
    aside = aside_of(path, _myself())
    try:
        yield aside
        publish(aside, path, durable=durable, new=new)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            remove(aside)
        raise


def aside_of(path: Path, owner: str = "") -> Path:
    """Where what is to become `path` is written. `whole` does all of it where one process writes."""
    name = f"{path.name}.{owner}" if owner else path.name
    return path.with_name(f".{name}{SUFFIX}")


def target_of(path: Path | str) -> Path:
    """What a path that is written aside is to become, for messages; any other path itself."""
    aside = re.fullmatch(r"\.(.+?)(?:\.\d+-[0-9a-f]{8})?" + re.escape(SUFFIX), Path(path).name)
    return Path(path).with_name(aside[1]) if aside else Path(path)


def owner_of(aside: Path) -> int | None:
    """Number of the process that wrote what lies aside; None where a lock is its owner."""
    number = aside.name.removesuffix(SUFFIX).rpartition(".")[2].partition("-")[0]
    return int(number) if number.isdigit() else None


def _myself() -> str:
    """An owner that no other write has, of this process, of another host, or after a restart."""
    return f"{os.getpid()}-{secrets.token_hex(4)}"


def publish(aside: Path, path: Path, *, durable: bool = True, new: bool = False) -> None:
    """Give what was written aside its name; what had the name is deleted after. durable, new: as for `whole`."""
    if durable:
        for each in aside.rglob("*") if aside.is_dir() else ():
            sync(each)
        sync(aside)
    if aside.is_dir() and path.is_dir() and not new:
        _take_the_place(aside, path)
        return
    try:
        aside.rename(path)
    except OSError as error:
        if error.errno == errno.ENOTEMPTY:
            raise FileExistsError(errno.EEXIST, "another process was faster", str(path)) from None
        raise


def _take_the_place(aside: Path, path: Path) -> None:
    """Of a directory: no system call replaces one that holds something."""
    before = path.rename(aside_of(path, _myself()))
    try:
        aside.rename(path)
    except OSError:
        if not path.exists():
            before.rename(path)
        raise
    shutil.rmtree(before)


def sync(path: Path) -> None:
    """Put a file's content, or a directory's entries, on disk: after a power cut they are still there."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_text(path: Path, text: str, *, durable: bool = True, private: bool = False) -> None:
    """Replace a file in one step. private: nobody else may read it."""
    with whole(path, durable=durable) as aside:
        if private:
            aside.touch(mode=0o600)
        aside.write_text(text, encoding="utf-8")


def write_json(path: Path, content: Mapping[str, Any], *, durable: bool = True, private: bool = False) -> None:
    """Replace a JSON file in one step. private: nobody else may read it."""
    write_text(path, json.dumps(content) + "\n", durable=durable, private=private)


def remove(path: Path) -> None:
    """Delete a file or a directory, of which no reader sees half: a directory loses its name first."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path if path.name.startswith(".") else path.rename(aside_of(path, _myself())))
    else:
        path.unlink()


# --- reading


def _content(path: Path) -> bytes:
    """Of a file server that has replaced the file between opening and reading (ESTALE), the new one."""
    try:
        return path.read_bytes()
    except OSError as error:
        if error.errno != errno.ESTALE:
            raise
    return path.read_bytes()


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a JSON file; None if the file is missing, torn or holds something else."""
    try:
        content = json.loads(_content(path))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    return cast("dict[str, Any]", content) if isinstance(content, dict) else None


def read_json_lines(path: Path, required: str) -> tuple[list[dict[str, Any]], list[str]]:
    """(the objects of a file of one JSON object a line, what is wrong with the other lines, each by its number).

    required: a key that every object has. A missing file is an empty one.
    """
    objects: list[dict[str, Any]] = []
    damaged: list[str] = []
    lines = _content(path).split(b"\n") if path.exists() else []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            content = json.loads(line)
        except ValueError:
            content = None
        if isinstance(content, dict) and required in content:
            objects.append(cast("dict[str, Any]", content))
        else:
            damaged.append(f"line {number} is {'damaged' if number < len(lines) else 'torn'}")
    return objects, damaged
