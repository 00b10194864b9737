"""Input and output of a loss: it takes a `Policy` and a `Batch` and returns `Terms`. Shapes are checked here, once."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

F = TypeVar("F", bound=Callable[..., object])
R = TypeVar("R")

EXPLORE, REHEARSE = 0, 1  # values of Batch.kind: sampled by the policy; a stored response of the base policy (DPH-RL)


class CutGroups(Tensor):
    """`Batch.group` if groups also have rows in other micro-batches: any computation with it raises ValueError."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") == "__get__":  # attributes such as shape and device
            return cast(Any, super()).__torch_function__(func, types, args, kwargs)
        raise ValueError(
            "the loss reads Batch.group, and a group longer than trainer.token_budget is cut into several "
            "micro-batches: declare the loss with @whole_groups (rlvr/objective/batch.py)."
        )


@dataclass(frozen=True)
class Batch:
    """B = P·G sampled responses in whole groups, right-padded to T tokens."""

    tokens: Tensor  # [B, T] int64
    mask: Tensor  # [B, T] bool, true for response tokens
    logp_old: Tensor  # [B, T] nats, under the policy that sampled
    advantage: Tensor  # [B] or [B, T]
    reward: Tensor  # [B]
    group: Tensor  # [B] int64, the row of `prompt` that each response belongs to; non-decreasing
    prompt: Tensor  # [P, L] int64, left-padded
    prompt_mask: Tensor  # [P, L] bool
    logp_ref: Tensor | None = None  # [B, T] nats, under the frozen reference policy
    kind: Tensor | None = None  # [B] int64, stream of each row
    row: Tensor | None = None  # [B] int64, number of each row in the batch that `select` took it from
    value_old: Tensor | None = None  # [B, T] output of the value head from which the advantages were computed
    returns: Tensor | None = None  # [B, T] target of the value head
    noise: Tensor | None = None  # [B, T] in (0, 1), uniform: a function of seed, update, row's content and position
    logp_engine: Tensor | None = None  # [B, T] nats, the engine's value of `logp_old`; NaN where it has none
    weight: Tensor | None = None  # [B] or [B, T] factor of each token's loss (rlvr/objective/mismatch.py); None: 1
    extra: Tensor | None = None  # [B] or [B, T] result of the loss's `first_pass` over the whole mini-batch

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
            return  # batches are built on the CPU, where this was checked: reading values here would block the host
        if B and (bool((self.group.diff() < 0).any()) or int(self.group.min()) < 0 or int(self.group.max()) >= P):
            raise ValueError("Batch.group must be non-decreasing row numbers of Batch.prompt: groups stay whole")

    @property
    def num_groups(self) -> int:
        return self.prompt.shape[0]

    @property
    def token_advantage(self) -> Tensor:
        """[B, T] the advantage of each token, 0 at padding."""
        advantage = self.advantage if self.advantage.dim() == 2 else self.advantage[:, None]
        return torch.where(self.mask, advantage, 0.0)

    def response_advantage(self, loss: str) -> Tensor:
        """[B] the advantage of each response. Raises ValueError, with the name of the loss, for one per token."""
        if self.advantage.dim() == 2:
            raise ValueError(
                f"loss={loss} takes one advantage per response and got one per token: pass advantage=grpo."
            )
        return self.advantage

    def log_ratio(self, logp: Tensor) -> Tensor:
        """[B, T] log π/π_old of each token, logp: [B, T] nats under π. 0 at padding, without gradient."""
        return torch.where(self.mask, logp - self.logp_old, 0.0)

    def select(self, groups: Tensor) -> Batch:
        """The sub-batch of the given groups ([P'] row numbers of `prompt`, ascending), renumbered from 0."""
        return self._pick(torch.isin(self.group, groups), groups)

    def select_rows(self, rows: Tensor) -> Batch:
        """The sub-batch of the given rows ([B'] int64, ascending) and of their prompts, renumbered from 0."""
        answered = torch.isin(torch.arange(self.num_groups, device=rows.device), self.group[rows])
        return self._pick(rows, answered.nonzero()[:, 0])

    def _pick(self, rows: Tensor, groups: Tensor) -> Batch:
        picked: dict[str, Tensor] = {}
        for name, value in self._tensors():
            picked[name] = value[groups if name.startswith("prompt") else rows]
        picked["group"] = torch.searchsorted(groups, picked["group"])
        return Batch(**picked)

    def to(self, device: torch.device) -> Batch:
        return Batch(**{name: copy_to_device(device, value) for name, value in self._tensors()})

    def with_cut_groups(self) -> Batch:
        """The same rows, without usable groups: this batch does not contain all rows of each group."""
        refused = torch.zeros(len(self.tokens), dtype=torch.int64).as_subclass(CutGroups)  # type: ignore[arg-type]
        return replace(self, group=refused)

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Name and value of every field that is not None."""
        for column in fields(self):
            value: Tensor | None = getattr(self, column.name)
            if value is not None:
                yield column.name, value


def copy_to_device(device: torch.device, tensor: Tensor) -> Tensor:
    """The tensor on a device. A copy to a GPU is asynchronous, from pinned memory: the host does not wait."""
    if device.type == "cuda" and not tensor.is_cuda:
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


@dataclass(frozen=True)
class Policy:
    """Outputs of the policy in training for a `Batch`. Fields that a loss did not declare with `@needs` are None."""

    logp: Tensor  # [B, T] nats, with gradient
    entropy: Tensor | None = None  # [B, T] nats, with gradient
    value: Tensor | None = None  # [B, T], with gradient: expected reward before each token
    log_z: Tensor | None = None  # [B], with gradient
    candidates: Tensor | None = None  # [B, T, K] nats, with gradient: of the K most probable tokens, that one first


@dataclass(frozen=True)
class Terms:
    """Unreduced loss and metrics, each [B, T] per token or [B] per sequence."""

    loss: Tensor  # its gradient is exact even where its value is clamped
    metrics: dict[str, Tensor] = field(default_factory=dict[str, Tensor])

    def without(self, left_out: Tensor, **metrics: Tensor) -> Terms:
        """The terms with a loss of 0, and no gradient, where `left_out` (bool, of the loss's shape) is true. These
        still count in every mean. metrics: further ones.
        """
        return Terms(torch.where(left_out, 0.0, self.loss), {**self.metrics, **metrics})


Loss = Callable[[Policy, Batch], Terms]
Divergence = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def terms_of(loss: Loss, policy: Policy, batch: Batch) -> Terms:
    """The terms of a loss. ValueError, with its name, if it returns anything but `Terms` of the shapes stated there, or
    a loss without gradient, or reads a field that is None because it is not declared with `needs`.
    """
    try:
        terms: Any = unchanged(loss, batch)(policy, batch)
    except (TypeError, AttributeError) as error:
        if "NoneType" not in str(error):
            raise
        missing = [f.name for part in (policy, batch) for f in fields(part) if getattr(part, f.name) is None]
        raise ValueError(
            f"the loss {name_of(loss)} raised {type(error).__name__}: {error}. What it does not declare with @needs "
            f"is None, here: {', '.join(missing)}."
        ) from error
    if not isinstance(terms, Terms):
        returned = type(terms).__name__
        raise ValueError(f"the loss {name_of(loss)} returned {returned}, not Terms (rlvr/objective/batch.py).")
    B, T = batch.mask.shape
    values: dict[str, Any] = {
        "loss": terms.loss,
        **{f"metrics[{name!r}]": terms.metrics[name] for name in terms.metrics},
    }
    for name, value in values.items():
        shape = list(value.shape) if isinstance(value, Tensor) else type(value).__name__
        if shape not in ([B], [B, T]):
            raise ValueError(
                f"the loss {name_of(loss)} returned {shape} as Terms.{name}, not [{B}, {T}], one value per token, or "
                f"[{B}], one per response. The trainer masks and averages: return terms that are not summed."
            )
    if policy.logp.requires_grad and not terms.loss.requires_grad:
        raise ValueError(
            f"the loss {name_of(loss)} returned Terms.loss without gradient: it must depend on policy.logp, which "
            "was not detached."
        )
    return terms


def value_and_derivative(divergence: Divergence, log_ratio: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
    """(value, derivative) of a divergence. ValueError, with its name, if it returns anything but two tensors."""
    returned: Any = divergence(log_ratio, a)
    parts: list[Any] = list(cast("list[Any]", returned)) if isinstance(returned, tuple | list) else [returned]
    if len(parts) != 2 or not all(isinstance(part, Tensor) for part in parts):
        types = ", ".join(type(part).__name__ for part in parts)
        raise ValueError(
            f"the divergence {name_of(divergence)} returned {types}, not two tensors: the "
            "value w·f(r/w), and its derivative r·f'(r/w) by the log ratio, as those of rlvr/objective/divergence.py."
        )
    return parts[0], parts[1]


# (reward [B], group [B], and by name what the function declares with `needs`) → advantage [B] or [B, T]; or a pair of
# the advantage and the returns [B, T].
Advantage = Callable[..., Any]


def needs(*inputs: str) -> Callable[[F], F]:
    """Declare the inputs of a function beyond the usual ones. Inputs that it does not declare are not computed.

    A loss: "entropy" (with gradient), "value", "log_z", "candidates" (as many as its knob `num_candidates` says) of
    the policy; "reference" (`Batch.logp_ref`), "noise" (`Batch.noise`), "returns" (`Batch.returns` and `value_old`),
    "solution" (rows are the task's known answers, not samples). An advantage: "mask", "logp_old", "value", "entropy",
    all [B, T] and of the policy that sampled, which are passed as arguments of these names.
    """

    def mark(function: F) -> F:
        if "candidates" in inputs and "num_candidates" not in inspect.signature(function).parameters:
            raise ValueError(f"{name_of(function)} needs candidates and has no knob `num_candidates`: how many.")
        function.needs = frozenset(inputs)  # type: ignore[attr-defined]
        return function

    return mark


def binary_rewards(function: F) -> F:
    """Declare that a loss or an advantage takes rewards 0 and 1 only: refused at launch with a task of other rewards.

    Marks are read by the checks before launch (rlvr/config/signature.py). The values in a batch are checked by
    `check_values` for a loss; an advantage checks its rewards itself.
    """
    return _marked(function, "binary_rewards")


def one_token_responses(function: F) -> F:
    """Declare that a loss takes responses of one token only: refused at launch with a task of longer ones."""
    return _marked(function, "one_token_responses")


def per_response(function: F) -> F:
    """Declare that a loss has one term per response: options that weight tokens are refused with it at launch."""
    return _marked(function, "per_response")


def whole_groups(function: F) -> F:
    """Declare that a loss reads `Batch.group`: groups are then never split, however long they are.

    Without this mark a group that is longer than `trainer.token_budget` is split into several micro-batches.
    """
    return _marked(function, "whole_groups")


def no_ratio(function: F) -> F:
    """Declare that a loss does not read `Batch.logp_old`: refused at launch with `rollout.ahead` and no weights."""
    return _marked(function, "no_ratio")


def compares_responses(function: F) -> F:
    """Declare that a function compares responses with each other: refused at launch with one response per problem."""
    return _marked(function, "compares_responses")


def uses_equal_groups(function: F) -> F:
    """Declare that an advantage uses groups of equal rewards: refused with dynamic sampling, which omits them."""
    return _marked(function, "uses_equal_groups")


def _marked(function: F, mark: str) -> F:
    marks: frozenset[str] = getattr(function, "marks", frozenset[str]())
    function.marks = marks | {mark}  # type: ignore[attr-defined]
    return function


def first_pass(function: Callable[..., Tensor]) -> Callable[[F], F]:
    """Provide a loss with statistics of the whole optimiser mini-batch, exact for any micro-batches and ranks.

    `function(policy, batch, **knobs) -> Tensor`, [B] or [B, T], is called once per optimiser step with the whole
    mini-batch, a policy without gradient, and those of the loss's knobs that are its parameters. The loss finds its
    rows of the result in `Batch.extra`. This costs one more forward pass over the mini-batch, at most a third more
    training time. Both functions receive the inputs that either of them declares with `needs`.
    """

    def mark(loss: F) -> F:
        loss.first_pass = function  # type: ignore[attr-defined]
        return _marked(loss, "first_pass")

    return mark


def declared_needs(function: object) -> frozenset[str]:
    """The inputs that a loss (its first pass included) or an advantage declares with `needs`, knobs bound or not."""
    unbound, _ = _without_knobs(function)
    inputs: frozenset[str] = getattr(unbound, "needs", frozenset[str]())
    statistics: object = getattr(unbound, "first_pass", None)
    return inputs if statistics is None else inputs | declared_needs(statistics)


def marks_of(function: object) -> frozenset[str]:
    """The names of the marks of a function, such as "binary_rewards", knobs bound or not."""
    unbound, _ = _without_knobs(function)
    return getattr(unbound, "marks", frozenset[str]())


def check_values(loss: object, batch: Batch) -> None:
    """Raises ValueError for rewards or lengths that are not allowed by the marks of a loss.

    A batch on a GPU is not checked: reading its values would block the host, and the trainer has checked it on the CPU.
    """
    marks, name = marks_of(loss), getattr(_without_knobs(loss)[0], "__name__", "")
    if batch.mask.is_cuda or not len(batch.mask):
        return
    if "binary_rewards" in marks:
        invalid = batch.reward[(batch.reward != 0) & (batch.reward != 1)]
        if invalid.numel():
            raise ValueError(
                f"loss={name} got the reward {invalid[0].item():g}. It takes rewards 0 and 1 only. "
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
    unbound, knobs = _without_knobs(loss)
    statistics = getattr(unbound, "first_pass", None)
    if statistics is None:
        return None
    parameters = inspect.signature(statistics).parameters
    return partial(statistics, **{name: value for name, value in knobs.items() if name in parameters})


def num_candidates(loss: Loss) -> int:
    """How many of the most probable tokens a loss reads: its knob `num_candidates`; 0 unless it needs them."""
    return _without_knobs(loss)[1]["num_candidates"] if "candidates" in declared_needs(loss) else 0


def unchanged(function: Callable[..., R], batch: Batch) -> Callable[..., R]:
    """The function of a component. Its call raises ValueError if it changes a tensor of the batch in place: what comes
    after it, metrics and later updates, would read the changed one.
    """

    def call(*arguments: Any, **inputs: Any) -> R:
        tensors = {f.name: t for f in fields(batch) if isinstance(t := getattr(batch, f.name), Tensor)}
        before = {name: tensor._version for name, tensor in tensors.items()}  # counts changes in place
        result = function(*arguments, **inputs)
        if changed := [name for name, tensor in tensors.items() if tensor._version != before[name]]:
            raise ValueError(f"{name_of(function)} changes batch.{changed[0]} in place. Write into a copy: x.clone().")
        return result

    return call


def name_of(function: object) -> str:
    """Module and name of a function, or of the class of a callable object, knobs bound or not."""
    unbound: Any = _without_knobs(function)[0]
    return f"{unbound.__module__}.{getattr(unbound, '__qualname__', type(unbound).__qualname__)}"


def _without_knobs(function: object) -> tuple[object, dict[str, Any]]:
    """(the function inside any `partial` objects, the knobs that they bind)."""
    knobs: dict[str, Any] = {}
    while isinstance(function, partial):
        bound = cast("partial[object]", function)
        knobs = {**bound.keywords, **knobs}
        function = bound.func
    return function, knobs
