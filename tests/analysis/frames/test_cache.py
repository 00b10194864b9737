"""What was parsed before is used again while its files stand as they were, and never otherwise."""

from __future__ import annotations

import os
from pathlib import Path

import pandas as pd
import pytest

from analysis.frames import journals
from analysis.frames.load import load
from rlvr.ledger import layout
from rlvr.ledger.journal import encode
from tests.analysis.ledger_factory import BASE, config, curves, final, write_run, write_samples

TRAINING = curves("grpo", 1.0)


@pytest.fixture
def home(tmp_path) -> Path:
    for seed in (0, 1):
        write_run(tmp_path, config("grpo", seed=seed), {0: BASE, 40: final((8, 4, 4, 0))}, training=TRAINING)
    return tmp_path


def everything(home: Path) -> list[pd.DataFrame]:
    frames = load(home)
    digest = frames.tables["digest"].to_pandas().astype({"run_id": str, "name": str, "what": str})
    return [frames.thinned_history(), frames.thinned_history(["policy/entropy"]), digest, frames.counts]


def test_cached_frames_equal_parsed_ones(home):
    first = everything(home)
    assert layout.analysis_cache(home).is_dir()
    for before, after in zip(first, everything(home), strict=True):
        pd.testing.assert_frame_equal(before, after, check_categorical=False)


def test_cached_runs_are_not_parsed_again(home):
    everything(home)
    # Same size, same time of change, other bytes: only one who reads the files again would notice.
    for file in (*home.glob("runs/*/metrics.jsonl"), *home.glob("runs/*/samples/*.parquet")):
        state = file.stat()
        file.write_bytes(b"?" * state.st_size)
        os.utime(file, ns=(state.st_atime_ns, state.st_mtime_ns))
    again = everything(home)
    assert all(len(frame) for frame in again)
    assert load(home).notes == ()


def test_a_run_with_new_steps_is_parsed_again(home):
    everything(home)
    with layout.journal(layout.run(home, "id-grpo-s0")).open("ab") as file:
        file.write(encode(41, 50.0, 1, {"policy/entropy": 0.125, "new/metric": 7.0}))
    write_samples(layout.run(home, "id-grpo-s0"), 41, BASE)
    frames = load(home)
    metrics = frames.metrics.set_index(["run_id", "name", "step"])["value"]
    assert metrics["id-grpo-s0", "new/metric", 41] == 7.0
    assert ("id-grpo-s1", "new/metric", 41) not in metrics.index
    assert frames.digest.last("id-grpo-s0") == 41
    assert frames.problem_counts("id-grpo-s0", 41, "maze7") is not None


def test_a_damaged_cache_is_ignored(home):
    first = everything(home)
    for file in layout.analysis_cache(home).rglob("*.parquet"):
        file.write_bytes(file.read_bytes()[:-9])
    for before, after in zip(first, everything(home), strict=True):
        pd.testing.assert_frame_equal(before, after, check_categorical=False)


def test_a_read_only_home_is_read_without_a_cache(home):
    layout.reports(home).write_text("a file where a folder should be")
    assert [len(frame) > 0 for frame in everything(home)] == [True] * 4


def test_unreadable_lines_are_named_from_the_cache_too(home):
    with layout.journal(layout.run(home, "id-grpo-s0")).open("ab") as file:
        file.write(b'{"torn')
    first, second = load(home).notes, load(home).notes
    assert first == second
    assert "1 unreadable line(s) left out" in first[0]


def test_arrow_and_python_parse_a_journal_alike(home):
    file = layout.journal(layout.run(home, "id-grpo-s0"))
    by_arrow = journals.read(file).table.to_pandas()
    with file.open("ab") as more:  # not finite: text in the journal, which leaves the whole file to Python
        more.write(encode(41, 50.0, 1, {"policy/entropy": float("nan")}))
    by_python = journals.read(file).table.to_pandas()
    assert by_python["step"].tolist() == [*by_arrow["step"], 41]
    pd.testing.assert_frame_equal(by_python.iloc[:-1][by_arrow.columns], by_arrow)


def test_counts_are_those_of_a_plain_loop(home):
    samples = pd.concat([pd.read_parquet(f) for f in sorted(home.glob("runs/id-grpo-s0/samples/*.parquet"))])
    expected: dict[tuple[int, str, str], list[int]] = {}
    for step, source, problem, outcome in samples[["step", "source", "problem_id", "outcome"]].itertuples(index=False):
        n_c = expected.setdefault((step, source, problem), [0, 0])
        n_c[0] += outcome != "error"
        n_c[1] += outcome == "correct"
    frame = load(home).counts.query("run_id == 'id-grpo-s0'")
    counted = {(r.step, r.source, r.problem_id): [r.n, r.correct] for r in frame.itertuples()}
    assert counted == expected
