"""A run of another program than our trainer (docs/programs.md): what the program is given, and how it reports."""

import contextlib
import functools
import logging
import time
from collections import defaultdict
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from hydra.utils import get_method, instantiate
from omegaconf import DictConfig

from rlvr.config.schema import Section, as_dict
from rlvr.job.checkpoints import SaveClock, newest_intact
from rlvr.job.log import brief
from rlvr.ledger import digests, inputs, layout
from rlvr.ledger.attempt import Attempt, StopFlag, prune_reason
from rlvr.ledger.cause import Cause
from rlvr.ledger.checkpoints import superseded
from rlvr.ledger.files import remove, write_atomically
from rlvr.ledger.journal import JournalWriter
from rlvr.ledger.sample_sets import key_of
from rlvr.ledger.samples import write_samples
from rlvr.ledger.stages import record_stages
from rlvr.metrics import EVALUATION, VALIDATION, shown_scores
from rlvr.records import Completion, Problem, Reward, Rollout, Sampling, Task, right_answer
from rlvr.rollout.evaluation import Answers, evaluation_metrics, held_out_problems, warnings
from rlvr.rollout.rewards import rewards_of
from rlvr.rollout.selection import with_training_rewards
from rlvr.rollout.stream import Stream

log = logging.getLogger("rlvr")


@dataclass(frozen=True)
class SampledAnswer:
    """One response to a problem."""

    problem: Problem  # of `Run.held_out`
    response: str  # without special tokens
    num_tokens: int
    finished: bool = True  # whether it ended by itself and was not cut
    reward: Reward | None = None  # None: the task judges the response
    turns: Sequence[tuple[str, str]] = ()  # of a conversation: (role, text); the model wrote those of `assistant`


