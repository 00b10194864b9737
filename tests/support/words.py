"""Command lines that tests put together."""

from __future__ import annotations

from collections.abc import Sequence

from rlvr.config.overrides import key_of


def newest(words: Sequence[str]) -> list[str]:
    """Of every key its last word: what a test types in the place of what it shares with others."""
    return list({key_of(word): word for word in words}.values())
