"""Weights and measures by hand, and that a weight weighs a token's gradient and nothing else."""

import math
from dataclasses import replace

import pytest
import torch

from rlvr.job.canary import EngineDisagrees
from rlvr.job.mixture import mix
from rlvr.objective.batch import Batch
from rlvr.objective.micro_batch import weighed
from rlvr.objective.mismatch import measure, weigh
from rlvr.trainer.collate import collate
from tests.support.factories import make_batch
from tests.trainer import tiny
from tests.trainer.test_collate import rollout

HALF, TWICE, FOURTH = math.log(0.5), math.log(2), math.log(0.25)


def apart(*ratios: float) -> Batch:
    """One response of so many tokens, whose trainer gives these log-ratios over the engine's log-probabilities."""
    batch = make_batch(num_groups=1, num_samples=1, num_tokens=len(ratios) + 1, lengths=[len(ratios)])
    engine = batch.logp_old - torch.tensor([[*ratios, 0.0]])
    engine[:, -1] = -7.0  # padding: no part in anything
    return replace(batch, logp_engine=engine)


def test_distance_is_over_sampled_tokens_alone() -> None:
    """d = (ln ½, 0, ln 2, unknown): mean |d| = 2 ln 2 / 3; e^d − 1 − d = ½ − 1 + ln 2, 0, 2 − 1 − ln 2: mean ½ / 3."""
    measured = measure(apart(HALF, 0.0, TWICE, math.nan), None)
    assert measured == {
        "mismatch/mean": pytest.approx(2 * TWICE / 3, rel=1e-5),
        "mismatch/max": pytest.approx(TWICE, rel=1e-5),
        "mismatch/kl": pytest.approx(0.5 / 3, rel=1e-5),
    }


def test_truncation_cuts_from_above_and_clipping_and_masking_at_both_ends() -> None:
    """Ratios ½, 1, 2, ¼, unknown, padding at a cap of 1.5 and of 3."""
    batch = apart(HALF, 0.0, TWICE, FOURTH, math.nan)
    expected = {
        ("truncate", 1.5): [0.5, 1, 1.5, 0.25, 1, 1],
        ("truncate", 3.0): [0.5, 1, 2, 0.25, 1, 1],
        ("mask", 1.5): [0, 1, 0, 0, 1, 1],
        ("mask", 3.0): [0.5, 1, 2, 0, 1, 1],
        ("clip", 1.5): [1 / 1.5, 1, 1.5, 1 / 1.5, 1, 1],
    }
    for (importance, cap), weights in expected.items():
        weight = weigh(batch, importance, cap).weight  # type: ignore[arg-type]
        assert weight is not None
        assert weight[0].tolist() == pytest.approx(weights, rel=1e-5)
    measured = measure(weigh(batch, "truncate", 1.5), None)
    assert measured["mismatch/weight"] == pytest.approx((0.5 + 1 + 1.5 + 0.25) / 4, rel=1e-5)
    assert measured["mismatch/cut"] == 1 / 4
    assert measure(weigh(batch, "mask", 1.5), None)["mismatch/cut"] == 3 / 4
    far = apart(-12.0, 0.0)  # a ratio of 6e-6
    assert measure(weigh(far, "mask", 2.0), None)["mismatch/cut"] == 1 / 2
    assert measure(weigh(far, "truncate", 2.0), None)["mismatch/cut"] == 0


def test_no_weights_without_an_engine_or_a_wish() -> None:
    batch = apart(HALF)
    assert weigh(batch, "none", 2.0) is batch
    assert weigh(replace(batch, logp_engine=None), "truncate", 2.0).weight is None
    assert (measure(replace(batch, logp_engine=None), 1e-9), measure(apart(math.nan), 1e-9)) == ({}, {})


def test_a_step_that_is_too_far_off_stops_before_it_is_learned() -> None:
    batch = apart(HALF, 0.0)
    assert measure(batch, 0.35)["mismatch/mean"] == pytest.approx(TWICE / 2)
    with pytest.raises(EngineDisagrees, match=r"2 sampled tokens differ by 0\.35 .*most 0\.69.*max_mismatch=0\.3\."):
        measure(batch, 0.3)
    with pytest.raises(EngineDisagrees):
        measure(apart(math.inf), 1e9)


def test_rehearsed_rows_are_nobodys_mismatch_and_weigh_one() -> None:
    both = mix(apart(HALF, TWICE), make_batch(num_groups=1, num_samples=2, num_tokens=3, seed=1))
    assert both.kind is not None
    assert measure(both, None)["mismatch/max"] == pytest.approx(TWICE)
    weight = weigh(both, "truncate", 1.5).weight
    assert weight is not None
    assert weight[both.kind == 1].eq(1).all()
    assert weight[both.kind == 0][0].tolist() == pytest.approx([0.5, 1.5, 1.0])


