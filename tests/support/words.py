"""Helps tests to put command lines together."""

from collections.abc import Sequence

from rlvr.config.overrides import key_of

# The smallest world: 50 arms, one step of which takes milliseconds. A loss is to be added.
BANDIT = (
    *("task=bandit", "model=table", "advantage=reinforce", "rollout.prompts=1", "rollout.dynamic_sampling=none"),
    "trainer.updates=1",
)


def newest(words: Sequence[str]) -> list[str]:
    """The last word of each key: a test appends words that replace those it shares with other tests."""
    return list({key_of(word): word for word in words}.values())
