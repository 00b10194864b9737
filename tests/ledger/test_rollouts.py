from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rlvr.ledger import layout
from rlvr.ledger.rollouts import read_rollouts, rollouts_from_bytes, to_bytes, write_rollouts
from rlvr.records import Completion, Problem, Reward, Rollout


def rollout(name: str, *responses: tuple[list[int], list[float], float]) -> Rollout:
    completions = tuple(
        Completion(np.array(t, np.int64), np.array(p, np.float32), np.array(p, np.float32) - 1, len(t) < 3)
        for t, p, _ in responses
    )
    rewards = tuple(Reward(r, "correct" if r else "timeout") for *_, r in responses)
    problem, texts = Problem(name, "two words", source="here"), tuple("x" for _ in rewards)
    return Rollout(problem, np.array([7, 8]), completions, texts, rewards)


@pytest.mark.parametrize("is_file", [True, False])
def test_rollouts_are_read_as_written(is_file: bool, tmp_path: Path) -> None:
    """From a file, or from the bytes that another process gets."""
    groups = [
        rollout("a", ([1, 2, 3], [-0.1, -0.2, -0.3], 1.0), ([4], [-2.5], 0.0)),
        rollout("b", ([], [], 0.0)),
        rollout("b", ([5, 5], [-1e-9, -30.0], 0.25)),  # the same problem again is a group of its own
    ]
    write_rollouts(groups, layout.rollouts(tmp_path, 12))
    read = read_rollouts(layout.rollouts(tmp_path, 12)) if is_file else rollouts_from_bytes(to_bytes(groups))
    assert rollouts_from_bytes(to_bytes([])) == []
    assert [g.problem.id for g in read] == ["a", "b", "b"]
    assert [g.rewards for g in read] == [g.rewards for g in groups]
    assert [g.texts for g in read] == [g.texts for g in groups]
    for one, two in zip(groups, read, strict=True):
        assert one.prompt.tolist() == two.prompt.tolist()
        for a, b in zip(one.completions, two.completions, strict=True):
            for name in ("tokens", "logp", "logp_sampling"):
                wrote, got = getattr(a, name), getattr(b, name)
                assert got.dtype == wrote.dtype
                assert np.array_equal(got, wrote)
            assert a.finished == b.finished


def test_columns_are_plain_numbers_texts_and_lists(tmp_path: Path) -> None:
    write_rollouts([rollout("a", ([1], [-0.5], 1.0))], tmp_path / "r.parquet")
    for field in pq.read_schema(tmp_path / "r.parquet"):
        inner = field.type.value_type if pa.types.is_list(field.type) else field.type
        assert pa.types.is_integer(inner) or pa.types.is_floating(inner) or inner in (pa.string(), pa.bool_())


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "is no file"), (b"nothing", "is no Parquet file"), (pa.table({"group": [0]}), "has no column problem_id")],
)
def test_another_file_is_rejected_in_one_line(tmp_path: Path, content: object, message: str) -> None:
    path = tmp_path / "r.parquet"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif isinstance(content, pa.Table):
        pq.write_table(content, path)
    with pytest.raises(ValueError, match=message) as error:
        read_rollouts(path)
    assert "\n" not in str(error.value)
