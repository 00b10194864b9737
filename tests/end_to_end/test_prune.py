import json
import subprocess
import time
from pathlib import Path

import pytest

from rlvr.ledger import tags
from rlvr.ledger.attempt import request_prune
from rlvr.ledger.sweeps import Ledger
from tests.end_to_end.test_sweep import deterministic, python
from tests.support import words

STEPS = 400
BANDIT = [
    *words.BANDIT,
    "rollout.samples=16",
    "evaluation.every=100",
    f"steps={STEPS}",
    "cluster=local",
    "tracker=none",
]


def train(home: Path) -> subprocess.Popen[str]:
    return python("-m", "rlvr.run", *BANDIT, home=home)


@pytest.mark.slow
@pytest.mark.real
def test_a_pruned_run_says_so_and_goes_on_when_asked_as_if_nothing_had_been(tmp_path: Path) -> None:
    process = train(tmp_path)
    # a line of step 0, the base policy's, and 20 more
    while not (found := list(tmp_path.glob("runs/*/metrics.jsonl"))) or found[0].read_text().count("\n") < 21:
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.02)
    run_dir = found[0].parent
    request_prune(run_dir, "median at step 20")
    out, _ = process.communicate(timeout=120)
    state = Ledger(tmp_path).state(run_dir.name)
    assert (state.state, state.message) == ("pruned", "median at step 20"), out
    assert 20 <= state.step < STEPS
    assert (process.returncode, "1 pruned" in out) == (0, True), out
    assert json.loads((run_dir / "attempts/1/exit.json").read_text())["code"] == 3
    assert (run_dir / "checkpoints" / f"step-{state.step:08d}").is_dir()
    assert tags.status(state.state) == "KILLED"
    out, _ = train(tmp_path).communicate(timeout=120)
    assert Ledger(tmp_path).state(run_dir.name).state == "finished", out
    train(tmp_path / "undisturbed").communicate(timeout=120)
    assert deterministic(run_dir) == deterministic(tmp_path / "undisturbed" / "runs" / run_dir.name)
