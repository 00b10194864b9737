"""Limits of entropy and KL beyond which training stops."""

from __future__ import annotations

import math

import pytest

from rlvr.trainer.diverged import Diverged, check_limits


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        ({"policy/entropy": 0.09, "policy/kl_base": 1.0}, "entropy collapse at step 7: policy/entropy is 0.09"),
        ({"policy/entropy": math.nan}, "entropy collapse at step 7: policy/entropy is nan"),
        ({"policy/entropy": 0.1, "policy/kl_base": 2.5}, "KL blow-up at step 7: policy/kl_base is 2.5, max_kl=2"),
    ],
)
def test_a_limit_that_is_passed_is_named_with_its_step(metrics: dict[str, float], message: str) -> None:
    with pytest.raises(Diverged, match=message):
        check_limits(metrics, 7, min_entropy=0.1, max_kl=2.0)


def test_at_a_limit_and_without_one_training_goes_on() -> None:
    check_limits({"policy/entropy": 0.1, "policy/kl_base": 2.0}, 7, min_entropy=0.1, max_kl=2.0)
    check_limits({"policy/entropy": 0.0, "policy/kl_base": math.inf}, 7, min_entropy=None, max_kl=None)
