"""A cache in the format of the Hugging Face hub's client, with a model that is not on the hub."""

import hashlib
import shutil
from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def cached(hf_home: Path, name: str, model: Path, commit: str = COMMIT) -> Path:
    """Put a model's directory into the cache under HF_HOME as `name`, OWNER/MODEL, whose main branch is then at this
    commit; returns its snapshot."""
    folder = hf_home / "hub" / f"models--{name.replace('/', '--')}"
    snapshot = folder / "snapshots" / commit
    for part in (folder / "blobs", folder / "refs", snapshot):
        part.mkdir(parents=True, exist_ok=True)
    (folder / "refs" / "main").write_text(commit)
    for file in sorted(path for path in model.iterdir() if path.is_file()):
        blob = folder / "blobs" / hashlib.sha256(file.read_bytes()).hexdigest()
        shutil.copyfile(file, blob)
        (snapshot / file.name).symlink_to(Path("../../blobs") / blob.name)
    return snapshot
