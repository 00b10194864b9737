import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from rlvr.records import Problem, Progress, Request, Rollout, Sampling
from rlvr.rollout.sampler import RolloutCost, noise_key, throughput
from tests.rollout.scripted import SAMPLING, ScriptedEngine, ScriptedTask, SharedBoard, sampler


def test_outcomes_are_counted_separately_and_errors_do_not_enter_the_mean() -> None:
    spent = RolloutCost()
    task = ScriptedTask(["+-?t!+"])
    sampler(task)([task.problem("train", 0)], 6, SAMPLING, spent)
    metrics = spent.metrics()
    sixth = pytest.approx(1 / 6)
    assert [metrics[f"reward/{o}"] for o in ("wrong", "unparsable", "timeout", "error")] == [sixth] * 4
    assert metrics["reward/accuracy"] == pytest.approx(2 / 5)  # five answers were judged
    assert metrics["reward/solved_fraction"] == 1.0


@pytest.mark.parametrize("ranks_per_engine", [1, 2])
def test_engines_share_the_problems_and_all_ranks_see_all_groups_in_order(ranks_per_engine: int) -> None:
    """Two engines take the problems in turn; of two ranks that share one, the first samples for both."""
    task = ScriptedTask(["+-"])
    problems = [task.problem("train", i) for i in range(5)]
    whole = sampler(task)(problems, 2, SAMPLING, RolloutCost())
    nothing = [list[Rollout]()] * (ranks_per_engine - 1)
    parts = [whole[0::2], *nothing, whole[1::2], *nothing]
    world = len(parts)
    for rank in range(world):

        def gather(mine: list[Rollout], rank: int = rank) -> list[list[Rollout]]:
            assert [g.problem.id for g in mine] == [g.problem.id for g in parts[rank]]
            return parts

        one = sampler(task, rank=rank, world=world, gather=gather, ranks_per_engine=ranks_per_engine)
        joined = one(problems, 2, SAMPLING, RolloutCost())
        assert [g.problem.id for g in joined] == [g.problem.id for g in whole]


class Answering(ScriptedEngine):
    """Gives its groups one by one, the last first."""

    def generate_until(self, requests: Sequence[Request], sampling: Sampling, progress: Progress) -> None:
        for row, group in reversed(list(enumerate(self.generate(requests, sampling)))):
            progress.take(row, group)


def test_each_request_that_an_engine_answers_is_reported() -> None:
    """An evaluation may take hours: it must not be mistaken for a run that hangs."""
    task = ScriptedTask(["++", "+-", "--"])
    problems = [task.problem("test", i) for i in range(3)]
    heard, whole = list[int](), sampler(task)(problems, 2, SAMPLING, RolloutCost())
    one = replace(sampler(task), engine=Answering(), on_answer=lambda: heard.append(1))
    assert one(problems, 2, SAMPLING, RolloutCost()) == whole
    assert len(heard) == 3 + 1  # and before they are judged
    one.draw([(problems[0], 0, 2)], SAMPLING)
    assert len(heard) > 4


class Waiting(ScriptedEngine):
    """Answers two requests, and no more until `progress` has enough."""

    def generate_until(self, requests: Sequence[Request], sampling: Sampling, progress: Progress) -> None:
        for row, group in enumerate(self.generate(requests[:2], sampling)):
            progress.take(row, group)
        deadline = time.monotonic() + 60
        while not progress.enough:
            assert time.monotonic() < deadline, "the progress never had enough"
            time.sleep(0.01)


def test_engines_that_ranks_share_stop_once_the_first_usable_groups_are_there() -> None:
    """Of four ranks 0 and 2 have the problems 0, 2, ... and 1, 3, ...: 1 and 3 are the first two that are mixed. The
    engine of rank 0 stops because of what that of rank 2 has; 1 and 3 have no engine to stop."""
    task = ScriptedTask(["++", "+-", "--", "+-", "+-", "+-"])
    problems = [task.problem("train", i) for i in range(6)]
    board, meet, parts = SharedBoard(), threading.Barrier(4, timeout=90), list[list[Rollout]]([[], [], [], []])

    def run(rank: int) -> list[str]:
        def gather(mine: list[Rollout]) -> list[list[Rollout]]:
            parts[rank] = mine
            meet.wait()
            return parts

        one = sampler(task, rank=rank, world=4, gather=gather, ranks_per_engine=2, new_board=lambda: board)
        one = replace(one, engine=Waiting())
        groups = one.first_usable(problems, 2, SAMPLING, RolloutCost(), wanted=2, usable=mixed)
        return [group.problem.id for group in groups]

    with ThreadPoolExecutor(4) as ranks:
        assert list(ranks.map(run, range(4))) == [[f"train/{i}" for i in range(4)]] * 4
    assert [len(mine) for mine in parts] == [2, 0, 2, 0]


def mixed(group: Rollout) -> bool:
    return len({reward.correct for reward in group.rewards}) == 2


def test_noise_keys_name_problems() -> None:
    keys = {noise_key(Problem(f"p{i}", "")) for i in range(1000)}
    assert len(keys) == 1000
    assert all(0 <= k < 2**63 for k in keys)
    # printf p0 | b2sum -l 64, its bytes from the last to the first, halved: the same in every process.
    assert noise_key(Problem("p0", "")) == int.from_bytes(bytes.fromhex("8d7e9aaab58b6ff4"), "little") >> 1


def test_every_gpu_of_a_run_counts_in_the_cost_of_a_token() -> None:
    """2 ranks and 4 workers with a GPU each, 3 s, 900 tokens: 6 · 3 / 900 = 0.02."""
    step = {"tokens/rollout": 900.0, "tokens/train": 1200.0, "time/train_s": 2.0, "time/step_s": 3.0}
    speeds = {"train_tokens_per_s": 600.0, "tokens_per_s": 300.0, "gpu_s_per_token": 0.02}
    expected = {f"throughput/{name}": speed for name, speed in speeds.items()}
    assert throughput(step, devices=2 + 4) == pytest.approx(expected)
