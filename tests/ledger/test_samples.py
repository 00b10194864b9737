from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from rlvr.ledger import layout
from rlvr.ledger.samples import write_policy, write_samples
from rlvr.records import Completion, Problem, Reward, Rollout


def test_an_evaluation_is_a_file_with_one_row_per_sample(tmp_path: Path) -> None:
    tokens, nats = np.array([5, 6]), np.array([-1.0, -0.5], np.float32)
    completions = (Completion(tokens, nats, nats, True), Completion(tokens[:1], nats[:1], nats[:1], False))
    problem = Problem("maze-3", "prompt", source="maze_7x7")
    rewards = (Reward(1.0, "correct"), Reward(0.0, "wrong"))
    shown = {"right_answer": lambda posed: f"of {posed.id}"}
    write_samples([Rollout(problem, np.array([1]), completions, ("a b", "c"), rewards)], tmp_path, step=40, **shown)
    (file,) = layout.evaluations(tmp_path)
    assert (layout.step_of(file), [p.name for p in file.parent.iterdir()]) == (40, ["test-00000040.parquet"])
    common = {"step": 40, "source": "maze_7x7", "problem_id": "maze-3", "prompt": "prompt", "right_answer": "of maze-3"}
    first = {"sample": 0, "response": "a b", "outcome": "correct", "reward": 1.0, "num_tokens": 2, "finished": True}
    second = {"sample": 1, "response": "c", "outcome": "wrong", "reward": 0.0, "num_tokens": 1, "finished": False}
    assert pq.read_table(file).to_pylist() == [common | first, common | second]


def test_a_policy_is_stored_with_that_of_the_previous_step_or_of_step_0(tmp_path: Path) -> None:
    for step, probability in ((0, [0.5, 0.5]), (40, [0.9, 0.1]), (41, [1.0, 0.0])):
        columns = {"arm": np.arange(2), "probability": np.array(probability)}
        write_policy(columns, tmp_path, step=step)
    tables = [pq.read_table(file).to_pydict() for file in layout.policies(tmp_path)]
    assert [table["probability"] for table in tables] == [[0.5, 0.5], [0.9, 0.1], [1.0, 0.0]]
    assert [table["probability_old"] for table in tables] == [[0.5, 0.5], [0.5, 0.5], [0.9, 0.1]]
