"""One evaluation: the samples that its sample set lacks are drawn, then all samples are read, counted and put in order.

The samples depend neither on interruptions nor on the number of ranks: sample i of a problem has noise of its own. Of
the missing chunks, each of `world` ranks draws every `world`-th.
"""

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
from omegaconf import DictConfig

from rlvr.config.schema import as_dict
from rlvr.job.log import brief
from rlvr.job.parts import Parts
from rlvr.ledger import inputs, layout
from rlvr.ledger.attempt import Attempt, StopFlag
from rlvr.ledger.cause import Cause
from rlvr.ledger.final import final_split
from rlvr.ledger.identity import of_engine, of_task
from rlvr.ledger.journal import JournalWriter
from rlvr.ledger.sample_sets import SampleSet, Wanted, key_of, set_id, write_ordered
from rlvr.ledger.samples import sample_rows
from rlvr.ledger.stages import record_stages
from rlvr.metrics import EVALUATION, shown_scores
from rlvr.records import Rollout, Sampling, right_answer
from rlvr.rollout.evaluation import (
    NOISE_STREAM,
    Answers,
    answer_of,
    complete_evaluation_metrics,
    evaluation_metrics,
    held_out_problems,
)
from rlvr.trainer import distributed

log = logging.getLogger("rlvr")

ROWS = ("train", "test")  # knobs of a task that name its rows
STEP = 1  # an evaluation is a run of one step; its policy has the step of training


