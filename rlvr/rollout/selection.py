"""Which groups a training step learns from, and with which rewards: a filter, dynamic sampling, controls."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from omegaconf import DictConfig

from rlvr.noise import uniform
from rlvr.records import Problem, Reward, Rollout, Sampling, Task
from rlvr.rollout.evaluation import vote_of
from rlvr.rollout.sampler import RolloutCost, Sampler, noise_key
from rlvr.rollout.stream import Stream

NOISE_STREAM = 1 << 34  # of random rewards: differs from those of sampling, evaluation and pre-sampling
_NO_VOTE = ("error", "unparsable")  # outcomes of responses that count for no majority
MOST = 8  # at most this many times the groups of a step are drawn at once, however small the share kept


@dataclass(frozen=True)
class Selection:
    """Knobs of conf/rollout/."""

    prompts: int  # groups of a step, P
    samples: int  # responses of a group, G
    dynamic: str  # rollout.dynamic_sampling: none | drop | refill
    max_rounds: int  # of generation, under refill
    filter: str = "none"  # | greedy_fails
    # factor on the number of problems that the share kept requires, under refill; None: draw P at first, and never more
    # than P at once
    overdraw: float | None = None
    reward: str | None = None  # random | flipped | majority: rewards learned from in place of the verifier's
    retire_at: float | None = None  # a problem of whose responses this share is right is not drawn again; None: never
    task: Task | None = None  # which reads the answers of a majority

    @classmethod
    def of(cls, rollout: DictConfig, task: Task | None = None) -> Selection:
        """From the `rollout` group of a run's config."""
        knobs = ("prompts", "samples", "dynamic_sampling", "max_rounds", "filter", "overdraw", "reward", "retire_at")
        return cls(*(rollout[knob] for knob in knobs), task=task)

    def learned(self, groups: Sequence[Rollout], sampling: Sampling) -> list[Rollout]:
        """The groups with the rewards that the step learns from."""
        return with_training_rewards(groups, self.reward, sampling, self.task)

    def usable(self, group: Rollout, sampling: Sampling) -> bool:
        """Whether a step can learn from the group."""
        (learned,) = self.learned([group], sampling)
        if any(reward.outcome == "error" for reward in learned.rewards):
            return False
        return self.dynamic == "none" or len({reward.value for reward in learned.rewards}) > 1

    def retired(self, groups: Sequence[Rollout], sampling: Sampling) -> set[str]:
        """The problems that leave the order (ScaleRL's no-positive-resampling, arXiv:2510.13786; here by the newest
        group alone), by the rewards that are learned from."""
        if self.retire_at is None:
            return set()
        learned = self.learned(groups, sampling)
        judged = {g.problem.id: [r.correct for r in g.rewards if r.outcome != "error"] for g in learned}
        return {i for i, right in judged.items() if right and sum(right) / len(right) >= self.retire_at}

    @property
    def max_groups(self) -> int:
        """The largest number of groups that a step draws where they are drawn one after the other."""
        return self.prompts * (self.max_rounds if self.dynamic == "refill" else 1)


def select_groups(
    sampler: Sampler, stream: Stream, sampling: Sampling, selection: Selection, share: float = 1.0
) -> tuple[list[Rollout], RolloutCost]:
    """The groups to train on in one step: `prompts` of them; fewer, perhaps none, under `dynamic="drop"`, under a
    filter without refill, or where `max_rounds` rounds of refill did not yield enough.

    share: of the problems of the step before, the share whose groups were kept. With `overdraw` c the first round
    has c·P/share problems, and each later round c times the missing number over the share so far: almost always one
    round, with one tail of long responses. The step ends with its P-th usable group, in the order drawn: later
    groups are stopped where the engine can stop, are not learned from and enter no metric.

    Dynamic sampling (DAPO, arXiv:2503.14476, section 3.2) keeps the groups whose rewards are not all equal; "refill"
    draws further problems until there are `prompts` groups. Groups with a failed verifier are never kept.
    filter: "greedy_fails" samples only problems whose greedy answer is wrong (SELF), for one more response per problem.
    """

    def usable(group: Rollout) -> bool:
        return selection.usable(group, sampling)

    spent, kept = RolloutCost(), list[Rollout]()
    times_sampled = Counter[str]()  # by problem
    wanted, drawn = _first_draw(selection, share), 0
    while True:
        problems = stream.draw(wanted)
        drawn += wanted
        spent.filter_saw_right |= len(problems) < wanted  # all others were solved
        if selection.filter == "greedy_fails":
            problems = _greedy_fails(sampler, problems, sampling, spent)
        first = _first_samples(problems, selection.samples, times_sampled)
        if selection.overdraw is None or selection.dynamic != "refill":
            groups = sampler(problems, selection.samples, sampling, spent, first)
        else:
            missing = selection.prompts - len(kept)
            groups = sampler.first_usable(
                problems, selection.samples, sampling, spent, first, wanted=missing, usable=usable
            )
            if len(groups) < len(problems):  # the share is that of the problems up to the last group needed
                drawn -= wanted - math.ceil(wanted * len(groups) / len(problems))
        kept += selection.learned([group for group in groups if usable(group)], sampling)
        stream.retired |= selection.retired(groups, sampling)
        if selection.dynamic != "refill" or len(kept) >= selection.prompts or spent.rounds == selection.max_rounds:
            break
        wanted = _further_draw(selection, len(kept), drawn)
    spent.share = max(len(kept), 1) / drawn
    return kept[: selection.prompts], spent