class Run:
    """The run that a program carries out. One step at a time: `log` records a step, and only then may it be saved."""

    def __init__(
        self, config: Section, run_dir: Path, attempt: Attempt, journal: JournalWriter, stop: StopFlag
    ) -> None:
        self.config, self.directory = config, run_dir
        self.seed: int = config.seed
        self.steps: int = config.steps  # the last step; the first is 1
        self._attempt, self._journal, self._stop = attempt, journal, stop
        self._logged = 0
        self._measured = dict[int, dict[str, float]]()  # metrics of evaluations, by steps that are not logged yet
        self._clock = SaveClock(config.checkpoint, self.steps)
        self.attempt_dir = attempt.path  # for files of this attempt alone
        self.resumed = newest_intact(self.checkpoint_dir, self.logged)  # a directory of `saving`; None: at the start
        self.done = 0 if self.resumed is None else layout.step_of(self.resumed) or 0  # the step of that state
        attempt.heartbeat(self.done, self.steps, "train")

    # --- the problems

    @functools.cached_property
    def task(self) -> Task:
        """The task of the run, with its verifier."""
        return instantiate(self.config.task, _convert_="all")

    def problems(self, step: int) -> list[Problem]:
        """The `rollout.prompts` training problems of a step: with this seed the same as those of our own trainer."""
        count = self.config.rollout.prompts
        return Stream(self.task, self.seed, position=(step - 1) * count).draw(count)

    def judge(self, step: int, answers: Sequence[tuple[Problem, Sequence[str]]]) -> list[list[Reward]]:
        """The rewards of the responses to each problem, in order, for training: false ones under `rollout.reward`."""
        judged = iter(self._judged([SampledAnswer(problem, text, 0) for problem, texts in answers for text in texts]))
        groups = [_group([next(judged) for _ in texts]) for _, texts in answers]
        groups = with_training_rewards(groups, self.config.rollout.reward, Sampling(0, self.seed, step), self.task)
        return [list(group.rewards) for group in groups]

    def _judged(self, samples: Sequence[SampledAnswer]) -> list[SampledAnswer]:
        """The samples with a reward each: those that came without are judged, all at once."""
        pairs = [(sample.problem, sample.response) for sample in samples if sample.reward is None]
        rewards = iter(rewards_of(self.task, pairs))
        self.alive()
        return [replace(sample, reward=sample.reward or next(rewards)) for sample in samples]

    @functools.cached_property
    def held_out(self) -> list[Problem]:
        """The problems of an evaluation: of the test split, and with `evaluation.validation` of that split, too."""
        return [problem for problems in self._splits.values() for problem in problems]

    @functools.cached_property
    def _splits(self) -> dict[str, list[Problem]]:
        """The problems of an evaluation, by the prefix of their metrics."""
        limits = self.config.evaluation
        splits = {EVALUATION: held_out_problems(self.task, limits.problems)}
        if limits.validation is not None:
            known = {problem.id for problem in splits[EVALUATION]}  # rows of two files may have the same ids
            drawn = held_out_problems(self.task, limits.validation, "validation")
            splits[VALIDATION] = [replace(p, id=f"validation/{p.id}") if p.id in known else p for p in drawn]
        return splits

    def base_policy(self) -> Path:
        """The policy of `model=` in Hugging Face format; made at first use. For a program that reads `model`."""
        store = layout.stages_beside(self.directory)
        base: Path = instantiate(self.config.model, self.task, store, _convert_="all")
        record_stages(self.directory, [base.name] if base.parent == store else [])
        return base

    # --- the record

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record a step, once: of a step that is repeated after a stop, the first record counts.

        Every step is logged, in order. Step 0 is for what is measured before the first step. Raises ValueError for a
        step out of order and a metric that is no number.
        """
        if not 0 <= step <= min(self.logged + 1, self.steps):
            raise ValueError(
                f"step {step} was logged after step {self.logged} of {self.steps}: log each step, in order."
            )
        self._attempt.check_lease()
        metrics = {**metrics, **self._measured.pop(step, {})}
        self._journal.record(step, metrics)
        self._attempt.heartbeat(step, self.steps, "train", **shown_scores(metrics))
        log.info("step %d/%d %s", step, self.steps, brief(metrics))

    @property
    def logged(self) -> int:
        """The last step up to which every step is logged, by any attempt."""
        while self.has_logged(self._logged + 1):
            self._logged += 1
        return self._logged

    def has_logged(self, step: int) -> bool:
        """Whether any attempt has logged the step."""
        return step in self._journal.steps

    def should_evaluate(self, step: int) -> bool:
        """Whether `evaluation.every` calls for an evaluation: at step 0, at its multiples and at the last step."""
        return step % self.config.evaluation.every == 0 or step == self.steps

    def samples(self, step: int, samples: Sequence[SampledAnswer]) -> dict[str, float]:
        """Record an evaluation: `evaluation.samples` responses to each problem of `held_out`, in any order, before the
        step is logged. Returns avg@n, pass@k and the other metrics, which `log` adds to those of the step.
        """
        count, listed = self.config.evaluation.samples, defaultdict[str, list[SampledAnswer]](list)
        for sample in self._judged(samples):
            listed[key_of(sample.problem)].append(sample)
        metrics = dict[str, float]()
        for prefix, problems in self._splits.items():
            groups, by_source = list[Rollout](), defaultdict[str, list[Answers]](list)
            for problem in problems:
                of_problem = listed.pop(key_of(problem), [])
                if len(of_problem) != count:
                    raise ValueError(
                        f"step {step}: problem {problem.id} has {len(of_problem)} samples, "
                        f"and evaluation.samples={count}."
                    )
                groups.append(_group(of_problem))
                by_source[problem.source].append(Answers.of(self.task, groups[-1]))
            knobs: dict[str, Any] = {"samples": count, "k": list(self.config.evaluation.k), "prefix": prefix}
            metrics |= evaluation_metrics(self.task, by_source, **knobs)
            if prefix == EVALUATION:
                self._write(step, groups)
        if listed:
            raise ValueError(f"step {step}: {next(iter(listed.values()))[0].problem.id} is no problem of run.held_out.")
        self._measured[step] = metrics
        return metrics

    def _write(self, step: int, groups: Sequence[Rollout]) -> None:
        """Write the samples of an evaluation, unless an earlier attempt has recorded the step with its own."""
        if self.has_logged(step) and layout.evaluation(self.directory, step).exists():
            return
        for line in warnings(groups) if step == 0 else ():
            log.warning("%s", line)
        self._attempt.check_lease()
        answers = functools.partial(right_answer, self.task)
        write_samples(groups, self.directory, step=step, right_answer=answers)

    # --- stopping and saving

    def should_stop(self) -> bool:
        """Whether the run is asked to stop: save, if it is worth it, and return. It goes on later."""
        return bool(self._stop) or bool(prune_reason(self._attempt.path))

    def should_save(self, step: int) -> bool:
        """Whether `checkpoint.every`, `checkpoint.minutes` or the end of the job's time call for a save.

        To be called once after each step.
        """
        return self._clock.by_time() or self._clock.by_steps(step)

    @property
    def checkpoint_dir(self) -> Path:
        """For a program that writes checkpoints by itself. It goes on from one of step `logged` or earlier."""
        return layout.checkpoints(self.directory)

    @contextlib.contextmanager
    def saving(self, step: int) -> Generator[Path, None, None]:
        """A directory for the state after a logged step. It appears complete or not at all; `checkpoint.keep` are kept.

        Raises ValueError for a step that is not logged: after a crash it would be missing from the record.
        """
        if step > self.logged:
            raise ValueError(f"the state after step {step} is saved before step {step} is logged. Log it first.")
        self._attempt.check_lease()
        self._journal.flush()
        path, self._clock.saved_at = layout.checkpoint(self.checkpoint_dir, step), time.monotonic()
        with write_atomically(path) as aside:
            aside.mkdir(parents=True)
            yield aside
            digests.write_digests(aside)
        for old in superseded(self.checkpoint_dir, self.config.checkpoint.keep, until=path):
            remove(old)

    def alive(self) -> None:
        """Report progress within a step, so that a long one does not count as hung. Any thread may call this."""
        self._attempt.alive()


def _group(samples: Sequence[SampledAnswer]) -> Rollout:
    """Judged samples of a problem, one or more. Of their tokens only the numbers are known."""
    nothing = np.zeros(0, np.float32)
    completions = [Completion(np.zeros(s.num_tokens, np.int64), nothing, nothing, s.finished) for s in samples]
    rewards = [replace(s.reward, value=float(s.reward.value)) for s in samples if s.reward is not None]
    texts = tuple(sample.response for sample in samples)
    turns = tuple(tuple((role, text) for role, text in sample.turns) for sample in samples)
    prompt = np.zeros(0, np.int64)
    return Rollout(samples[0].problem, prompt, tuple(completions), texts, tuple(rewards), turns=turns)


class Program:
    """A run of another program."""

    def __init__(
        self, config: DictConfig, run_dir: Path, attempt: Attempt | None, journal: JournalWriter | None
    ) -> None:
        assert attempt is not None  # a program has one rank
        assert journal is not None
        self.config, self.dir, self.attempt, self.journal = Section(as_dict(config)), run_dir, attempt, journal
        self.train = get_method(config.program._target_)
        inputs.record(run_dir, self.config)

    def run(self, stop: StopFlag) -> Cause:
        """Call the program. Raises ValueError if it returns before the last step without having been asked to stop."""
        run = Run(self.config, self.dir, self.attempt, self.journal, stop)
        try:
            self.train(self.config, run)
        finally:
            if "task" in vars(run):
                run.task.close()
        if run.logged == run.steps:
            return Cause.OK
        if prune_reason(self.attempt.path):
            return Cause.PRUNED
        if stop:
            return stop.cause
        raise ValueError(
            f"{self.config.program._target_} returned after step {run.logged} of {run.steps}. Log every step up to "
            "run.steps, or return once run.should_stop()."
        )

    def close(self) -> None:
        """Nothing is open between runs of a program."""
