from dataclasses import replace

import numpy as np
import pytest
import torch

from rlvr.job import canary
from rlvr.records import Problem, Tolerance
from rlvr.rollout.native import NativeEngine
from rlvr.rollout.sampler import Sampler
from rlvr.trainer.knobs import Place
from tests.trainer.tiny import make_trainer, plain_logp, qwen2

PROBLEMS = [Problem(f"p{i}", f"{i} 3 5") for i in range(3)]


def sampler(engine: NativeEngine) -> Sampler:
    return Sampler(
        task=None,  # type: ignore[arg-type] - nothing is judged
        engine=engine,
        encode=lambda problems: [np.array([int(word) for word in p.prompt.split()]) for p in problems],
        decode=lambda tokens: [""] * len(tokens),
    )


def engine(tolerance: float | None) -> NativeEngine:
    engine = NativeEngine(qwen2(), eos_token_ids=[-1], pad_token_id=0)
    engine.tolerance = None if tolerance is None else Tolerance.exact(tolerance)
    return engine


PLACE = Place(torch.device("cpu"), pad_token_id=0, max_tokens=6)


def test_an_engine_with_the_trainers_weights_passes_and_one_without_stops_the_run() -> None:
    learner, sampling_engine = make_trainer(temperature=0.8), engine(1e-4)
    canary.compare(sampler(sampling_engine), learner.logp, PROBLEMS, PLACE, 0.8)  # both start from the same weights
    with torch.no_grad():
        for parameter in learner.actor.model.parameters():
            parameter.mul_(1.01)  # as after training, without a sync
    with pytest.raises(canary.EngineDisagrees, match=r"differ by up to 0\.\d+ nats .*canary=0.0001.*answer to p[01], "):
        canary.compare(sampler(sampling_engine), learner.logp, PROBLEMS, PLACE, 0.8)
    sampling_engine.sync(learner.weights())
    canary.compare(sampler(sampling_engine), learner.logp, PROBLEMS, PLACE, 0.8)


def test_the_worst_token_is_named() -> None:
    model = qwen2()

    def off(batch: object) -> torch.Tensor:
        rows = plain_logp(model, batch, temperature=0.8)  # type: ignore[arg-type]
        stacked = torch.stack(rows).detach()
        stacked[3, 2] += 0.25  # the second sample of the second prompt, its third token
        return stacked

    with pytest.raises(canary.EngineDisagrees, match=r"up to 0\.25 nats \(mean 0\.01\).*token 3 of an answer to p1"):
        canary.compare(sampler(engine(0.2)), off, PROBLEMS, PLACE, 0.8)
    canary.compare(sampler(engine(0.3)), off, PROBLEMS, PLACE, 0.8)


def test_nan_counts_as_a_disagreement_and_an_engine_without_a_tolerance_is_not_compared() -> None:
    nothing = lambda batch: torch.full(batch.tokens.shape, torch.nan)  # noqa: E731
    with pytest.raises(canary.EngineDisagrees):
        canary.compare(sampler(engine(1e9)), nothing, PROBLEMS, PLACE, 0.8)
    canary.compare(sampler(engine(None)), nothing, PROBLEMS, PLACE, 0.8)


def test_every_rank_samples_from_its_own_engine_and_compares_all() -> None:
    """Two ranks, simulated: the other one's samples come through `gather`, and its fault is raised here too."""
    seen = list[int]()

    def gather(mine: list) -> list[list]:
        seen.append(len(mine))
        return [mine, mine]

    first_rank = replace(sampler(engine(1e-4)), rank=0, world=2, gather=gather)
    model = qwen2()

    def logp(batch: object) -> torch.Tensor:
        rows = torch.stack(plain_logp(model, batch, temperature=0.8)).detach()  # type: ignore[arg-type]
        assert len(rows) == 8
        rows[6, 0] += 1
        return rows

    with pytest.raises(canary.EngineDisagrees, match=r"token 1 of an answer to p1, rank 1"):
        canary.compare(first_rank, logp, PROBLEMS, PLACE, 0.8)
    assert seen == [canary.PROMPTS]


def test_half_precision_is_judged_by_mean_and_tail_and_not_by_its_worst_token() -> None:
    """256 tokens, as of 8 ranks: published runs that trained well differ by 0.039 nats (RMS), single tokens by more."""
    rounded, exact = Tolerance.rounded(0.3), Tolerance.exact(0.3)
    good = np.abs(np.random.default_rng(0).normal(0, 0.039, 256)).astype(np.float32)
    good[7] = 0.9
    assert canary.agrees(good, rounded)
    assert not canary.agrees(good, exact)
    tail, everywhere = good.copy(), good + np.float32(0.05)
    tail[:5] = 0.4  # more than one in a hundred
    assert not canary.agrees(tail, rounded)
    assert not canary.agrees(everywhere, rounded)
    assert not canary.agrees(np.full(256, np.nan, np.float32), rounded)


def test_one_token_of_the_tail_among_few_does_not_end_a_run() -> None:
    """Answers that end at once: of 32 tokens the 99th percentile would be 0.69 of the worst one."""
    few = np.full(32, 0.01, np.float32)
    few[3] = 0.9
    assert canary.agrees(few, Tolerance.rounded(0.3))
    assert not canary.agrees(few, Tolerance.exact(0.3))
    assert not canary.agrees(few + np.float32(0.05), Tolerance.rounded(0.3))  # mean 0.09
    few[3] = np.nan
    assert not canary.agrees(few, Tolerance.rounded(0.3))
