"""Which packages importing transformers through `rlvr.model.hugging_face` brings into a process."""

import os
import subprocess
import sys

import pytest


@pytest.mark.slow
def test_a_runs_process_imports_no_package_that_no_policy_uses() -> None:
    code = (
        "import sys, rlvr.job.loop\n"
        "unused = {'peft', 'trl', 'pandas', 'scipy', 'sklearn', 'torch.distributed.checkpoint'} & sys.modules.keys()\n"
        "assert not unused, unused\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("wanted", [True, False])
def test_a_program_that_needs_the_other_packages_gets_them_by_a_variable(wanted: bool) -> None:
    code = (
        "import rlvr.model.hugging_face\nfrom transformers.utils import is_scipy_available\nprint(is_scipy_available())"
    )
    environment = {**os.environ, "RLVR_ALL_PACKAGES": "1" if wanted else "0"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.stdout.strip() == str(wanted), done.stderr
