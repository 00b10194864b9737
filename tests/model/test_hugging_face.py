"""Which packages importing transformers through `rlvr.model.hugging_face` brings into a process."""

import subprocess
import sys

import pytest


@pytest.mark.slow
def test_a_runs_process_imports_no_package_that_no_policy_uses() -> None:
    code = (
        "import sys, rlvr.job.loop\n"
        "unused = {'accelerate', 'pandas', 'scipy', 'sklearn', 'torch.distributed.checkpoint'} & sys.modules.keys()\n"
        "assert not unused, unused\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
