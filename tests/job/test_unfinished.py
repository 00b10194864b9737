"""A run whose responses hardly ever end says so at its first ones."""

from __future__ import annotations

import logging

import pytest

from rlvr.job.unfinished import Unfinished


@pytest.mark.parametrize(
    ("shares", "max_tokens", "warns"), [([0.0, 0.0], 512, True), ([0.5, 0.0], 512, False), ([0.0], 1, False)]
)
def test_a_run_warns_once_if_its_first_responses_do_not_end(
    shares: list[float], max_tokens: int, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "rlvr"):
        unfinished = Unfinished(["</s>", "<|im_end|>"])
        for share in shares:
            unfinished.check(share, max_tokens)
    said = [record.getMessage() for record in caplog.records]
    assert said[0] == "a response ends with </s> or <|im_end|>"
    assert len(said) == 1 + warns
    if warns:
        assert said[1].startswith(
            "0.0 % of the first responses ended, by </s> or <|im_end|>; the others were cut after 512"
        )
