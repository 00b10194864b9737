import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlvr.job import loop
from rlvr.job.loop import TrainingRun
from rlvr.ledger import layout
from rlvr.ledger.attempt import StopFlag
from rlvr.ledger.cause import Cause
from rlvr.ledger.checkpoints import checkpoints
from rlvr.records import Sampling
from rlvr.rollout.empty_steps import NothingToLearn
from rlvr.rollout.evaluation import NOISE_STREAM
from rlvr.rollout.step_sampler import FILE, StepGroups
from tests.job.test_loop import make_run, recorded, train, trained


def fail_after(run: TrainingRun, *, updates: int) -> None:
    """Have it fail as it is to learn on, with so many updates behind it."""
    learn = run.trainer.learn

    def failing(batch: Any) -> Any:
        if run.trainer.num_updates == updates:
            raise NothingToLearn
        return learn(batch)

    run.trainer.learn = failing


def weights(run: TrainingRun) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in run.trainer.weights()}


def test_a_step_learns_from_the_policy_that_the_step_before_began_with(tmp_path: Path) -> None:
    """4 steps of 2 updates. Step 2 is prefetched before step 1 is learned: from 0 updates; step 3 from 2, step 4 from
    4. Evaluations (before the first, after the second and fourth step) are of the policy as it stands."""
    run = make_run(tmp_path, "rollout.ahead=1", journal=True)
    policies = {0: weights(run)}
    learn, generate = run.trainer.learn, run.parts.engine.generate_until
    sampled = list[tuple[int, list[int]]]()

    def watched_learn(batch: Any) -> Any:
        metrics = learn(batch)
        policies[run.trainer.num_updates] = weights(run)
        return metrics

    def watched_generate(requests: Any, sampling: Sampling, progress: Any) -> None:
        own = dict(run.parts.engine.model.named_parameters())
        same = [n for n, policy in policies.items() if all(torch.equal(own[k], w) for k, w in policy.items())]
        sampled.append((sampling.step, same))
        generate(requests, sampling, progress)

    run.trainer.learn, run.parts.engine.generate_until = watched_learn, watched_generate
    metrics = trained(run)
    assert sorted(sampled) == [(0, [0]), (0, [4]), (0, [8]), (1, [0]), (2, [0]), (3, [2]), (4, [4])]
    assert [metrics[step]["rollout/staleness"] for step in (1, 2, 3, 4)] == [0, 2, 2, 2]


def test_sampling_and_learning_go_on_at_the_same_time(tmp_path: Path) -> None:
    """Learning step t and sampling step t + 1 wait for each other: in turns, neither would ever go on."""
    run = make_run(tmp_path, "rollout.ahead=1", "evaluation.every=4", journal=True)
    together = threading.Barrier(2, timeout=60)
    learn, generate = run.trainer.learn, run.parts.engine.generate_until
    main = threading.current_thread()

    def met_learn(batch: Any) -> Any:
        if run.trainer.num_updates < 6:  # the last step has nothing beside it
            together.wait()
        return learn(batch)

    def met_generate(requests: Any, sampling: Sampling, progress: Any) -> None:
        if threading.current_thread() is not main:
            together.wait()
        generate(requests, sampling, progress)

    run.trainer.learn, run.parts.engine.generate_until = met_learn, met_generate
    assert list(trained(run)) == [0, 1, 2, 3, 4]


@pytest.mark.slow
@pytest.mark.parametrize("background", ["false", "true"])
def test_a_killed_run_goes_on_with_the_samples_it_had_prefetched(tmp_path: Path, background: str) -> None:
    knobs = ("rollout.ahead=1", "checkpoint.every=1", f"checkpoint.background={background}", "rollout.top_p=0.9")
    whole = make_run(tmp_path / "whole", *knobs, journal=True)
    expected, end = trained(whole), weights(whole)
    killed = make_run(tmp_path / "killed", *knobs, journal=True)
    fail_after(killed, updates=4)
    assert list(trained(killed)) == [0, 1, 2]
    assert (killed.dir / "checkpoints" / "step-00000002" / FILE).is_file()
    resumed = make_run(tmp_path / "killed", *knobs, journal=True)
    assert trained(resumed) == expected
    for name, tensor in weights(resumed).items():
        assert torch.equal(tensor, end[name])
    assert not (resumed.dir / "checkpoints" / "step-00000004" / FILE).exists()  # nobody learns after the last


def test_an_error_of_sampling_ahead_fails_the_step_that_needs_the_samples(tmp_path: Path) -> None:
    run = make_run(tmp_path, "rollout.ahead=1", "evaluation.every=1", journal=True)
    generate = run.parts.engine.generate_until

    def failing(requests: Any, sampling: Sampling, progress: Any) -> None:
        if sampling.step == 3:
            raise NothingToLearn
        generate(requests, sampling, progress)

    run.parts.engine.generate_until = failing
    metrics = trained(run)
    assert list(metrics) == [0, 1, 2]
    assert any("/avg_at_" in name for name in metrics[2])  # the step that was learned meanwhile is whole


