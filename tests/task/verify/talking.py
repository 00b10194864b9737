"""A verifier that sends what it is asked to send, instead of a reply or besides it."""

import os
import time
from typing import Any

REPLIES = 3  # descriptor of the replies


def judge(request: dict[str, Any]) -> dict[str, Any]:
    if "send" in request:
        os.write(REPLIES, request["send"].encode())
        time.sleep(request["sleep_s"])
    if "flood" in request:
        while True:
            os.write(REPLIES, b"x" * 2**16)
    return {"outcome": "correct"}
