"""Sampling several steps ahead, with new weights while requests run: how old the samples of a step may be, that no
problem of the stream is skipped or learned twice, and that neither trainer nor sampler gets too far ahead. By
versions of weights, not by time.
"""

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from omegaconf import OmegaConf

from rlvr.job.loop import TrainingRun
from rlvr.ledger import layout
from rlvr.ledger.rollouts import read_rollouts
from rlvr.records import Completion, Rollout, Supply
from rlvr.rollout.in_flight import InFlightSampler
from rlvr.rollout.sampler import Sampler
from rlvr.rollout.step_sampler import StepGroups
from rlvr.rollout.stream import Stream
from tests.job.test_loop import make_run, recorded, trained
from tests.rollout.scripted import ScriptedEngine, ScriptedTask
from tests.rollout.test_step_sampler import fail_after

PROMPTS, STEPS, UPDATES = 3, 12, 2  # of a step; of a run; of the optimiser in a step
USABLE, RIGHT = "+-", "++"


class Streaming(ScriptedEngine):
    """Answers its requests in random order, a few of them at a time."""

    def __init__(self, seed: int, room: int = 100) -> None:
        self.version, self.room = 0, room
        self.chance = random.Random(seed)
        self.begun = dict[int, int]()  # version, of each group

    def sync(self, weights: Any = ()) -> None:
        self.version += 1

    def generate_stream(self, supply: Supply) -> None:
        running: dict[int, tuple[Completion, ...]] = {}
        while not supply.enough:
            version = self.version
            for row, request, sampling in supply.begin(self.room - len(running), version):
                self.begun[row] = version
                (running[row],) = self.generate([request], sampling)
            assert 2 * len(running) <= supply.most_running
            if not running:
                supply.wait()
            elif self.chance.random() < 0.5:
                row = self.chance.choice(list(running))
                supply.deliver(row, running.pop(row), self.version)


def in_flight(
    script: Sequence[str],
    *,
    ahead: int,
    engine: Streaming,
    dynamic: str = "refill",
    position: int = 0,
    max_rounds: int = 10,
    gather: Callable[[list[Rollout]], list[list[Rollout]]] | None = None,
    rank: int = 0,
    world: int = 1,
    ranks_per_engine: int = 1,
) -> InFlightSampler:
    drawn = {"ahead": ahead, "prompts": PROMPTS, "samples": 2, "dynamic_sampling": dynamic, "max_rounds": max_rounds}
    unset = dict.fromkeys(("overdraw", "reward", "retire_at"))
    rollout = {**drawn, **unset, "filter": "none", "temperature": 1.0, "top_p": 1.0}
    config = OmegaConf.create({"steps": STEPS, "seed": 0, "rollout": rollout})
    task = ScriptedTask(script)
    encode, decode = lambda qs: [np.array([1]) for _ in qs], lambda rows: [str(r[0]) for r in rows]
    sampler = Sampler(task, engine, encode, decode, rank, world)
    if gather is not None:
        sampler = replace(sampler, gather=gather, ranks_per_engine=ranks_per_engine)
    synced = [-1]

    def hand_over() -> int:
        if synced[0] != trained._last_learned:
            engine.sync()
            synced[0] = trained._last_learned
        return trained._last_learned * UPDATES

    trained = InFlightSampler(sampler, Stream(task, 0, position), config, max_tokens=1, hand_over=hand_over)
    return trained


def steps_of(sampler: InFlightSampler, first: int = 1, last: int = STEPS) -> Iterator[tuple[int, StepGroups]]:
    for step in range(first, last + 1):
        groups = sampler.take(step)
        assert groups.step == step
        yield step, groups
        sampler.learned(step)


def wait_for(engine: Streaming, count: int) -> None:
    """Wait until the first `count` groups have begun."""
    deadline = time.monotonic() + 60
    while len(engine.begun) < count:
        assert time.monotonic() < deadline
        time.sleep(0.002)
    assert sorted(engine.begun) == list(range(count))


def problems_of(groups: StepGroups) -> list[int]:
    return [int(group.problem.prompt) for group in groups.groups]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("ahead", [2, 5, 16])
