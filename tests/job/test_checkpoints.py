import time
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf

from rlvr.job.checkpoints import Checkpoints
from rlvr.ledger.attempt import ENDS_AT
from rlvr.ledger.checkpoints import best_checkpoint
from rlvr.ledger.digests import files_of
from tests.support.ranks import results
from tests.trainer.tiny import make_trainer

# avg@n by step: the best so far at 1, 3 and 5, a tie at 6.
ACCURACY = {1: 0.2, 2: 0.1, 3: 0.5, 4: 0.4, 5: 0.6, 6: 0.6, 7: 0.3}


def make_checkpoints(directory: Path, **knobs: object) -> Checkpoints:
    config = OmegaConf.create({"every": 2, "minutes": None, "keep": 1, "keep_best": True, "background": False, **knobs})
    return Checkpoints(make_trainer(), directory, config, steps=9)


def finish(checkpoints: Checkpoints, *steps: int) -> list[str]:
    """The checkpoints that exist after each step."""
    seen = list[str]()
    for step in steps:
        metrics = {"evaluation/maze/avg_at_8": ACCURACY[step], "reward/accuracy": 1.0} if step in ACCURACY else {}
        if checkpoints.due(step, metrics):
            checkpoints.save(step, 10 * step, metrics)
            checkpoints.trainer.writer.wait()
        seen.append(" ".join(p.name.removeprefix("step-0000000") for p in sorted(checkpoints.directory.glob("step-*"))))
    return seen


@pytest.mark.parametrize("background", [False, True])
def test_the_newest_and_the_best_are_kept(tmp_path: Path, background: bool) -> None:
    best, newest = (tmp_path / name for name in ("best", "newest"))
    kept = ["", "1", "1 2", "3", "3 4", "5", "5 6", "5 6", "5 8", "5 9"]
    assert finish(make_checkpoints(best, background=background), *range(10)) == kept
    kept = ["", "", "2", "2", "2 4", "2 4", "4 6", "4 6", "6 8", "8 9"]
    assert finish(make_checkpoints(newest, background=background, keep_best=False, keep=2), *range(10)) == kept


def test_a_resumed_run_knows_what_was_best(tmp_path: Path) -> None:
    finish(make_checkpoints(tmp_path), 1, 2, 3, 4)
    assert make_checkpoints(tmp_path / "none").resume() is None
    resumed = make_checkpoints(tmp_path)
    extra = resumed.resume()
    assert extra is not None
    assert (extra["step"], extra["position"], resumed.best) == (4, 40, [0.5])
    assert not resumed.due(5, {"evaluation/maze/avg_at_8": 0.45})
    assert finish(resumed, 5) == ["5"]


def test_a_checkpoint_before_its_evaluation_may_be_a_step_ahead_of_the_journal(tmp_path: Path) -> None:
    checkpoints = make_checkpoints(tmp_path)
    checkpoints.save(2, 20, {}, unevaluated={"loss/total": 0.5}, retired={"train/7", "train/1"})
    checkpoints.trainer.writer.wait()
    assert checkpoints.resume(0) is None
    extra = checkpoints.resume(1)
    assert extra is not None
    assert (extra["step"], extra["unevaluated"]) == (2, {"loss/total": 0.5})
    assert extra["retired"] == ["train/1", "train/7"]


def test_a_bandits_best_is_by_expected_reward_and_no_score_is_never_best(tmp_path: Path) -> None:
    checkpoints = make_checkpoints(tmp_path, every=100)
    assert checkpoints.due(1, {"evaluation/bandit/expected_reward": 0.0})
    assert not checkpoints.due(1, {"evaluation/maze/avg_at_8": float("nan")})
    assert not checkpoints.due(1, {"evaluation/maze/error": 1.0})


def test_where_nothing_is_called_right_the_best_is_by_mean_reward(tmp_path: Path) -> None:
    """Also between evaluations of equal accuracy. Of equal ones in both, the first is kept."""
    kept = list[str]()
    checkpoints = make_checkpoints(tmp_path, every=100)
    for step, (accuracy, reward) in enumerate([(0.0, 0.2), (0.0, 0.6), (0.0, 0.6), (0.0, 0.4), (0.1, 0.3)], start=1):
        metrics = {"evaluation/essay/avg_at_8": accuracy, "evaluation/essay/mean_reward": reward}
        if checkpoints.due(step, metrics):
            checkpoints.save(step, 10 * step, metrics)
        kept.append(str(best_checkpoint(tmp_path))[-1])
    assert "".join(kept) == "12225"


def weights(checkpoints: Checkpoints) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in checkpoints.trainer.weights()}


def flip(path: Path) -> None:
    """One bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def saved(directory: Path) -> list[str]:
    """Write checkpoints at steps 2 and 4, with different weights. Returns the names of the newer one's files."""
    checkpoints = make_checkpoints(directory, keep=2, keep_best=False)
    for step in (2, 4):
        with torch.no_grad():
            for _, weight in checkpoints.trainer.weights():
                weight.fill_(step)
        checkpoints.save(step, 10 * step, {})
        checkpoints.trainer.writer.wait()
    return [*files_of(directory / "step-00000004"), "digests.json"]