def test_groups_come_back_from_disk_as_they_were(tmp_path: Path) -> None:
    run = make_run(tmp_path, "rollout.top_p=0.9", journal=True)
    try:
        groups = run.step_sampler.take(1).groups
    finally:
        run.close()
    written = StepGroups(7, 12, groups, {"reward/mean": 1 / 3, "reward/accuracy": float("nan")})
    written.write(tmp_path)
    restored = StepGroups.read(tmp_path, written.json_fields)
    assert (restored.step, restored.updates, restored.metrics) == (7, 12, written.metrics)
    assert len(restored.groups) == len(groups)
    nothing = StepGroups(8, 12, [], {}, right=False)
    nothing.write(tmp_path / "nothing")
    assert StepGroups.read(tmp_path / "nothing", nothing.json_fields) == nothing  # and no file is written
    for read_group, group in zip(restored.groups, groups, strict=True):
        problem, expected = read_group.problem, group.problem
        assert (problem.id, problem.source, read_group.texts) == (expected.id, expected.source, group.texts)
        assert read_group.rewards == group.rewards
        np.testing.assert_array_equal(read_group.prompt, group.prompt)
        for mine, its in zip(read_group.completions, group.completions, strict=True):
            assert mine.finished == its.finished
            for name in ("tokens", "logp", "logp_sampling"):
                np.testing.assert_array_equal(getattr(mine, name), getattr(its, name), strict=True)


def test_a_run_that_was_stopped_by_a_signal_continues_the_same(tmp_path: Path) -> None:
    """Saved at once, whatever is being sampled. A step draws four of five problems: it matters which come next."""
    knobs = ("rollout.ahead=1", "checkpoint.every=100", "task.contexts=5")
    expected = trained(make_run(tmp_path / "whole", *knobs, journal=True))
    stopped = make_run(tmp_path / "stopped", *knobs, journal=True)
    learn = stopped.trainer.learn

    def signalled(batch: Any) -> Any:
        metrics = learn(batch)
        if stopped.trainer.num_updates == 4:  # step 2 is learned, and step 3 being sampled
            os.kill(os.getpid(), signal.SIGTERM)
        return metrics

    stopped.trainer.learn = signalled
    with StopFlag() as stop:
        assert train(stopped, stop) is Cause.PREEMPTED
    assert list(recorded(stopped.dir)) == [0, 1, 2]
    assert trained(make_run(tmp_path / "stopped", *knobs, journal=True)) == expected


@pytest.mark.slow
@pytest.mark.parametrize("ahead", [0, 1])
def test_a_run_stopped_in_an_evaluation_resumes_it(ahead: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In that of step 2, before any checkpoint: steps 1 and 2 are not repeated, and the best evaluation is known."""
    knobs = (f"rollout.ahead={ahead}", "checkpoint.every=100", "checkpoint.keep_best=true")
    whole = make_run(tmp_path / "whole", *knobs, journal=True)
    expected = trained(whole)
    monkeypatch.setattr(loop, "EVALUATION_GRACE_S", 0.0)
    for again in (False, True):  # a second time as the run goes on
        stopped = make_run(tmp_path / "stopped", *knobs, journal=True)
        signal_in_evaluation(stopped, number=0 if again else 1)
        with StopFlag() as stop:
            assert train(stopped, stop) is Cause.PREEMPTED
        assert list(recorded(stopped.dir)) == [0, 1]
        assert [path.name for path in stopped.checkpoints.directory.iterdir()] == ["step-00000002"]
    resumed = make_run(tmp_path / "stopped", *knobs, journal=True)
    learned = list[int]()
    learn = resumed.trainer.learn
    resumed.trainer.learn = lambda batch: (learned.append(resumed.trainer.num_updates), learn(batch))[1]
    assert trained(resumed) == expected
    assert learned == [4, 6]  # two updates per step
    assert all(torch.equal(weight, weights(whole)[name]) for name, weight in weights(resumed).items())
    assert scores(resumed) == scores(whole)
    assert scores(whole)["step-00000002"] is not None


def scores(run: TrainingRun) -> dict[str, list[float] | None]:
    states = {path.name: layout.trainer_state(path).read_text() for path in checkpoints(run.checkpoints.directory)}
    return {name: json.loads(state)["extra"]["score"] for name, state in states.items()}


def signal_in_evaluation(run: TrainingRun, number: int) -> None:
    """Have the process signalled in this evaluation of the run, the first being number 0."""
    generate, evaluations = run.parts.engine.generate_until, list[Sampling]()

    def signalling(requests: Any, sampling: Sampling, progress: Any) -> None:
        if sampling.seed >= NOISE_STREAM:
            if len(evaluations) == number:
                os.kill(os.getpid(), signal.SIGTERM)
            evaluations.append(sampling)
        generate(requests, sampling, progress)

    run.parts.engine.generate_until = signalling
