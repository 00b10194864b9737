"""What the base policy solves already, found before training, and the two streams made of it (DPH-RL,
arXiv:2509.07430): hard prompts to explore, easy ones whose answers are rehearsed."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from hydra.utils import instantiate
from numpy.typing import NDArray
from omegaconf import DictConfig, OmegaConf
from torch import Tensor
from torch.nn import functional

from rlvr.batch import Batch
from rlvr.collate import collate
from rlvr.collect import Sampler, Spent, Stream
from rlvr.records import Completion, Problem, Reward, Rollout, Sampling, Split, Task
from rlvr.stage import base_identity, presample_identity, presample_settings, presampled_problems, stage

log = logging.getLogger("rlvr")

NOISE_STREAM = 1 << 33  # neither that of training nor that of evaluation
CHUNK = 256  # problems sampled at once
FILE = "problems.parquet"
EXPLORE, REHEARSE = 0, 1  # Batch.kind

SCHEMA = pa.schema([
    ("problem_id", pa.string()), ("judged", pa.int64()), ("correct", pa.int64()),  # of n responses
    # One correct response, the first of n: a fair draw from the base policy among its correct ones. Null if none.
    ("prompt", pa.list_(pa.int64())), ("tokens", pa.list_(pa.int64())),
    ("logp", pa.list_(pa.float32())),  # nats, of each token under the base policy
])  # fmt: skip


def samples(config: DictConfig, sampler: Sampler, base: Path, store: Path, *, max_tokens: int) -> Samples | None:
    """The stage of a run whose loss brings `presample` along, built if need be, else None. `config`: the frozen one.

    sampler: its engine still holds the base policy, of directory `base`. store: where stages are kept.
    """
    if config.get("presample") is None:
        return None
    knobs: Presample = instantiate(config.presample, _convert_="all")
    plain = OmegaConf.to_container(config)
    assert isinstance(plain, dict)
    settings = presample_settings({str(k): v for k, v in plain.items()})
    return knobs.open(sampler, store, base=base, max_tokens=max_tokens, settings=settings)


@dataclass(frozen=True)
class Presample:
    """The knobs of conf/presample/. What decides the samples makes the stage; threshold, drop_unsolved and ratio are
    applied to it afterwards, so that arms that differ in them share it."""

    samples: int  # responses per problem, n
    problems: int | None  # the first so many of the train split; null: all, or stage.ENDLESS of one that never ends
    temperature: float  # as in training, or u = π/π_ref does not start at 1
    top_p: float
    seed: int  # of the samples: not the seed of a run, so that all runs share one split
    threshold: int  # correct responses of n that make a prompt near-perfect: D_pef
    drop_unsolved: bool  # leave out prompts without a correct response, which else belong to D_exp
    ratio: float  # explored responses per rehearsed one

    def __post_init__(self) -> None:
        if not 1 <= self.threshold <= self.samples:
            raise ValueError(
                f"presample.threshold={self.threshold} of presample.samples={self.samples} responses: pass a threshold "
                f"of 1 to {self.samples}."
            )
        if self.problems is not None and self.problems < 2:
            raise ValueError(f"presample.problems={self.problems}: two streams are made of at least 2 problems.")
        if not self.ratio > 0:
            raise ValueError(f"presample.ratio={self.ratio} must be above 0: explored responses per rehearsed one.")

    def open(
        self, sampler: Sampler, store: Path, *, base: Path, max_tokens: int, settings: Mapping[str, Any]
    ) -> Samples:
        """The stage's samples, built first if need be. `sampler`: its engine still holds the base policy.

        base: directory of the base policy. settings: whatever else decides the samples (task, engine), as JSON.
        One process builds, with its own engine alone, while the other ranks and runs wait for the lock.
        """
        problems = presampled_problems(sampler.task, self.problems)
        sampling = Sampling(max_tokens, self.seed + NOISE_STREAM, 0, self.temperature, self.top_p)
        identity = presample_identity(problems, base_identity(base, store), settings, max_tokens, vars(self))
        alone = Sampler(sampler.task, sampler.engine, sampler.encode, sampler.decode)

        def build(directory: Path) -> dict[str, Any]:
            rows: list[dict[str, Any]] = []
            for first in range(0, len(problems), CHUNK):
                groups = alone(problems[first : first + CHUNK], self.samples, sampling, Spent())
                rows += map(_row, groups)
                log.info("pre-sampling: %d/%d problems", len(rows), len(problems))
            pq.write_table(pa.Table.from_pylist(rows, SCHEMA), directory / FILE, compression="zstd")
            return {"problems": len(rows), "correct": sum(r["correct"] for r in rows) / (len(rows) * self.samples)}

        directory = stage(store, identity, build)
        return Samples(self, sampler.task, problems, pq.read_table(directory / FILE).to_pylist(), directory.name)


def _row(group: Rollout) -> dict[str, Any]:
    found = next((c for c, r in zip(group.completions, group.rewards, strict=True) if r.correct), None)
    return {
        "problem_id": group.problem.id,
        "judged": sum(r.outcome != "error" for r in group.rewards),
        "correct": sum(r.correct for r in group.rewards),
        "prompt": None if found is None else group.prompt.tolist(),
        "tokens": None if found is None else found.tokens.tolist(),
        "logp": None if found is None else found.logp.tolist(),
    }


@dataclass(frozen=True)
class Samples:
    """The stage's outcome for each problem: `rows` as in SCHEMA, in the order of `problems`."""

    knobs: Presample
    task: Task
    problems: Sequence[Problem]
    rows: Sequence[Mapping[str, Any]]
    stage_id: str

    def mixture(self, *, seed: int, rows: int, updates: int, pad_token_id: int) -> Mixture:
        """Split the problems. seed: of the run. rows: explored responses per step, in `updates` mini-batches."""
        correct = np.array([row["correct"] for row in self.rows])
        easy = correct >= self.knobs.threshold
        hard = ~easy & ((correct > 0) | (not self.knobs.drop_unsolved))
        told = (
            f"Of {len(correct)} pre-sampled problems {easy.sum()} had {self.knobs.threshold} or more correct responses "
            f"of {self.knobs.samples}, {(correct == 0).sum()} had none, {hard.sum()} are left to explore"
        )
        if not easy.any() or not hard.any():
            remedy = "Lower" if not easy.any() else "Raise"
            raise ValueError(f"{told}: both streams need some. {remedy} presample.threshold, or take other problems.")
        num_rehearsed = round(rows / self.knobs.ratio)
        if num_rehearsed < updates:
            raise ValueError(
                f"presample.ratio={self.knobs.ratio:g} leaves {num_rehearsed} rehearsed responses beside {rows} "
                f"explored ones for trainer.updates={updates} mini-batches: pass presample.ratio={rows / updates:g} "
                "or less."
            )
        log.info("%s.", told)
        kept = {self.problems[i].id: _stored(self.problems[i], self.rows[i]) for i in np.flatnonzero(easy).tolist()}
        explored, rehearsed = (Subset(self.task, np.flatnonzero(chosen)) for chosen in (hard, easy))
        return Mixture(explored, Stream(rehearsed, seed), kept, num_rehearsed, pad_token_id)


