"""Problems → rollouts: the data stream, generation, rewards, and dynamic sampling. The same for any engine."""

from __future__ import annotations

import hashlib
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from rlvr.records import Engine, Problem, Request, Rollout, Sampling, Task

OUTCOMES = ("wrong", "unparsable", "unevaluated", "timeout", "error")


class NothingToLearn(ValueError):
    """Every group of every generation round was all right or all wrong."""


@dataclass
class Stream:
    """Training problems in an order fixed by the seed: arms of an ablation see the same ones in the same order.

    A finite data set is shuffled anew each epoch; an infinite one is read in order. `position` counts problems drawn.
    """

    task: Task
    seed: int
    position: int = 0

    def draw(self, count: int) -> list[Problem]:
        drawn = [self.task.problem("train", self._index(self.position + i)) for i in range(count)]
        self.position += count
        return drawn

    def _index(self, position: int) -> int:
        size = self.task.size("train")
        if size is None:
            return position
        epoch, offset = divmod(position, size)
        return int(_permutation(size, self.seed, epoch)[offset])


_permutations: dict[tuple[int, int, int], NDArray[np.int64]] = {}


def _permutation(size: int, seed: int, epoch: int) -> NDArray[np.int64]:
    key = (size, seed, epoch)
    if key not in _permutations:
        _permutations.clear()  # one epoch at a time
        _permutations[key] = np.random.Generator(np.random.Philox(key=[seed, epoch])).permutation(size)
    return _permutations[key]


def noise_key(problem: Problem) -> int:
    """63 bits that name a problem, the same in every process."""
    return int.from_bytes(hashlib.blake2b(problem.id.encode(), digest_size=8).digest(), "little") >> 1


@dataclass
class Spent:
    """What one step's rollouts cost and held, over all generation rounds. Seconds are this process's own."""

    rollout_s: float = 0.0
    reward_s: float = 0.0
    tokens: int = 0
    rounds: int = 0
    rollouts: list[Rollout] = field(default_factory=list[Rollout])  # all that were generated, kept or not

    @property
    def accuracy(self) -> float:
        scored = [r for g in self.rollouts for r in g.rewards if r.outcome != "error"]
        return float(np.mean([r.correct for r in scored])) if scored else math.nan

    def metrics(self) -> dict[str, float]:
        """Over everything generated: the policy's own average, before dynamic sampling chose."""
        rewards = [r for g in self.rollouts for r in g.rewards]
        scored = [r for r in rewards if r.outcome != "error"]
        completions = [c for g in self.rollouts for c in g.completions]
        outcomes = Counter(r.outcome for r in rewards)
        return {
            "reward/mean": float(np.mean([r.value for r in scored])) if scored else math.nan,
            "reward/accuracy": self.accuracy,
            "reward/solved_fraction": float(np.mean([any(r.correct for r in g.rewards) for g in self.rollouts])),
            **{f"reward/{o}": outcomes[o] / len(rewards) for o in OUTCOMES},
            "response/length": float(np.mean([len(c.tokens) for c in completions])),
            "response/finished": float(np.mean([c.finished for c in completions])),
            "time/rollout_s": self.rollout_s,
            "time/reward_s": self.reward_s,
            "tokens/rollout": float(self.tokens),
            "rollout/rounds": float(self.rounds),
            "throughput/rollout_tokens_per_s": self.tokens / max(self.rollout_s, 1e-9),
        }


def throughput(step: Mapping[str, float], *, world: int) -> dict[str, float]:
    """Tokens per second of a step, by its tokens and seconds."""
    tokens = max(step["tokens/rollout"], 1.0)
    return {
        "throughput/train_tokens_per_s": step["tokens/train"] / step["time/train_s"],
        "throughput/tokens_per_s": tokens / step["time/step_s"],
        "throughput/gpu_s_per_token": world * step["time/step_s"] / tokens,
    }


