"""Settings of the whole suite."""

from __future__ import annotations

from hypothesis import settings

# A busy machine must not fail a law, and a law must fail on every run or on none.
settings.register_profile("suite", deadline=None, derandomize=True)
settings.load_profile("suite")
