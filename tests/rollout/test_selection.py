from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rlvr.records import Completion, Problem, Request, Reward, Rollout, Sampling
from rlvr.rollout.sampler import RolloutCost
from rlvr.rollout.selection import Selection, select_groups, with_training_rewards
from rlvr.rollout.stream import Stream
from rlvr.task.sums import Sums
from tests.rollout.scripted import SAMPLING, ScriptedEngine, ScriptedTask, sampler


def run(
    script: Sequence[str], dynamic: str, prompts: int = 4, rounds: int = 10, filter: str = "none"
) -> tuple[list[Rollout], RolloutCost, Stream]:
    task = ScriptedTask(script)
    stream = Stream(task, seed=0)
    selection = Selection(prompts, len(script[0]), dynamic, rounds, filter)
    kept, spent = select_groups(sampler(task), stream, SAMPLING, selection)
    return kept, spent, stream


def test_which_groups_a_step_keeps() -> None:
    """Rows: script, dynamic sampling, problems kept, rounds, problems drawn."""
    rows = [
        (["++", "+-", "--", "+-"], "none", "0 1 2 3", 1, 4),
        (["++", "+-", "--", "+-"], "drop", "1 3", 1, 4),
        # Every odd problem is mixed: 4 drawn, 2 kept; then ⌈2·5/3⌉ = 4 more: exactly the four mixed ones of 0 … 7.
        (["++", "+-"], "refill", "1 3 5 7", 2, 8),
        (["+-", "++", "++", "++", "++", "++"], "refill", "0 6", 3, 12),  # after its rounds it has no more
        (["++"], "refill", "", 3, 12),
        (["--"], "drop", "", 1, 4),
    ]
    for script, dynamic, problems, rounds, position in rows:
        kept, spent, stream = run(script, dynamic, rounds=10 if problems == "1 3 5 7" else 3)
        assert " ".join(g.problem.prompt for g in kept) == problems, (script, dynamic)
        assert (spent.rounds, stream.position) == (rounds, position), (script, dynamic)
        assert spent.share == max(len(kept), 1) / position
        assert spent.right is ("+" in "".join(script))
    kept, spent, _ = run(["+!", "+-"], "none", prompts=2)  # a group with a failed verifier is never trained on
    assert ([g.problem.prompt for g in kept], spent.metrics()["reward/error"]) == (["1"], 0.25)


def test_problems_whose_greedy_answer_is_right_are_not_sampled() -> None:
    """The scripted greedy answer is the first: problems 0 and 2 of each four fail it, ? too."""
    kept, spent, stream = run(["-+", "+-", "?+", "!-"], "none", prompts=8, filter="greedy_fails")
    assert [g.problem.prompt for g in kept] == ["0", "2", "4", "6"]
    assert spent.tokens == 8 + 4 * 2  # one greedy answer of one token each, then two samples of four problems
    assert len(spent.rollouts) == 4  # greedy answers enter no metric
    assert (spent.metrics()["reward/accuracy"], stream.position) == (0.5, 8)


def test_the_greedy_filter_refills_and_may_leave_nothing() -> None:
    kept, spent, _ = run(["-+", "+-"], "refill", filter="greedy_fails")
    assert ([g.problem.prompt for g in kept], spent.rounds) == (["0", "2", "4", "6"], 2)
    for dynamic, rounds in ("refill", 3), ("none", 1):
        kept, spent, stream = run(["+-"], dynamic, rounds=3, filter="greedy_fails")
        assert (kept, spent.rounds, stream.position, spent.tokens) == ([], rounds, 4 * rounds, 4 * rounds)
        assert spent.right  # the greedy answers were
        assert not [name for name in spent.metrics() if name.startswith(("reward/", "response/"))]
    assert not run(["!-"], "drop", filter="greedy_fails")[1].right
    task, engine = ScriptedTask(["-+"]), Listening()
    listening = replace(sampler(task), engine=engine)
    select_groups(listening, Stream(task, seed=0), SAMPLING, Selection(2, 2, "none", 1, "greedy_fails"))
    assert engine.temperatures == [0.0, SAMPLING.temperature]  # of the greedy answer, and of the others


class Listening(ScriptedEngine):
    """Notes the temperature, and problem and number of each sample."""

    def __init__(self) -> None:
        self.temperatures, self.asked = list[float](), list[tuple[int, int]]()

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[tuple[Completion, ...]]:
        self.temperatures.append(sampling.temperature)
        self.asked += [(r.key, number) for r in requests for number in range(r.first, r.first + r.num_samples)]
        return super().generate(requests, sampling)