def test_a_weight_weighs_the_gradient_of_its_token() -> None:
    """Weights all 3 give thrice the gradient; weights of rows that of advantages scaled so: the loss is linear."""
    data = tiny.batch(logp_ref=None)
    plain, thrice = tiny.make_trainer(), tiny.make_trainer()
    plain.learn(data)
    thrice.learn(replace(data, weight=torch.full_like(data.logp_old, 3.0)))
    expected = {name: 3 * value for name, value in tiny.gradients(plain).items()}
    assert tiny.worst(tiny.gradients(thrice), expected) < 1e-6
    rows = torch.arange(len(data.tokens)) / len(data.tokens)
    weighed, alone = tiny.make_trainer(token_budget=1), tiny.make_trainer()
    weighed.learn(replace(data, weight=rows[:, None].expand_as(data.logp_old)))
    alone.learn(replace(data, advantage=data.advantage * rows))
    assert tiny.worst(tiny.gradients(weighed), tiny.gradients(alone)) < 1e-6


def test_the_trainers_own_log_probabilities_stand_beside_the_engines() -> None:
    group = rollout("a", [1], ([1, 2], 1.0), ([1], 0.0))
    engine = collate([group], lambda r, g: r, pad_token_id=0)
    policy = tiny.make_trainer().policy_of
    own = collate([group], lambda r, g: r, pad_token_id=0, policy_of=policy, own_logp=True)
    torch.testing.assert_close(own.logp_engine, engine.logp_old)
    torch.testing.assert_close(own.logp_old, policy(engine).logp.cpu())
    assert collate([group], lambda r, g: r, pad_token_id=0, policy_of=policy).logp_engine is None


def responses() -> Batch:
    """Log-ratios ln 2, ln 2, ln ½ (product 2, geometric mean 2^⅓) and ln ¼, unknown (both ¼), padding."""
    batch = make_batch(num_groups=1, num_samples=2, num_tokens=4, lengths=[3, 2])
    d = torch.tensor([[TWICE, TWICE, HALF, 0.0], [FOURTH, math.nan, 0.0, 0.0]])
    return replace(batch, logp_engine=batch.logp_old - d)


@pytest.mark.parametrize(
    ("importance", "level", "cap", "expected"),
    [
        *(("truncate", "sequence", 1.5, [1.5, 0.25]), ("clip", "sequence", 1.5, [1.5, 1 / 1.5])),
        *(("mask", "sequence", 3.0, [2.0, 0.0]), ("truncate", "geometric", 1.2, [1.2, 0.25])),
        *(("clip", "geometric", 2.0, [2 ** (1 / 3), 0.5]), ("mask", "geometric", 1.3, [2 ** (1 / 3), 0.0])),
    ],
)
def test_weights_of_responses_by_hand(importance: str, level: str, cap: float, expected: list[float]) -> None:
    weighed = weigh(responses(), importance, cap, level)  # type: ignore[arg-type]
    assert weighed.weight is not None
    assert weighed.weight.tolist() == pytest.approx(expected, rel=1e-5)
    measured = measure(weighed, None, level)  # type: ignore[arg-type]
    of_known_tokens = (3 * expected[0] + expected[1]) / 4
    assert measured["mismatch/weight"] == pytest.approx(of_known_tokens, rel=1e-5)
    ratios = [2.0, 0.25] if level == "sequence" else [2 ** (1 / 3), 0.25]
    cut = [abs(w - r) > 1e-3 for w, r in zip(expected, ratios, strict=True)]
    assert measured["mismatch/cut"] == pytest.approx((3 * cut[0] + cut[1]) / 4)
    assert measured["mismatch/sequence"] == pytest.approx(2 * TWICE, rel=1e-5)


def test_the_weight_of_a_response_weighs_its_one_term_and_each_of_its_tokens() -> None:
    batch = replace(make_batch(num_groups=1, num_samples=2), weight=torch.tensor([2.0, 0.5]))
    assert weighed(torch.tensor([3.0, 8.0]), batch.weight).tolist() == [6.0, 4.0]  # type: ignore[arg-type]
    per_token = weighed(torch.ones(2, 3), batch.weight)  # type: ignore[arg-type]
    assert per_token.tolist() == [[2.0] * 3, [0.5] * 3]
    with pytest.raises(ValueError, match="importance_level=sequence"):
        weighed(torch.ones(2), torch.ones(2, 3))