class Evaluation:
    """A run whose config names a policy: it samples and does not train."""

    def __init__(
        self, config: DictConfig, run_dir: Path, attempt: Attempt | None, journal: JournalWriter | None
    ) -> None:
        """attempt, journal: None except on the first rank."""
        self.config, self.dir, self.attempt, self.journal = config, run_dir, attempt, journal
        self._heartbeat(0, 0)
        alive = (lambda: None) if attempt is None else attempt.alive
        self.parts = parts = Parts(config, layout.stages_beside(run_dir), alive)
        if attempt is not None:
            record_stages(run_dir, parts.stages)
            inputs.record(run_dir, as_dict(config))
        self.query = config.policy.get("query")  # of the final split; None: the test split, and in older runs
        split = final_split(parts.task) if self.query else "test"
        self.problems = held_out_problems(parts.task, config.evaluation.problems, split)
        self.keys = [key_of(problem) for problem in self.problems]
        options = config.evaluation
        self.sampling = Sampling(
            parts.place.max_tokens, config.seed + NOISE_STREAM, 0, options.temperature, options.top_p
        )
        identity = self._identity()
        self.samples = SampleSet(layout.sample_set(run_dir, set_id(identity)), identity)

    def _identity(self) -> dict[str, Any]:
        """All that the samples depend on: not their number, the number of problems, or the ranks that draw them."""
        policy, plain = self.config.policy, as_dict(self.config)
        # Of rows every problem is identified by its content; not of what judges the answers, such as databases.
        now = inputs.inputs(plain)
        files = {k: now[k] for k in now if k.split(".")[1] not in ROWS and not k.endswith(inputs.CLOSELY)}
        return {
            "policy": policy.digest,
            "prompt": {"chat": bool(policy.chat), "system": policy.system},
            "task": of_task(plain["task"]),
            **({"inputs": files} if files else {}),
            "engine": of_engine(plain["rollout"]["engine"]),
            "sampling": vars(self.sampling),
            **({"final": self.query} if self.query else {}),
        }

    # --- drawing

    def run(self, stop: StopFlag) -> Cause:
        """Draw the missing samples, chunk by chunk, until all exist or the run is asked to stop."""
        began = time.perf_counter()
        of_first_rank = distributed.gather(self._missing())[0]  # all ranks use the first rank's list
        chunks = [[Wanted(*fields) for fields in chunk] for chunk in of_first_rank]
        sampler = self.parts.sampler
        of_rank, engines = sampler.share(chunks), sampler.engines
        rounds = math.ceil(len(chunks) / engines)
        for index in range(rounds):
            if distributed.any_rank(bool(stop)):
                return stop.cause
            if index < len(of_rank):  # a rank may have fewer chunks than there are rounds
                self._draw(of_rank[index])
            self._heartbeat(index + 1, rounds)
            log.info("drew %d of %d chunks", min((index + 1) * engines, len(chunks)), len(chunks))
        distributed.barrier()  # now all chunks of all ranks are written
        if distributed.rank() == 0:
            self._finish(time.perf_counter() - began)
        distributed.barrier()
        return Cause.OK

    def _missing(self) -> list[list[tuple[int, int, int]]]:
        """The missing chunks, as the fields of their `Wanted`, for JSON; empty on all ranks but the first."""
        if distributed.rank():
            return []
        chunks = self.samples.missing(self.keys, self.config.evaluation.samples)
        return [[astuple(wanted) for wanted in chunk] for chunk in chunks]

    def _draw(self, chunk: list[Wanted]) -> None:
        requests = [(self.problems[wanted.problem], wanted.first, wanted.count) for wanted in chunk]
        groups = self.parts.sampler.draw(requests, self.sampling)
        if self.parts.first_responses is not None:
            self.parts.first_responses.check_groups(groups, self.parts.place.max_tokens)
        rows = list[dict[str, Any]]()
        for group, wanted in zip(groups, chunk, strict=True):
            rows += self._rows(group, wanted.first)
        self.samples.add(rows)

    def _rows(self, group: Rollout, first: int) -> Iterator[dict[str, Any]]:
        prompt = self.parts.tokenizer.decode(group.prompt)
        parts = zip(sample_rows(group, first), group.completions, group.texts, group.rewards, strict=True)
        for row, completion, text, reward in parts:
            yield {
                **row,
                "source": f"{row['source']}.final-{self.query}" if self.query else row["source"],  # in every table
                "key": key_of(group.problem),
                "prompt": prompt,
                "answer": answer_of(self.parts.task, group.problem, text, reward),
                "logp": _total(completion.logp),
                "logp_sampling": _total(completion.logp_sampling),
            }

    # --- the record

    def _finish(self, seconds: float) -> None:
        options = self.config.evaluation
        if self.attempt is not None:
            self.attempt.check_lease()
        self.samples.refresh()
        by_source: dict[str, list[Answers]] = defaultdict(list)

        def tables() -> Iterator[pa.Table]:
            """The samples in order; their answers are collected in `by_source` on the way."""
            for table in self.samples.ordered(self.keys, options.samples):
                for source, answers in _answers(table, options.samples):
                    by_source[source].append(answers)
                yield table

        right = {key: right_answer(self.parts.task, p) for key, p in zip(self.keys, self.problems, strict=True)}
        write_ordered(tables(), layout.evaluation(self.dir, STEP), step=STEP, right_answer=right)
        k = list(options.k)
        metrics = evaluation_metrics(self.parts.task, by_source, samples=options.samples, k=k, prefix=EVALUATION)
        metrics |= complete_evaluation_metrics(self.parts.task, by_source, samples=options.samples, k=k) | {
            "time/evaluation_s": seconds
        }
        if self.journal is not None:
            self.journal.record(STEP, metrics)
        if self.attempt is not None:
            self.attempt.heartbeat(1, 1, "done", **shown_scores(metrics))
        log.info("%s", brief(metrics))

    def _heartbeat(self, done: int, total: int) -> None:
        if self.attempt is not None:
            self.attempt.heartbeat(done, total, "evaluation" if total else "policy")

    def close(self) -> None:
        self.parts.close()


COLUMNS = ("outcome", "answer", "reward", "num_tokens", "finished")  # in the order of the fields of `Answers`


def _answers(table: pa.Table, samples: int) -> Iterator[tuple[str, Answers]]:
    """(benchmark, answers) of each problem of a table in order, which has `samples` rows for each problem."""
    source, *columns = (table[name].to_pylist() for name in ("source", *COLUMNS))
    for start in range(0, table.num_rows, samples):
        rows = slice(start, start + samples)
        yield source[start], Answers(*(tuple(column[rows]) for column in columns))


def _total(logp: Any) -> float | None:
    """Log-probability of a whole response in nats; None if the engine did not return it (NaN)."""
    total = float(np.sum(logp, dtype=np.float64))
    return None if math.isnan(total) else total
