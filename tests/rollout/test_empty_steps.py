"""Steps with too few groups to learn from, or none: what they change, what they record, and when a run ends."""

import contextlib
import logging
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from rlvr.job.cause import cause_of
from rlvr.job.loop import TrainingRun
from rlvr.ledger import layout
from rlvr.ledger.attempt import StopFlag
from rlvr.ledger.cause import Cause
from rlvr.ledger.journal import read
from rlvr.rollout.empty_steps import EmptySteps, NothingToLearn
from rlvr.rollout.selection import Selection, select_groups
from rlvr.rollout.step_sampler import StepGroups
from rlvr.rollout.stream import Stream
from tests.job.test_loop import make_run, recorded, train, trained
from tests.rollout.scripted import SAMPLING, ScriptedTask, sampler
from tests.rollout.test_in_flight import STREAMING
from tests.rollout.test_step_sampler import weights

# Two answers: after some updates of such a rate all are right.
SOLVED = ("task.classes=2", "rollout.samples=4", "rollout.max_rounds=2", "lr=1", "steps=9", "evaluation.every=4")
HOPELESS = (
    *("task.classes=3000", "rollout.prompts=2", "rollout.samples=16", "rollout.dynamic_sampling=drop"),
    *("steps=15", "checkpoint.every=4"),
)


def sampled(script: str, step: int = 1, dynamic: str = "drop", prompts: int = 2) -> StepGroups:
    """A step whose groups have these outcomes: `++ +-`."""
    task = ScriptedTask(script.split())
    selection = Selection(prompts, 2, dynamic, 1)
    groups, spent = select_groups(sampler(task), Stream(task, seed=0), SAMPLING, selection)
    return StepGroups(step, 0, groups, spent.metrics(), spent.share, spent.right)


def empty_steps(dynamic: str = "drop", prompts: int = 2, **options: Any) -> EmptySteps:
    return EmptySteps(Selection(prompts, 2, dynamic, 1), **{"warns": True, **options})


@pytest.mark.parametrize(("prompts", "most"), [(2, 75), (14, 11), (15, 10), (60, 10)])
def test_ten_steps_in_a_row_without_a_right_answer_end_the_run(prompts: int, most: int) -> None:
    """Of two answers per problem: 300 in all, where ten steps draw fewer. A policy that is right once in 70 has none
    right among 160, ten steps of 16, in one run of ten; among 300 in one of a hundred."""
    for first, last, message in (
        ("-?", "--", rf"no answer of {most} steps was right.*easier problems.*rollout\.samples"),
        ("!!", "!!", rf"no answer of {most} steps was right: the verifier failed"),
    ):
        looks = empty_steps(prompts=prompts)
        for step in range(1, most):
            looks.check(sampled(" ".join([first] * prompts), step, prompts=prompts))
        with pytest.raises(NothingToLearn, match=message):
            looks.check(sampled(" ".join([last] * prompts), most, prompts=prompts))
    metrics = sampled("!! !!").metrics  # what was never judged has no accuracy
    assert metrics["reward/error"] == 1
    assert all(math.isfinite(value) for value in metrics.values())
    assert not {"reward/mean", "reward/accuracy"} & metrics.keys()


def test_a_right_answer_between_them_begins_a_new_count() -> None:
    """And a policy that is always right goes on."""
    for usual, between in (("-- --", "++ ++"), ("-- --", "++ --"), ("-- --", "+- --"), ("++ ++", "++ ++")):
        looks = empty_steps(prompts=20)
        for step in range(1, 50):
            script = " ".join([between if step % 10 == 0 else usual] * 10)
            looks.check(sampled(script, step, prompts=20))


def test_the_first_step_of_those_in_a_row_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    looks = empty_steps()
    with caplog.at_level(logging.WARNING, "rlvr"):
        for step, script in enumerate(["+- +-", "++ ++", "++ --", "+- --", "++ --"], 1):
            looks.check(sampled(script, step))
            empty_steps(warns=False).check(sampled(script, step))
    assert [message[:54] for message in caplog.messages] == [
        "step 2 has nothing to learn from (accuracy 1.000): it ",
        "step 5 has nothing to learn from (accuracy 0.500): it ",
    ]


def test_refill_that_finds_too_few_groups_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    looks = empty_steps("refill", 4)
    with caplog.at_level(logging.WARNING, "rlvr"):
        for step, script in enumerate(["+-", "+- ++ ++ ++", "+- ++", "++", "+- ++"], 1):
            looks.check(sampled(script, step, "refill", 4))
    assert [message.split(":")[0] for message in caplog.messages] == [
        "step 2 learns from 1 of 4 groups (accuracy 0.875)",
        "step 4 has nothing to learn from (accuracy 1.000)",
        "step 5 learns from 2 of 4 groups (accuracy 0.750)",
    ]
    caplog.clear()
    empty_steps("drop", 4).check(sampled("+- ++", 1, "drop", 4))  # is what was asked for
    assert not caplog.messages


# --- whole runs ---


def is_empty(metrics: Mapping[str, float]) -> bool:
    return metrics.get("tokens/used") == 0


