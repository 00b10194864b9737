"""One evaluation: every sample that its sample set lacks is drawn, then all are read, counted and put in order.

What is drawn depends neither on how often the work was interrupted nor on how many ranks share it: sample i of a
problem has noise of its own, and each rank takes every world-th chunk of what is missing.
"""

from __future__ import annotations

import logging
import math
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from omegaconf import DictConfig, OmegaConf

from rlvr.job.log import brief
from rlvr.job.parts import Parts
from rlvr.ledger import layout
from rlvr.ledger.attempt import Attempt, StopFlag
from rlvr.ledger.cause import Cause
from rlvr.ledger.identity import of_engine, of_task
from rlvr.ledger.journal import JournalWriter
from rlvr.ledger.sample_sets import SampleSet, Wanted, key_of, set_id, write_ordered
from rlvr.ledger.samples import sample_rows
from rlvr.ledger.stages import record_stages
from rlvr.metrics import EVALUATION, accuracy
from rlvr.records import ArmedTask, Rollout, Sampling
from rlvr.rollout.evaluation import NOISE_STREAM, Answers, answer_of, held_out, measured, voted
from rlvr.trainer import distributed

log = logging.getLogger("rlvr")

STEP = 1  # an evaluation is a run of one step; which one of training it looks at, its policy says


class Evaluation:
    """A run whose config names a policy: it samples and trains nothing."""

    def __init__(
        self, config: DictConfig, run_dir: Path, attempt: Attempt | None, journal: JournalWriter | None
    ) -> None:
        """attempt, journal: of the first rank alone."""
        self.config, self.dir, self.attempt, self.journal = config, run_dir, attempt, journal
        self._heartbeat(0, 0)
        alive = (lambda: None) if attempt is None else attempt.alive
        self.parts = parts = Parts(config, layout.stages_beside(run_dir), alive)
        if isinstance(parts.task, ArmedTask):
            raise ValueError("task=bandit: its policy is read off, not sampled; `runs/RUN/samples` of training has it.")
        if attempt is not None:
            record_stages(run_dir, parts.stages)
        self.problems = held_out(parts.task, config.evaluation.problems)
        self.keys = [key_of(problem) for problem in self.problems]
        wanted = config.evaluation
        self.sampling = Sampling(
            parts.place.max_tokens, config.seed + NOISE_STREAM, 0, wanted.temperature, wanted.top_p
        )
        identity = self._identity()
        self.samples = SampleSet(layout.sample_set(run_dir, set_id(identity)), identity)

    def _identity(self) -> dict[str, Any]:
        """What decides the samples: not their number, not the number of problems, not who draws them."""
        policy, plain = self.config.policy, OmegaConf.to_container(self.config)
        assert isinstance(plain, dict)
        return {
            "policy": policy.digest,
            "prompt": {"chat": bool(policy.chat), "system": policy.system},
            "task": of_task(plain["task"]),
            "engine": of_engine(plain["rollout"]["engine"]),
            "sampling": vars(self.sampling),
        }

    # --- drawing

    def run(self, stop: StopFlag) -> Cause:
        """Draw what is missing, chunk by chunk, until it is all there or the run is asked to stop."""
        began = time.perf_counter()
        of_first = distributed.gather(self._missing())[0]  # which no other may differ from
        pieces = [[Wanted(*each) for each in piece] for piece in of_first]
        sampler, rank = self.parts.sampler, self.parts.place.rank
        mine, engines = sampler.share(pieces), sampler.engines
        rounds = math.ceil(len(pieces) / engines)
        for number in range(rounds):
            if distributed.any_rank(bool(stop)):
                return stop.cause
            for piece in mine[number : number + 1]:
                self._draw(piece)
            self._heartbeat(number + 1, rounds)
            log.info("drew %d of %d chunks", min((number + 1) * engines, len(pieces)), len(pieces))
        distributed.barrier()  # all chunks of all ranks are there
        if rank == 0:
            self._finish(time.perf_counter() - began)
        distributed.barrier()
        return Cause.OK

    def _missing(self) -> list[list[tuple[int, int, int]]]:
        """The pieces of the first rank, as JSON can carry them; another rank has none."""
        if self.parts.place.rank:
            return []
        pieces = self.samples.missing(self.keys, self.config.evaluation.samples)
        return [[astuple(each) for each in piece] for piece in pieces]

    def _draw(self, piece: list[Wanted]) -> None:
        asked = [(self.problems[each.problem], each.first, each.count) for each in piece]
        groups = self.parts.sampler.draw(asked, self.sampling)
        rows = [row for group, each in zip(groups, piece, strict=True) for row in self._rows(group, each.first)]
        self.samples.add(rows)

    def _rows(self, group: Rollout, first: int) -> Iterator[dict[str, Any]]:
        prompt = self.parts.tokenizer.decode(group.prompt)
        parts = zip(sample_rows(group, first), group.completions, group.texts, group.rewards, strict=True)
        for row, completion, text, reward in parts:
            yield {
                **row,
                "key": key_of(group.problem),
                "prompt": prompt,
                "answer": answer_of(self.parts.task, group.problem, text, reward),
                "logp": _total(completion.logp),
                "logp_sampling": _total(completion.logp_sampling),
            }

    # --- the record

    def _finish(self, seconds: float) -> None:
        """Put all samples in order into the run's own file, and what they come to into its journal."""
        wanted = self.config.evaluation
        if self.attempt is not None and not self.attempt.holds_lease():
            raise RuntimeError("a newer attempt owns this run: this one stops without writing")
        self.samples.refresh()
        by_source: dict[str, list[Answers]] = defaultdict(list)

        def counted() -> Iterator[pa.Table]:
            for table in self.samples.ordered(self.keys, wanted.samples):
                for source, answers in _answers(table, wanted.samples):
                    by_source[source].append(answers)
                yield table

        write_ordered(counted(), layout.evaluation(self.dir, STEP), step=STEP)
        k = list(wanted.k)
        metrics = measured(self.parts.task, by_source, samples=wanted.samples, k=k, prefix=EVALUATION)
        metrics |= voted(self.parts.task, by_source, samples=wanted.samples, k=k) | {"time/evaluation_s": seconds}
        if self.journal is not None:
            self.journal.record(STEP, metrics)
        if self.attempt is not None:
            self.attempt.heartbeat(1, 1, "done", accuracy(metrics))
        log.info("%s", brief(metrics))

    def _heartbeat(self, done: int, total: int) -> None:
        if self.attempt is not None:
            self.attempt.heartbeat(done, total, "evaluation" if total else "policy")

    def close(self) -> None:
        self.parts.close()


def _answers(table: pa.Table, samples: int) -> Iterator[tuple[str, Answers]]:
    """(benchmark, answers) of each problem of a table in order."""
    columns = (table[name].to_pylist() for name in ("source", "outcome", "answer", "reward"))
    source, outcome, answer, reward = columns
    for start in range(0, table.num_rows, samples):
        own = slice(start, start + samples)
        yield source[start], Answers(tuple(outcome[own]), tuple(answer[own]), tuple(reward[own]))


def _total(logp: Any) -> float | None:
    """Nats of a whole response; None where the engine does not know them."""
    total = float(np.sum(logp, dtype=np.float64))
    return None if math.isnan(total) else total
