"""The groups of a round are the first usable ones in the order drawn, whatever their order of arrival and ranks."""

import threading
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlvr.records import Completion, Problem, Progress, Request, Reward, Rollout, Sampling
from rlvr.rollout.first_usable import FirstUsable, up_to
from rlvr.rollout.sampler import RolloutCost, Sampler
from rlvr.rollout.selection import Selection, select_groups
from rlvr.rollout.stream import Stream
from tests.rollout.scripted import SAMPLING, ScriptedEngine, ScriptedTask, SharedBoard, sampler


def group(number: int, right: bool) -> Rollout:
    nothing = np.zeros(1, dtype=np.float32)
    reward = Reward(float(right), "correct" if right else "wrong")
    completion = Completion(np.zeros(1, dtype=np.int64), nothing, nothing, True)
    return Rollout(Problem(str(number), ""), np.zeros(1, dtype=np.int64), (completion,), ("",), (reward,))


def right(group: Rollout) -> bool:
    return group.rewards[0].correct


@given(
    verdicts=st.lists(st.booleans(), max_size=12),
    world=st.integers(1, 3),
    wanted=st.integers(1, 4),
    order=st.randoms(use_true_random=False),
)
def test_the_first_usable_groups_are_used_in_whatever_order_they_come(
    verdicts: list[bool], world: int, wanted: int, order: object
) -> None:
    groups = [group(number, verdict) for number, verdict in enumerate(verdicts)]
    board = SharedBoard()

    def start(rank: int) -> FirstUsable:
        judge = lambda answered: [groups[row * world + rank] for row, _ in answered]  # noqa: E731
        return FirstUsable(wanted, right, judge, engine=rank, engines=world, board=board)

    ranks = [start(rank) for rank in range(world)]
    arrival = list(range(len(groups)))
    order.shuffle(arrival)  # type: ignore[attr-defined]
    arrived, stopped = set[int](), [False] * world
    for number in arrival:
        rank = number % world
        if stopped[rank]:
            continue  # its engine samples no more
        arrived.add(number)
        ranks[rank].take(number // world, groups[number].completions)
        ranks[rank]._judging_thread._pending[-1].result()
        first = next((n for n in range(len(groups) + 1) if n not in arrived), len(groups))
        known = sum(verdicts[:first]) >= wanted  # by hand: enough among those with none missing before them
        stopped = [progress.enough for progress in ranks]
        assert stopped == [known] * world
    per_rank = [progress.close() for progress in ranks]
    together = []
    for number in range(len(groups)):
        if number // world == len(per_rank[number % world]):
            break
        together.append(per_rank[number % world][number // world])
    places = [number for number, verdict in enumerate(verdicts) if verdict][:wanted]
    end = places[-1] + 1 if len(places) == wanted else len(groups)
    assert up_to(together, wanted, right) == groups[:end]


class Endless(ScriptedEngine):
    """Answers the requests before `last`; the others never end, unless they are stopped."""

    def __init__(self, last: int) -> None:
        self.last, self.stopped = last, False

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[tuple[Completion, ...]]:
        raise AssertionError("this would never end")

    def generate_until(self, requests: Sequence[Request], sampling: Sampling, progress: Progress) -> None:
        answered = super().generate(requests, sampling)
        for row in reversed(range(min(self.last, len(requests)))):
            progress.take(row, answered[row])
        judged = threading.Event()
        for _ in range(1000):
            if progress.enough:
                self.stopped = True
                return
            judged.wait(0.01)
        raise AssertionError("nobody stopped it")


def sampler_with(engine: ScriptedEngine, script: Sequence[str]) -> Sampler:
    return replace(sampler(ScriptedTask(script)), engine=engine)


@pytest.mark.parametrize("overdraw", [1.0, 1.25, 4.0])
def test_a_step_does_not_wait_for_responses_beyond_its_last_group(overdraw: float) -> None:
    """Every odd problem is mixed, and half were kept before: 4 / ½ are needed, 10 or 32 drawn, 8 ever end."""
    engine = Endless(8)
    task = ScriptedTask(["++", "+-"])
    stream = Stream(task, seed=0)
    selection = Selection(4, 2, "refill", 10, overdraw=overdraw)
    kept, spent = select_groups(sampler_with(engine, ["++", "+-"]), stream, SAMPLING, selection, 0.5)
    assert engine.stopped
    assert [g.problem.prompt for g in kept] == ["1", "3", "5", "7"]
    assert (stream.position, spent.rounds, spent.share) == (int(8 * overdraw), 1, 0.5)
    assert len(spent.rollouts) == 8  # metrics do not depend on how far the other groups came
    assert spent.tokens == 16


def test_an_engine_that_cannot_stop_gives_the_same_step() -> None:
    outcomes = []
    for engine in (ScriptedEngine(), Endless(8)):
        stream = Stream(ScriptedTask(["++", "+-"]), seed=0)
        selection = Selection(4, 2, "refill", 10, overdraw=1.5, reward="flipped")
        kept, spent = select_groups(sampler_with(engine, ["++", "+-"]), stream, SAMPLING, selection, 0.5)
        metrics = {name: value for name, value in spent.metrics().items() if "time" not in name and "_s" not in name}
        outcomes.append(([(g.problem.id, g.rewards) for g in kept], spent.share, stream.position, metrics))
    assert outcomes[0] == outcomes[1]


def test_an_error_in_judging_fails_the_step() -> None:
    class Broken(ScriptedTask):
        def reward(self, answers: Sequence[tuple[Problem, str]]) -> list[Reward]:
            raise OSError("no judge")

    task = Broken(["+-"])
    broken = sampler(task)
    with pytest.raises(OSError, match="no judge"):
        broken.first_usable([task.problem("train", 0)], 2, SAMPLING, RolloutCost(), wanted=1, usable=right)