@pytest.mark.parametrize("script", [[USABLE], [USABLE, RIGHT, RIGHT], [RIGHT, USABLE, "-+", "--", "!+"]])
def test_steps_learn_from_the_usable_groups_of_the_stream_in_order_none_older_than_the_bound(
    script: list[str], ahead: int, seed: int
) -> None:
    """Before step t the trainer has learned t - 1 steps of 2 updates each."""
    engine = Streaming(seed)
    with closing(in_flight(script, ahead=ahead, engine=engine)) as sampler:
        learned = list[int]()
        for step, groups in steps_of(sampler):
            learned += problems_of(groups)
            ages = [(2 * (step - 1) - oldest) / 2 for oldest, _ in (group.updates for group in groups.groups)]  # type: ignore[misc]
            assert max(ages) <= ahead
            assert all(oldest <= newest <= 2 * (step - 1) for oldest, newest in (g.updates for g in groups.groups))  # type: ignore[misc]
            mean = pytest.approx(2 * sum(ages) / PROMPTS)
            behind = {"rollout/staleness": mean, "rollout/staleness_max": 2 * max(ages)}
            assert groups.staleness(2 * (step - 1)) == behind
    usable = [i for i in range(1000) if script[i % len(script)] in (USABLE, "-+")]
    assert learned == usable[: PROMPTS * STEPS]


