"""Digests of what a run reads beside its config: data files, the model that it starts from, and its code.

A run id identifies a config, and with it paths, but not their contents. Without these digests, after a file is edited
in place, a resumed run would train on a mixture, and a finished one would pass for a result of the new data. A run
continues with other code, and records both versions.
"""

import contextlib
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from rlvr.ledger import layout
from rlvr.ledger.digests import Reading, sampled_digest
from rlvr.ledger.files import read_json, write_json
from rlvr.ledger.policies import PATTERNS, cached_model
from rlvr.ledger.runs import flatten

SECTIONS = ("program", "task", "model", "loss", "advantage", "presample", "trainer")  # whose knobs may name files
CLOSELY = "+"  # after a knob: the digest of more pieces of its large files
READER = "task.reader."  # settings that a task receives from the model: the config has them under `model`, too


def inputs(config: Mapping[str, Any]) -> dict[str, str]:
    """{knob: 16 hexadecimal digits of the content at its path}, for all local paths in a frozen config.

    A model of the hub counts with its files in the hub's cache.
    """
    knobs = flatten({section: config[section] for section in SECTIONS if config.get(section)})
    content_digests: dict[str, str] = {}
    for knob, value in knobs.items():
        texts = cast("list[object]", value) if isinstance(value, list) else [value]
        paths = [Path(text) for text in texts if isinstance(text, str)]
        if knob == "model.path" and isinstance(value, str):
            paths = [cached_model(value) or Path(value)]
        paths = [path for path in paths if path.is_absolute() and path.exists()]  # beside names of the hub
        if paths and not knob.startswith(READER):
            content_digests[knob] = _digest_of_all(paths, "three pieces")
            closely = _digest_of_all(paths, "many pieces")
            if closely != content_digests[knob]:  # of large files; runs of earlier versions have recorded none
                content_digests[knob + CLOSELY] = closely
    return content_digests


def record(run_dir: Path, config: Mapping[str, Any]) -> None:
    """Write inputs.json. Raises ValueError if the run has recorded a step and read other content then."""
    now = inputs(config)
    differing = _differing(run_dir, now)
    if differing and has_begun(run_dir):
        raise ValueError(
            f"{_with_paths(config, differing)}: its content is not what this run began with. Put it back; or give the "
            "new one another path, which makes another run."
        )
    if read_json(layout.inputs(run_dir)) != now:
        write_json(layout.inputs(run_dir), now)


def changed(run_dir: Path, config: Mapping[str, Any]) -> str:
    """The knobs, with their paths, whose content is not what the run read; "" if there are none, or no inputs.json."""
    return _with_paths(config, _differing(run_dir, inputs(config)))


def _differing(run_dir: Path, now: Mapping[str, str]) -> list[str]:
    """The knobs whose digest is not the one in inputs.json."""
    before = read_json(layout.inputs(run_dir)) or {}
    return sorted(knob for knob, digest in now.items() if before.get(knob, digest) != digest)


def _with_paths(config: Mapping[str, Any], knobs: list[str]) -> str:
    values = flatten(config)
    return ", ".join(f"{knob}={values[knob]}" for knob in dict.fromkeys(k.removesuffix(CLOSELY) for k in knobs))


def has_begun(run_dir: Path) -> bool:
    """Whether a run has recorded a step."""
    journal = layout.journal(run_dir)
    return journal.exists() and journal.stat().st_size > 0


def recorded(run_dir: Path) -> dict[str, str]:
    """What `record` wrote; {} without a record."""
    return _readable(layout.inputs(run_dir))


def _readable(path: Path) -> dict[str, Any]:
    with contextlib.suppress(PermissionError):  # of a run that may not be read, which is named elsewhere
        return read_json(path) or {}
    return {}


def recorded_code(run_dir: Path) -> dict[str, tuple[str, ...]]:
    """{module: SHA-256 of each version of its code that the run used, in order}; {} without a record."""
    content = _readable(layout.own_code(run_dir))
    return {
        module: tuple(map(str, cast("list[object]", versions)))
        for module, versions in content.items()
        if isinstance(versions, list)
    }


def record_code(run_dir: Path, now: Mapping[str, str], also: Mapping[str, str] | None = None) -> list[str]:
    """Record which code a run uses, {module: SHA-256}, and which other version it may use. Returns the modules that
    have changed since it began.
    """
    before = recorded_code(run_dir) if has_begun(run_dir) else {}
    after = {module: before.get(module, ()) for module in sorted({*before, *now})}
    for module, digest in (*now.items(), *(also or {}).items()):
        if after[module][-1:] != (digest,):
            after[module] = (*after[module], digest)
    if after != recorded_code(run_dir):
        write_json(layout.own_code(run_dir), after)
    return [module for module, digest in now.items() if before.get(module, (digest,))[-1] != digest]


def _digest_of_all(paths: Sequence[Path], reading: Reading) -> str:
    return hashlib.sha256("".join(_digest(path, reading) for path in paths).encode()).hexdigest()[:16]


def _digest(path: Path, reading: Reading) -> str:
    """Of a file, which is read whole for more than three pieces as any row may be edited; or of all files in a
    directory, in that of a model of its files only."""
    if path.is_file():
        return sampled_digest(path, "whole" if reading == "many pieces" else reading)
    is_model = (path / "config.json").is_file()
    files = sorted({file for pattern in (PATTERNS if is_model else ["**/*"]) for file in path.glob(pattern)})
    parts = [f"{file.relative_to(path).as_posix()} {sampled_digest(file, reading)}" for file in files if file.is_file()]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()
