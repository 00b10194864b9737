"""One uniform number becomes one token of the policy, or of its nucleus."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlvr.rollout.draw import draw

# Probabilities 0.5, 0.2, 0.3: cumulative 0.5, 0.7, 1.
LOGITS = torch.tensor([[0.5, 0.2, 0.3]]).log()


def draw_one(u: float, *, temperature: float = 1.0, top_p: float = 1.0) -> tuple[int, float, float]:
    token, logp, logp_sampling = draw(
        LOGITS, torch.tensor([u], dtype=torch.float64), temperature=temperature, top_p=top_p
    )
    return int(token), float(logp), float(logp_sampling)


def test_the_token_is_the_inverse_cumulative_distribution() -> None:
    for u, token in ((1e-9, 0), (0.499, 0), (0.501, 1), (0.699, 1), (0.701, 2), (1 - 2.0**-53, 2)):
        assert draw_one(u)[0] == token, u
        assert draw_one(u)[1] == pytest.approx(math.log([0.5, 0.2, 0.3][token]), abs=1e-6)


def test_the_nucleus_is_the_fewest_words_that_reach_top_p() -> None:
    for top_p, u, token, share in (
        (0.4, 0.99, 0, 0.5),  # 0.5 alone reaches 0.4
        (0.6, 0.62, 0, 0.8),  # {0.5, 0.3}; 0.62·0.8 = 0.496 < 0.5
        (0.6, 0.63, 2, 0.8),  # 0.63·0.8 = 0.504: word 1 is cut, so word 2
        (0.9, 0.60, 1, 1.0),  # 0.8 does not reach 0.9: all three stay
    ):
        drawn, logp, logp_sampling = draw_one(u, top_p=top_p)
        p = [0.5, 0.2, 0.3][token]
        assert drawn == token, (top_p, u)
        assert logp == pytest.approx(math.log(p), abs=1e-6)  # the policy is not truncated
        assert logp_sampling == pytest.approx(math.log(p / share), abs=1e-6)


def test_temperature_divides_the_logits() -> None:
    # At temperature 1/2 probabilities are squared: 0.25, 0.04, 0.09 of 0.38.
    assert draw_one(0.24 / 0.38, temperature=0.5)[0] == 0
    token, logp, _ = draw_one(0.27 / 0.38, temperature=0.5)
    assert (token, logp) == (1, pytest.approx(math.log(0.04 / 0.38), abs=1e-6))


def test_greedy_takes_the_mode_and_reports_temperature_one() -> None:
    token, logp, logp_sampling = draw_one(0.99, temperature=0)
    assert (token, logp_sampling, logp) == (0, 0.0, pytest.approx(math.log(0.5), abs=1e-6))


@given(
    logits=st.lists(st.sampled_from([0.0, 1.0, 20.0, -1e4]), min_size=1, max_size=8).filter(lambda x: max(x) > -1e4),
    u=st.sampled_from([2.0**-53, 0.5, 1 - 2.0**-53]),
    top_p=st.sampled_from([1e-6, 0.5, 1.0]),
)
def test_an_impossible_word_is_never_drawn(logits: list[float], u: float, top_p: float) -> None:
    row = torch.tensor([logits])
    token, logp, _ = draw(row, torch.tensor([u], dtype=torch.float64), temperature=1.0, top_p=top_p)
    assert logits[int(token)] > -1e4
    assert np.isfinite(float(logp))
