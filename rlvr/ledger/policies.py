"""What names a policy on disk, a checkpoint or a directory in Hugging Face format, by its content."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from rlvr.ledger import digests, layout

PATTERNS = ("*.json", "*.jinja", "*.txt", "*.model", "*.safetensors")


def is_checkpoint(path: Path) -> bool:
    return layout.trainer_state(path).is_file()


def digest_of(path: Path) -> str:
    """16 hexadecimal digits that are others where a file of the policy is another one.

    Of a checkpoint or an export, the digests that were written with it; of any other directory, the content of small
    files and the sizes and times of weights, so that a copy is another policy. Raises ValueError for what is no policy.
    """
    known = digests.sealed(path)
    if is_checkpoint(path) and not known:
        raise ValueError(f"{path} is damaged: {digests.fault_of(path)}. Pass another checkpoint of the run.")
    if known:
        return _hash(sorted(known.items()))
    if not (path / "config.json").is_file():
        raise ValueError(f"{path} is neither a checkpoint nor a model: it has no config.json.")
    files = sorted({file for pattern in PATTERNS for file in path.glob(pattern)})
    return _hash([[file.name, _content(file)] for file in files])


def _content(file: Path) -> object:
    if file.suffix == ".safetensors":
        return [file.stat().st_size, file.stat().st_mtime_ns]
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _hash(content: object) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]
