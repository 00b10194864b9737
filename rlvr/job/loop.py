"""One run: a frozen config becomes objects, and the objects become the training loop."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from hydra.utils import instantiate
from omegaconf import DictConfig

from rlvr.job import canary
from rlvr.job.checkpoints import Checkpoints
from rlvr.job.mixture import Mixture, mixture
from rlvr.job.start import Start, partial
from rlvr.ledger.attempt import Attempt, Cause, brief
from rlvr.ledger.journal import Spool
from rlvr.ledger.prune import asked_to_prune
from rlvr.ledger.rollouts import file_of, write_rollouts
from rlvr.ledger.samples import write_policy, write_samples
from rlvr.ledger.stages import record_stages
from rlvr.ledger.stop import StopFlag
from rlvr.model.load import load_model
from rlvr.objective import mismatch
from rlvr.objective.batch import Batch
from rlvr.records import ArmedTask, Problem, Rollout, Sampling
from rlvr.rollout.ahead import Collector
from rlvr.rollout.collect import Stream, throughput
from rlvr.rollout.evaluation import NOISE_STREAM, evaluate, held_out
from rlvr.rollout.presample import Samples
from rlvr.trainer import distributed
from rlvr.trainer.collate import collate, encode, solved, with_advantage
from rlvr.trainer.diverged import check_limits
from rlvr.trainer.fsdp import Trainer
from rlvr.trainer.overlong import penalised, without_cut
from rlvr.trainer.sharded_load import load_for_shards

log = logging.getLogger("rlvr")


class Run:
    """Everything one run is made of, built from its frozen config."""

    def __init__(self, config: DictConfig, run_dir: Path, attempt: Attempt | None, spool: Spool | None) -> None:
        """attempt, spool: of the first rank alone; the others write nothing but their part of a checkpoint."""
        self.config, self.dir, self.attempt, self.spool = config, run_dir, attempt, spool
        self._phase("base policy", 0)
        start = self.start = Start(config, run_dir.parent / "stages")
        self.rank, self.world, self.device, self.task = start.rank, start.world, start.device, start.task
        self.tokenizer, self.pad, self.max_tokens = start.tokenizer, start.pad, start.max_tokens
        self.engine, self.sampler = start.engine, start.sampler
        self.synced = -1  # updates behind the weights of the engine; -1: it must be given some
        self.advantage = instantiate(config.advantage)
        # Several ranks read their own part of the weights; none holds the whole model beside the engine's.
        model = load_for_shards(start.base) if self.world > 1 else load_model(start.base, dtype=torch.float32)
        self.trainer: Trainer = partial(config.trainer)(
            model, loss=instantiate(config.loss), device=self.device, pad_token_id=self.pad, max_tokens=self.max_tokens
        )
        self.checkpoints = Checkpoints(self.trainer, run_dir / "checkpoints", config.checkpoint, steps=config.steps)
        self.mixture = self._mixture(start.samples())
        if attempt is not None:
            record_stages(run_dir, start.stages)
        self.stream = Stream(self.mixture.explored if self.mixture else self.task, config.seed)
        sampler = self.sampler
        if config.rollout.ahead:  # collectives of two threads must not mix
            sampler = replace(sampler, gather=functools.partial(distributed.gather, group=distributed.another_group()))
        self.collector = Collector(sampler, self.stream, config, max_tokens=self.max_tokens, sync=self._sync)
        self.problems = held_out(self.task, config.evaluation.problems)

    def _mixture(self, samples: Samples | None) -> Mixture | None:
        """The two streams of a run whose loss brings `presample` along."""
        if samples is None:
            return None
        rows, updates = self.config.rollout.prompts * self.config.rollout.samples, self.config.trainer.updates
        return mixture(samples, seed=self.config.seed, rows=rows, updates=updates, pad_token_id=self.pad)

    def train(self, stop: StopFlag) -> Cause:
        """From the newest checkpoint to the last step, or until told to stop."""
        done = self._resume()
        if done == 0 and not distributed.any_rank(self.spool is not None and 0 in self.spool.steps):
            self._finish(0, self._evaluate(0))
        for step in range(done + 1, self.config.steps + 1):
            pruned = self.attempt is not None and bool(asked_to_prune(self.attempt.path))
            if distributed.any_rank(bool(stop) or pruned):
                self._save(step - 1, {})
                return Cause.PRUNED if pruned else stop.cause
            metrics = self._step(step)
            if step % self.config.evaluation.every == 0 or step == self.config.steps:
                metrics |= self._evaluate(step)
            self._finish(step, metrics)
            check_limits(metrics, step, min_entropy=self.config.get("min_entropy"), max_kl=self.config.get("max_kl"))
        return Cause.OK

    def _step(self, step: int) -> dict[str, float]:
        began = time.perf_counter()
        collected = self.collector.next(step)
        stale = self.trainer.num_updates - collected.updates
        if not self.collector.ask(step + 1):
            self.engine.sleep()
            self.synced = -1
        if self.rank == 0 and step <= self.config.get("keep_rollouts", 0):
            write_rollouts(collected.groups, file_of(self.dir, step))
        batch = self.batch(collected.groups, step)
        apart = mismatch.measure(batch, self.config.rollout.get("max_mismatch"))
        ready = time.perf_counter()
        learned = self.trainer.learn(batch)
        ended = time.perf_counter()
        own = {"rollout/staleness": float(stale), "time/train_s": ended - ready, "time/step_s": ended - began}
        metrics = {**collected.metrics, **apart, **learned, **own}
        return metrics | throughput(metrics, world=self.world)

    def _sync(self) -> int:
        """Give the engine the newest weights, if it has others. Returns how many updates are behind them."""
        self.collector.wait()
        if self.synced != self.trainer.num_updates:  # else an evaluation has just been given these very weights
            self.engine.sync(self.trainer.weights())
            knobs = {"pad_token_id": self.pad, "max_tokens": self.max_tokens, "temperature": self.trainer.temperature}
            canary.check(self.sampler, self.trainer.logp, self.problems, **knobs)
            self.synced = self.trainer.num_updates
        return self.synced

    def batch(self, groups: Sequence[Rollout], step: int) -> Batch:
        """The groups as the trainer wants them, with all that the objective reads."""
        if "solution" in self.trainer.objective.needs:
            groups = solved(groups, self.task, self.tokenizer, max_tokens=self.max_tokens)
        given = self.config.rollout
        buffer, factor = (given.get(f"overlong_{name}") for name in ("buffer", "penalty"))
        groups = penalised(groups, max_tokens=self.max_tokens, buffer=buffer, factor=factor)
        own = given.get("logp_old") == "trainer"
        batch = collate(groups, self.advantage, pad_token_id=self.pad, look=self.trainer.look, own=own)
        if given.get("overlong_filter"):
            batch = without_cut(batch, groups)
        batch = batch if self.mixture is None else self.mixture.add(batch, step)
        return mismatch.weigh(batch, given.get("importance", "none"), given.get("importance_cap", 2.0))

    def _evaluate(self, step: int) -> dict[str, float]:
        began = time.perf_counter()
        self._phase("evaluation", step)
        if isinstance(self.task, ArmedTask):  # the whole policy can be read off: nothing needs to be sampled
            return {**self._write_policy(self.task, step), "time/evaluation_s": time.perf_counter() - began}
        wanted = self.config.evaluation
        self._sync()
        sampling = Sampling(self.max_tokens, self.config.seed + NOISE_STREAM, 0, wanted.temperature, wanted.top_p)
        metrics, rollouts = evaluate(
            self.sampler, self.problems, samples=wanted.samples, k=list(wanted.k), sampling=sampling
        )
        self._check_lease()
        if self.rank == 0:
            write_samples(rollouts, self.dir / "samples" / f"test-{step:08d}.parquet", step=step)
        return {**metrics, "time/evaluation_s": time.perf_counter() - began}

    def _write_policy(self, task: ArmedTask, step: int) -> dict[str, float]:
        """A bandit's whole policy, exactly: every arm as the one-token response of one group."""
        self._check_lease()
        arms = [Problem(arm, arm) for arm in task.arms]
        tokens = torch.tensor([int(ids[0]) for ids in encode(self.tokenizer, arms, chat=False)])[:, None]
        prompt = torch.from_numpy(self.sampler.encode(self.problems[:1])[0])[None]
        reward = torch.tensor(task.rewards(), dtype=torch.float32)
        group = torch.zeros(len(arms), dtype=torch.int64)
        nothing = torch.zeros(tokens.shape)
        batch = Batch(tokens, nothing == 0, nothing, reward, reward, group, prompt, prompt >= 0)  # all is seen
        batch = replace(batch, logp_old=self.trainer.logp(batch).cpu())
        advantage = with_advantage(batch, self.advantage, self.trainer.look).advantage.flatten()
        probability = batch.logp_old[:, 0].double().exp().numpy()
        if self.rank == 0:
            columns = {"arm": np.arange(len(arms)), "reward": reward.numpy(), "advantage": advantage.numpy()}
            write_policy({**columns, "probability": probability}, self.dir / "samples", step=step)
        return {"evaluation/bandit/expected_reward": float(probability @ reward.numpy())}

    def _finish(self, step: int, metrics: dict[str, float]) -> None:
        """Put a step on record; then, when it is time, a checkpoint that contains it."""
        if self.spool is not None:
            self.spool.record(step, metrics)
        self._phase("train", step, next((v for k, v in metrics.items() if "/avg_at_" in k), None))
        if self.checkpoints.due(step, metrics):
            self._save(step, metrics)
        log.info("step %d/%d %s", step, self.config.steps, brief(metrics))

    def _phase(self, phase: str, step: int, accuracy: float | None = None) -> None:
        if self.attempt is not None:
            self.attempt.heartbeat(step, self.config.steps, phase, accuracy)

    def _check_lease(self) -> None:
        """Before a durable write: an attempt that was given up for dead must not write beside its successor."""
        if distributed.any_rank(self.attempt is not None and not self.attempt.holds_lease()):
            raise RuntimeError("a newer attempt owns this run: this one stops without writing")

    def _save(self, step: int, metrics: Mapping[str, float]) -> None:
        self._check_lease()
        if self.spool is not None:
            self.spool.flush()  # a checkpoint never knows of a step that the record does not
        ahead = self.collector.asked()  # before the position: to sample draws problems
        self.checkpoints.save(step, self.stream.position, metrics, ahead)

    def _resume(self) -> int:
        extra = self.checkpoints.resume()
        if extra is None:
            return 0
        self.stream.position = extra["position"]
        self.collector.restore(extra["ahead"])
        return extra["step"]

    def close(self) -> None:
        try:
            self.trainer.writer.wait()  # a run that has ended has saved
        finally:
            self.collector.close()
            self.start.close()
