"""Whether what a model writes can run here; installs bubblewrap where that is possible."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import rlvr.task.verify
from rlvr.task.verify.sandbox import Sandbox

REQUIRED = "RLVR_TEST_SANDBOX"  # set (in .ci/run): a machine without a sandbox fails instead of skipping


@functools.cache
def obstacle() -> str:
    """Why the sandbox cannot start on this machine; "" if it can."""
    if sys.platform == "linux" and shutil.which("bwrap") is None and os.geteuid() == 0 and shutil.which("apt-get"):
        quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for command in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", "bubblewrap"]):
            # Other tests may be installing packages at this moment.
            apt = ["apt-get", "-o", "DPkg::Lock::Timeout=300", *command]
            subprocess.run(apt, env=quiet, capture_output=True, check=False)
    try:
        Sandbox().check()
    except ValueError as error:
        return str(error)
    return ""


def need_sandbox() -> None:
    if why := obstacle():
        assert REQUIRED not in os.environ, why
        pytest.skip(why)


NOBODY = 65534
ASK = """
import json, sys
from rlvr.task.verify.pool import Pool
asked = json.load(sys.stdin)
with Pool("rlvr.task.verify.program", **asked["limits"]) as pool:
    print(json.dumps([reply["outcome"] for reply in pool.ask(asked["requests"])]))
"""


def judged_by_nobody(requests: Sequence[dict[str, Any]], **limits: float) -> list[str]:
    """Outcomes of programs where the whole pool runs as a user without any right, in the system's Python.

    Root's own Python may lie where nobody else may look.
    """
    system = shutil.which("python3", path="/usr/bin:/usr/local/bin")
    if os.geteuid() != 0 or system is None:
        pytest.skip("only root can try as somebody else, with a Python outside its home")
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        copy_package(Path(folder))
        done = subprocess.run(
            [system, "-c", ASK],
            input=json.dumps({"limits": limits, "requests": list(requests)}),
            user=NOBODY,
            group=NOBODY,
            extra_groups=[],
            cwd=folder,
            capture_output=True,
            text=True,
            env={"PATH": os.environ["PATH"]},
            check=False,
        )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def copy_package(folder: Path) -> None:
    """What is needed to judge programs, where everybody can read it."""
    package = Path(rlvr.task.verify.__file__).parent
    shutil.copytree(package, folder / "rlvr" / "task" / "verify", ignore=shutil.ignore_patterns("__pycache__"))
    for place in ("rlvr", "rlvr/task"):
        (folder / place / "__init__.py").touch()
