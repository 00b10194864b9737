"""What a run reads beside its config, by content: the data files of its task and the model that it starts from.

An id names a config, and with it paths. A file that is edited in place would leave the id as it is: a run that goes on
would train on a mixture, and one that has finished would pass for a result of the new data.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from rlvr.ledger import layout
from rlvr.ledger.files import read_json, write_json
from rlvr.ledger.policies import PATTERNS
from rlvr.ledger.runs import flatten

READER = "task.reader."  # what a task is told of the model
WHOLE = 2**26  # bytes of a file that is read to its end;
PIECE = 2**20  # of a longer one so many are read at its beginning, its middle and its end


def inputs(config: Mapping[str, Any]) -> dict[str, str]:
    """{knob: 16 hexadecimal digits of what its path on this machine holds}, of a run's frozen config."""
    model: Mapping[str, Any] = config.get("model") or {}
    knobs = flatten({"task": config["task"], "model": {"path": model.get("path")}})
    found: dict[str, str] = {}
    for knob, value in knobs.items():
        texts = cast("list[object]", value) if isinstance(value, list) else [value]
        paths = [Path(text) for text in texts if isinstance(text, str)]
        if paths and not knob.startswith(READER) and all(path.is_absolute() and path.exists() for path in paths):
            found[knob] = hashlib.sha256("".join(map(_digest, paths)).encode()).hexdigest()[:16]
    return found


def record(run_dir: Path, config: Mapping[str, Any]) -> None:
    """Keep with a run what it reads. Raises ValueError if it has begun with something else."""
    now = inputs(config)
    if (differing := _differing(run_dir, now)) and has_begun(run_dir):
        raise ValueError(
            f"{_named(config, differing)}: its content is not what this run began with. Put it back; or give the new "
            "one another path, which makes another run."
        )
    if read_json(layout.inputs(run_dir)) != now:
        write_json(layout.inputs(run_dir), now)


def changed(run_dir: Path, config: Mapping[str, Any]) -> str:
    """The knobs, with their paths, whose content is not what the run read; "" if none is, or it has not said."""
    return _named(config, _differing(run_dir, inputs(config)))


def _differing(run_dir: Path, now: Mapping[str, str]) -> list[str]:
    before = read_json(layout.inputs(run_dir)) or {}
    return sorted(knob for knob, digest in now.items() if before.get(knob, digest) != digest)


def _named(config: Mapping[str, Any], knobs: list[str]) -> str:
    values = flatten(config)
    return ", ".join(f"{knob}={values[knob]}" for knob in knobs)


def has_begun(run_dir: Path) -> bool:
    """Has a run recorded a step?"""
    journal = layout.journal(run_dir)
    return journal.exists() and journal.stat().st_size > 0


def _digest(path: Path) -> str:
    """Of a file, or of all files of a directory; of a model's those that are read."""
    if path.is_file():
        return _of_file(path)
    is_model = (path / "config.json").is_file()
    files = sorted({file for pattern in (PATTERNS if is_model else ["**/*"]) for file in path.glob(pattern)})
    parts = [f"{file.relative_to(path).as_posix()} {_of_file(file)}" for file in files if file.is_file()]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _of_file(path: Path) -> str:
    about = path.stat()
    return _read(path, about.st_size, about.st_mtime_ns)


@functools.lru_cache(4096)  # the runs of a sweep read the same
def _read(path: Path, size: int, _time_ns: int) -> str:
    with path.open("rb") as file:
        if size <= WHOLE:
            return hashlib.file_digest(file, "sha256").hexdigest()
        digest = hashlib.sha256(str(size).encode())
        for place in (0, size // 2, size - PIECE):
            file.seek(place)
            digest.update(file.read(PIECE))
        return digest.hexdigest()
