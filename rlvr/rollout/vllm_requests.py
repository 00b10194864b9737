"""Requests that were sent to a vLLM, and the samples that have come back for them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from rlvr.records import Completion, Progress, Request, Sampling, Supply

Unanswered = dict[int, tuple[Request, Sampling]]  # requests that were sent and are not answered yet, by row


class TopicSamples:
    """The samples of a topic: numbered in the order in which they were requested, and returned as complete groups."""

    def __init__(self) -> None:
        self.row: list[int] = []  # row of each sample, by number
        self._missing: dict[int, int] = {}  # number of samples still missing, by row
        self._completions: dict[int, dict[int, Completion]] = {}  # by row and number

    def number(self, fresh: Unanswered) -> int:
        """Number all samples of these rows. Returns the first number."""
        first = len(self.row)
        for row, (request, _) in fresh.items():
            self.row += [row] * request.num_samples
            self._missing[row], self._completions[row] = request.num_samples, {}
        return first

    def add(self, number: int, completion: Completion) -> tuple[Completion, ...]:
        """Store a sample. Returns all samples of its row in order if it completes the row, else none."""
        row = self.row[number]
        self._completions[row][number] = completion
        self._missing[row] -= 1
        if self._missing[row]:
            return ()
        del self._missing[row]
        return tuple(completion for _, completion in sorted(self._completions.pop(row).items()))


@dataclass
class AllRequests:
    """Supply of requests, by row, all sent at once: `enough` when all are answered, or `progress` has enough."""

    requests: Mapping[int, Request]
    sampling: Sampling
    progress: Progress | None = None
    sampled: dict[int, tuple[Completion, ...]] = field(default_factory=dict[int, tuple[Completion, ...]])
    _sent: bool = False

    def begin(self, most: int, version: int) -> list[tuple[int, Request, Sampling]]:
        if self._sent:
            return []
        self._sent = True
        return [(row, request, self.sampling) for row, request in self.requests.items()]

    def deliver(self, row: int, samples: tuple[Completion, ...], version: int) -> None:
        self.sampled[row] = samples
        if self.progress is not None:
            self.progress.take(row, samples)

    def wait(self) -> None:
        raise AssertionError("all requests were sent, and not all are answered")

    @property
    def most_running(self) -> int:
        return sum(request.num_samples for request in self.requests.values())

    @property
    def enough(self) -> bool:
        return len(self.sampled) == len(self.requests) or (self.progress is not None and self.progress.enough)


def most_of_each(supply: Supply, workers: int) -> int:
    """Samples that each of these workers may have running: the first to ask would otherwise get all that may begin."""
    return -(-supply.most_running // workers)