def _first_draw(selection: Selection, share: float) -> int:
    if selection.overdraw is None or selection.dynamic != "refill":
        return selection.prompts
    return min(math.ceil(selection.overdraw * selection.prompts / share), MOST * selection.prompts)


def _further_draw(selection: Selection, num_kept: int, num_drawn: int) -> int:
    """The share kept so far predicts how many to draw: fewer, larger rounds."""
    missing = selection.prompts - num_kept
    estimate = math.ceil((selection.overdraw or 1.0) * missing * (num_drawn + 1) / (num_kept + 1))
    return min(estimate, (MOST if selection.overdraw else 1) * selection.prompts)


def _first_samples(problems: Sequence[Problem], samples: int, times_sampled: Counter[str]) -> list[int]:
    """Number of the first sample of each group. times_sampled: in this step so far, by problem; it is brought up to
    date. On few problems a step draws one several times, and samples of the same number would have the same noise.
    """
    first = list[int]()
    for problem in problems:
        first.append(samples * times_sampled[problem.id])
        times_sampled[problem.id] += 1
    return first


def _greedy_fails(
    sampler: Sampler, problems: Sequence[Problem], sampling: Sampling, spent: RolloutCost
) -> list[Problem]:
    """The problems whose most likely answer, token by token, is wrong. The answers enter no metric but their cost."""
    greedy = RolloutCost()
    groups = sampler(problems, 1, replace(sampling, temperature=0.0, top_p=1.0), greedy)
    spent.rollout_s += greedy.rollout_s
    spent.reward_s += greedy.reward_s
    spent.tokens += greedy.tokens
    spent.filter_saw_right |= greedy.right
    return [g.problem for g in groups if g.rewards[0].outcome not in ("correct", "error")]


# --- other rewards than the verifier's, the controls of an ablation: `rollout.reward=random|flipped|majority` ---
# An objective that gains from them gains from something other than their content (Spurious Rewards, arXiv:2506.10947),
# or from what the policy agrees on by itself (majority: TTRL, arXiv:2504.16084).
# The logged accuracy and every evaluation use the true rewards.


def with_training_rewards(
    groups: Sequence[Rollout], kind: str | None, sampling: Sampling, task: Task | None = None
) -> list[Rollout]:
    """The groups with the rewards that the step learns from. kind: None: the true rewards; random: right with
    probability ½, a function of (seed, step, problem, sample); flipped: 1 − reward; majority: whether a response gives
    the group's most frequent answer, as `task` reads it without the right one (of several the first; without any, no
    response is right). A sample that the verifier failed to judge keeps its outcome.
    """
    return list(groups) if kind is None else [_with_spurious_rewards(group, kind, sampling, task) for group in groups]


def _with_spurious_rewards(group: Rollout, kind: str, sampling: Sampling, task: Task | None) -> Rollout:
    G = len(group.rewards)
    if kind == "random":
        keys = [noise_key(group.problem)] * G
        is_right = uniform(sampling.seed + NOISE_STREAM, sampling.step, keys, range(G), 0, 1)[:, 0] < 0.5
    elif kind == "majority":
        read = zip(group.texts, group.rewards, strict=True)
        votes = [None if r.outcome in _NO_VOTE else vote_of(task, group.problem, text) for text, r in read]
        ((most, _),) = Counter(vote for vote in votes if vote is not None).most_common(1) or ((None, 0),)
        is_right = [vote is not None and vote == most for vote in votes]
    else:
        is_right = [not reward.correct for reward in group.rewards]
    values = [1 - reward.value for reward in group.rewards] if kind == "flipped" else map(float, is_right)
    rewards = [
        reward if reward.outcome == "error" else Reward(value, "correct" if right else "wrong")
        for reward, value, right in zip(group.rewards, values, is_right, strict=True)
    ]
    return replace(group, rewards=tuple(rewards))