@pytest.mark.parametrize("which", range(3))
def test_one_wrong_bit_in_the_newest_checkpoint_is_noticed_and_the_one_before_goes_on(
    tmp_path: Path, which: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Whichever file it is in: the tensors, the trainer's state, or the digests."""
    files = saved(tmp_path)
    assert len(files) == 3
    flip(tmp_path / "step-00000004" / files[which])
    resumed = make_checkpoints(tmp_path, keep=2, keep_best=False)
    extra = resumed.resume()
    assert extra is not None
    assert (extra["step"], extra["position"]) == (2, 20)
    assert all(bool((weight == 2).all()) for weight in weights(resumed).values())
    assert sorted(p.name for p in tmp_path.iterdir()) == ["damaged-step-00000004", "step-00000002"]
    assert "checkpoint step-00000004 is damaged: " in caplog.text


def test_without_a_sound_checkpoint_a_run_begins_anew(tmp_path: Path) -> None:
    (*_, first) = saved(tmp_path)
    before = weights(make_checkpoints(tmp_path))
    for step in (2, 4):
        flip(tmp_path / f"step-0000000{step}" / first)
    resumed = make_checkpoints(tmp_path)
    assert resumed.resume() is None
    assert all(torch.equal(weight, before[name]) for name, weight in weights(resumed).items())


def test_a_checkpoint_that_is_ahead_of_the_journal_is_not_used(tmp_path: Path) -> None:
    saved(tmp_path)
    for recorded, step in ((4, 4), (3, 2), (2, 2), (None, 4)):
        extra = make_checkpoints(tmp_path).resume(recorded)
        assert extra is not None
        assert extra["step"] == step
    assert make_checkpoints(tmp_path).resume(1) is None
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-00000002", "step-00000004"]


def resumed_by_two(first: Path, other: Path, *, shows_s: float = 0.0, patience_s: float = 100.0) -> list[Any]:
    """The results of two ranks that each resume from a directory of their own. See tests/job/resuming.py."""
    program = str(Path(__file__).with_name("resuming.py"))
    outputs = results(2, program, str(first), str(other), str(shows_s), str(patience_s))
    assert [rank for rank, *_ in outputs] == [0, 1]
    return [result for _, *result in outputs]


@pytest.fixture
def two_views(tmp_path: Path) -> tuple[Path, Path]:
    """Checkpoints at steps 2 and 4, and another directory in which the newer one does not show."""
    first, other = tmp_path / "first", tmp_path / "other"
    saved(first)
    other.mkdir()
    (other / "step-00000002").symlink_to(first / "step-00000002")
    return first, other


@pytest.mark.slow
def test_ranks_go_on_from_the_newest_checkpoint_that_the_first_one_sees(two_views: tuple[Path, Path]) -> None:
    """The other rank sees it a second later, and sees one that the first does not. Both treat step 4 as saved."""
    first, other = two_views
    (other / "step-00000006").symlink_to(first / "step-00000002")
    assert resumed_by_two(first, other, shows_s=1.0) == [[4, 4.0, "saved already"]] * 2
    assert sorted(p.name for p in first.iterdir()) == ["step-00000002", "step-00000004"]


@pytest.mark.slow
def test_a_rank_that_cannot_see_the_newest_checkpoint_ends_the_run_and_harms_none(two_views: tuple[Path, Path]) -> None:
    first, other = two_views
    for (message,) in resumed_by_two(first, other, patience_s=1.0):
        assert message.startswith(f"rank 1 does not see {other}/step-00000004/")
        assert "which exists, within 1 s: runs/ must be on a file system that all nodes of a run see." in message
    assert sorted(p.name for p in first.iterdir()) == ["step-00000002", "step-00000004"]


@pytest.mark.slow
def test_ranks_set_the_same_damaged_checkpoint_aside(tmp_path: Path) -> None:
    (*_, last) = saved(tmp_path)
    flip(tmp_path / "step-00000004" / last)
    assert resumed_by_two(tmp_path, tmp_path) == [[2, 2.0, "saved already"]] * 2
    assert sorted(p.name for p in tmp_path.iterdir()) == ["damaged-step-00000004", "step-00000002"]


def test_steps_that_take_long_are_saved_by_the_clock(tmp_path: Path) -> None:
    """With a limit of nearly 0 minutes each step is saved; with one of 60 minutes none is."""
    assert finish(make_checkpoints(tmp_path / "a", keep_best=False, minutes=1e-9), 1, 3) == ["1", "3"]
    assert finish(make_checkpoints(tmp_path / "b", keep_best=False, minutes=60), 1, 3) == ["", ""]


def test_the_first_step_of_a_resumed_run_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An allocation of half an hour and steps of 16 minutes: unless the first one is saved, none ever is."""
    finish(make_checkpoints(tmp_path), 1, 2)
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "time", lambda: now[0] + 1e9)
    monkeypatch.setenv(ENDS_AT, str(1e9 + 1000 + 30 * 60))
    resumed = make_checkpoints(tmp_path, every=100)
    assert resumed.resume() is not None
    now[0] += 16 * 60
    assert resumed.due(3, {})


def test_a_checkpoint_precedes_a_step_too_long_for_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An allocation of an hour, steps of 10 minutes, the second of 20: 1.2 times the longest step is 24 minutes. After
    30 minutes there is time for another step, after 40 and 50 there may not be; after 70 the limit must have been
    raised, and the end is unknown. Without a limit there is always time."""
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "time", lambda: now[0] + 1e9)
    seen: dict[str, list[bool]] = {}
    for end in (str(1e9 + 1000 + 3600), ""):
        monkeypatch.setenv(ENDS_AT, end)
        now[0] = 1000.0
        checkpoints = make_checkpoints(tmp_path, every=100, keep_best=False)
        seen[end] = []
        for step, minutes in enumerate((0, 10, 20, 10, 10, 20)):
            now[0] += 60 * minutes
            seen[end].append(checkpoints.due(step, {}))
    assert list(seen.values()) == [[False, False, False, True, True, False], [False] * 6]
