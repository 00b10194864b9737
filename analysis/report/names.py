"""Names of the folders of reports and of the files of bundles."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence


def folder_name(title: str) -> str:
    """The title of a study, or of one of its sweeps, as the name of a folder."""
    return re.sub(r"[^\w.-]+", "-", title.replace(", sweep ", "-")).strip("-.") or "study"


def joined(names: Sequence[str]) -> str:
    """Names joined for a file name. Of more than three: the first, the number of the others, and a hash of all."""
    if len(names) <= 3:
        return "-".join(names)
    return f"{names[0]}-and-{len(names) - 1}-more-{hashlib.sha256(repr(list(names)).encode()).hexdigest()[:8]}"