@pytest.mark.parametrize("ahead", [2, 4])
def test_the_sampler_begins_what_the_bound_allows_and_waits_for_weights(ahead: int) -> None:
    """While step t is learned: groups of the N steps after it, and no other; of the run's steps alone."""
    engine = Streaming(0)
    with closing(in_flight([USABLE], ahead=ahead, engine=engine)) as sampler:
        for step, _ in steps_of(sampler):
            wait_for(engine, PROMPTS * min(step + ahead, STEPS))
            assert sampler.begin(1000, engine.version) == []
        assert sampler.most_running == PROMPTS * (ahead + 1) * 2  # samples: those of step t and of the N after it
    first = {row: version - 1 for row, version in engine.begun.items()}  # version 1 has no step behind it
    for row, steps in first.items():
        assert row // PROMPTS - steps <= ahead  # its step is row // 3 + 1, which starts after row // 3 steps
    assert max(row // PROMPTS - steps for row, steps in first.items()) == ahead


def test_groups_known_to_be_unusable_make_room_for_others() -> None:
    """One of three groups is usable: for three steps of three groups 27 are drawn, and no more."""
    engine = Streaming(1)
    with closing(in_flight([RIGHT, RIGHT, USABLE], ahead=2, engine=engine)) as sampler:
        sampler.take(1)
        wait_for(engine, 27)
        assert sampler.begin(1000, engine.version) == []


def test_without_refill_a_step_has_the_groups_drawn_for_it() -> None:
    engine = Streaming(2)
    with closing(in_flight([USABLE, RIGHT], ahead=2, engine=engine, dynamic="drop")) as sampler:
        learned = [problems_of(groups) for _, groups in steps_of(sampler)]
    assert learned[:3] == [[0, 2], [4], [6, 8]]


def test_groups_that_a_killed_run_had_in_preparation_are_drawn_again() -> None:
    """Each step's problems, whether or not the run was killed after step 5 and went on from its checkpoint."""
    script = [USABLE, RIGHT, "-+"]
    learned = list[int]()
    with closing(in_flight(script, ahead=3, engine=Streaming(3))) as killed:
        for step, groups in steps_of(killed, last=5):
            learned += problems_of(groups)
            assert killed.prefetched() is None
            position = killed.position
            assert position == learned[-1] + 1, step
    with closing(in_flight(script, ahead=3, engine=Streaming(4), position=position)) as resumed:
        for _, groups in steps_of(resumed, first=6):
            learned += problems_of(groups)
    assert learned == [i for i in range(1000) if i % 3 != 1][: PROMPTS * STEPS]


class OperatedByAnotherRank(Streaming):
    """The engine of a rank that has no workers."""

    def generate_stream(self, supply: Supply) -> None:
        return


@pytest.mark.parametrize("ranks_per_engine", [1, 2])
def test_all_ranks_get_the_same_groups_of_two_engines(ranks_per_engine: int) -> None:
    """One engine is slower. Two ranks, or four of which every second one operates an engine, meet in collectives."""
    world = 2 * ranks_per_engine
    meeting, board = threading.Barrier(world, timeout=60), [list[Rollout]() for _ in range(world)]

    def gather_of(rank: int) -> Callable[[list[Rollout]], list[list[Rollout]]]:
        def gather(mine: list[Rollout]) -> list[list[Rollout]]:
            board[rank] = mine
            meeting.wait()
            everyone = list(board)
            meeting.wait()
            return everyone

        return gather

    engines: list[Streaming] = [OperatedByAnotherRank(0) for _ in range(world)]
    engines[0], engines[ranks_per_engine] = Streaming(5), Streaming(6, room=2)

    def run(rank: int) -> list[list[int]]:
        ranks = {"gather": gather_of(rank), "rank": rank, "world": world, "ranks_per_engine": ranks_per_engine}
        with closing(in_flight([USABLE, RIGHT, "-+"], ahead=2, engine=engines[rank], **ranks)) as sampler:
            return [problems_of(groups) for _, groups in steps_of(sampler)]

    with ThreadPoolExecutor(world) as ranks:
        first, *others = ranks.map(run, range(world))
    assert others == [first] * (world - 1)
    assert [i for problems in first for i in problems] == [i for i in range(1000) if i % 3 != 1][: PROMPTS * STEPS]
    for number in (0, 1):
        begun = engines[number * ranks_per_engine].begun
        assert begun
        assert all(row % 2 == number for row in begun)


@pytest.mark.parametrize(("dynamic", "drawn"), [("refill", 12), ("drop", 3)])
def test_steps_that_have_nothing_to_learn_from_are_given_no_groups(dynamic: str, drawn: int) -> None:
    """Refill: 4 times the 3 groups of a step."""
    engine = Streaming(7)
    with closing(in_flight([RIGHT], ahead=2, engine=engine, max_rounds=4, dynamic=dynamic)) as sampler:
        for step, groups in steps_of(sampler):
            assert (groups.groups, groups.right, groups.staleness(2 * step)) == ([], True, {})
            assert (groups.metrics["reward/accuracy"], groups.metrics["tokens/rollout"]) == (1, 2 * drawn)
            assert sampler.position == step * drawn
    assert sorted(engine.begun) == list(range(STEPS * drawn))


@pytest.mark.parametrize("seed", range(3))
def test_a_step_that_refill_cannot_fill_learns_from_what_it_has(seed: int) -> None:
    """6 groups at most are drawn for each, and every fourth of the stream is usable; none is older than the bound. As
    step 2 is to be learned, the groups of steps 2 and 3 may have begun."""
    engine = Streaming(seed)
    with closing(in_flight([USABLE, RIGHT, RIGHT, RIGHT], ahead=2, engine=engine, max_rounds=2)) as sampler:
        learned = [problems_of(groups) for _, groups in steps_of(sampler)]
    assert learned == [[i for i in range(6 * step, 6 * step + 6) if i % 4 == 0] for step in range(STEPS)]
    unusable = Streaming(seed)
    with closing(in_flight([RIGHT], ahead=2, engine=unusable, max_rounds=2)) as sampler:
        sampler.take(1)
        wait_for(unusable, 18)
        assert sampler.begin(1000, unusable.version) == []


def test_an_error_of_the_engine_or_of_judging_is_raised_by_take() -> None:
    class Failing(Streaming):
        def generate_stream(self, supply: Supply) -> None:
            raise RuntimeError("vLLM was lost")

    with closing(in_flight([USABLE], ahead=2, engine=Failing(0))) as sampler, pytest.raises(RuntimeError, match="lost"):
        sampler.take(1)
    with closing(in_flight(["+x"], ahead=2, engine=Streaming(0))) as sampler, pytest.raises(KeyError, match="x"):
        sampler.take(1)
    with pytest.raises(ValueError, match=r"rollout.ahead=2 gives the engine weights while it samples"):
        in_flight([USABLE], ahead=2, engine=ScriptedEngine())  # type: ignore[arg-type]


# --- whole runs ---

STREAMING = (
    *("rollout.ahead=2", "rollout.engine._target_=tests.support.streaming.StreamingNative", "keep_rollouts=4"),
    *("checkpoint.every=1", "evaluation.every=2"),
)


def learned_by(run: TrainingRun) -> list[str]:
    """The problems of all steps, in order. Checks that no step learns from samples older than the bound allows."""
    metrics, learned = recorded(run.dir), list[str]()
    assert list(metrics) == [0, 1, 2, 3, 4]
    for step in range(1, 5):
        groups = read_rollouts(layout.rollouts(run.dir, step))
        learned += [group.problem.id for group in groups]
        behind = [2 * (step - 1) - oldest for oldest, _ in (group.updates for group in groups)]  # type: ignore[misc]
        assert max(behind) <= 2 * 2
        assert metrics[step]["rollout/staleness_max"] == max(behind)
        assert metrics[step]["rollout/staleness"] == pytest.approx(sum(behind) / len(behind))
    return learned


@pytest.mark.slow
def test_a_killed_run_learns_from_every_problem_of_the_stream_once_and_in_order(tmp_path: Path) -> None:
    """Killed while step 3 is learned; later groups that run are lost. Evaluations run beside the stream."""
    whole = make_run(tmp_path / "whole", *STREAMING, journal=True)
    expected = [problem.id for problem in Stream(whole.task, whole.config.seed).draw(16)]
    trained(whole)
    assert learned_by(whole) == expected
    killed = make_run(tmp_path / "killed", *STREAMING, journal=True)
    fail_after(killed, updates=4)
    assert list(trained(killed)) == [0, 1, 2]
    resumed = make_run(tmp_path / "killed", *STREAMING, journal=True)
    trained(resumed)
    assert learned_by(resumed) == expected
