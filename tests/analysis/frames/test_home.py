from pathlib import Path

import pandas as pd
import pytest

from analysis.frames.load import load
from rlvr.ledger import layout
from tests.analysis.ledger_factory import BASE, config, curves, final, write_run

TRAINING = curves("grpo", 1.0)


@pytest.fixture
def home(tmp_path) -> Path:
    for seed in (0, 1):
        write_run(tmp_path, config("grpo", seed=seed), {0: BASE, 40: final((8, 4, 4, 0))}, training=TRAINING)
    return tmp_path


def test_unreadable_lines_are_named(home):
    with layout.journal(layout.run(home, "id-grpo-s0")).open("ab") as file:
        file.write(b'{"torn')
    assert "1 unreadable line(s) left out" in load(home).notes[0]


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
