"""Writing, reading and removing files so that no reader ever sees a partial one. Standard library only.

A file or directory that is being written or deleted is called `.<name>.<owner>.tmp`, beside its final place: readers
ignore it, and `python -m sweeps gc` deletes it if the process that wrote it died. The owner is that process; the name
has none where a lock keeps all other processes out of the directory.
"""

import contextlib
import errno
import json
import os
import re
import secrets
import shutil
import stat
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any, cast

SUFFIX = ".tmp"
SHARED = "RLVR_SHARED"  # environment variable: with "1", what is written is the group's, too
DISK_FULL_ERRORS = (errno.ENOSPC, errno.EDQUOT)  # the disk is full, or the user's quota
UNWRITABLE_ERRORS = (*DISK_FULL_ERRORS, errno.EROFS)  # or the file system has turned read-only
PASSING_ERRORS = (*UNWRITABLE_ERRORS, errno.EIO, errno.ESTALE, errno.ETIMEDOUT)  # also of a file server for a moment


def permission_advice(error: BaseException, home: Path) -> str:
    """One line on what to do if a file may not be written; "" for any other error. home: the directory of runs/."""
    if not isinstance(error, OSError):
        return ""
    is_refused = error.errno in (errno.EROFS, errno.EACCES, errno.EPERM)
    # In /proc, or below a file, no directory can be created.
    file = Path(str(error.filename or ""))
    is_of_home = file.parent == home or file in (home, *home.parents)
    has_no_home = error.errno in (errno.ENOENT, errno.ENOTDIR) and is_of_home and not home.exists()
    if not is_refused and not has_no_home:
        return ""
    return (
        f"{final_path(error.filename)} cannot be written: {error.strerror}. Runs go to {home}: set RLVR_HOME to a "
        "directory that you may write to (on SLURM, one that the nodes see too)."
    )


def mount(path: Path) -> tuple[str, list[str]]:
    """(type, options) of the file system that a path is on; ("", []) if it cannot be known."""
    try:
        mounts = Path("/proc/mounts").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "", []
    path = path.resolve()
    depth, found = -1, ("", list[str]())  # of the innermost mount point above `path`
    for line in mounts.splitlines():
        fields = line.split(" ")
        point = Path(fields[1].replace("\\040", " ")) if len(fields) > 3 else None
        # Of two mounts at one point, the later one hides the earlier.
        if point is not None and path.is_relative_to(point) and len(point.parts) >= depth:
            depth, found = len(point.parts), (fields[2], fields[3].split(","))
    return found


# --- who may read it


def is_shared() -> bool:
    """Whether files are for the group of this home, and not for this user alone."""
    return os.environ.get(SHARED) == "1"


def private_mode() -> int:
    """The mode of a file that is nobody else's to read."""
    return 0o660 if is_shared() else 0o600


