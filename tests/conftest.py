"""Settings of the whole suite, and its tiers.

A test without a mark costs less than a CPU second (`make test`). Tests marked `slow` or `real` take more, or start
something real. `make test-all` runs everything; continuous integration runs one test of each real thing (`smoke`) and a
quarter of the other slow and real ones: `--quarter N`.
"""

import gc
import json
import os
import signal
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
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

QUARTERS = 4
# Seconds of the slow and real tests of each file, so that the quarters take equally long; `--write-seconds` updates it.
SECONDS = Path(__file__).with_name("seconds.json")
USUAL_S = 8.0  # of a file that has not been timed


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--quarter",
        type=int,
        choices=range(QUARTERS),
        help="of the slow and real tests only those marked smoke and this quarter",
    )
    parser.addoption("--write-seconds", action="store_true", help=f"update {SECONDS.name} with what the tests took")


@pytest.fixture
def composing() -> Iterator[None]:
    """Hydra's `compose` knows conf/ in the test."""
    from tests.support import composing  # not above: NumPy, too, reads OMP_NUM_THREADS when it is imported

    with composing.composing():
        yield


@pytest.hookimpl(tryfirst=True)
def pytest_collection() -> None:
    gc.disable()  # what is collected is no garbage


def pytest_collection_finish() -> None:
    gc.enable()
    gc.freeze()


def file_of(nodeid: str) -> str:
    return nodeid.split("::", 1)[0]


def share_of(nodeid: str) -> str:
    """What one worker of pytest-xdist runs as a whole: a file; of the tests on SLURM all, so that one cluster does."""
    return "tests/slurm" if nodeid.startswith("tests/slurm/") else file_of(nodeid)


def is_heavy(item: pytest.Item) -> bool:
    return any(item.get_closest_marker(mark) for mark in ("slow", "real"))


def quarter_of_each(files: Collection[str], seconds: Mapping[str, float]) -> dict[str, int]:
    """File → its quarter, such that all take about equally long: the longest first, each to the least quarter. Those on
    SLURM before the others: one worker runs all of a quarter's, one after the other."""
    sums = [0.0] * QUARTERS
    quarters = dict[str, int]()
    for file in sorted(files, key=lambda file: (share_of(file) == file, -seconds.get(file, USUAL_S), file)):
        quarters[file] = sums.index(min(sums))
        sums[quarters[file]] += seconds.get(file, USUAL_S)
    return quarters


def _select_quarter(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects the heavy tests of the other quarters."""
    quarter = config.getoption("--quarter")
    if quarter is None:
        return
    heavy = [item for item in items if is_heavy(item)]
    of_file = quarter_of_each({file_of(item.nodeid) for item in heavy}, json.loads(SECONDS.read_text()))
    others = {
        item for item in heavy if of_file[file_of(item.nodeid)] != quarter and not item.get_closest_marker("smoke")
    }
    config.hook.pytest_deselected(items=[item for item in items if item in others])
    items[:] = [item for item in items if item not in others]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """On workers: what starts servers and jobs first, so that none is left with minutes of it when the others end."""
    _select_quarter(config, items)
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


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Writes what the heavy tests of each file took, with their fixtures; of files that have not run it is kept."""
    if not config.getoption("--write-seconds"):
        return
    took = defaultdict[str, float](float)
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport) and {"slow", "real"} & report.keywords.keys():
                took[file_of(report.nodeid)] += report.duration
    kept = {file: s for file, s in json.loads(SECONDS.read_text()).items() if (SECONDS.parents[1] / file).is_file()}
    seconds = kept | {file: round(s, 1) for file, s in took.items()}
    SECONDS.write_text(json.dumps(dict(sorted(seconds.items())), indent=2) + "\n")
