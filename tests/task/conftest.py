from collections.abc import Iterator

import pytest

from tests.support import tasks


@pytest.fixture(autouse=True)
def _close_tasks() -> Iterator[None]:
    """Close what a test has made by `make_task`."""
    before = len(tasks.MADE)
    yield
    while len(tasks.MADE) > before:
        tasks.MADE.pop().close()