@dataclass(frozen=True)
class Sampler:
    """Generates and judges groups. With several ranks each takes every world-th problem and all get all groups."""

    task: Task
    engine: Engine
    encode: Callable[[Sequence[Problem]], list[NDArray[np.int64]]]
    decode: Callable[[Sequence[NDArray[np.int64]]], list[str]]
    rank: int = 0
    world: int = 1
    gather: Callable[[list[Rollout]], list[list[Rollout]]] = lambda mine: [mine]

    def __call__(self, problems: Sequence[Problem], samples: int, sampling: Sampling, spent: Spent) -> list[Rollout]:
        """Groups in the order of `problems`, the same on every rank."""
        mine = problems[self.rank :: self.world]
        began = time.perf_counter()
        prompts = self.encode(mine)
        requests = [Request(p, samples, noise_key(q)) for p, q in zip(prompts, mine, strict=True)]
        groups = self.engine.generate(requests, sampling) if requests else []
        texts = [self.decode([c.tokens for c in group]) for group in groups]
        generated = time.perf_counter()
        flat = self.task.reward([(q, t) for q, ts in zip(mine, texts, strict=True) for t in ts])
        judged = time.perf_counter()
        rewards = [tuple(flat[i * samples : (i + 1) * samples]) for i in range(len(mine))]
        own = [Rollout(*parts) for parts in zip(mine, prompts, groups, map(tuple, texts), rewards, strict=True)]
        per_rank = self.gather(own)
        together = [per_rank[i % self.world][i // self.world] for i in range(len(problems))]
        spent.rollout_s += generated - began
        spent.reward_s += judged - generated
        spent.tokens += sum(len(c.tokens) for g in together for c in g.completions)
        spent.rounds += 1
        spent.rollouts += together
        return together


def collect(
    sampler: Sampler,
    stream: Stream,
    sampling: Sampling,
    *,
    prompts: int,
    samples: int,
    dynamic: str,
    max_rounds: int,
    filter: str = "none",
) -> tuple[list[Rollout], Spent]:
    """The groups to train on in one step: `prompts` of them, fewer under `dynamic="drop"` or a filter without refill.

    Dynamic sampling (DAPO, arXiv:2503.14476, section 3.2) keeps the groups whose accuracy is neither 0 nor 1;
    "refill" draws further problems until `prompts` groups are found. Groups with a failed verifier are never kept.
    filter: "greedy_fails" samples only problems whose greedy answer is wrong (SELF); it costs one response more a
    problem. Raises NothingToLearn after `max_rounds` rounds of refill, or if nothing is left.
    """
    spent, kept = Spent(), list[Rollout]()
    drawn = 0
    while True:
        # The share kept so far tells how many to draw: fewer, larger rounds.
        wanted = prompts if not drawn else math.ceil((prompts - len(kept)) * (drawn + 1) / (len(kept) + 1))
        wanted = min(wanted, prompts)
        problems = stream.draw(wanted)
        if filter == "greedy_fails":
            problems = _greedy_fails(sampler, problems, sampling, spent)
        kept += [g for g in sampler(problems, samples, sampling, spent) if _usable(g, dynamic)]
        drawn += wanted
        if dynamic != "refill" or len(kept) >= prompts:
            break
        if spent.rounds == max_rounds:
            raise NothingToLearn(
                f"{max_rounds} generation rounds gave {len(kept)} of {prompts} groups with right and wrong answers "
                f"(accuracy {spent.accuracy:.3f}): the problems are too easy or too hard for this "
                "policy. Pass rollout.dynamic_sampling=drop, more rollout.samples, or other problems."
            )
    if not kept:
        raise NothingToLearn(
            f"none of {drawn} groups can be trained on (accuracy {spent.accuracy:.3f}, rollout.filter={filter}). "
            "Pass more rollout.prompts or rollout.samples, rollout.dynamic_sampling=refill, or other problems."
        )
    return kept[:prompts], spent


def _greedy_fails(sampler: Sampler, problems: Sequence[Problem], sampling: Sampling, spent: Spent) -> list[Problem]:
    """The problems whose most likely answer, token by token, is wrong. Time and tokens count as the step's own; the
    answers are not samples of the policy and enter no metric."""
    greedy = Spent()
    groups = sampler(problems, 1, replace(sampling, temperature=0.0, top_p=1.0), greedy)
    spent.rollout_s += greedy.rollout_s
    spent.reward_s += greedy.reward_s
    spent.tokens += greedy.tokens
    return [g.problem for g in groups if g.rewards[0].outcome not in ("correct", "error")]


def _usable(group: Rollout, dynamic: str) -> bool:
    if any(r.outcome == "error" for r in group.rewards):
        return False
    return dynamic == "none" or 0 < sum(r.correct for r in group.rewards) < len(group.rewards)