class Partial(ScriptedTask):
    """Graded: 0.6 or 0.2 for answers none of which is right, and 1 or 0.5 for right ones."""

    graded, max_tokens = True, 1

    def reward(self, answers: Sequence[tuple[Problem, str]]) -> list[Reward]:
        values = {"correct": (1.0, 0.5), "wrong": (0.6, 0.2)}
        judged = zip(super().reward(answers), answers, strict=True)
        return [replace(reward, value=values[reward.outcome][int(text) % 2]) for reward, (_, text) in judged]


def test_groups_of_graded_rewards_are_kept_where_the_rewards_differ() -> None:
    """Whether all of a group are right, or none, does not matter: 0.6 and 0.2 differ, and 1 and 0.5."""
    for script in (["--"], ["++"]):
        task = Partial(script)
        kept, _ = select_groups(sampler(task), Stream(task, 0), SAMPLING, Selection(2, 2, "drop", 1))
        assert len(kept) == 2
    alike = Partial(["-"])  # one answer each
    assert select_groups(sampler(alike), Stream(alike, 0), SAMPLING, Selection(2, 1, "drop", 1))[0] == []


def test_problems_are_drawn_by_the_share_of_groups_that_was_kept() -> None:
    task = ScriptedTask(["++", "+-"])  # every odd problem is mixed
    for overdraw, share, position, rounds in (
        (None, 0.5, 8, 2),  # 4, then 4
        (1.0, 0.5, 8, 1),  # 4 / ½
        (1.25, 0.5, 10, 1),  # 1.25 · 4 / ½: five are kept, and four learned from
        (1.0, 1.0, 8, 2),  # nothing is known yet: 4, of which 2 are kept; then ⌈2 · 5/3⌉
        (2.0, 0.01, 32, 1),  # eight times the groups of a step are the most
    ):
        stream, selection = Stream(task, seed=0), Selection(4, 2, "refill", 10, overdraw=overdraw)
        kept, spent = select_groups(sampler(task), stream, SAMPLING, selection, share)
        assert [g.problem.prompt for g in kept] == ["1", "3", "5", "7"]
        assert (stream.position, spent.rounds, spent.share) == (position, rounds, 0.5), (overdraw, share)


@pytest.mark.parametrize(
    ("ranks", "overdraw", "groups"),
    [
        ({}, None, 15),
        ({}, 1.0, 75),  # 5, 5 · 6/1, and the most, 8 · 5
        ({"rank": 0, "world": 2}, None, 9),  # of each five the first rank has three
        ({"rank": 1, "world": 2}, None, 6),
    ],
    ids=["alone", "overdraw", "0 of 2", "1 of 2"],
)
def test_a_problem_drawn_again_has_other_samples(ranks: dict[str, int], overdraw: float | None, groups: int) -> None:
    """Noise is a function of problem and number of the sample. Three problems, five groups, then refills of five."""
    task, engine = ScriptedTask(["--"], size=3), Listening()
    of_both = {"gather": lambda mine: [mine, mine]} if ranks else {}  # another rank's groups do not matter here
    listening = replace(sampler(task, **ranks, **of_both), engine=engine)
    select_groups(listening, Stream(task, seed=0), SAMPLING, Selection(5, 2, "refill", 3, overdraw=overdraw))
    assert len(engine.asked) == len(set(engine.asked)) == 2 * groups


def test_solved_problems_leave_the_order_and_a_resumed_run_draws_the_same() -> None:
    """Of eight answers 8, 7, 6, 4, 0 and, of those that were judged, 3 of 3 are right: at 7/8 three of these six kinds
    leave. There are twelve problems, two of each kind, four steps an epoch."""
    script = ["++++++++", "+++++++-", "++++++--", "++++----", "--------", "+++!!!!!"]
    task, leaving = ScriptedTask(script, size=12), {0, 1, 5, 6, 7, 11}

    def steps(stream: Stream, retire_at: float | None, count: int) -> list[str]:
        selection = Selection(3, 8, "none", 1, retire_at=retire_at)
        seen = list[str]()
        for _ in range(count):
            spent = select_groups(sampler(task), stream, SAMPLING, selection)[1]
            seen.append(" ".join(group.problem.prompt for group in spent.rollouts))
        return seen

    plain, stream = steps(Stream(task, 0), None, 8), Stream(task, 0)
    first = steps(stream, 0.875, 4)
    assert first == plain[:4]  # no problem comes twice in an epoch
    assert stream.retired == {f"train/{i}" for i in leaving}
    resumed = Stream(task, 0, stream.position, set(stream.retired))
    second = [number for number in " ".join(plain[4:]).split() if int(number) not in leaving]
    assert " ".join(steps(stream, 0.875, 2)).split() == second  # the order of the others is kept
    assert " ".join(steps(resumed, 0.875, 2)).split() == second


