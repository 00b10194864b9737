import logging

import pytest

from rlvr.job.first_responses import FirstResponses


@pytest.mark.parametrize(
    ("shares", "max_tokens", "warns"), [([0.0, 0.0], 512, True), ([0.5, 0.0], 512, False), ([0.0], 1, False)]
)
def test_a_run_warns_once_if_its_first_responses_do_not_end(
    shares: list[float], max_tokens: int, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "rlvr"):
        unfinished = FirstResponses(["</s>", "<|im_end|>"])
        for share in shares:
            unfinished.check(share, max_tokens)
    said = [record.getMessage() for record in caplog.records]
    assert (said[0], len(said)) == ("a response ends with </s> or <|im_end|>", 1 + warns)
    if warns:
        assert said[1].startswith(
            "0.0 % of the first responses ended, by </s> or <|im_end|>; the others were cut after 512"
        )


def test_training_says_if_most_of_its_first_responses_have_no_answer(caplog: pytest.LogCaptureFixture) -> None:
    first = FirstResponses(["</s>"])
    first.check_step({"time/rollout_s": 1.0}, 8)  # a filter left nothing to sample
    for unparsable in (0.97, 1.0):
        first.check_step({"response/finished": 1.0, "reward/unparsable": unparsable}, 8)
    (line,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert line.startswith("training: 97 % of the first responses have no answer that the task can read. Compare")
    caplog.clear()
    FirstResponses(["</s>"]).check_step({"response/finished": 1.0, "reward/unparsable": 0.5}, 8)
    assert not [record for record in caplog.records if record.levelno == logging.WARNING]
