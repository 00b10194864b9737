"""Helps tests to put command lines together."""

from __future__ import annotations

from collections.abc import Sequence

from rlvr.config.overrides import key_of


def newest(words: Sequence[str]) -> list[str]:
    """The last word of each key: a test appends words that replace those it shares with other tests."""
    return list({key_of(word): word for word in words}.values())
