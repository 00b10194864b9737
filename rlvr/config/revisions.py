"""Which commit of the Hugging Face hub a name means: a frozen config has `NAME@COMMIT`, so that a run and all that
comes after it read the same model and the same data.
"""

import functools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from rlvr.config.values import leaves
from rlvr.ledger import policies
from rlvr.records import NotAvailable
from rlvr.task import read

Kind = Literal["model", "dataset"]

COMMIT = re.compile("[0-9a-f]{40}")
ANSWER_S = 10.0  # timeout of the hub's answer


def pinned(name: str, kind: Kind, revision: str | None) -> str:
    """A name of the hub with its commit: of the revision that it names, else of `revision`, else of the main branch.

    It is returned as it is if it is no name of the hub, or if neither the hub nor its cache here knows the commit.
    """
    match = _match(name, kind)
    commit = None if match is None else _commit(match["path"], kind, match["revision"] or revision or "main")
    if match is None or commit is None:
        return name
    rest = name.removeprefix(match["path"]).removeprefix(f"@{match['revision']}")
    return f"{match['path']}@{commit}{rest}"


def check(plain: Mapping[str, Any]) -> None:
    """Raises NotAvailable if a frozen config names a model or data of the hub whose commit is not known."""
    kinds: dict[str, Kind] = {"model": "model", "task": "dataset"}
    for section, kind in kinds.items():
        node: Mapping[str, object] = plain.get(section) or {}
        named = [node.get(knob) for knob in ("path", "train", "test")] if "revision" in node else []
        for _, name in leaves(named):
            match = _match(name, kind) if isinstance(name, str) else None
            if match is not None and not COMMIT.fullmatch(match["revision"] or ""):
                folder = Path(str(name)).parent
                beside = sorted(path.name for path in folder.iterdir())[:5] if folder.name and folder.is_dir() else []
                if beside:
                    raise NotAvailable(
                        f"{name} is no directory here, and as a name of the hub its commit is not known. {folder} has: "
                        f"{', '.join(beside)}."
                    )
                raise NotAvailable(
                    f"{name}: which commit it is now, neither the hub nor its cache on this machine says. Check the "
                    f"name and the network (private: `hf auth login`), or pass {section}.revision=COMMIT."
                )


def clear_caches() -> None:
    """Forget what was resolved: branches move between two commands of one process."""
    _commit.cache_clear()
    _hub.cache_clear()


def _match(name: str, kind: Kind) -> re.Match[str] | None:
    if Path(name).exists() or name.endswith(tuple(read.READERS)):
        return None
    return (policies.HUB_NAME if kind == "model" else read.HUB_NAME).fullmatch(name)


@functools.cache
def _hub() -> read.BriefHub:
    return read.BriefHub()


@functools.cache  # one commit for all points of a launch
def _commit(name: str, kind: Kind, revision: str) -> str | None:
    """Raises ValueError for a revision that the hub does not have."""
    if COMMIT.fullmatch(revision):
        return revision
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import (
        HTTPError,  # pyright: ignore[reportPrivateImportUsage] - its HTTP client's
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )
    from huggingface_hub.file_download import repo_folder_name

    if _hub().is_reachable:
        try:
            return HfApi().repo_info(name, repo_type=kind, revision=revision, timeout=ANSWER_S).sha
        except RevisionNotFoundError:
            raise ValueError(f"{name} has no revision {revision}. Pass one of its branches, tags or commits.") from None
        except RepositoryNotFoundError:
            return None
        except (OSError, HTTPError):
            pass  # as if it were not reachable
    file = Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=name, repo_type=kind) / "refs" / revision
    return file.read_text().strip() if file.is_file() else None
