"""The order in which training problems are drawn."""

from rlvr.rollout.stream import Stream
from tests.rollout.scripted import ScriptedTask


def test_every_problem_of_a_finite_set_is_drawn_once_an_epoch_in_a_new_order() -> None:
    stream = Stream(ScriptedTask(["+-"], size=20), seed=3)
    first, second = ([p.id for p in stream.draw(20)] for _ in range(2))
    assert sorted(first) == sorted(second) == sorted(f"train/{i}" for i in range(20))
    assert first != second
    again = Stream(ScriptedTask(["+-"], size=20), seed=3, position=20)
    assert [p.id for p in again.draw(20)] == second  # the position alone resumes the stream
