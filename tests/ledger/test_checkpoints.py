import json
from pathlib import Path

import pytest

from rlvr.ledger import files, layout
from rlvr.ledger.checkpoints import best_checkpoint, checkpoints, superseded


def write(directory: Path, scores: dict[int, float | None]) -> None:
    for step, score in scores.items():
        (path := layout.checkpoint(directory, step)).mkdir(parents=True)
        layout.trainer_state(path).write_text(json.dumps({"extra": {"step": step, "score": score}}))


def steps(paths: list[Path]) -> list[int | None]:
    return [layout.step_of(path) for path in paths]


def test_incomplete_directories_and_other_names_are_no_checkpoints(tmp_path: Path) -> None:
    write(tmp_path, {40: None, 120: None, 80: None})
    files.temporary_path(layout.checkpoint(tmp_path, 160)).mkdir()
    (tmp_path / "step-last").mkdir()
    assert (steps(checkpoints(tmp_path)), checkpoints(tmp_path / "none")) == ([40, 80, 120], [])


@pytest.mark.parametrize(
    ("scores", "best", "gone"),
    [
        ({40: 0.5, 80: 0.7, 120: None, 160: None}, 80, [40, 120]),
        ({40: 0.5, 80: 0.7}, 80, [40]),
        ({40: -1.0, 80: None}, 40, []),
        ({40: None, 80: None}, None, [40]),
    ],
)
def test_newest_and_best_are_kept(tmp_path: Path, scores: dict[int, float | None], best: int, gone: list[int]) -> None:
    write(tmp_path, scores)
    checkpoint = best_checkpoint(tmp_path)
    assert (None if checkpoint is None else layout.step_of(checkpoint)) == best
    assert steps(list(superseded(tmp_path, 1))) == gone


def test_checkpoints_beyond_a_gap_in_the_journal_do_not_count_and_a_torn_state_has_no_score(tmp_path: Path) -> None:
    write(tmp_path, {3: None, 6: None, 9: None, 100: None, 120: None})
    assert steps(list(superseded(tmp_path, 2, until=layout.checkpoint(tmp_path, 9)))) == [3]
    assert steps(list(superseded(tmp_path, 2))) == [3, 6, 9]
    write(tmp_path, {140: 0.5, 180: 0.9})
    layout.trainer_state(layout.checkpoint(tmp_path, 180)).write_text('{"extra"')
    assert best_checkpoint(tmp_path) == layout.checkpoint(tmp_path, 140)
