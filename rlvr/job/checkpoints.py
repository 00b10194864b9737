"""When a run saves, what of it stays, and where it goes on."""

from __future__ import annotations

import functools
import logging
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from rlvr.ledger import layout
from rlvr.ledger.attempt import ENDS_AT
from rlvr.ledger.checkpoints import checkpoints, superseded
from rlvr.ledger.digests import set_aside
from rlvr.ledger.files import remove
from rlvr.metrics import accuracy
from rlvr.rollout.step_sampler import StepGroups
from rlvr.trainer import distributed
from rlvr.trainer.fsdp import Trainer

SPARE = 1.2  # how much longer than the longest step so far the next one may take

log = logging.getLogger("rlvr")


class Checkpoints:
    """The checkpoints of one run: the newest ones, and if asked for that of its best evaluation."""

    def __init__(self, trainer: Trainer, directory: Path, config: DictConfig, *, steps: int) -> None:
        """config: the group `checkpoint` of a run. steps: the number of the last step."""
        self.trainer, self.directory, self.config, self.steps = trainer, directory, config, steps
        self.best: float | None = None  # score of the best checkpoint, if it is kept
        self._last = time.monotonic()  # when the newest was begun, or the attempt
        self._stepped: float | None = None  # when the last step of this attempt ended
        self._longest_s = 0.0  # of its steps, each with what went before it: an evaluation, a save
        self._ends_at = float(os.environ.get(ENDS_AT) or math.inf)

    def due(self, step: int, metrics: Mapping[str, float]) -> bool:
        """Whether a finished step is saved, the same on all ranks: by number of steps, by time since the last one, as
        the last, as the best, or because the next may not end before the allocation does. Raises what went wrong with
        a save that was going on.
        """
        self.trainer.writer.wait(block=False)
        urgent = distributed.any_rank(self._urgent())
        if step <= 0:
            return False
        return urgent or step % self.config.every == 0 or step == self.steps or self._score(metrics) is not None

    def _urgent(self) -> bool:
        """By this rank's clock. SLURM's warning saves what ends within it; a step may take longer than that."""
        now, minutes, since = time.monotonic(), self.config.get("minutes"), self._stepped
        self._stepped = now
        self._longest_s = max(self._longest_s, 0.0 if since is None else now - since)
        late = minutes is not None and now - self._last >= 60 * minutes
        last_chance = 0 < self._ends_at - time.time() < SPARE * self._longest_s
        return late or (last_chance and now - self._last >= self._longest_s / 4)  # short steps: not each of them

    def save(
        self,
        step: int,
        position: int,
        metrics: Mapping[str, float],
        ahead: StepGroups | None = None,
        share: float = 1.0,
    ) -> None:
        """Save the state after a step, `position` problems into the stream, unless it is saved already.

        ahead: the groups of the next step, if there are some. share: of problems drawn whose groups were kept.
        """
        path = layout.checkpoint(self.directory, step)
        self._last = time.monotonic()
        self.trainer.writer.wait()
        if distributed.of_first_rank(path.exists()):
            return
        score = self._score(metrics)
        self.best = self.best if score is None else score
        state: dict[str, Any] = {"step": step, "position": position, "score": score, "best": self.best, "ahead": None}
        state["share"] = share
        how: dict[str, Any] = {
            "background": self.config.background,
            "when_visible": functools.partial(self._drop, path),
        }
        if ahead is not None:
            state["ahead"], how["write_more"] = ahead.rest, ahead.write
        self.trainer.save(path, state, **how)

    def resume(self, recorded: int | None = None) -> dict[str, Any] | None:
        """Put the trainer where the newest sound checkpoint left it; its "step", "position" and "ahead", or None.

        A damaged one is set aside. recorded: the last step up to which every step is on record: what a later
        checkpoint contains would be missing in the record for ever. None: it does not matter. Called by all ranks, of
        which the first says what checkpoints there are.
        """
        newest = self._newest_sound(recorded)
        if newest is None:
            return None
        extra = self.trainer.load(newest)
        self.best = extra["best"]
        extra["ahead"] = StepGroups.read(newest, extra["ahead"]) if extra["ahead"] else None
        log.info("resuming from %s", newest.name)
        return extra

    def _newest_sound(self, recorded: int | None) -> Path | None:
        place = self.trainer.place
        names = distributed.of_first_rank([path.name for path in checkpoints(self.directory)])
        for path in (self.directory / name for name in reversed(names)):
            step = layout.step_of(path)
            if recorded is not None and step is not None and step > recorded:
                log.warning("%s is left out: steps after %d are not on record. They are taken again", path, recorded)
                continue
            fault = self.trainer.fault_of(path)
            if not fault:
                return path
            if place.rank == 0:
                aside = set_aside(path)
                log.error("checkpoint %s is damaged: %s. It is kept as %s", path.name, fault, aside)
            distributed.barrier()
        return None

    def _score(self, metrics: Mapping[str, float]) -> float | None:
        """The accuracy of an evaluation, if the best is kept and this is better than any before."""
        score = accuracy(metrics) if self.config.keep_best else None
        return score if score is not None and score > (-math.inf if self.best is None else self.best) else None

    def _drop(self, written: Path) -> None:
        """Remove the checkpoints that are neither among the newest nor the best."""
        for old in superseded(self.directory, self.config.keep, until=written):
            remove(old)