def _stored(problem: Problem, row: Mapping[str, Any]) -> Rollout:
    logp = np.asarray(row["logp"], np.float32)
    completion = Completion(np.asarray(row["tokens"], np.int64), logp, logp, finished=True)
    reward = Reward(1.0, "correct")
    return Rollout(problem, np.asarray(row["prompt"], np.int64), (completion,), ("",), (reward,))


class Subset:
    """A task of which only some training problems are left, renumbered."""

    def __init__(self, task: Task, indices: NDArray[np.int64]) -> None:
        self.name, self._task, self.indices = task.name, task, indices

    def size(self, split: Split) -> int | None:
        return len(self.indices) if split == "train" else self._task.size(split)

    def problem(self, split: Split, index: int) -> Problem:
        return self._task.problem(split, int(self.indices[index]) if split == "train" else index)

    def reward(self, answers: Sequence[tuple[Problem, str]]) -> list[Reward]:
        return self._task.reward(answers)

    def close(self) -> None:
        self._task.close()


@dataclass(frozen=True)
class Mixture:
    """D_exp, to be explored, and D_pef's stored responses, of which every step rehearses `num_rehearsed`."""

    explored: Subset
    stream: Stream  # of D_pef
    kept: Mapping[str, Rollout]  # problem id → its one stored response
    num_rehearsed: int
    pad_token_id: int

    def add(self, batch: Batch, step: int) -> Batch:
        """The batch of a training step (1, 2, …) with its rehearsed responses: a function of seed and step alone."""
        drawn = replace(self.stream, position=(step - 1) * self.num_rehearsed).draw(self.num_rehearsed)
        rehearsed = collate([self.kept[p.id] for p in drawn], _no_advantage, pad_token_id=self.pad_token_id)
        return mix(batch, rehearsed)


def _no_advantage(reward: Tensor, group: Tensor) -> Tensor:  # noqa: ARG001 - the signature of an advantage
    return torch.zeros_like(reward)


def mix(explore: Batch, rehearse: Batch) -> Batch:
    """One batch of both: kind 0 and 1, groups of the second spread evenly among those of the first.

    Mini-batches are runs of groups, so an even spread gives each its share of both. A field that only one of them has
    is 0 on the rows of the other.
    """
    P, R = explore.num_groups, rehearse.num_groups
    spread = (torch.arange(R) * 2 + 1) * (P + R) // (2 * R)  # places of the second's groups
    others = torch.ones(P + R, dtype=torch.bool)
    others[spread] = False
    place = torch.cat([others.nonzero()[:, 0], spread])  # [P + R] new number of each group, first's before second's
    group = torch.cat([place[explore.group], place[P + rehearse.group]])
    rows, groups = group.argsort(stable=True), place.argsort()
    kinds = [torch.full_like(b.group, kind) for b, kind in ((explore, EXPLORE), (rehearse, REHEARSE))]
    given = {"group": group, "kind": torch.cat(kinds)}
    mixed: dict[str, Any] = {}
    for name in (f.name for f in fields(Batch)):
        whole = given.get(name)
        if whole is None:
            whole = _joined(getattr(explore, name), getattr(rehearse, name), explore, rehearse, name)
        mixed[name] = None if whole is None else whole[groups if name.startswith("prompt") else rows]
    return Batch(**mixed)


def _joined(first: Tensor | None, second: Tensor | None, explore: Batch, rehearse: Batch, name: str) -> Tensor | None:
    """Rows of the first, then of the second, padded to one width: prompts at the left, responses at the right."""
    like = first if first is not None else second
    if like is None:
        return None
    dims = max(x.dim() for x in (first, second) if x is not None)
    parts: list[Tensor] = []
    for part, batch in ((first, explore), (second, rehearse)):
        filled = like.new_zeros(len(batch.group)) if part is None else part
        if dims == 2 and filled.dim() == 1:
            filled = filled[:, None].expand(-1, batch.mask.shape[1])
        parts.append(filled)
    if dims == 1:
        return torch.cat(parts)
    width = max(p.shape[1] for p in parts)
    left = name.startswith("prompt")
    gaps = [width - p.shape[1] for p in parts]
    return torch.cat([functional.pad(p, (g, 0) if left else (0, g)) for p, g in zip(parts, gaps, strict=True)])
