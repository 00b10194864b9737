"""When a run saves a checkpoint, which checkpoints are kept, and from which one a run resumes."""

import functools
import logging
import math
import os
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from rlvr.config.schema import Section
from rlvr.ledger import layout
from rlvr.ledger.attempt import ENDS_AT
from rlvr.ledger.checkpoints import as_score, checkpoints, is_unevaluated, superseded
from rlvr.ledger.digests import set_aside
from rlvr.ledger.files import remove
from rlvr.metrics import standing
from rlvr.rollout.step_sampler import StepGroups
from rlvr.trainer import checkpoint, distributed
from rlvr.trainer.fsdp import Trainer

SPARE = 1.2  # the next step is expected to take at most this many times the longest one so far

log = logging.getLogger("rlvr")


class SaveClock:
    """When the state of a run is to be saved, by the steps and the time since the last save."""

    def __init__(self, config: DictConfig | Section, steps: int) -> None:
        """config: the group `checkpoint` of a run. steps: the number of the last step."""
        self.config, self.steps = config, steps
        self.saved_at = time.monotonic()  # when the newest save began; at first, when the attempt began
        self.stepped_at: float | None = None  # when the last step of this attempt ended, or the resumed one was loaded
        self._longest_s = 0.0  # longest time between the ends of two steps, with an evaluation or a save between them
        self._ends_at = float(os.environ.get(ENDS_AT) or math.inf)

    def by_steps(self, step: int) -> bool:
        """Whether the number of a step calls for a save."""
        return step > 0 and (step % self.config.every == 0 or step == self.steps)

    def by_time(self) -> bool:
        """Whether the time since the last save, or that left in the allocation, calls for a save, by our own clock.

        Called once after each step.
        """
        now, minutes, stepped_at = time.monotonic(), self.config.minutes, self.stepped_at
        self.stepped_at = now
        if stepped_at is not None:
            self._longest_s = max(self._longest_s, now - stepped_at)
        since_save = now - self.saved_at
        late = minutes is not None and since_save >= 60 * minutes
        last_chance = 0 < self._ends_at - time.time() < SPARE * self._longest_s
        return late or (last_chance and since_save >= self._longest_s / 4)  # not after each of several short steps


class Checkpoints:
    """The checkpoints of one run: the newest ones, and with `keep_best` that of the best evaluation."""

    def __init__(self, trainer: Trainer, directory: Path, config: DictConfig, *, steps: int) -> None:
        """config: the group `checkpoint` of a run. steps: the number of the last step."""
        self.trainer, self.directory, self.config = trainer, directory, config
        self._clock = SaveClock(config, steps)
        self.best: list[float] | None = None  # score of the best checkpoint, if it is kept
        self._unevaluated: int | None = None  # step of the resumed checkpoint, if it was saved before its evaluation

    def due(self, step: int, metrics: Mapping[str, float]) -> bool:
        """Whether a finished step is to be saved, the same on all ranks.

        It is if its number or the time since the last save requires it, if it is the last or the best step, or if the
        next step may not finish before the allocation ends. Raises the error of an earlier save in the background.
        """
        self.trainer.writer.wait(block=False)
        urgent = distributed.any_rank(self._clock.by_time())
        return step > 0 and (urgent or self._clock.by_steps(step) or self._score(metrics) is not None)

    def save(
        self,
        step: int,
        position: int,
        metrics: Mapping[str, float],
        ahead: StepGroups | None = None,
        share: float = 1.0,
        unevaluated: Mapping[str, float] | None = None,
        retired: Collection[str] = (),
    ) -> None:
        """Save the state after a step, with `position` problems drawn from the stream, unless it is saved already.

        ahead: the groups of the next step, if they are sampled already. share: of drawn problems, those whose groups
        were kept. unevaluated: the step's metrics, if the run stops before its evaluation. retired: see `Stream`.
        """
        path = layout.checkpoint(self.directory, step)
        self._clock.saved_at = time.monotonic()
        self.trainer.writer.wait()
        score = self._score(metrics)
        if distributed.of_first_rank(path.exists()):
            if step != self._unevaluated or score is None:
                return
            if distributed.rank() == 0:
                remove(path)  # it lacks its score
            distributed.barrier()
        self.best = self.best if score is None else score
        state: dict[str, Any] = {"step": step, "position": position, "score": score, "best": self.best, "ahead": None}
        measured = None if unevaluated is None else {name: float(value) for name, value in unevaluated.items()}
        state |= {"share": share, "unevaluated": measured, "retired": sorted(retired)}
        how: dict[str, Any] = {
            "background": self.config.background,
            "when_visible": functools.partial(self._drop, path),
        }
        if ahead is not None:
            state["ahead"], how["write_more"] = ahead.json_fields, ahead.write
        self.trainer.save(path, state, **how)

    def resume(self, recorded: int | None = None) -> dict[str, Any] | None:
        """Load the newest intact checkpoint into the trainer. Returns its "step", "position", "ahead" …; None if there
        is no checkpoint. With "unevaluated" metrics its step has to be evaluated and recorded first.

        A damaged checkpoint is set aside. recorded: the last step up to which every step is in the journal. Later
        checkpoints are not used: steps that they contain would stay missing in the journal. None: no such limit.
        Called by all ranks; the first one lists the checkpoints.
        """
        newest = newest_intact(self.directory, recorded)
        if newest is None:
            return None
        extra = self.trainer.load(newest)
        self._clock.stepped_at = time.monotonic()
        self.best = as_score(extra["best"])
        self._unevaluated = None if extra["unevaluated"] is None else extra["step"]
        extra["ahead"] = StepGroups.read(newest, extra["ahead"]) if extra["ahead"] else None
        return extra

    def _score(self, metrics: Mapping[str, float]) -> list[float] | None:
        """The `standing` of an evaluation if the best checkpoint is kept and it is the best so far; else None."""
        score = standing(metrics) if self.config.keep_best else None
        best = [-math.inf] if self.best is None else self.best
        return score if score is not None and score > best else None

    def _drop(self, written: Path) -> None:
        for old in superseded(self.directory, self.config.keep, until=written):
            remove(old)


def newest_intact(directory: Path, recorded: int | None) -> Path | None:
    """The newest checkpoint that is as it was written, and of a recorded step (see `Checkpoints.resume`)."""
    listed = [(path.name, is_unevaluated(path)) for path in checkpoints(directory)]
    for name, unevaluated in reversed(distributed.of_first_rank(listed)):
        path = directory / name
        step = layout.step_of(path)
        if recorded is not None and step is not None and step - unevaluated > recorded:
            log.warning("%s is not used: steps after %d are not in the journal. They are repeated", path, recorded)
            continue
        fault = checkpoint.fault_of(path)
        if not fault:
            log.info("resuming from %s", name)
            return path
        if distributed.rank() == 0:
            aside = set_aside(path)
            log.error("checkpoint %s is damaged: %s. It is kept as %s", path.name, fault, aside)
        distributed.barrier()
    return None
