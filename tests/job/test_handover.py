from collections.abc import Iterable
from typing import Any

import pytest
import torch

from rlvr.job.handover import Handover
from rlvr.records import EngineDisagrees
from tests.job.test_canary import PROBLEMS, engine, sampler
from tests.trainer.tiny import batch, make_trainer


def test_weights_are_handed_over_once_an_update_and_again_after_sleep() -> None:
    learner, sampling_engine = make_trainer(lr=0.01), engine(1e-4)
    taken, sync = list[int](), sampling_engine.sync

    def watched(weights: Iterable[tuple[str, Any]]) -> None:
        taken.append(learner.num_updates)
        sync(weights)

    sampling_engine.sync = watched  # type: ignore[method-assign]
    handover = Handover(sampler(sampling_engine), learner, PROBLEMS)
    assert [handover(), handover()] == [0, 0]
    learner.learn(batch())
    learner.learn(batch())
    assert taken == [0]  # nothing was sampled after the updates
    assert [handover(), handover()] == [2, 2]
    spent = handover.seconds
    assert 0 < handover.weights_s < spent  # the canary takes time, too
    handover.sleep()
    assert (handover(), taken) == (2, [0, 2, 2])
    trained, of_engine = dict(learner.weights()), dict(sampling_engine.model.named_parameters())
    assert all(torch.equal(trained[name], of_engine[name]) for name in trained)


def test_an_engine_that_drops_a_weight_stops_the_run_at_the_handover() -> None:
    learner, sampling_engine = make_trainer(lr=0.05), engine(1e-4)
    handover = Handover(sampler(sampling_engine), learner, PROBLEMS)
    handover()
    learner.learn(batch())
    sampling_engine.sync = list  # type: ignore[method-assign, assignment] - reads the weights and ignores them
    with pytest.raises(EngineDisagrees, match="after a sync, log-probabilities of fixed prompts differ"):
        handover()
