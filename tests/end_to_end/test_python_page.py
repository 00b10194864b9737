"""docs/python.md in a real notebook kernel: every cell runs, twice in one kernel, and the kernel stays what it was."""

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

pytestmark = [pytest.mark.slow, pytest.mark.real, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
CELLS = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs/python.md").read_text(encoding="utf-8"), re.M | re.S)
STATE = """
import os, signal, sys
from hydra.core.global_hydra import GlobalHydra
(signal.getsignal(signal.SIGINT).__name__, signal.getsignal(signal.SIGTERM), sorted(os.environ.items()), list(sys.path))
"""


class Kernel:
    def __init__(self, client: BlockingKernelClient) -> None:
        self.client = client

    def __call__(self, cell: str) -> str:
        """The repr of the cell's last expression. Fails with the traceback of a cell that raises."""
        message, shown = self.client.execute(cell), ""
        while True:
            answer = self.client.get_iopub_msg(timeout=300)
            if answer["parent_header"].get("msg_id") != message:
                continue
            kind, content = answer["msg_type"], answer["content"]
            assert kind != "error", "\n".join(content["traceback"])
            if kind == "execute_result":
                shown = content["data"]["text/plain"]
            elif kind == "status" and content["execution_state"] == "idle":
                return shown


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[Kernel]:
    """In an empty directory; this checkout is found as an installed package would be."""
    manager = KernelManager(transport="ipc", ip=str(tmp_path / "kernel"))  # sockets of this user's, no port
    manager.kernel_cmd = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    environment = {**os.environ, "RLVR_HOME": str(tmp_path), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    manager.start_kernel(cwd=str(tmp_path), env=environment)
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=120)
        yield Kernel(client)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


@pytest.mark.smoke
def test_every_cell_of_the_page_runs_and_runs_again(kernel: Kernel, tmp_path: Path) -> None:
    kernel("import rlvr, sys")
    assert kernel("sorted({'hydra', 'torch', 'pandas'} & set(sys.modules))") == "[]"
    before = kernel(STATE)
    for cell in CELLS:
        kernel(cell)
    assert kernel(STATE) == before
    assert kernel("'torch' in sys.modules") == "False"  # runs are trained in processes of their own
    assert kernel("run.state, len(run.metrics), int(run.metrics.index[-1])") == "('finished', 5, 4)"
    assert kernel("[run.state for run in sweep]") == "['finished', 'finished', 'finished', 'finished']"
    assert kernel("sorted({run.config.loss.eta for run in sweep})") == "[0.5, 1.0]"
    assert kernel("sorted(frames.runs['name']) == sorted(run.name for run in sweep)") == "True"
    assert (
        kernel("(len(planned), [run.state for run in planned])") == "(4, ['planned', 'planned', 'planned', 'planned'])"
    )
    assert "eta=2.0 has no effect with loss=grpo" in kernel("message")
    attempts = sorted(tmp_path.glob("runs/*/attempts/*"))
    assert len(attempts) == 4  # the first run is one of the grid
    for cell in CELLS:
        kernel(cell)
    assert kernel("len(sweep.outcome.skipped), len(sweep.outcome.finished)") == "(4, 0)"
    assert (sorted(tmp_path.glob("runs/*/attempts/*")), kernel(STATE)) == (attempts, before)


def test_a_notebook_that_uses_hydra_itself_keeps_what_it_has_composed(kernel: Kernel) -> None:
    kernel("from hydra import compose, initialize_config_dir; import rlvr, os; os.makedirs('conf')")
    kernel("open('conf/mine.yaml', 'w').write('a: 1')")
    kernel("own = initialize_config_dir(os.path.abspath('conf'), version_base='1.3')")
    assert kernel("rlvr.compose(['loss=grpo']).loss.clip_low") == "0.2"
    assert kernel("len(rlvr.sweep(['loss=grpo', 'seed=0,1', 'cluster=local', '--dry-run']))") == "2"
    assert kernel("compose('mine').a") == "1"


def test_what_is_no_run_is_refused_in_one_line(kernel: Kernel) -> None:
    kernel("import rlvr")
    kernel(
        "def said(call, *words):\n    try:\n        call(list(words))\n    except ValueError as error:\n"
        "        return str(error)\n    return 'nothing'"
    )
    assert "is a sweep, not one run" in kernel("said(rlvr.run, 'study=eta', 'cluster=local')")
    assert "A sweep: rlvr.sweep" in kernel("said(rlvr.run, '-m', 'eta=1,2')")
    assert "Did you mean grpo?" in kernel("said(rlvr.sweep, 'loss=gripo')")
    in_batches = "'hydra/sweeper=basic', 'hydra.sweeper.max_batch_size=1'"
    assert "its sweeper made 2 launches" in kernel(
        f"said(rlvr.sweep, 'loss=grpo', 'seed=0,1', {in_batches}, 'cluster=local', '--dry-run')"
    )
    assert "is for the command line" in kernel("said(rlvr.run, '--help')")
    assert "Did you mean eta?" in kernel("said(rlvr.compose, 'etta=1')")
    assert "Start one: python -m rlvr.run" in kernel("said(lambda words: rlvr.load(*words), 'eta')")
