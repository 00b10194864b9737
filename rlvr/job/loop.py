"""One run: builds its objects from a frozen config, and trains."""

import functools
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from hydra.utils import instantiate
from omegaconf import DictConfig

from rlvr.config.schema import as_dict, is_pretrained
from rlvr.job.checkpoints import Checkpoints
from rlvr.job.exact_policy import exact_policy
from rlvr.job.handover import Handover
from rlvr.job.log import brief, share_of_base_policy
from rlvr.job.mixture import Mixture, split_streams
from rlvr.job.parts import Parts, gather_rollouts
from rlvr.ledger import inputs, layout
from rlvr.ledger.attempt import NEWER, Attempt, Busy, StopFlag, prune_reason
from rlvr.ledger.cause import Cause
from rlvr.ledger.checkpoints import checkpoints
from rlvr.ledger.journal import JournalWriter
from rlvr.ledger.rollouts import write_rollouts
from rlvr.ledger.samples import write_policy, write_samples
from rlvr.ledger.stages import record_stages
from rlvr.metrics import VALIDATION, shown_scores
from rlvr.objective import mismatch
from rlvr.objective.batch import Batch, declared_needs
from rlvr.records import ArmedTask, Rollout, Sampling, right_answer
from rlvr.rollout.empty_steps import EmptySteps
from rlvr.rollout.evaluation import NOISE_STREAM, Abandoned, evaluate, held_out_problems, warnings
from rlvr.rollout.in_flight import InFlightSampler
from rlvr.rollout.sampler import throughput
from rlvr.rollout.selection import Selection
from rlvr.rollout.step_sampler import StepSampler
from rlvr.rollout.stream import Stream
from rlvr.trainer import distributed
from rlvr.trainer.collate import collate, known_answers, penalised, without_cut
from rlvr.trainer.diverged import check_limits

log = logging.getLogger("rlvr")

EVALUATION_GRACE_S = 5.0  # to finish an evaluation after a signal to stop; if it is abandoned, it is repeated


