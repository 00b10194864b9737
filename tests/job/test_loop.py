import contextlib
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from hydra import compose
from omegaconf import OmegaConf
from torch import Tensor

from rlvr.config.freeze import frozen_config
from rlvr.job.loop import TrainingRun
from rlvr.ledger import layout
from rlvr.ledger.attempt import Attempt, StopFlag
from rlvr.ledger.cause import Cause
from rlvr.ledger.journal import JournalWriter, read
from rlvr.objective.batch import needs
from rlvr.rollout.empty_steps import NothingToLearn
from rlvr.rollout.native import NativeEngine
from rlvr.trainer.fsdp import Trainer
from tests.support.composing import composing
from tests.trainer.test_logprob import Entropies

OVERRIDES = ("task=classes", "task.classes=20", "task.contexts=4", "model=table", "loss=reinforce", "lr=2", "steps=4")
OVERRIDES += ("rollout.prompts=4", "rollout.samples=2", "rollout.dynamic_sampling=none", "trainer.updates=2")
OVERRIDES += ("evaluation.every=2", "evaluation.samples=1", "evaluation.k=[1]")

# Problems are drawn by the share of groups that the step before has kept.
OVERDRAW = ("task.classes=4", "rollout.dynamic_sampling=refill", "rollout.overdraw=1.1", "lr=0.1")


def make_run(tmp_path: Path, *overrides: str, usual: Sequence[str] = OVERRIDES, journal: bool = False) -> TrainingRun:
    """A run in `tmp_path`, new or resumed from its checkpoints. journal: whether it records its metrics."""
    with composing():
        config = OmegaConf.create(frozen_config(compose("run", [*usual, *overrides]), {}))
    run_dir = tmp_path / "runs" / "x"
    return TrainingRun(config, run_dir, None, JournalWriter(run_dir, 1) if journal else None)


def recorded(run_dir: Path) -> dict[int, dict[str, float]]:
    """The metrics on record, step by step, but for those of time."""
    timed = ("time/", "throughput/")
    records = read(layout.journal(run_dir)).records
    return {r.step: {k: v for k, v in r.metrics.items() if not k.startswith(timed)} for r in records}


def train(run: TrainingRun, stop: StopFlag) -> Cause:
    assert run.journal is not None
    with contextlib.closing(run.journal), contextlib.closing(run):
        return run.train(stop)


def trained(run: TrainingRun) -> dict[int, dict[str, float]]:
    """Train until the end, or the first failure. The metrics on record, also of earlier runs of its directory."""
    with contextlib.suppress(NothingToLearn), StopFlag() as stop:
        train(run, stop)
    return recorded(run.dir)


def test_overlong_responses_cost_reward_and_are_not_trained_on(tmp_path: Path) -> None:
    """Responses of one token, the limit: rewards lose the whole penalty. The first of each group counts as not cut."""
    run = make_run(
        tmp_path, "rollout.overlong_buffer=1", "rollout.overlong_penalty=0.5", "rollout.overlong_filter=true"
    )
    try:
        groups = run.step_sampler.take(1).groups
        ended = [replace(g, completions=(replace(g.completions[0], finished=True), g.completions[1])) for g in groups]
        batch = run.batch(ended, 1)
    finally:
        run.close()
    assert batch.reward.tolist() == [r.value - 0.5 for g in groups for r in g.rewards]
    assert batch.mask.tolist() == [[True], [False]] * 4


def test_a_run_goes_on_after_a_step_whose_responses_were_all_cut(tmp_path: Path) -> None:
    """As after other steps without a group to learn from, unless it is the first: the limit is then too low."""
    filtered = ("rollout.overlong_filter=true", "checkpoint.every=1")  # of one token, the limit: all are cut
    with pytest.raises(ValueError, match="all 8 responses of a step were cut"), StopFlag() as stop:
        train(make_run(tmp_path / "first", *filtered, journal=True), stop)
    trained(make_run(tmp_path, "steps=2", "checkpoint.every=1", journal=True))
    steps = trained(make_run(tmp_path, *filtered, journal=True))
    assert [steps[step]["tokens/used"] for step in (1, 2, 3, 4)] == [8, 8, 0, 0]


