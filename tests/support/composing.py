"""Hydra's own `compose` for tests, with what a run's config needs."""

import contextlib
from collections.abc import Generator

from hydra import initialize_config_dir

from rlvr.config import schema, sources


@contextlib.contextmanager
def composing() -> Generator[None, None, None]:
    """Inside this context `compose("run", [...])` finds conf/, our schema and our resolvers."""
    schema.register()
    sources.register()
    with initialize_config_dir(str(schema.CONF), version_base="1.3"):
        yield
