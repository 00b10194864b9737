"""Conversations: a task's replies to what the policy writes become a part of the response that is not learned from."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from rlvr.noise import mix
from rlvr.records import POLICY, Completion, Conversation, Problem, ReplyingTask, Request, Sampling, reply_of

Tokens = NDArray[np.int64]
Generate = Callable[[Sequence[Request], Sampling], list[tuple[Completion, ...]]]
TASK = "environment"  # the role of replies


@dataclass
class _Talk:
    """One conversation. parts: turns and replies in order."""

    problem: Problem
    request: Request  # of the first turn
    sample: int
    parts: list[Completion] = field(default_factory=list[Completion])

    @property
    def tokens(self) -> Tokens:
        return np.concatenate([part.tokens for part in self.parts])

    def next_turn(self, turn: int) -> Request:
        """A request for the next turn, with noise of its own: the prompt is all that was said."""
        key = int(mix(np.array([self.request.key + turn], np.uint64))[0] >> np.uint64(1))
        return Request(np.concatenate([self.request.prompt, self.tokens]), 1, key, self.sample)

    def hear(self, reply: str | None, encode: Callable[[str], Sequence[int]], room: int) -> bool:
        """Append a reply, unless it ends the conversation or its tokens do not fit. Returns whether it was appended."""
        tokens = np.asarray([] if reply is None else encode(reply), np.int64)
        if reply is None or len(self.tokens) + len(tokens) > room:
            self.parts[-1] = replace(self.parts[-1], finished=reply is None)
            return False
        zero = np.zeros(len(tokens), np.float32)
        self.parts.append(Completion(tokens, zero, zero, finished=False, given=np.ones(len(tokens), bool)))
        return True

    def whole(self) -> Completion:
        given = [np.zeros(len(part.tokens), bool) if part.given is None else part.given for part in self.parts]
        logp, logp_sampling = ([getattr(part, name) for part in self.parts] for name in ("logp", "logp_sampling"))
        joined = (self.tokens, np.concatenate(logp), np.concatenate(logp_sampling))
        return Completion(*joined, finished=self.parts[-1].finished, given=np.concatenate(given))


def converse(
    task: ReplyingTask,
    problems: Sequence[Problem],
    requests: Sequence[Request],
    sampling: Sampling,
    generate: Generate,
    encode: Callable[[str], Sequence[int]],
    decode: Callable[[Sequence[Tokens]], list[str]],
) -> list[tuple[Completion, ...]]:
    """All samples of the requests, turn by turn; none if `generate` returns none, as when they are abandoned.

    A turn ends with an end token or after `task.turn_tokens`. A conversation in which no further turn has room within
    `sampling.max_tokens`, replies included, is cut.
    """
    limit = min(task.turn_tokens, sampling.max_tokens)
    of_turn, turn = replace(sampling, max_tokens=limit), 0
    groups = [
        [_Talk(problem, request, request.first + number) for number in range(request.num_samples)]
        for problem, request in zip(problems, requests, strict=True)
    ]
    speaking = [talk for group in groups for talk in group]
    said = [part for parts in generate(requests, of_turn) for part in parts]
    while speaking:
        if not said:
            return []
        for talk, part in zip(speaking, said, strict=True):
            talk.parts.append(part)
        texts = decode([talk.tokens for talk in speaking])
        replies = [reply_of(task, talk.problem, text) for talk, text in zip(speaking, texts, strict=True)]
        room = sampling.max_tokens - limit
        speaking = [talk for talk, reply in zip(speaking, replies, strict=True) if talk.hear(reply, encode, room)]
        turn += 1
        said = [parts[0] for parts in generate([talk.next_turn(turn) for talk in speaking], of_turn)]
    return [tuple(talk.whole() for talk in group) for group in groups]


def turns_of(completion: Completion, decode: Callable[[Sequence[Tokens]], list[str]]) -> Conversation:
    """The turns and replies of a response, as texts."""
    assert completion.given is not None
    edges = [0, *(np.flatnonzero(np.diff(completion.given)) + 1).tolist(), len(completion.given)]
    texts = decode([completion.tokens[begin:end] for begin, end in pairwise(edges)])
    return tuple((TASK if completion.given[at] else POLICY, text) for at, text in zip(edges[:-1], texts, strict=True))