def test_a_step_without_unsolved_problems_is_empty_and_not_hopeless() -> None:
    task = ScriptedTask(["+"], size=2)
    stream = Stream(task, 0)
    selection = Selection(2, 1, "none", 1, retire_at=1.0)
    first, second = (select_groups(sampler(task), stream, SAMPLING, selection) for _ in range(2))
    assert (len(first[0]), second[0], second[1].right) == (2, [], True)


# --- random and flipped rewards ---


def groups(outcomes: list[Any], count: int = 1) -> list[Rollout]:
    rewards = tuple(Reward(float(o == "correct"), o) for o in outcomes)
    texts = ("",) * len(outcomes)
    return [Rollout(Problem(f"p{i}", ""), np.zeros(1, np.int64), (), texts, rewards) for i in range(count)]


AT = Sampling(max_tokens=1, seed=3, step=7)


def test_random_rewards_are_right_half_of_the_time_whatever_the_answer() -> None:
    for outcome in ("correct", "wrong"):
        changed = with_training_rewards(groups([outcome] * 8, 2000), "random", AT)
        share = np.mean([reward.value for group in changed for reward in group.rewards])
        assert share == pytest.approx(0.5, abs=4 * 0.5 / np.sqrt(16000))
        assert all(reward.correct == (reward.value == 1) for group in changed for reward in group.rewards)


def test_they_are_a_function_of_seed_step_problem_and_sample() -> None:
    def values(**other: int) -> list[float]:
        sampling = Sampling(**{"max_tokens": 1, "seed": 3, "step": 7, **other})
        changed = with_training_rewards(groups(["wrong"] * 4, 50), "random", sampling)
        return [reward.value for group in changed for reward in group.rewards]

    assert values() == values()
    assert values() != values(step=8)
    assert values() != values(seed=4)
    (alone,) = with_training_rewards(groups(["wrong"] * 4, 50)[-1:], "random", AT)
    assert [r.value for r in alone.rewards] == values()[-4:]  # they do not depend on the batch


def test_flipped_rewards_are_one_minus_the_true_ones_and_a_failed_verifier_stays_failed() -> None:
    (changed,) = with_training_rewards(groups(["correct", "wrong", "unparsable"]), "flipped", AT)
    assert [(r.value, r.outcome) for r in changed.rewards] == [(0, "wrong"), (1, "correct"), (1, "correct")]
    for kind in ("random", "flipped"):
        (changed,) = with_training_rewards(groups(["error"]), kind, AT)
        assert changed.rewards[0].outcome == "error"
    original = groups(["correct", "wrong"])
    assert with_training_rewards(original, None, AT) == original


SUMS = Sums(test_problems=1, seed=0, level=1, test_levels=None, template="{problem}", max_tokens=8)


@pytest.mark.parametrize(
    ("answers", "rewards"),
    [
        (["7", "12", "12", "7", "12"], [0, 1, 1, 0, 1]),
        (["7", "12", "12", "7", "9"], [1, 0, 0, 1, 0]),  # of two that are as frequent the first
        (["", "", "12", "", ""], [0, 0, 1, 0, 0]),  # no answer has no vote
        (["", ""], [0, 0]),
    ],
)
@pytest.mark.parametrize("right", ["7", "12"])
def test_a_majority_is_rewarded_whether_or_not_it_is_right(answers: list[str], rewards: list[int], right: str) -> None:
    outcomes = ["correct" if answer == right else "wrong" if answer else "unparsable" for answer in answers]
    (group,) = groups([*outcomes, "error"])
    problem = Problem("p0", "", answer=[int(right), "3 + 4"])
    group = replace(group, problem=problem, texts=(*(answer and f"99 less 87 is {answer}" for answer in answers), "12"))
    (changed,) = with_training_rewards([group], "majority", AT, SUMS)
    assert [r.value for r in changed.rewards[:-1]] == rewards
    assert [r.correct for r in changed.rewards[:-1]] == [bool(value) for value in rewards]
    assert changed.rewards[-1].outcome == "error"
