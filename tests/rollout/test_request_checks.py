import numpy as np
import pytest

from rlvr.records import Request, Sampling
from rlvr.rollout.request_checks import check_requests, check_synced

PROMPTS = [Request(np.arange(length), num_samples=2, key=length) for length in (2, 3)]


def test_the_length_of_the_longest_prompt_is_returned_and_settings_out_of_range_are_named() -> None:
    assert check_requests([], Sampling(4, 0, 0)) == 1
    for temperature, top_p in ((1.0, 1.0), (0.0, 1.0), (1.0, 0.01)):  # at the end of their range, too
        assert check_requests(PROMPTS, Sampling(1, 0, 0, temperature, top_p)) == 3
    for sampling in (Sampling(0, 0, 0), Sampling(4, 0, 0, -0.1), Sampling(4, 0, 0, 1, 0), Sampling(4, 0, 0, 1, 1.1)):
        with pytest.raises(ValueError, match="out of range: max_tokens >= 1, temperature >= 0, 0 < top_p <= 1"):
            check_requests(PROMPTS, sampling)
    with pytest.raises(ValueError, match="A prompt has no token"):
        check_requests([*PROMPTS, Request(np.arange(0), num_samples=2, key=0)], Sampling(4, 0, 0))


def test_a_mixture_of_two_policies_is_not_sampled_from() -> None:
    check_synced(True)
    with pytest.raises(ValueError, match="Sync again first"):
        check_synced(False)
