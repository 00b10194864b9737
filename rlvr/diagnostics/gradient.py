"""What an objective would do to the policy on given rollouts: its loss, its gradient, and the weight of each response.

The trainer itself computes all of it: one optimiser update over all groups, looked at just before the step is taken.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from omegaconf import DictConfig
from torch import Tensor
from torch.distributed.tensor import DTensor

from rlvr.job.loop import Run
from rlvr.objective.batch import EXPLORE, Batch, Loss, Policy, Terms, whole_groups
from rlvr.trainer.diverged import Diverged
from rlvr.trainer.fsdp import Trainer

CHUNK = 2**24  # elements of a gradient held in float64 at once


@dataclass(frozen=True)
class Effect:
    """One objective on B stored responses. Loss, gradient and weights are of the whole batch as one mini-batch.

    What a loss rehearses beside them (DPH-RL) counts in loss and gradient; it has no row.
    """

    metrics: dict[str, float]  # as the trainer logs them; empty if loss or gradient is not finite
    gradient: Tensor  # [n] float32 on the CPU, of every parameter of the policy, before clipping
    weight: NDArray[np.float64]  # [B] −Σ_t ∂loss/∂logp: how hard the step pulls the response up; the penalty included
    advantage: NDArray[np.float64]  # [B], its mean over tokens where it has one per token
    reward: NDArray[np.float64]  # [B]

    @property
    def norm(self) -> float:
        return inner(self.gradient, self.gradient) ** 0.5


def inner(a: Tensor, b: Tensor) -> float:
    """Inner product in float64."""
    parts = zip(a.split(CHUNK), b.split(CHUNK), strict=True)
    return sum(float(x.double() @ y.double()) for x, y in parts)


def cosines(effects: Sequence[Effect]) -> NDArray[np.float64]:
    """[A, A] cosine of the angle between the gradients of each two objectives; NaN where one of them is zero."""
    products = np.array([[inner(a.gradient, b.gradient) for b in effects] for a in effects])
    norms = np.sqrt(np.diag(products))
    scale = np.outer(norms, norms)
    return np.divide(products, scale, out=np.full(products.shape, np.nan), where=scale > 0)


def start(config: DictConfig, policy: Path | None, store: Path) -> Run:
    """The objects of a run at the weights of `policy`: a checkpoint of the trainer; None: the base policy.

    store: its parent holds the cached base policies (`stages`).
    """
    run = Run(config, store, None, None)
    if policy is not None:
        if fault := run.trainer.fault_of(policy):
            raise ValueError(f"policy={policy} is damaged: {fault}. Pass another checkpoint of the run.")
        run.trainer.load(policy)
    return run


def effect(trainer: Trainer, batch: Batch) -> Effect:
    """Take one update and see what it is made of. `trainer` has updates = epochs = 1, clip_norm = 0; use it once."""
    watch = Watch(batch)
    trainer.objective = replace(trainer.objective, loss=watch.over(trainer.objective.loss))
    found: list[Tensor] = []
    trainer.optimiser.register_step_pre_hook(lambda *_: found.append(_gradient(trainer)))
    metrics: dict[str, float] = {}
    try:
        metrics = trainer.learn(batch)
    except Diverged:
        size = sum(p.numel() for p in trainer.actor.model.parameters())
        found.append(torch.full((size,), torch.nan))
    advantage = batch.advantage.double()
    if advantage.dim() == 2:
        advantage = batch.token_advantage.double().sum(1) / batch.mask.sum(1).clamp(min=1)
    own = torch.ones_like(batch.group, dtype=torch.bool) if batch.kind is None else batch.kind == EXPLORE
    shown = (torch.from_numpy(watch.weight), advantage, batch.reward.double())
    return Effect(metrics, found[0], *(values[own].numpy() for values in shown))


def norms(trainer: Trainer, batches: Sequence[Batch]) -> list[float]:
    """Of the gradient on each batch by itself, every parameter of the policy, unclipped; NaN where it is not finite.

    trainer: as for `effect`, without weight decay; it stays where it is, and can still be used once. A batch without
    a token that counts has a gradient of 0.
    """
    found: list[float] = []
    updates, learned = trainer.num_updates, trainer.num_learned

    def note(*_: object) -> None:
        gradient = _gradient(trainer)
        found.append(inner(gradient, gradient) ** 0.5)
        trainer.optimiser.zero_grad()  # an update by nothing

    hook = trainer.optimiser.register_step_pre_hook(note)
    try:
        for place, batch in enumerate(batches):
            if not bool(batch.mask.any()):
                found.append(0.0)
            try:
                while len(found) == place:  # in float16 a gradient that overflows is taken again, scaled down
                    trainer.num_updates, trainer.num_learned = updates, learned  # noise and reference are the same
                    trainer.learn(batch)
            except Diverged:
                found[place:] = [float("nan")]
    finally:
        hook.remove()
        trainer.num_updates, trainer.num_learned = updates, learned
    return found


def _gradient(trainer: Trainer) -> Tensor:
    """[n] float32: the policy's own parameters, whatever else (a value head, log Z) is trained beside them."""
    parts: list[Tensor] = []
    for parameter in trainer.actor.model.parameters():
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        full = cast(DTensor, gradient.detach()).full_tensor()
        parts.append(full.flatten().to("cpu", torch.float32))
    return torch.cat(parts)


class Watch:
    """Sums ∂loss/∂logp over the tokens of each response while the trainer walks through its micro-batches.

    Micro-batches come in an order of the trainer's own: rows are known by their content.
    """

    def __init__(self, batch: Batch) -> None:
        self.weight: NDArray[np.float64] = np.zeros(len(batch.tokens))
        self.rows: dict[bytes, list[int]] = defaultdict(list)
        for row, key in enumerate(_keys(batch)):
            self.rows[key].append(row)

    def over(self, loss: Loss) -> Loss:
        """The same loss, watched; it keeps its knobs and what it declared with `@needs`."""
        bound = loss if isinstance(loss, functools.partial) else functools.partial(loss)

        @whole_groups  # rows are known by their prompts, too
        @functools.wraps(bound.func)
        def watched(policy: Policy, batch: Batch, **knobs: Any) -> Terms:
            if policy.logp.requires_grad:
                rows = [self.rows[key].pop(0) for key in _keys(batch)]
                policy.logp.register_hook(lambda gradient: self._note(rows, gradient))
            return bound.func(policy, batch, **knobs)

        return functools.partial(watched, *bound.args, **bound.keywords)

    def _note(self, rows: list[int], gradient: Tensor) -> None:
        self.weight[rows] -= gradient.detach().double().sum(1).cpu().numpy()


def _keys(batch: Batch) -> list[bytes]:
    """Prompt, response and reward of each row, as bytes; equal rows are taken in the order of the batch."""
    prompt = batch.prompt[batch.group].cpu().numpy()
    tokens, reward, mask = batch.tokens.cpu().numpy(), batch.reward.cpu().numpy(), batch.mask.cpu().numpy()
    return [
        p.tobytes() + t.tobytes() + m.tobytes() + r.tobytes()
        for p, t, m, r in zip(prompt, tokens, mask, reward, strict=True)
    ]
