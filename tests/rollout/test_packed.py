"""Packed layers against plain forward passes of the same weights."""

from typing import Any

import pytest

from tests.rollout.test_native import check_logp, make_engine, make_model, make_sampling


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-5), ("bfloat16", 0.1)])
def test_layers_of_a_large_model_are_packed_anew_with_each_weights(dtype: str, tolerance: float) -> None:
    large: dict[str, Any] = {
        "hidden_size": 512,
        "intermediate_size": 4096,
        "num_hidden_layers": 3,
        "initializer_range": 0.05,
    }
    old, new = (make_model(seed, "llama", attention_bias=True, **large) for seed in (0, 1))
    engine = make_engine(old, dtype=dtype)
    assert len(engine.packed) == 3 * 7 + 1
    check_logp(old, engine, make_sampling(), tolerance)
    engine.sync(new.named_parameters())
    check_logp(new, engine, make_sampling(), tolerance)
    assert not make_engine(make_model()).packed  # its weights stay in the cache
