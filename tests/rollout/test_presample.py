from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from rlvr.records import Completion, Problem, Request, Sampling
from rlvr.rollout.presample import Presample, Samples
from rlvr.rollout.sampler import Sampler
from tests.support.scripted import ALPHABET, Echo

TASK = Echo(length=2)
RIGHT_OF_4 = (4, 0, 3, 4, 1, 4, 2, 0)  # correct responses of four, problem by problem


def encode(problems: Sequence[Problem]) -> list[NDArray[np.int64]]:
    words = [*ALPHABET, ";", "."]
    return [np.array([words.index(w) for w in p.prompt.split(" ")]) for p in problems]


def decode(tokens: Sequence[NDArray[np.int64]]) -> list[str]:
    return [" ".join((*ALPHABET, ";", ".")[i] for i in row) for row in tokens]


@dataclass
class Scripted:
    """Repeats the prompt in the last RIGHT_OF_4 samples of a problem and answers `f f .` in the first: an `Engine`."""

    asked: list[Sampling] = field(default_factory=list[Sampling])

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[tuple[Completion, ...]]:
        self.asked.append(sampling)
        return [
            tuple(self._response(r.prompt, s >= r.num_samples - right, s) for s in range(r.num_samples))
            for r, right in zip(requests, RIGHT_OF_4, strict=False)
        ]

    def _response(self, prompt: NDArray[np.int64], right: bool, sample: int) -> Completion:
        tokens = np.array([*prompt[:2], 7] if right else [5, 5, 7])
        logp = np.array([-0.5, -0.25, -0.125 * (1 + sample)], np.float32)
        return Completion(tokens, logp, logp, True)

    def sync(self, weights: Any) -> None:
        raise AssertionError("the engine holds the base policy already")

    def close(self) -> None: ...


def knobs(**changes: Any) -> Presample:
    drawn = {"samples": 4, "problems": 8, "temperature": 1.0, "top_p": 1.0, "seed": 0}
    return Presample(**{**drawn, "threshold": 4, "drop_unsolved": False, "ratio": 8.0, **changes})


def opened(store: Path, engine: Scripted | None = None, settings: Any = None, **changes: Any) -> Samples:
    sampler = Sampler(TASK, engine or Scripted(), encode, decode)
    base = store / "base"
    return knobs(**changes).open(sampler, store, base=base, max_tokens=3, settings=settings or {})


def test_the_stage_depends_on_what_determines_the_samples_and_on_nothing_else(tmp_path: Path) -> None:
    engine = Scripted()
    for changes in ({}, {"threshold": 3}, {"drop_unsolved": True}, {"ratio": 4.0}):
        opened(tmp_path, engine, **changes)
    assert len(engine.asked) == 1
    others: list[dict[str, Any]] = [
        *({"seed": 1}, {"temperature": 0.7}, {"top_p": 0.9}, {"problems": 7}, {"settings": {"engine": "other"}})
    ]
    for changes in others:
        opened(tmp_path, engine, **changes)
    assert (len(engine.asked), len({s.seed for s in engine.asked})) == (1 + len(others), 2)
    stages = [p for p in tmp_path.iterdir() if (p / "stage.json").exists()]
    assert len(stages) == 1 + len(others)
    assert all({f.suffix for f in stage.iterdir()} == {".json", ".parquet"} for stage in stages)
    assert pq.read_table(stages[0] / "problems.parquet").num_rows in (7, 8)


def test_another_base_policy_is_another_stage(tmp_path: Path) -> None:
    engine = Scripted()
    sampler = Sampler(TASK, engine, encode, decode)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for content in ("{}", "{} ", None):
        if content is not None:
            (elsewhere / "config.json").write_text(content)
        knobs().open(sampler, tmp_path / "stages", base=elsewhere, max_tokens=3, settings={})
    assert len(engine.asked) == 2
