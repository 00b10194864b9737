"""Settings of the whole suite."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

# Two test files run at a time on two cores: threads of OpenMP that wait for one another would take most of it. Read by
# torch when it is imported, and inherited by what the suite starts.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell that starts the suite in the background (&, nohup) has it ignore these, and what the suite starts would too.
for _number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, signal.default_int_handler if _number == signal.SIGINT else signal.SIG_DFL)

# A busy machine must not fail a law, and a law must fail on every run or on none.
settings.register_profile("suite", deadline=None, derandomize=True)
settings.load_profile("suite")


@pytest.fixture
def composing() -> Iterator[None]:
    """Hydra's `compose` knows conf/ in the test."""
    from rlvr.config import compose  # not above: NumPy, too, reads OMP_NUM_THREADS when it is imported

    with compose.composing():
        yield
