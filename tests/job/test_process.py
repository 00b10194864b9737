"""Two real ranks act alike even if they see different files."""

import json
import runpy
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from hydra import compose
from omegaconf import OmegaConf

from rlvr.config.freeze import frozen_config
from rlvr.job.process import _message_of, run  # pyright: ignore[reportPrivateUsage]
from rlvr.ledger.cause import Cause
from rlvr.ledger.runs import read_info, to_yaml, write_run
from tests.end_to_end.test_outcomes import BANDIT, HUNGRY
from tests.end_to_end.test_sweep import deterministic
from tests.job.test_loop import OVERRIDES
from tests.support.composing import composing
from tests.support.ranks import start

RANK = """
import os, sys
from pathlib import Path
from rlvr.job.process import run
from rlvr.trainer.distributed import end_process

cause, message = run(Path(sys.argv[1 + int(os.environ["RANK"])]))
os.write(1, f"{cause} {message}\\n".encode())
end_process(cause.code, alone=cause.code != 0)
"""

# As RANK, but the second rank alone is told to stop, in its second evaluation: that of step 2.
STOPPED = (
    """
import os, signal
from rlvr.job import loop
from rlvr.rollout.evaluation import NOISE_STREAM
from rlvr.rollout.native import NativeEngine

generate, evaluations = NativeEngine.generate_until, []
loop.EVALUATION_GRACE_S = 0.0

def signalling(self, requests, sampling, progress):
    if os.environ["RANK"] == "1" and sampling.seed >= NOISE_STREAM:
        evaluations.append(sampling)
        if len(evaluations) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
    generate(self, requests, sampling, progress)

NativeEngine.generate_until = signalling
"""
    + RANK
)


def two_views(tmp_path: Path, words: Sequence[str], shared: Sequence[str]) -> tuple[Path, Path]:
    """A run's directory, and another one that shows its shared files, but not its attempts."""
    with composing():
        config = OmegaConf.create(frozen_config(compose("run", list(words)), {}))
    first, other = tmp_path / "runs" / "x", tmp_path / "other" / "runs" / "x"
    for directory in (first / "checkpoints", first / "attempts", other / "attempts", tmp_path / "runs" / "stages"):
        directory.mkdir(parents=True)
    write_run(first, OmegaConf.to_yaml(config), {"name": "x", "overrides": []})
    for name in ("x/config.yaml", "x/run.json", "x/checkpoints", *shared):
        (tmp_path / "other" / "runs" / name).symlink_to(tmp_path / "runs" / name)
    return first, other


def started(first: Path, other: Path, program: str = RANK) -> subprocess.Popen[str]:
    """Two ranks of the run, each with its own view of it."""
    return start(2, "-c", program, str(first), str(other))


@pytest.mark.slow
def test_a_rank_that_does_not_see_how_attempts_ended_has_the_token_budget_of_the_first(tmp_path: Path) -> None:
    """Half of 16, after an attempt that ran out of memory: rank 1 fails with more than 8 responses of one token."""
    words = [*BANDIT, *HUNGRY, "trainer.token_budget=16", "+loss.rank=1", "+loss.rows=8"]
    first, other = two_views(tmp_path, words, shared=["stages"])
    (first / "attempts" / "1").mkdir()
    end = {"cause": "gpu_oom", "code": 5, "time": 0, "message": "", "seconds": 1}
    (first / "attempts" / "1" / "exit.json").write_text(json.dumps(end))
    output, errors = started(first, other).communicate(timeout=200)
    assert output.splitlines() == ["ok ", "ok "], errors[-4000:]
    assert json.loads((first / "attempts" / "2" / "job.json").read_text())["token_budget"] == 8


@pytest.mark.slow
def test_a_rank_that_does_not_see_the_base_policy_yet_waits_for_it_and_builds_none(tmp_path: Path) -> None:
    first, other = two_views(tmp_path, BANDIT, shared=[])
    stages, shown = first.parent / "stages", other.parent / "stages"
    shown.mkdir()
    process = started(first, other)
    while not (built := list(stages.glob("[!.]*/stage.json"))) and process.poll() is None:
        time.sleep(0.1)
    time.sleep(3)
    for file in built:
        (shown / file.parent.name).symlink_to(file.parent)
    output, errors = process.communicate(timeout=200)
    assert output.splitlines() == ["ok ", "ok "], errors[-4000:]
    assert (len(built), [path.is_symlink() for path in shown.iterdir()]) == (1, [True])


@pytest.mark.slow
def test_ranks_of_which_one_is_told_to_stop_in_an_evaluation_save_its_step_together(tmp_path: Path) -> None:
    words = [*OVERRIDES, "checkpoint.every=100"]
    whole, stopped = (two_views(tmp_path / name, words, shared=["stages"])[0] for name in ("whole", "stopped"))
    output, errors = started(whole, whole).communicate(timeout=200)
    assert output.splitlines() == ["ok ", "ok "], errors[-4000:]
    output, errors = started(stopped, stopped, STOPPED).communicate(timeout=200)
    assert output.splitlines() == ["preempted ", "preempted "], errors[-4000:]
    assert list(deterministic(stopped)) == [0, 1]
    assert [path.name for path in (stopped / "checkpoints").iterdir()] == ["step-00000002"]
    output, errors = started(stopped, stopped).communicate(timeout=200)
    assert output.splitlines() == ["ok ", "ok "], errors[-4000:]
    assert "resuming from step-00000002" in (stopped / "attempts" / "2" / "log.txt").read_text()
    assert deterministic(stopped) == deterministic(whole)


def test_the_message_of_an_error_names_the_line_of_the_users_code(tmp_path: Path) -> None:
    file = tmp_path / "own_advantage.py"
    file.write_text("def advantage(reward):\n    return {}[reward]\n")
    with pytest.raises(KeyError) as error:
        runpy.run_path(str(file))["advantage"]("missing")
    assert _message_of(error.value) == f"KeyError: 'missing' ({file}, line 2)"
    with pytest.raises(ValueError) as ours:
        read_info(tmp_path)
    assert str(tmp_path / "own") not in _message_of(ours.value)


def test_a_run_that_was_frozen_before_a_knob_existed_is_trained(tmp_path: Path) -> None:
    with composing():
        plain = frozen_config(compose("run", [*OVERRIDES, "steps=1"]), {})
    for knob in ("retire_at", "importance_level"):
        assert plain["rollout"].pop(knob) is None
    run_dir = tmp_path / "runs" / "x"
    run_dir.mkdir(parents=True)
    write_run(run_dir, to_yaml(plain), {"name": "x"})
    assert run(run_dir) == (Cause.OK, "")
