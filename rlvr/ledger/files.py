"""Where results live, and how files are written and removed so that no reader sees half of one. Imports little."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

STATE = "trainer.json"  # what a checkpoint holds beside tensors


def home() -> Path:
    """The directory of `runs/`, `mlflow.db` and `reports/`: $RLVR_HOME, else the checkout, else where you are."""
    if chosen := os.environ.get("RLVR_HOME"):
        return Path(chosen).expanduser().resolve()
    root = Path(__file__).resolve().parents[2]
    if (root / "pyproject.toml").is_file() and (root / "conf").is_dir():
        return root
    return Path.cwd()


def denied(error: BaseException) -> str:
    """What to do about a file that may not be written, in one line; "" for any other error."""
    if not isinstance(error, OSError) or error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
        return ""
    return (
        f"{error.filename} cannot be written: {error.strerror}. Runs go to {home()}: set RLVR_HOME to a directory that "
        "you may write to (on SLURM, one that the nodes see too)."
    )


def write_text(path: Path, text: str, *, durable: bool = True) -> None:
    """Replace a file in one step. durable=False skips the fsync: after a power cut the file may be empty."""
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with aside.open("w", encoding="utf-8") as file:
        file.write(text)
        if durable:
            file.flush()
            os.fsync(file.fileno())
    aside.replace(path)


def write_json(path: Path, content: Mapping[str, Any], *, durable: bool = True) -> None:
    """Replace a JSON file in one step."""
    write_text(path, json.dumps(content) + "\n", durable=durable)


def sync(path: Path) -> None:
    """Put a file's content, or a directory's entries, on disk: after a power cut they are still there."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a JSON file; None if the file is missing, torn or holds something else."""
    try:
        content = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def checkpoints(directory: Path) -> list[Path]:
    """The checkpoints `step-<number>` of a directory, oldest first. What is visible under such a name is complete."""
    return sorted(p for p in directory.glob("step-*") if p.name.removeprefix("step-").isdigit())


def best_checkpoint(directory: Path) -> Path | None:
    """The checkpoint of the best evaluation, where a run keeps it (`checkpoint.keep_best`)."""
    scores = {p: ((read_json(p / STATE) or {}).get("extra") or {}).get("score") for p in checkpoints(directory)}
    scored = {p: score for p, score in scores.items() if score is not None}
    return max(scored, key=scored.__getitem__, default=None)


def remove(path: Path) -> None:
    """Delete a directory so that no reader ever sees half of it: it loses its name first."""
    aside = path if path.name.startswith(".") else path.rename(path.with_name(f".{path.name}.deleted"))
    shutil.rmtree(aside)
