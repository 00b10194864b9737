"""CPU seconds of a run's process from its start to its first step, against importing torch and transformers alone."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from rlvr.ledger import layout
from tests.bench.row import Row, row

TARGET = 1 / 1.5  # a run may take half as long again
REPETITIONS = 5  # the least busy one of each counts
LIMIT = (sys.executable, "-c", "import torch, transformers")
OVERRIDES = (
    *("steps=1", "loss=grpo", "task.size=5", "task.test_problems=4", "model.steps=20", "rollout.prompts=2"),
    *("rollout.samples=2", "rollout.dynamic_sampling=none", "evaluation.samples=1", "evaluation.k=[1]"),
    *("cluster=local", "tracker=none"),
)


def rows(*, quick: bool) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as home:
        environment = os.environ | {"RLVR_HOME": home}
        subprocess.run([sys.executable, "-m", "rlvr.run", *OVERRIDES], check=True, env=environment)
        (run_id,) = layout.run_ids(Path(home))
        run_dir = layout.run(Path(home), run_id)
        launched = {path: path.read_bytes() for path in (layout.info(run_dir), layout.config(run_dir))}
        runs, imports = list[float](), list[float]()
        for _ in range(1 if quick else REPETITIONS):
            shutil.rmtree(run_dir)  # its base policy, beside it, stays
            run_dir.mkdir()
            for path, content in launched.items():
                path.write_bytes(content)
            runs.append(cpu_s((sys.executable, "-P", "-m", "rlvr.job", str(run_dir)), environment))
            imports.append(cpu_s(LIMIT, environment))
    name, peer = "start of a run, to the end of its only step (CPU seconds)", "import torch, transformers"
    yield row(name, min(runs), "s", peer, min(imports), smaller=True, target=TARGET)


def cpu_s(command: Sequence[str], environment: dict[str, str]) -> float:
    """CPU seconds of a process, all its threads together."""
    process = subprocess.Popen(command, env=environment)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise RuntimeError(f"{' '.join(command)} ended with status {status}")
    return usage.ru_utime + usage.ru_stime
