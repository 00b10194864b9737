"""Answers of the base policy, sampled before training (DPH-RL, arXiv:2509.07430)."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import pyarrow.parquet as pq
from annotated_types import Interval
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt

from rlvr.ledger.stages import AT_ONCE, base_identity, presample_identity, presampled_problems, stage, stage_id
from rlvr.records import Problem, Rollout, Sampling, Task
from rlvr.rollout.node import broadcast_number
from rlvr.rollout.sampler import RolloutCost, Sampler

log = logging.getLogger("rlvr")

NOISE_STREAM = 1 << 33  # differs from the streams of training and evaluation
BUILD, DONE = 1, 0  # what the first rank sends to the others: sample with me, or the stage is complete
FILE = "problems.parquet"

SCHEMA = pa.schema(
    [
        ("problem_id", pa.string()),
        ("judged", pa.int64()),
        ("correct", pa.int64()),  # of n responses
        # One correct response, the first of n: a fair draw from the base policy's correct ones. Null if there is none.
        ("prompt", pa.list_(pa.int64())),
        ("tokens", pa.list_(pa.int64())),
        ("logp", pa.list_(pa.float32())),  # nats, of each token under the base policy
    ]
)


@dataclass(frozen=True)
class Presample:
    """The knobs of conf/presample/. Knobs that determine the samples identify the stage; threshold, drop_unsolved and
    ratio are applied to it afterwards, so that arms that differ in these share the stage.
    """

    samples: PositiveInt  # responses per problem, n
    # number of problems from the start of the train split; null: all, or stage.ENDLESS of an endless one
    problems: PositiveInt | None
    temperature: PositiveFloat  # where it is not that of training, the trainer computes the log-probabilities anew
    top_p: Annotated[float, Interval(gt=0, le=1)]
    seed: NonNegativeInt  # not the seed of a run, so that all runs share the samples
    threshold: PositiveInt  # number of correct responses of n from which a prompt is near-perfect: D_pef
    drop_unsolved: bool  # leave out prompts without a correct response, which otherwise belong to D_exp
    ratio: PositiveFloat  # explored responses per rehearsed one

    def open(
        self, sampler: Sampler, store: Path, *, base: Path, max_tokens: int, settings: Mapping[str, Any]
    ) -> Samples:
        """The stage's samples, built first if necessary. sampler: its engine still holds the base policy.

        base: directory of the base policy. settings: everything else that determines the samples (task, engine), as
        JSON. Called by all ranks together: the first takes the stage's lock and signals the others to sample with
        it, as all engines share the problems; other runs wait. Samples do not depend on the number of engines.
        """
        problems = presampled_problems(sampler.task, self.problems)
        sampling = Sampling(max_tokens, self.seed + NOISE_STREAM, 0, self.temperature, self.top_p)
        identity = presample_identity(problems, base_identity(base, store), settings, max_tokens, vars(self))

        def sample_all() -> list[dict[str, Any]]:
            rows: list[dict[str, Any]] = []
            chunk = AT_ONCE * sampler.engines
            for first in range(0, len(problems), chunk):
                rows += map(_row, sampler(problems[first : first + chunk], self.samples, sampling, RolloutCost()))
                log.info("pre-sampling: %d/%d problems", len(rows), len(problems))
            return rows

        def build(directory: Path) -> dict[str, Any]:
            broadcast_number(BUILD)
            rows = sample_all()
            pq.write_table(pa.Table.from_pylist(rows, SCHEMA), directory / FILE, compression="zstd")
            return {"problems": len(rows), "correct": sum(r["correct"] for r in rows) / (len(rows) * self.samples)}

        if sampler.rank == 0:
            stage(store, identity, build)
            broadcast_number(DONE)
        else:
            while broadcast_number(DONE) == BUILD:
                sample_all()
        directory = store / stage_id(identity)
        return Samples(self, sampler.task, problems, pq.read_table(directory / FILE).to_pylist(), directory.name)


def _row(group: Rollout) -> dict[str, Any]:
    correct = [c for c, r in zip(group.completions, group.rewards, strict=True) if r.correct]
    kept = correct[0] if correct else None
    judged, right = sum(r.outcome != "error" for r in group.rewards), sum(r.correct for r in group.rewards)
    arrays = (None, None, None) if kept is None else (group.prompt, kept.tokens, kept.logp)
    prompt, tokens, logp = (None if array is None else array.tolist() for array in arrays)
    counted = {"problem_id": group.problem.id, "judged": judged, "correct": right}
    return {**counted, "prompt": prompt, "tokens": tokens, "logp": logp}


@dataclass(frozen=True)
class Samples:
    """The stage's contents: `rows` as in SCHEMA, in the order of `problems`."""

    knobs: Presample
    task: Task
    problems: Sequence[Problem]
    rows: Sequence[Mapping[str, Any]]
    stage_id: str
