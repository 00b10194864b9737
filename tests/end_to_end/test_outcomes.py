import json
import re
import signal
from pathlib import Path

import pytest
from hydra.utils import instantiate

from rlvr.job.process import _with_cause
from rlvr.ledger.attempt import StopFlag
from rlvr.ledger.cause import Cause
from tests.end_to_end.test_sweep import deterministic, python, runs
from tests.slurm.place import wait_for
from tests.support import words

real = [pytest.mark.slow, pytest.mark.real, pytest.mark.timeout(900)]

BANDIT = [
    *words.newest([*words.BANDIT, "loss=reinforce", "rollout.prompts=4", "rollout.samples=8", "steps=12"]),
    *("evaluation.every=12", "cluster=local", "tracker=none"),
]
LOGS = "runs/*/attempts/1/log.txt"
HUNGRY = ["loss._target_=tests.support.hungry.hungry", "trainer.token_budget=32"]


def launch(home: Path, *overrides: str) -> tuple[int, str]:
    process = python("-m", "rlvr.run", *words.newest(overrides), home=home)
    out, _ = process.communicate(timeout=250)
    return process.returncode, out


def told(run_dir: Path, file: str, key: str) -> list[object]:
    """A field of a file of every attempt, in order."""
    attempts = sorted((run_dir / "attempts").iterdir(), key=lambda path: int(path.name))
    return [json.loads((attempt / file).read_text())[key] for attempt in attempts]


