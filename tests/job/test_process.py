"""What the ranks of a run do alike, whatever each of them reads: real processes, two of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hydra import compose
from omegaconf import OmegaConf

from rlvr.config.compose import composing
from rlvr.config.freeze import frozen
from rlvr.ledger.runs import write_run
from tests.end_to_end.test_outcomes import BANDIT, HUNGRY

ROOT = Path(__file__).parents[2]
RANK = """
import os, sys
from pathlib import Path
from rlvr.job.process import run
from rlvr.trainer.distributed import end_process

cause, message = run(Path(sys.argv[1 + int(os.environ["RANK"])]))
os.write(1, f"{cause} {message}\\n".encode())
end_process(cause.code, alone=cause.code != 0)
"""


@pytest.mark.slow
def test_a_rank_that_does_not_see_how_attempts_ended_has_the_token_budget_of_the_first(tmp_path: Path) -> None:
    """Half of 16, after one that lacked memory: rank 1 takes no more than 8 responses of a token at once."""
    words = [*BANDIT, *HUNGRY, "trainer.token_budget=16", "+loss.rank=1", "+loss.rows=8"]
    with composing():
        config = OmegaConf.create(frozen(compose("run", words), {}))
    seen_by_first, seen_by_other = tmp_path / "runs" / "x", tmp_path / "other" / "runs" / "x"
    (seen_by_first / "attempts" / "1").mkdir(parents=True)
    (seen_by_other / "attempts").mkdir(parents=True)
    write_run(seen_by_first, OmegaConf.to_yaml(config), {"name": "x", "overrides": []})
    end = {"cause": "gpu_oom", "code": 5, "time": 0, "message": "", "seconds": 1}
    (seen_by_first / "attempts" / "1" / "exit.json").write_text(json.dumps(end))
    (seen_by_first / "checkpoints").mkdir()
    (tmp_path / "runs" / "stages").mkdir()
    for shared in ("stages", "x/config.yaml", "x/run.json", "x/checkpoints"):
        (tmp_path / "other" / "runs" / shared).symlink_to(tmp_path / "runs" / shared)
    command = [sys.executable, "-m", "rlvr.job.ranks", "2", "-c", RANK, str(seen_by_first), str(seen_by_other)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=200)
    assert done.stdout.splitlines() == ["ok ", "ok "], done.stderr[-4000:]
    assert json.loads((seen_by_first / "attempts" / "2" / "job.json").read_text())["token_budget"] == 8
