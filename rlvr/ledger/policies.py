"""The digest that identifies a policy on disk: a checkpoint, or a directory in Hugging Face format."""

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from rlvr.ledger import digests, layout

PATTERNS = ("*.json", "*.jinja", "*.txt", "*.model", "*.safetensors")  # files of a model in Hugging Face format
# OWNER/MODEL or OWNER/MODEL@REVISION; a few old models have no owner
HUB_NAME = re.compile(r"(?P<path>\w[\w.-]*(/\w[\w.-]*)?)(@(?P<revision>[\w.-]+))?")


def is_checkpoint(path: Path) -> bool:
    return layout.trainer_state(path).is_file()


def fault_of_storage(config: Mapping[str, Any]) -> str:
    """Why weights stored as a config.json, or its part on the text model, states cannot be trained; "" if they can."""
    text: object = config.get("text_config")
    of_text = cast("Mapping[str, object]", text) if isinstance(text, Mapping) else dict[str, object]()
    stored: object = config.get("quantization_config") or of_text.get("quantization_config")
    if not stored:
        return ""
    method = cast("Mapping[str, object]", stored).get("quant_method") if isinstance(stored, Mapping) else stored
    return (
        f"its config.json has a quantization_config (quant_method={method}): stored numbers are the weights only after "
        "they are scaled. Take the unquantised weights: Qwen/Qwen3-8B, for example, in place of Qwen/Qwen3-8B-FP8."
    )


def downloaded(name: str) -> Path:
    """The directory of a model of the Hugging Face hub, downloaded once into the hub's own cache (HF_HOME).

    name: OWNER/MODEL, then the main branch, or OWNER/MODEL@REVISION.

    Raises ValueError if it is neither in the cache nor available from the hub.
    """
    from huggingface_hub import snapshot_download  # pyright: ignore[reportUnknownVariableType]
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled

    try:
        path, _, revision = name.partition("@")
        return Path(snapshot_download(path, revision=revision or None, allow_patterns=list(PATTERNS)))
    except (HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled, ConnectionError) as error:
        raise ValueError(
            f"{name} is no directory here, and the hub did not give it ({type(error).__name__}). Check the name and "
            "the network (private models: `hf auth login`), or download it elsewhere with "
            f"`hf download {name.replace('@', ' --revision ')} --local-dir DIR` and pass DIR in its place."
        ) from error


def cached_model(name: str) -> Path | None:
    """The directory of a model of the hub, OWNER/MODEL@COMMIT, in the hub's cache; None if it is not there."""
    match = HUB_NAME.fullmatch(name)
    if match is None or match["revision"] is None:
        return None
    from huggingface_hub import try_to_load_from_cache

    file = try_to_load_from_cache(match["path"], "config.json", revision=match["revision"])
    return Path(file).parent if isinstance(file, str) else None


def digest_of(path: Path) -> str:
    """16 hexadecimal digits that change with any file of the policy.

    They are a hash of, for a checkpoint or an export, its digests.json (for an export only while that is correct); for
    a model in the hub's cache, the names of its files there, which are their digests; for any other directory, the
    content of small files and the sizes and times of weights, so that a copy counts as another policy. Raises
    ValueError if the directory contains no policy.
    """
    sealed = digests.read_digests(path)
    if is_checkpoint(path) and not sealed:
        raise ValueError(f"{path} is damaged: {digests.fault_of(path)}. Pass another checkpoint of the run.")
    files = sorted({file for pattern in PATTERNS for file in path.glob(pattern)})
    added = {file.name for file in files} - {digests.FILE} - sealed.keys()
    if sealed and (is_checkpoint(path) or not (added or digests.fault_of(path))):
        return _hash(sorted(sealed.items()))
    if not path.exists():
        raise ValueError(f"{path} is gone. A run in training keeps its newest checkpoints only: evaluate it again.")
    if not (path / "config.json").is_file():
        raise ValueError(f"{path} is neither a checkpoint nor a model: it has no config.json.")
    return _hash([[file.name, _content(file)] for file in files])


def weights_digest(directory: Path) -> str:
    """16 hexadecimal digits of the content of a model's weights: what adapters belong to, whatever its path is."""
    files = sorted(directory.glob("*.safetensors"))
    return _hash([[file.name, digests.sampled_digest(file)] for file in files])


def _content(file: Path) -> object:
    """What stands for the content of a file: the hub cache's digest, size and time of weights, or a SHA-256."""
    blob = file.resolve()
    if file.is_symlink() and blob.parent.name == "blobs":
        return blob.name
    if file.suffix == ".safetensors":
        return [file.stat().st_size, file.stat().st_mtime_ns]
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _hash(content: object) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]
