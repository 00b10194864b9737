"""Whether what a model writes can run here; installs bubblewrap where that is possible."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys

import pytest

from rlvr.task.verify.sandbox import Sandbox

REQUIRED = "RLVR_TEST_SANDBOX"  # set (in .ci/run): a machine without a sandbox fails instead of skipping


@functools.cache
def obstacle() -> str:
    """Why the sandbox cannot start on this machine; "" if it can."""
    if sys.platform == "linux" and shutil.which("bwrap") is None and os.geteuid() == 0 and shutil.which("apt-get"):
        quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for command in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", "bubblewrap"]):
            # Other tests may be installing packages at this moment.
            asked = ["apt-get", "-o", "DPkg::Lock::Timeout=300", *command]
            subprocess.run(asked, env=quiet, capture_output=True, check=False)
    try:
        Sandbox().check()
    except ValueError as error:
        return str(error)
    return ""


def need_sandbox() -> None:
    if why := obstacle():
        assert REQUIRED not in os.environ, why
        pytest.skip(why)