class TrainingRun:
    """The objects of one run, and its training loop."""

    def __init__(
        self, config: DictConfig, run_dir: Path, attempt: Attempt | None, journal: JournalWriter | None
    ) -> None:
        """attempt, journal: None except on the first rank; the others write only their part of a checkpoint."""
        self.config, self.dir, self.attempt, self.journal = config, run_dir, attempt, journal
        self._phase("checkpoint" if checkpoints(layout.checkpoints(run_dir)) else "base policy", 0)
        alive = (lambda: None) if attempt is None else attempt.alive
        with share_of_base_policy(lambda share: self._phase(f"base policy {share:.0%}", 0)):
            self.parts = parts = Parts(config, layout.stages_beside(run_dir), alive)
        self.place, self.task = parts.place, parts.task
        self.advantage = instantiate(config.advantage)
        self.importance_level: mismatch.Level = config.rollout.importance_level or "token"
        self.trainer = parts.trainer()
        self.checkpoints = Checkpoints(self.trainer, layout.checkpoints(run_dir), config.checkpoint, steps=config.steps)
        self.mixture = self._mixture()
        if attempt is not None:
            record_stages(run_dir, parts.stages)
            inputs.record(run_dir, as_dict(config))
        self.stream = Stream(self.mixture.explored if self.mixture else self.task, config.seed)
        self.problems = held_out_problems(self.task, config.evaluation.problems)
        limit = config.evaluation.validation
        self.validation = [] if limit is None else held_out_problems(self.task, limit, "validation")
        self.handover = Handover(parts.sampler, self.trainer, self.problems)
        self.step_sampler = self._step_sampler()
        self.empty_steps = EmptySteps(Selection.of(config.rollout), warns=distributed.rank() == 0)

    def _step_sampler(self) -> StepSampler | InFlightSampler:
        sampler, ahead = self.parts.sampler, self.config.rollout.ahead
        if ahead == 1:  # a thread samples, and collectives of two threads must not mix; in flight, the main one gathers
            sampler = replace(sampler, gather=functools.partial(gather_rollouts, group=distributed.another_group()))
        kind = StepSampler if ahead < 2 else InFlightSampler
        if ahead > 1:
            log.info(
                "rollout.ahead=%d: the samples depend on timing. A repeated or resumed run is not the same bit for bit "
                "(docs/engines.md)",
                ahead,
            )
        return kind(sampler, self.stream, self.config, max_tokens=self.place.max_tokens, hand_over=self.handover)

    def _mixture(self) -> Mixture | None:
        """The two streams of a run whose loss selects `presample`; else None. The trainer must hold the base policy."""
        samples = self.parts.samples()
        if samples is None:
            return None
        rows, pad = self.config.rollout.prompts * self.config.rollout.samples, self.place.pad_token_id
        mixture = split_streams(samples, seed=self.config.seed, rows=rows, pad_token_id=pad)
        self.parts.engine.sleep()  # the trainer reads all stored responses, and needs the GPU's memory for it
        policy_of = functools.partial(self.trainer.policy_of, with_entropy=False)
        differs = samples.knobs.temperature != self.config.trainer.temperature
        return mixture.with_logp(policy_of, own=differs or self.config.rollout.logp_old == "trainer")

    # --- the loop ---

    def train(self, stop: StopFlag) -> Cause:
        """Train from the newest checkpoint to the last step, or until the run is asked to stop."""
        done, unevaluated = self._resume()
        if done == 0 and not distributed.any_rank(self.journal is not None and 0 in self.journal.steps):
            unevaluated = {}
        if unevaluated is not None and not self._measure(done, unevaluated, stop):
            return stop.cause
        for step in range(done + 1, self.config.steps + 1):
            pruned = self.attempt is not None and bool(prune_reason(self.attempt.path))
            if distributed.any_rank(bool(stop) or pruned):
                self._save(step - 1, {})
                return Cause.PRUNED if pruned else stop.cause
            if not self._measure(step, self._step(step), stop):
                return stop.cause
        return Cause.OK

    def _measure(self, step: int, metrics: dict[str, float], stop: StopFlag) -> bool:
        """Evaluate a step, if it is time, and finish it. False: the run was asked to stop and could not wait for the
        evaluation. The step is then saved with its metrics so far: its evaluation is the first that a resumed run does.
        """
        if step % self.config.evaluation.every == 0 or step == self.config.steps:
            began = time.monotonic()
            try:
                metrics |= self._evaluate(step, lambda: stop.overdue(EVALUATION_GRACE_S, began))
            except Abandoned:
                log.info("stopped in the evaluation of step %d, which is repeated when the run goes on", step)
                if step:
                    self._save(step, {}, unevaluated=metrics)
                return False
        self._finish(step, metrics)
        limits = {"min_entropy": self.config.min_entropy, "max_kl": self.config.max_kl}
        check_limits(metrics, step, **limits, pretrained=is_pretrained(self.config.model))
        return True

    def _step(self, step: int) -> dict[str, float]:
        began, handover_s = time.perf_counter(), self.handover.seconds
        sampled = self.step_sampler.take(step)
        # Of a first step it is refused: `without_cut`.
        may_be_empty = self.config.rollout.overlong_filter and self.trainer.num_updates
        if may_be_empty and not any(c.finished for group in sampled.groups for c in group.completions):
            sampled = replace(sampled, groups=[])  # a run does not end for one step whose responses were all cut
        self.empty_steps.check(sampled)
        if self.parts.first_responses is not None:
            self.parts.first_responses.check_step(sampled.metrics, self.place.max_tokens)
        groups, staleness = sampled.groups, sampled.staleness(self.trainer.num_updates)
        if not self.step_sampler.prefetch(step + 1) and groups:
            self.handover.sleep()
        if step <= self.config.keep_rollouts:
            self._check_lease()
            if distributed.rank() == 0 and groups:
                write_rollouts(groups, layout.rollouts(self.dir, step))
        learned = self._learn(groups, step) if groups else self.trainer.learn_nothing()
        self.step_sampler.learned(step)
        times = {
            "time/sync_s": self.handover.seconds - handover_s,
            "time/weights_s": self.handover.weights_s,
            "time/step_s": time.perf_counter() - began,
        }
        metrics = {**sampled.metrics, **learned, **staleness, **times}
        return metrics | throughput(metrics, devices=self.parts.devices)

    def _learn(self, groups: Sequence[Rollout], step: int) -> dict[str, float]:
        began = time.perf_counter()
        batch = self.batch(groups, step)
        engine_mismatch = mismatch.measure(batch, self.config.rollout.max_mismatch, self.importance_level)
        batch_ready = time.perf_counter()
        learned = self.trainer.learn(batch)
        times = {
            "time/batch_s": batch_ready - began,  # mostly for the trainer's own log-probabilities, if it computes them
            "time/train_s": time.perf_counter() - batch_ready,
        }
        return {**engine_mismatch, **learned, **times}

    def batch(self, groups: Sequence[Rollout], step: int) -> Batch:
        """The groups as the batch of a training step, with everything that the objective reads."""
        trainer, place, rollout = self.trainer, self.place, self.config.rollout
        if "solution" in trainer.objective.needs:
            parts = self.parts
            groups = known_answers(groups, self.task, parts.tokenizer, end=parts.end, max_tokens=place.max_tokens)
        buffer, factor = rollout.overlong_buffer, rollout.overlong_penalty
        groups = penalised(groups, max_tokens=place.max_tokens, buffer=buffer, factor=factor)
        own_logp = rollout.logp_old == "trainer"
        policy_of = functools.partial(trainer.policy_of, with_entropy="entropy" in declared_needs(self.advantage))
        batch = collate(groups, self.advantage, pad_token_id=place.pad_token_id, policy_of=policy_of, own_logp=own_logp)
        if rollout.overlong_filter:
            batch = without_cut(batch, groups)
        batch = batch if self.mixture is None else self.mixture.add(batch, step)
        return mismatch.weigh(batch, rollout.importance, rollout.importance_cap, self.importance_level)

    def _evaluate(self, step: int, abandoned: Callable[[], bool]) -> dict[str, float]:
        began = time.perf_counter()
        self._phase("evaluation", step)
        if isinstance(self.task, ArmedTask):  # the policy's expected reward is exact: nothing is sampled
            metrics = self._exact_evaluation(self.task, step)
        else:
            metrics = self._sampled_evaluation(step, abandoned)
        return {**metrics, "time/evaluation_s": time.perf_counter() - began}

    def _sampled_evaluation(self, step: int, abandoned: Callable[[], bool]) -> dict[str, float]:
        options = self.config.evaluation
        self.step_sampler.sync()
        seed = self.config.seed + NOISE_STREAM
        sampling = Sampling(self.place.max_tokens, seed, 0, options.temperature, options.top_p)
        measure = functools.partial(
            evaluate,
            self.parts.sampler,
            samples=options.samples,
            k=list(options.k),
            sampling=sampling,
            abandoned=abandoned,
        )
        metrics, groups = measure(self.problems)
        for line in warnings(groups) if step == 0 and distributed.rank() == 0 else ():
            log.warning("%s", line)
        if self.parts.first_responses is not None:
            self.parts.first_responses.check_groups(groups, self.place.max_tokens)
        if self.validation:
            metrics |= measure(self.validation, prefix=VALIDATION)[0]
        self._check_lease()
        if distributed.rank() == 0 and not self._is_measured(step, layout.evaluation(self.dir, step)):
            answers = functools.partial(right_answer, self.parts.task)
            write_samples(groups, self.dir, step=step, right_answer=answers)
        return metrics

    def _exact_evaluation(self, task: ArmedTask, step: int) -> dict[str, float]:
        self._check_lease()
        (prompt,) = self.parts.sampler.encode(self.problems[:1])
        policy = exact_policy(task, self.parts.tokenizer, prompt, self.trainer, self.advantage)
        if distributed.rank() == 0 and not self._is_measured(step, layout.policy(self.dir, step)):
            write_policy(policy, self.dir, step=step)
        return {"evaluation/bandit/expected_reward": float(policy["probability"] @ policy["reward"])}

    def _is_measured(self, step: int, file: Path) -> bool:
        """Whether an earlier attempt recorded the step. Its metrics are kept, and so are the samples behind them."""
        return self.journal is not None and step in self.journal.steps and file.exists()

    # --- the record ---

    def _finish(self, step: int, metrics: dict[str, float]) -> None:
        """Record a finished step in the journal; then save a checkpoint, if one is due."""
        if self.journal is not None:
            self.journal.record(step, metrics)
        self._phase("train", step, **shown_scores(metrics))
        if self.checkpoints.due(step, metrics):
            self._save(step, metrics)
        log.info("step %d/%d %s", step, self.config.steps, brief(metrics))

    def _phase(self, phase: str, step: int, **scores: float | None) -> None:
        if self.attempt is not None:
            self.attempt.heartbeat(step, self.config.steps, phase, **scores)

    def _check_lease(self) -> None:
        """Called before each write that lasts: an attempt declared lost must not write once a newer one has begun."""
        if distributed.any_rank(self.attempt is not None and not self.attempt.holds_lease()):
            raise Busy(NEWER)

    def _save(self, step: int, metrics: Mapping[str, float], unevaluated: Mapping[str, float] | None = None) -> None:
        self._check_lease()
        if self.journal is not None:
            self.journal.flush()  # a checkpoint must contain no evaluated step that the journal lacks
        ahead = self.step_sampler.prefetched()  # before reading the position: sampling draws problems
        sampler, retired = self.step_sampler, self.stream.retired
        self.checkpoints.save(step, sampler.position, metrics, ahead, sampler.share, unevaluated, retired)

    def _resume(self) -> tuple[int, dict[str, float] | None]:
        """The last step that is done; its metrics if it was saved before its evaluation, else None."""
        recorded = distributed.of_first_rank(None if self.journal is None else self.journal.complete)
        extra = self.checkpoints.resume(recorded)
        if extra is None:
            return 0, None
        self.stream.position, self.stream.retired = extra["position"], set(extra.get("retired", ()))
        self.step_sampler.share = extra["share"]
        self.step_sampler.restore(extra["ahead"])
        return extra["step"], extra["unevaluated"]

    def close(self) -> None:
        try:
            self.trainer.writer.wait()  # a save in the background must finish before the run ends
        finally:
            self.step_sampler.close()
            self.parts.close()
