"""Whether the sandbox for programs of models works on this machine; installs bubblewrap if possible."""

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

REQUIRED = "RLVR_TEST_SANDBOX"  # if set (as in .ci/run), tests fail instead of being skipped on a machine without one


@functools.cache
def obstacle() -> str:
    """The reason why the sandbox cannot start on this machine; "" if it can."""
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
work = json.load(sys.stdin)
with Pool("rlvr.task.verify.program", **work["limits"]) as pool:
    print(json.dumps([reply["outcome"] for reply in pool.ask(work["requests"])]))
"""


def judged_by_nobody(requests: Sequence[dict[str, Any]], **limits: float) -> list[str]:
    """Outcomes of programs judged by a pool that runs as a user without any rights, with the system's Python.

    Other users may be unable to read root's own Python."""
    system = shutil.which("python3", path="/usr/bin:/usr/local/bin")
    if os.geteuid() != 0 or system is None:
        pytest.skip("only root can run a program as another user, with a Python outside its home")
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
    """Copy the package that judges programs to a folder that every user can read."""
    package = Path(rlvr.task.verify.__file__).parent
    shutil.copytree(package, folder / "rlvr" / "task" / "verify", ignore=shutil.ignore_patterns("__pycache__"))
    for place in ("rlvr", "rlvr/task"):
        (folder / place / "__init__.py").touch()