def fail_at(run: TrainingRun, step: int) -> None:
    take = run.step_sampler.take

    def failing(wanted: int) -> Any:
        if wanted == step:
            raise NothingToLearn
        return take(wanted)

    run.step_sampler.take = failing  # type: ignore[method-assign]


@pytest.mark.slow
@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize("dynamic", ["drop", "refill"])
def test_a_run_that_has_learned_its_task_goes_on_and_resumes_the_same(dynamic: str, ahead: int, tmp_path: Path) -> None:
    """Killed before its first step without groups, whose samples are in the checkpoint if they were taken ahead, and
    after it. The rate falls with the steps, whether or not they learn."""
    knobs = (f"rollout.dynamic_sampling={dynamic}", f"rollout.ahead={ahead}", "checkpoint.every=1")
    knobs = (*SOLVED, *knobs, "trainer.schedule=linear", "trainer.updates=1")
    whole = make_run(tmp_path / "whole", *knobs, journal=True)
    expected = trained(whole)
    assert (list(expected), expected[8]["evaluation/classes/avg_at_1"]) == (list(range(10)), 1)
    empty = [step for step in range(1, 10) if is_empty(expected[step])]
    assert 0 < len(empty) < 9
    for step in range(1, 10):
        metrics = expected[step]
        assert all(math.isfinite(value) for value in metrics.values())
        assert metrics["tokens/rollout"] >= metrics["tokens/used"]
        if step in empty:
            assert (metrics["reward/accuracy"], metrics["tokens/train"]) == (1, 0)
            learned = ("loss/", "policy/", "optim/", "advantage/", "mismatch/", "rollout/staleness")
            assert not [name for name in metrics if name.startswith(learned)]
        else:
            assert metrics["optim/lr"] == pytest.approx(1 - (step - 1) / 9)
    for step in (empty[0], empty[0] + 1):
        folder = tmp_path / str(step)
        killed = make_run(folder, *knobs, journal=True)
        fail_at(killed, step)
        assert list(trained(killed)) == list(range(step))
        resumed = make_run(folder, *knobs, journal=True)
        assert trained(resumed) == expected
        end = weights(whole)
        assert all(torch.equal(tensor, end[name]) for name, tensor in weights(resumed).items())


def test_a_step_without_groups_changes_no_weight_and_hands_none_over(tmp_path: Path) -> None:
    run = make_run(tmp_path, *SOLVED, "rollout.dynamic_sampling=drop", "keep_rollouts=9", journal=True)
    sync, nothing = run.parts.engine.sync, run.trainer.learn_nothing
    handed = list[int]()

    def watched_sync(new: Iterable[tuple[str, Any]]) -> None:
        handed.append(run.trainer.num_updates)
        sync(new)

    def watched_nothing() -> dict[str, float]:
        before = weights(run)
        learned = nothing()
        assert all(torch.equal(tensor, before[name]) for name, tensor in weights(run).items())
        return learned

    run.parts.engine.sync, run.trainer.learn_nothing = watched_sync, watched_nothing  # type: ignore[method-assign]
    metrics = trained(run)
    learned = [step for step in range(1, 10) if not is_empty(metrics[step])]
    assert len(learned) < 9
    assert handed == sorted(set(handed))
    assert [step for step in range(1, 10) if layout.rollouts(run.dir, step).exists()] == learned
    timed = {record.step: record.metrics for record in read(layout.journal(run.dir)).records}
    for step in range(1, 10):
        speeds = [name for name in timed[step] if name.startswith(("throughput/", "time/train", "time/batch"))]
        assert ("throughput/train_tokens_per_s" in speeds) == ("time/train_s" in speeds) == (step in learned)
        assert timed[step]["throughput/tokens_per_s"] > 0


@pytest.mark.parametrize("dynamic", ["drop", "refill"])
def test_a_run_several_steps_ahead_goes_on_too(dynamic: str, tmp_path: Path) -> None:
    run = make_run(tmp_path, *SOLVED, f"rollout.dynamic_sampling={dynamic}", *STREAMING, journal=True)
    metrics = trained(run)
    assert list(metrics) == list(range(10))
    assert any(is_empty(metrics[step]) for step in range(1, 10))
    assert metrics[9]["evaluation/classes/avg_at_1"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("ahead", [0, 1])
def test_a_hopeless_run_ends_as_an_error_of_the_user(ahead: int, tmp_path: Path) -> None:
    run = make_run(tmp_path, *HOPELESS, f"rollout.ahead={ahead}", journal=True)
    with pytest.raises(NothingToLearn, match="no answer of 10 steps was right") as failure:
        train(run, StopFlag())
    assert cause_of(failure.value) is Cause.USER_ERROR
    assert [metrics["reward/accuracy"] for step, metrics in recorded(run.dir).items() if step] == [0] * 9
    again = make_run(tmp_path, *HOPELESS, f"rollout.ahead={ahead}", journal=True)  # after step 8: seven are left
    with contextlib.closing(again):
        assert train(again, StopFlag()) is Cause.OK
