"""Which checkpoints a run writes and keeps, and where it goes on."""

from __future__ import annotations

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from rlvr.job.checkpoints import Checkpoints
from tests.trainer.tiny import trainer

# avg@n by step: the best so far at 1, 3 and 5, a tie at 6.
ACCURACY = {1: 0.2, 2: 0.1, 3: 0.5, 4: 0.4, 5: 0.6, 6: 0.6, 7: 0.3}


def make_checkpoints(directory: Path, **knobs: object) -> Checkpoints:
    config = OmegaConf.create({"every": 2, "keep": 1, "keep_best": True, "background": False, **knobs})
    return Checkpoints(trainer(), directory, config, steps=9)


def finish(kept: Checkpoints, *steps: int) -> list[str]:
    """What is there after each step."""
    seen = list[str]()
    for step in steps:
        metrics = {"evaluation/maze/avg_at_8": ACCURACY[step], "reward/accuracy": 1.0} if step in ACCURACY else {}
        if kept.due(step, metrics):
            kept.save(step, 10 * step, metrics)
            kept.trainer.writer.wait()
        seen.append(" ".join(p.name.removeprefix("step-0000000") for p in sorted(kept.directory.glob("step-*"))))
    return seen


@pytest.mark.parametrize("background", [False, True])
def test_the_newest_and_the_best_are_kept(tmp_path: Path, background: bool) -> None:
    assert finish(make_checkpoints(tmp_path, background=background), *range(10)) == [
        "",
        "1",
        "1 2",
        "3",
        "3 4",
        "5",
        "5 6",
        "5 6",
        "5 8",
        "5 9",
    ]


def test_without_keep_best_the_newest_alone_are_kept(tmp_path: Path) -> None:
    assert finish(make_checkpoints(tmp_path, keep_best=False, keep=2), *range(10)) == [
        "",
        "",
        "2",
        "2",
        "2 4",
        "2 4",
        "4 6",
        "4 6",
        "6 8",
        "8 9",
    ]


def test_a_resumed_run_knows_what_was_best(tmp_path: Path) -> None:
    finish(make_checkpoints(tmp_path), 1, 2, 3, 4)
    again = make_checkpoints(tmp_path)
    extra = again.resume()
    assert extra is not None
    assert (extra["step"], extra["position"], again.best) == (4, 40, 0.5)
    assert not again.due(5, {"evaluation/maze/avg_at_8": 0.45})
    assert finish(again, 5) == ["5"]


def test_without_a_checkpoint_there_is_nothing_to_resume(tmp_path: Path) -> None:
    assert make_checkpoints(tmp_path).resume() is None


def test_a_bandits_best_is_by_expected_reward_and_no_score_is_never_best(tmp_path: Path) -> None:
    kept = make_checkpoints(tmp_path, every=100)
    assert kept.due(1, {"evaluation/bandit/expected_reward": 0.0})
    assert not kept.due(1, {"evaluation/maze/avg_at_8": float("nan")})
    assert not kept.due(1, {"evaluation/maze/error": 1.0})
