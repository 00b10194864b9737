"""A task and an engine that answer by a script."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch

from rlvr.records import Completion, Outcome, Problem, Request, Reward, Sampling, Split
from rlvr.rollout.sampler import Sampler

SAMPLING = Sampling(max_tokens=1, seed=0, step=1)


CODES: dict[str, Outcome] = {"+": "correct", "-": "wrong", "?": "unparsable", "t": "timeout", "!": "error"}


class ScriptedTask:
    """Problem i answers by script[i % len]: one character of CODES per sample."""

    name = "scripted"

    def __init__(self, script: Sequence[str], size: int | None = None) -> None:
        self.script, self.length = script, size

    def size(self, split: Split) -> int | None:
        return self.length

    def problem(self, split: Split, index: int) -> Problem:
        return Problem(f"{split}/{index}", str(index), source="bench")

    def reward(self, answers: Sequence[tuple[Problem, str]]) -> list[Reward]:
        outcomes = [CODES[self.script[int(q.prompt) % len(self.script)][int(text)]] for q, text in answers]
        return [Reward(float(o == "correct"), o) for o in outcomes]

    def close(self) -> None: ...


class ScriptedEngine:
    """Sample i of every request answers with the token i."""

    dtype, tolerance, copies = torch.float32, None, 1

    def sync(self, weights: Iterable[tuple[str, Any]]) -> None: ...
    def sleep(self) -> None: ...
    def close(self) -> None: ...

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[tuple[Completion, ...]]:
        zero = np.zeros(1, dtype=np.float32)
        return [tuple(Completion(np.array([i]), zero, zero, True) for i in range(r.num_samples)) for r in requests]


class SharedBoard(dict[str, str]):
    """A board of one process."""

    post, read = dict[str, str].__setitem__, dict[str, str].get


def sampler(task: ScriptedTask, **ranks: Any) -> Sampler:
    return Sampler(
        task, ScriptedEngine(), lambda qs: [np.array([1]) for _ in qs], lambda rows: [str(r[0]) for r in rows], **ranks
    )
