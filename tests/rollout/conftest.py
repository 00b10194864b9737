"""One vLLM for all tests of a process that need one."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from rlvr.rollout.vllm import VllmEngine


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator["VllmEngine"]:
    """Started from other weights (seed 0) than any test samples from: weights that a sync misses are noticed."""
    from tests.rollout.test_vllm import start, tied

    directory = tmp_path_factory.mktemp("model")
    tied(0).save_pretrained(directory)
    started = start(directory)
    yield started
    started.close()
