"""Checks of requests, the same for every engine."""

from collections.abc import Sequence

from rlvr.records import Request, Sampling

NOT_NUMBERS = "the policy's probabilities are not numbers: its weights have diverged. Lower lr."


def check_synced(synced: bool) -> None:
    """Raises ValueError if the last sync has replaced only a part of the weights."""
    if not synced:
        raise ValueError("The last sync failed half-way: the engine's weights are a mixture. Sync again first.")


def check_requests(requests: Sequence[Request], sampling: Sampling) -> int:
    """Tokens of the longest prompt, at least 1. Raises ValueError for settings out of range and an empty prompt."""
    if sampling.max_tokens < 1 or sampling.temperature < 0 or not 0 < sampling.top_p <= 1:
        raise ValueError(f"{sampling} is out of range: max_tokens >= 1, temperature >= 0, 0 < top_p <= 1")
    lengths = [len(request.prompt) for request in requests] or [1]
    if min(lengths) < 1:
        raise ValueError("A prompt has no token: sampling needs at least one, for example a begin token.")
    return max(lengths)