@pytest.mark.parametrize("own", ["rollout.logp_old=trainer", "presample.temperature=0.5"])
def test_the_engine_sleeps_while_the_trainer_reads_responses(
    own: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a step: an engine on the same GPU has taken all memory that the trainer does not need at rest.

    own: the two reasons why the trainer reads them. At another temperature the stored log-probabilities are others.
    """
    events = list[str]()

    def noted(owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def note(*arguments: Any, **options: Any) -> Any:
            events.append(name)
            return original(*arguments, **options)

        monkeypatch.setattr(owner, name, note)

    for owner, name in ((NativeEngine, "generate_until"), (NativeEngine, "sleep"), (Trainer, "policy_of")):
        noted(owner, name)
    presample = ("presample.samples=4", "presample.threshold=1", "presample.problems=16", "presample.ratio=4")
    make_run(tmp_path, "loss=dph_js", own, "rollout.prompts=8", *presample).close()
    assert list(dict.fromkeys(events)) == ["generate_until", "sleep", "policy_of"]


def test_entropies_are_computed_for_an_advantage_that_reads_them_alone(tmp_path: Path) -> None:
    """A table policy that was not trained draws 20 classes alike: ln 20 nats."""

    @needs("entropy")
    def of_entropy(reward: Tensor, group: Tensor, *, entropy: Tensor) -> Tensor:
        return entropy

    run = make_run(tmp_path, "rollout.logp_old=trainer")
    try:
        groups = run.step_sampler.take(1).groups
        with Entropies() as seen:
            batch = run.batch(groups, 1)
        assert seen.count == 0
        assert torch.equal(batch.logp_old, run.trainer.logp(batch))
        run.advantage = of_entropy
        assert run.batch(groups, 1).advantage.flatten().tolist() == pytest.approx([math.log(20)] * 8, rel=1e-5)
    finally:
        run.close()


def test_weights_are_handed_over_once_and_every_sample_is_of_the_newest(tmp_path: Path) -> None:
    """4 steps of 2 updates, evaluations before the first, after the second and the fourth: 7 times of sampling.

    Steps after an evaluation sample from the evaluated policy: 5 policies, after 0, 2, 4, 6 and 8 updates."""
    run = make_run(tmp_path)
    sync, generate = run.parts.engine.sync, run.parts.engine.generate_until
    synced, sampled = list[int](), list[int]()

    def watched_sync(weights: Iterable[tuple[str, Any]]) -> None:
        synced.append(run.trainer.num_updates)
        sync(weights)

    def watched_generate(*arguments: Any) -> None:
        of_engine = dict(run.parts.engine.model.named_parameters())
        assert all(torch.equal(of_engine[name], weight) for name, weight in run.trainer.weights())
        sampled.append(run.trainer.num_updates)
        generate(*arguments)

    run.parts.engine.sync, run.parts.engine.generate_until = watched_sync, watched_generate
    try:
        assert run.train(StopFlag()) is Cause.OK
    finally:
        run.close()
    assert (synced, sampled) == ([0, 2, 4, 6, 8], [0, 0, 2, 4, 4, 6, 8])


@pytest.mark.slow
def test_the_validation_split_is_measured_beside_the_test_split_and_decides(tmp_path: Path) -> None:
    mazes = ["task=maze", "task.size=5", "task.test_problems=4", "model.steps=2", "model.batch=8", "loss=grpo"]
    small = ["steps=1", "rollout.prompts=2", "rollout.samples=2", "rollout.dynamic_sampling=none", "trainer.updates=1"]
    evaluation = ["evaluation.every=1", "evaluation.samples=2", "evaluation.k=[1]", "evaluation.validation=3"]
    overrides = [*mazes, *small, *evaluation, "checkpoint.keep_best=true"]
    run = make_run(tmp_path, usual=overrides, journal=True)
    assert len(run.validation) == 3
    assert not {p.id for p in run.validation} & {p.id for p in run.problems}
    last = trained(run)[1]
    scores = [name for name in last if "/avg_at_" in name]
    assert scores == ["evaluation/maze_5x5/avg_at_2", "validation/maze_5x5/avg_at_2"]
    assert run.checkpoints.best == [last["validation/maze_5x5/avg_at_2"]]
    assert len(pq.read_table(layout.evaluation(run.dir, 1))) == 4 * 2


def test_a_step_that_is_taken_again_keeps_the_samples_of_its_record(tmp_path: Path) -> None:
    """The metrics of the first attempt that reached the step are kept, and so must be its samples."""
    for is_first in (True, False):
        run = make_run(tmp_path, "checkpoint.every=2", "checkpoint.keep=2", journal=True)
        assert train(run, StopFlag()) is Cause.OK
        file = layout.evaluation(run.dir, 4)
        if not is_first:
            assert file.read_bytes() == b"of the first attempt"
        else:
            file.write_bytes(b"of the first attempt")
            shutil.rmtree(layout.checkpoint(layout.checkpoints(run.dir), 4))


def test_rollouts_are_not_written_once_a_newer_attempt_owns_the_run(tmp_path: Path) -> None:
    """As if a file server had given the lock of an unreachable node to another one between two steps."""
    run = make_run(tmp_path, "keep_rollouts=2")
    run.dir.mkdir(parents=True, exist_ok=True)
    run.attempt = Attempt.open(run.dir)

    class LostBeforeStep2(StopFlag):
        def __bool__(self) -> bool:
            if layout.rollouts(run.dir, 1).exists():
                layout.attempt(run.dir, 2).mkdir(exist_ok=True)
            return False

    with contextlib.closing(run), pytest.raises(RuntimeError, match="a newer attempt owns this run"):
        run.train(LostBeforeStep2())
    assert not layout.rollouts(run.dir, 2).exists()


@pytest.mark.slow
@pytest.mark.parametrize("draws", [(), OVERDRAW], ids=["", "overdraw"])
def test_steps_that_the_journal_lost_are_repeated(draws: tuple[str, ...], tmp_path: Path) -> None:
    """Lines of steps 3 and 4 are lost after checkpoints of both: the run resumes after step 2, and ends the same."""

    def steps(number: int, folder: str) -> dict[int, dict[str, float]]:
        knobs = ("checkpoint.every=1", "checkpoint.keep=9", *draws, f"steps={number}")
        return trained(make_run(tmp_path / folder, *knobs, journal=True))

    expected = steps(5, "whole")
    assert len(expected) == 6
    steps(4, "lost")
    journal = tmp_path / "lost" / "runs" / "x" / "metrics.jsonl"
    journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:3]))  # steps 0 to 2
    assert steps(5, "lost") == expected


def test_a_run_may_print_any_character_in_any_locale(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from rlvr.job.log import logging_to\n"
        "with logging_to(Path(sys.argv[1])): print('\\u03b7')"
    )
    ascii_only = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "log.txt")], env=ascii_only, check=True)
    assert (tmp_path / "log.txt").read_bytes() == "η\n".encode()
