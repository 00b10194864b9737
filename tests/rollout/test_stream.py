from dataclasses import replace

from rlvr.rollout.stream import Stream
from tests.rollout.scripted import ScriptedTask


def test_every_problem_of_a_finite_set_is_drawn_once_an_epoch_in_a_new_order() -> None:
    stream = Stream(ScriptedTask(["+-"], size=20), seed=3)
    first, second = ([p.id for p in stream.draw(20)] for _ in range(2))
    assert sorted(first) == sorted(second) == sorted(f"train/{i}" for i in range(20))
    assert first != second
    again = Stream(ScriptedTask(["+-"], size=20), seed=3, position=20)
    assert [p.id for p in again.draw(20)] == second  # the position alone resumes the stream


def test_retired_problems_are_passed_over_in_the_same_order() -> None:
    task = ScriptedTask(["+-"], size=20)
    everything = [p.id for p in Stream(task, seed=3).draw(60)]
    retired = set(everything[:19:2])
    stream = Stream(task, seed=3, position=20, retired=retired)
    assert [p.id for p in stream.draw(15)] == [i for i in everything[20:] if i not in retired][:15]
    position, stream.retired = stream.position, set(everything)
    assert (stream.draw(5), stream.position) == ([], position)  # nothing is left


def test_problems_that_share_an_id_end_with_it() -> None:
    class Doubled(ScriptedTask):
        def problem(self, split, index):
            return replace(super().problem(split, index), id=f"train/{index // 2}")

    stream = Stream(Doubled(["+-"], size=4), seed=3, retired={"train/0", "train/1"})
    assert stream.draw(3) == []