class TestReal:
    pytestmark = real

    def test_a_collapsed_policy_ends_its_run_as_diverged_and_is_not_tried_again(self, tmp_path: Path) -> None:
        """50 arms: entropy begins near log 50 = 3.9 nats, and a learning rate of 5 takes it below 2 within 12 steps."""
        code, out = launch(tmp_path, *BANDIT, "lr=5", "min_entropy=2")
        assert code == 1, out
        (run_dir,) = runs(tmp_path).values()
        (cause,), (message,) = told(run_dir, "exit.json", "cause"), told(run_dir, "exit.json", "message")
        assert cause == "diverged"
        entropies = {step: m["policy/entropy"] for step, m in deterministic(run_dir).items() if step}
        last = max(entropies)
        assert f"entropy collapse at step {last}: policy/entropy is {entropies[last]:.4g}" in str(message)
        assert [step for step, entropy in entropies.items() if entropy < 2] == [last]
        shown = python("-m", "sweeps", "status", home=tmp_path).communicate(timeout=60)[0]
        assert "1 diverged" in shown
        assert "entropy collapse" in shown

    def test_out_of_gpu_memory_is_tried_with_half_the_tokens_and_ends_with_the_same_numbers(
        self, tmp_path: Path
    ) -> None:
        """4 groups of 8 responses of a token each: budgets of 32, 16 and 8 tokens hold 4, 2 and 1 of them.

        What does not fit even then is given up after three halvings; its neighbours finish."""
        code, out = launch(tmp_path, "-m", *BANDIT, *HUNGRY, "+loss.rank=0", "+loss.rows=0,8,32")
        assert code == 1, out
        assert "2 of 3 runs finished, 1 failed" in out
        never, pressed, free = (runs(tmp_path)[f"reinforce-rows{rows}-s0"] for rows in (0, 8, 32))
        assert told(never, "exit.json", "cause") == ["gpu_oom"] * 4
        assert told(never, "job.json", "token_budget") == [32, 16, 8, 4]
        assert told(pressed, "exit.json", "cause") == ["gpu_oom", "gpu_oom", "ok"]
        assert told(pressed, "job.json", "token_budget") == [32, 16, 8]
        assert told(free, "job.json", "token_budget") == [32]
        mine, theirs = deterministic(pressed), deterministic(free)
        assert mine.keys() == theirs.keys() == set(range(13))
        for step in mine:
            assert mine[step] == pytest.approx(theirs[step], rel=1e-4, abs=1e-6)

    def test_memory_that_another_rank_than_the_first_lacks_is_told_by_it(self, tmp_path: Path) -> None:
        """2 groups of 8 for each of two ranks: 16 responses do not fit on rank 1, 8 do."""
        ranks = ["cluster.ranks=2", "trainer.token_budget=16", "+loss.rank=1"]
        code, out = launch(tmp_path, *BANDIT, *HUNGRY, *ranks, "+loss.rows=8")
        assert code == 0, out
        (run_dir,) = runs(tmp_path).values()
        assert told(run_dir, "exit.json", "cause") == ["gpu_oom", "ok"]
        assert told(run_dir, "job.json", "token_budget") == [16, 8]
        assert "rank 1: OutOfMemoryError: CUDA out of memory: 16 rows" in str(told(run_dir, "exit.json", "message")[0])

    def test_a_run_that_builds_its_base_policy_stops_within_seconds_and_goes_on_later(self, tmp_path: Path) -> None:
        typed = [
            *("model.steps=120", "steps=1", "evaluation.every=1", "evaluation.samples=1", "evaluation.k=[1]"),
            *("evaluation.problems=4", "cluster=local", "tracker=none", "cluster.threads=1"),
        ]
        process = python("-m", "rlvr.run", *typed, home=tmp_path)
        wait_for(lambda: any("building the pretrain stage" in log.read_text() for log in tmp_path.glob(LOGS)))
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=100)  # it took five minutes, and a SIGKILL
        assert process.returncode == 130, out
        (run_dir,) = runs(tmp_path).values()
        assert told(run_dir, "exit.json", "cause") == ["preempted"]
        assert told(run_dir, "exit.json", "message") == ["SIGTERM: stopped before its next step"]
        assert not list((tmp_path / "runs/stages").glob("[!.]*/stage.json"))
        code, out = launch(tmp_path, *typed)
        assert code == 0, out
        assert told(run_dir, "exit.json", "cause") == ["preempted", "ok"]
        assert list(deterministic(run_dir)) == [0, 1]
        assert not list((tmp_path / "runs/stages").glob(".*.tmp"))

    def test_a_run_that_hangs_is_ended_with_its_stacks_and_goes_on(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Three seconds without progress are enough here, and 20 of its steps, which take some hundredths of one."""
        calm = [*BANDIT, "loss._target_=tests.support.hanging.hanging", "checkpoint.every=3"]
        monkeypatch.setenv("HANGING_ONCE", str(tmp_path / "calm"))
        (tmp_path / "calm").touch()
        assert launch(tmp_path / "calm-home", *calm)[0] == 0
        monkeypatch.setenv("HANGING_ONCE", str(tmp_path / "once"))
        code, out = launch(tmp_path, *calm, "cluster.hung_min=0.05")
        assert code == 0, out
        (run_dir,) = runs(tmp_path).values()
        assert told(run_dir, "exit.json", "cause") == ["hung", "ok"]
        assert "no progress for" in str(told(run_dir, "exit.json", "message")[0])
        log = (run_dir / "attempts/1/log.txt").read_text()
        assert re.search(r"hanging.py\", line \d+ in never_released", log), log[-2000:]
        (undisturbed,) = runs(tmp_path / "calm-home").values()
        assert deterministic(run_dir) == deterministic(undisturbed)


def raising(kind: str) -> None:
    """A component that cannot be made."""
    raise {"ValueError": ValueError, "OSError": OSError}[kind]("no room\nfor two lines")


@pytest.mark.parametrize(("kind", "expected"), [("ValueError", Cause.USER_ERROR), ("OSError", Cause.ERROR)])
def test_what_a_component_raises_names_the_cause_and_stands_in_the_first_line_of_the_message(
    kind: str, expected: Cause
) -> None:
    target = "tests.end_to_end.test_outcomes.raising"
    with StopFlag() as stop:
        cause, message = _with_cause(lambda: instantiate({"_target_": target, "kind": kind}), stop)
    assert cause is expected
    assert message.splitlines()[0] == f"Error in call to target '{target}': {kind}: no room"


def test_a_call_without_its_arguments_says_which() -> None:
    with StopFlag() as stop:
        _, message = _with_cause(lambda: instantiate({"_target_": "rlvr.objective.advantage.rloo"}), stop)
    assert message.startswith("Error in call to target 'rlvr.objective.advantage.rloo': TypeError: rloo() missing 2")
