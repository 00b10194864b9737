"""What tasks have in common whose problems are rows of data, and those whose answers are judged in child processes.

The knobs of such a task are the fields of its dataclass, its own and these.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from annotated_types import Interval
from pydantic import PositiveFloat, PositiveInt

from rlvr.records import Problem, Reward, Split, binary
from rlvr.task.fence import Marking
from rlvr.task.prompt_length import LongPrompts, PromptLimit
from rlvr.task.sources import Column, Sources, TrainSelection, problems
from rlvr.task.verify.pool import Pool


@dataclass(kw_only=True, eq=False)
class Loaded:
    """A task with all splits in memory.

    train, test: see `rlvr.task.sources.problems`.
    max_tokens: default limit of a response.
    validation, train_problems: which training problems are held out or kept, see `rlvr.task.sources.TrainSelection`.
    revision: commit, branch or tag of hub names without one. A frozen config has the commit in each name instead.
    """

    train: Sources | None
    test: Sources
    max_tokens: PositiveInt
    validation: Annotated[float, Interval(ge=0, lt=1)] = 0.0
    train_problems: PositiveInt | None = None
    revision: str | None = None

    def load(self, columns: Sequence[Column], make: Callable[..., tuple[str, Any]]) -> None:
        """Read the data: `make` takes the cells of `columns`, of which the first has the problem, and returns (prompt,
        answer). Raises ValueError for data that cannot be read, and for an option that there is not."""
        self._check_options()
        selection = TrainSelection(self.validation, self.train_problems, self.prompt_limit())
        self.rows = problems(self.train, self.test, columns, make, selection, self.revision)
        self._problems = self.rows.problems

    def _check_options(self) -> None:
        """Raises ValueError for a value that its field's `Literal` does not have: a subclass of the user may pass on
        knobs that no check before the launch has seen.
        """
        ours = next(kind for kind in type(self).__mro__ if kind.__module__.startswith("rlvr.task."))
        for name, kind in get_type_hints(ours).items():
            if get_origin(kind) is Literal and (value := getattr(self, name)) not in get_args(kind):
                raise ValueError(f"task.{name}={value} must be {' or '.join(get_args(kind))}.")

    def prompt_limit(self) -> PromptLimit:
        return PromptLimit()

    def as_judged(self, problems: Sequence[Problem]) -> list[str | None]:
        """The right answer of each problem as the task reads it; None if only the same text would be right."""
        return [str(problem.answer) for problem in problems]

    def size(self, split: Split) -> int | None:
        return len(self._problems[split])

    def problem(self, split: Split, index: int) -> Problem:
        return self._problems[split][index]

    def close(self) -> None:
        """Nothing to stop."""


@dataclass(kw_only=True, eq=False)
class Prompted(Loaded):
    """A task for language models, whose prompts must fit into the model's context.

    template: the prompt, with {problem} where the problem goes.
    max_prompt_tokens, long_prompts, reader: see `rlvr.task.prompt_length.PromptLimit`.
    """

    template: str
    max_prompt_tokens: PositiveInt | None = None
    long_prompts: LongPrompts = "refuse"
    reader: Mapping[str, Any] | None = None

    @property
    def reads(self) -> tuple[Marking, ...]:
        """How a response may mark its answer; empty: in no way that a prompt asks for."""
        return ()

    def prompt_limit(self) -> PromptLimit:
        return PromptLimit.of(self.max_prompt_tokens, self.long_prompts, self.reader, self.max_tokens)


@dataclass(kw_only=True, eq=False)
class Verified(Prompted):
    """A task with a pool of processes that judge answers. A subclass calls `start_pool`, then `load`.

    workers, timeout_s, memory_gb: verifying processes, wall-clock limit of an answer, address space of a process.
    """

    workers: PositiveInt
    timeout_s: PositiveFloat
    memory_gb: PositiveFloat

    def start_pool(self, module: str, **options: Any) -> None:
        """Use a module of `rlvr.task.verify`. options: further ones of `Pool`. Its processes start later."""
        limits = {"workers": self.workers, "timeout_s": self.timeout_s, "memory_gb": self.memory_gb}
        self._pool = Pool(f"rlvr.task.verify.{module}", **limits, **options)

    def judge(self, requests: Sequence[Mapping[str, Any] | None]) -> list[Reward]:
        """1 for each answer that the pool judges correct, else 0, with the outcome. None: no answer, `unparsable`."""
        return [binary(reply["outcome"]) for reply in self.replies(requests)]

    def replies(self, requests: Sequence[Mapping[str, Any] | None]) -> list[dict[str, Any]]:
        """The pool's reply to each request, in order. None: no answer, with the outcome `unparsable`."""
        replies = iter(self._pool.ask([request for request in requests if request is not None]))
        return [{"outcome": "unparsable"} if request is None else next(replies) for request in requests]

    def close(self) -> None:
        self._pool.close()