def make_private(directory: Path) -> None:
    """Create a directory that nobody else may enter; others lose the right to enter an older one of this user."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = directory.stat()
    wanted = stat.S_IMODE(status.st_mode) & ~0o007 | (0o2770 if is_shared() else 0)
    if status.st_uid == os.geteuid() and wanted != stat.S_IMODE(status.st_mode):
        directory.chmod(wanted)


# --- writing


@contextlib.contextmanager
def write_atomically(path: Path, *, durable: bool = True, new: bool = False) -> Generator[Path, None, None]:
    """Yield a temporary path, to write a file or create a directory at; on exit it is renamed to `path` in one step.

    After an error it is removed. durable=False skips the fsync: after a power cut the file may be empty. new: raise
    FileExistsError if `path` is a directory that is not empty, instead of replacing it.
    """
    aside = temporary_path(path, _new_owner())
    try:
        yield aside
        publish(aside, path, durable=durable, new=new)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            remove(aside)
        raise


def temporary_path(path: Path, owner: str = "") -> Path:
    """The temporary path of a file or directory that is to become `path`. A single writer uses `write_atomically`."""
    name = f"{path.name}.{owner}" if owner else path.name
    return path.with_name(f".{name}{SUFFIX}")


def final_path(path: Path | str) -> Path:
    """For messages: the final path of a temporary one (`temporary_path`); any other path unchanged."""
    match = re.fullmatch(r"\.(.+?)(?:\.\d+-[0-9a-f]{8})?" + re.escape(SUFFIX), Path(path).name)
    return Path(path).with_name(match[1]) if match else Path(path)


def owner_of(aside: Path) -> int | None:
    """Id of the process that wrote a temporary path; None if its name contains no owner."""
    number = aside.name.removesuffix(SUFFIX).rpartition(".")[2].partition("-")[0]
    return int(number) if number.isdigit() else None


def _new_owner() -> str:
    """A name for the owner of one write that is unique across processes, hosts and restarts."""
    return f"{os.getpid()}-{secrets.token_hex(4)}"


def publish(aside: Path, path: Path, *, durable: bool = True, new: bool = False) -> None:
    """Rename a temporary file or directory to `path`, then delete what it replaces.

    durable, new: as for `write_atomically`.
    """
    for written in (*(aside.rglob("*") if aside.is_dir() else ()), aside):
        if is_shared() and written.is_file() and not written.is_symlink():
            written.chmod(stat.S_IMODE(written.stat().st_mode) | 0o060)  # safetensors writes for its user alone
        if durable:
            sync(written)
    if aside.is_dir() and path.is_dir() and not new:
        _replace_directory(aside, path)
        return
    try:
        aside.rename(path)
    except OSError as error:
        if error.errno == errno.ENOTEMPTY:
            raise FileExistsError(errno.EEXIST, "another process was faster", str(path)) from None
        raise
    if durable:
        sync(path.parent)  # the name


def _replace_directory(aside: Path, path: Path) -> None:
    """In two renames: no system call replaces a directory that is not empty."""
    replaced = path.rename(temporary_path(path, _new_owner()))
    try:
        aside.rename(path)
    except OSError:
        if not path.exists():
            replaced.rename(path)
        raise
    shutil.rmtree(replaced)


def sync(path: Path) -> None:
    """Force a file's content, or a directory's entries, to disk: they survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_text(path: Path, text: str, *, durable: bool = True, private: bool = False) -> None:
    """Replace a file in one step. private: with `private_mode`."""
    with write_atomically(path, durable=durable) as aside:
        if private:
            aside.touch(mode=private_mode())
        aside.write_text(text, encoding="utf-8")


def write_json(path: Path, content: Mapping[str, Any], *, durable: bool = True, private: bool = False) -> None:
    """Replace a JSON file in one step. private: with `private_mode`."""
    write_text(path, json.dumps(content) + "\n", durable=durable, private=private)


def remove(path: Path) -> None:
    """Delete a file or a directory. No reader sees part of a directory: it is renamed first."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path if path.name.startswith(".") else path.rename(temporary_path(path, _new_owner())))
    else:
        path.unlink()


# --- reading


def _content(path: Path) -> bytes:
    """The bytes of a file. Read once more if a file server replaced it between opening and reading (ESTALE)."""
    try:
        return path.read_bytes()
    except OSError as error:
        if error.errno != errno.ESTALE:
            raise
    return path.read_bytes()


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a JSON file; None if the file is missing, torn or contains something else."""
    try:
        content = json.loads(_content(path))
    except (FileNotFoundError, NotADirectoryError, ValueError, RecursionError):  # the last: nested without end
        return None
    return cast("dict[str, Any]", content) if isinstance(content, dict) else None


def read_json_lines(path: Path, required: str) -> tuple[list[dict[str, Any]], list[str]]:
    """(the objects of a file with one JSON object per line, a few words on each other line, with its number).

    required: a key that every object must have. A missing file is read as an empty one.
    """
    objects: list[dict[str, Any]] = []
    damaged: list[str] = []
    lines = _content(path).split(b"\n") if path.exists() else []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            content = json.loads(line)
        except (ValueError, RecursionError):
            content = None
        if isinstance(content, dict) and required in content:
            objects.append(cast("dict[str, Any]", content))
        else:
            damaged.append(f"line {number} is {'damaged' if number < len(lines) else 'torn'}")
    return objects, damaged
