"""Settings of the whole suite."""

from __future__ import annotations

import gc
import os
import signal
from collections import Counter
from collections.abc import Iterator
from typing import Any

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


@pytest.hookimpl(tryfirst=True)
def pytest_collection() -> None:
    gc.disable()  # what is collected is no garbage


def pytest_collection_finish() -> None:
    gc.enable()
    gc.freeze()


def share_of(nodeid: str) -> str:
    """What one worker of pytest-xdist runs as a whole: a file; of the tests on SLURM all, so that one cluster does."""
    return "tests/slurm" if nodeid.startswith("tests/slurm/") else nodeid.split("::", 1)[0]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """On workers: what starts servers and jobs first, so that none is left with minutes of it when the others end."""
    if hasattr(config, "workerinput"):
        num_real = Counter(share_of(item.nodeid) for item in items if item.get_closest_marker("real"))
        items.sort(key=lambda item: -num_real[share_of(item.nodeid)])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    if config.option.dist != "loadfile":
        return None

    from xdist.scheduler import LoadScopeScheduling

    class Shares(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return share_of(nodeid)

    config.option.loadscopereorder = False  # its order is by the number of tests: the longest files have the fewest
    return Shares(config, log)
