"""What a loss sees: `Batch` and `Policy` go in, `Terms` come out. Shapes are checked once, here."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

EXPLORE, REHEARSE = 0, 1  # Batch.kind: sampled by the policy; a stored response of the base policy (DPH-RL)


class CutGroups(Tensor):
    """`Batch.group` of rows whose groups have further rows in other micro-batches: to compute with it is refused."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") == "__get__":  # its shape and device
            return cast(Any, super()).__torch_function__(func, types, args, kwargs)
        raise ValueError(
            "the loss reads Batch.group, and a group longer than trainer.token_budget is cut into several "
            "micro-batches: declare the loss with @whole_groups (rlvr/objective/batch.py)."
        )


@dataclass(frozen=True)
class Batch:
    """B = P·G sampled responses in whole groups, right-padded to T tokens."""

    tokens: Tensor  # [B, T] int64
    mask: Tensor  # [B, T] bool, response tokens
    logp_old: Tensor  # [B, T] nats, policy that sampled
    advantage: Tensor  # [B] or [B, T]
    reward: Tensor  # [B]
    group: Tensor  # [B] int64, row of `prompt` that each response answers; non-decreasing
    prompt: Tensor  # [P, L] int64, left-padded
    prompt_mask: Tensor  # [P, L] bool
    logp_ref: Tensor | None = None  # [B, T] nats, frozen reference policy
    kind: Tensor | None = None  # [B] int64, stream of each row
    row: Tensor | None = None  # [B] int64, number of each row in the batch that `select` took it from
    value_old: Tensor | None = None  # [B, T] what the value head said when the advantages were taken
    returns: Tensor | None = None  # [B, T] what the value head learns
    noise: Tensor | None = None  # [B, T] in (0, 1), uniform: a function of seed, update, row's content and position
    logp_engine: Tensor | None = None  # [B, T] nats, what the engine said of `logp_old`; NaN: it did not say
    weight: Tensor | None = None  # [B] or [B, T] of each token's loss (rlvr/objective/mismatch.py); None: 1
    extra: Tensor | None = None  # [B] or [B, T] what the loss's own `first_pass` found in the whole mini-batch

    def __post_init__(self) -> None:
        B, T = self.tokens.shape
        P, L = self.prompt.shape
        expected = {
            "mask": (B, T),
            "logp_old": (B, T),
            "logp_ref": (B, T),
            "reward": (B,),
            "group": (B,),
            "kind": (B,),
            "row": (B,),
            "prompt_mask": (P, L),
            "value_old": (B, T),
            "returns": (B, T),
            "noise": (B, T),
            "logp_engine": (B, T),
        }
        for name, shape in expected.items():
            value: Tensor | None = getattr(self, name)
            if value is not None and tuple(value.shape) != shape:
                raise ValueError(f"Batch.{name} has shape {list(value.shape)}, expected {list(shape)}")
        for name in ("advantage", "extra", "weight"):
            value = getattr(self, name)
            if value is not None and tuple(value.shape) not in {(B,), (B, T)}:
                raise ValueError(f"Batch.{name} has shape {list(value.shape)}, expected [{B}] or [{B}, {T}]")
        if self.group.is_cuda or isinstance(self.group, CutGroups):
            return  # values were looked at on the CPU, where batches are made: to look here makes the host wait
        if B and (bool((self.group.diff() < 0).any()) or int(self.group.min()) < 0 or int(self.group.max()) >= P):
            raise ValueError("Batch.group must be non-decreasing row numbers of Batch.prompt: groups stay whole")

    @property
    def num_groups(self) -> int:
        return self.prompt.shape[0]

    @property
    def token_advantage(self) -> Tensor:
        """[B, T] the advantage of each token, 0 at padding."""
        each = self.advantage if self.advantage.dim() == 2 else self.advantage[:, None]
        return torch.where(self.mask, each, 0.0)

    def log_ratio(self, logp: Tensor) -> Tensor:
        """[B, T] log π/π_old of each token, logp: [B, T] nats under π. 0 at padding: nothing there has a gradient."""
        return torch.where(self.mask, logp - self.logp_old, 0.0)

    def select(self, groups: Tensor) -> Batch:
        """The sub-batch of the given groups ([P'] row numbers of `prompt`, ascending), renumbered from 0."""
        return self._pick(torch.isin(self.group, groups), groups)

    def select_rows(self, rows: Tensor) -> Batch:
        """The sub-batch of the given rows ([B'] int64, ascending) and of the prompts that they answer, renumbered."""
        answered = torch.isin(torch.arange(self.num_groups, device=rows.device), self.group[rows])
        return self._pick(rows, answered.nonzero()[:, 0])

    def _pick(self, rows: Tensor, groups: Tensor) -> Batch:
        picked: dict[str, Tensor] = {}
        for name, value in self._tensors():
            picked[name] = value[groups if name.startswith("prompt") else rows]
        picked["group"] = torch.searchsorted(groups, picked["group"])
        return Batch(**picked)

    def to(self, device: torch.device) -> Batch:
        return Batch(**{name: onto(device, value) for name, value in self._tensors()})

    def with_cut_groups(self) -> Batch:
        """The same rows for a loss that must not take anything over a group, because not all of one are here."""
        refused = torch.zeros(len(self.tokens), dtype=torch.int64).as_subclass(CutGroups)  # type: ignore[arg-type]
        return replace(self, group=refused)

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Name and value of every field that is there."""
        for each in fields(self):
            value: Tensor | None = getattr(self, each.name)
            if value is not None:
                yield each.name, value


def onto(device: torch.device, tensor: Tensor) -> Tensor:
    """The tensor on a device: copied to a GPU, from memory that it reads by itself, while the host goes on."""
    if device.type == "cuda" and not tensor.is_cuda:
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


@dataclass(frozen=True)
class Policy:
    """What the policy in training says about a `Batch`. Fields a loss did not ask for with `@needs` are None."""

    logp: Tensor  # [B, T] nats, with gradient
    entropy: Tensor | None = None  # [B, T] nats, with gradient
    value: Tensor | None = None  # [B, T], with gradient: expected reward before each token
    log_z: Tensor | None = None  # [B], with gradient


@dataclass(frozen=True)
class Terms:
    """Unreduced loss and metrics, each [B, T] per token or [B] per sequence."""

    loss: Tensor  # its gradient is exact even where its value is clamped
    metrics: dict[str, Tensor] = field(default_factory=dict[str, Tensor])


Loss = Callable[[Policy, Batch], Terms]
Divergence = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def value_and_derivative(divergence: Divergence, log_ratio: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
    """What a divergence returns. ValueError, which names it, for anything else than its value and derivative."""
    returned: Any = divergence(log_ratio, a)
    parts: list[Any] = list(cast("list[Any]", returned)) if isinstance(returned, tuple | list) else [returned]
    if len(parts) != 2 or not all(isinstance(part, Tensor) for part in parts):
        function: Any = divergence.func if isinstance(divergence, partial) else divergence
        name = getattr(function, "__qualname__", type(function).__qualname__)
        came = ", ".join(type(part).__name__ for part in parts)
        raise ValueError(
            f"the divergence {function.__module__}.{name} returned {came}, not two tensors: the "
            "value w·f(r/w), and its derivative r·f'(r/w) by the log ratio, as those of rlvr/objective/divergence.py."
        )
    return parts[0], parts[1]


# (reward [B], group [B]) and, by name, what it declares with `needs` → [B] or [B, T]; or that and the returns [B, T].
Advantage = Callable[..., Any]

F = TypeVar("F", bound=Callable[..., object])


def needs(*what: str) -> Callable[[F], F]:
    """Declare what a function reads beyond its usual arguments: nothing else is computed for it.

    A loss: "entropy" (with gradient), "value", "log_z" of the policy; "reference" (`Batch.logp_ref`), "noise"
    (`Batch.noise`), "returns" (`Batch.returns` and `value_old`), "solution" (rows are the task's known answers, not
    samples). An advantage: "mask", "logp_old", "value", "entropy", all [B, T] and of the policy that sampled, which it
    then takes as arguments of these names.
    """

    def mark(function: F) -> F:
        function.needs = frozenset(what)  # type: ignore[attr-defined]
        return function

    return mark


def binary_rewards(function: F) -> F:
    """Declare that a loss or an advantage takes rewards 0 and 1 only: refused at launch with a task of other rewards.

    Marks are for the checks before launch (rlvr/config/signature.py). What a batch holds `check_values` looks at, for a
    loss; an advantage checks what it gets by itself.
    """
    return _marked(function, "binary_rewards")


def one_token_responses(function: F) -> F:
    """Declare that a loss takes responses of one token only: refused at launch with a task of longer ones."""
    return _marked(function, "one_token_responses")


def per_response(function: F) -> F:
    """Declare that a loss has one term per response: what weighs tokens is refused with it at launch."""
    return _marked(function, "per_response")


def whole_groups(function: F) -> F:
    """Declare that a loss reads `Batch.group`: its groups then never split, however long they are.

    Without it the rows of a group that is longer than `trainer.token_budget` are learned in several micro-batches.
    """
    return _marked(function, "whole_groups")


def compares_responses(function: F) -> F:
    """Declare that it compares responses with each other: refused at launch with one response per problem."""
    return _marked(function, "compares_responses")


def uses_equal_groups(function: F) -> F:
    """Declare that an advantage learns from groups whose rewards are all the same: refused where dynamic sampling
    leaves them out.
    """
    return _marked(function, "uses_equal_groups")


def _marked(function: F, mark: str) -> F:
    marks: frozenset[str] = getattr(function, "marks", frozenset[str]())
    function.marks = marks | {mark}  # type: ignore[attr-defined]
    return function


def first_pass(function: Callable[..., Tensor]) -> Callable[[F], F]:
    """Give a loss statistics of the whole optimiser mini-batch, exact for any micro-batches and ranks.

    `function(policy, batch, **knobs) -> Tensor`, [B] or [B, T], sees the whole mini-batch and a policy without
    gradient, once per optimiser step; it takes those of the loss's knobs that it names. The loss finds its rows of the
    result in `Batch.extra`. It costs one more forward pass over the mini-batch, a third more training time at most.
    What either function declares with `needs`, both are given.
    """

    def mark(loss: F) -> F:
        loss.first_pass = function  # type: ignore[attr-defined]
        return loss

    return mark


def needed(function: object) -> frozenset[str]:
    """What a loss, its first pass included, or an advantage declared with `needs`, knobs bound or not."""
    plain, _ = _without_knobs(function)
    own: frozenset[str] = getattr(plain, "needs", frozenset[str]())
    before: object = getattr(plain, "first_pass", None)
    return own if before is None else own | needed(before)


def marks_of(function: object) -> frozenset[str]:
    """What a function is declared with, knobs bound or not."""
    plain, _ = _without_knobs(function)
    return getattr(plain, "marks", frozenset[str]())


def check_values(loss: object, batch: Batch) -> None:
    """Look at rewards and lengths, for a loss that declared which it takes. A batch on a GPU is passed over: to look
    there makes the host wait, and the trainer has looked on the CPU. Raises ValueError.
    """
    marks, name = marks_of(loss), getattr(_without_knobs(loss)[0], "__name__", "")
    if batch.mask.is_cuda or not len(batch.mask):
        return
    if "binary_rewards" in marks:
        strange = batch.reward[(batch.reward != 0) & (batch.reward != 1)]
        if strange.numel():
            raise ValueError(
                f"loss={name} got the reward {strange[0].item():g}. It takes rewards 0 and 1 only. "
                "Pass another loss, or a task with binary rewards."
            )
    longest = int(batch.mask.sum(-1).max())
    if "one_token_responses" in marks and longest > 1:
        raise ValueError(
            f"loss={name} got a response of {longest} tokens: it sums over all answers, which only answers "
            "of one token allow. Pass loss=lad, or a task such as task=bandit."
        )


def first_pass_of(loss: Loss) -> Callable[[Policy, Batch], Tensor] | None:
    """The first pass of a loss, with the loss's knobs bound; None if it has none."""
    plain, knobs = _without_knobs(loss)
    before = getattr(plain, "first_pass", None)
    if before is None:
        return None
    named = inspect.signature(before).parameters
    return partial(before, **{name: value for name, value in knobs.items() if name in named})


def _without_knobs(function: object) -> tuple[object, dict[str, Any]]:
    """A function as it was defined, and the knobs that were bound to it."""
    knobs: dict[str, Any] = {}
    while isinstance(function, partial):
        bound = cast("partial[object]", function)
        knobs = {**bound.keywords, **knobs}
        function = bound.func
    return function, knobs
