"""An objective's effect on the policy for stored rollouts: its loss, its gradient, and the weight of each response.

The trainer itself computes them: one optimiser update over all groups, observed just before the step is taken.
"""

import functools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from omegaconf import DictConfig
from torch import Tensor

from rlvr.job.loop import TrainingRun
from rlvr.objective.batch import EXPLORE, Batch, Loss, Policy, Terms, whole_groups
from rlvr.trainer import checkpoint, distributed
from rlvr.trainer.diverged import Diverged
from rlvr.trainer.fsdp import Trainer

CHUNK = 2**24  # elements of a gradient held in float64 at once


@dataclass(frozen=True)
class Effect:
    """Effect of one objective for B stored responses. The whole batch is one mini-batch.

    Responses that the loss rehearses beside them (DPH-RL) count in loss and gradient, but have no row here.
    """

    metrics: dict[str, float]  # as the trainer logs them; empty if loss or gradient is not finite
    gradient: Tensor  # [n] float32 on the CPU, of every parameter of the policy, before clipping
    weight: NDArray[np.float64]  # [B] −Σ_t ∂loss/∂logp, penalty included: by how much the step raises the response
    advantage: NDArray[np.float64]  # [B]; mean over tokens if there is an advantage per token
    reward: NDArray[np.float64]  # [B]

    @property
    def norm(self) -> float:
        return inner(self.gradient, self.gradient) ** 0.5


def inner(a: Tensor, b: Tensor) -> float:
    """Inner product in float64."""
    parts = zip(a.split(CHUNK), b.split(CHUNK), strict=True)
    return sum(float(x.double() @ y.double()) for x, y in parts)


def cosines(effects: Sequence[Effect]) -> NDArray[np.float64]:
    """[A, A] cosine of the angle between the gradients of each two objectives; NaN if one of the gradients is zero."""
    products = np.array([[inner(a.gradient, b.gradient) for b in effects] for a in effects])
    norms = np.sqrt(np.diag(products))
    scale = np.outer(norms, norms)
    return np.divide(products, scale, out=np.full(products.shape, np.nan), where=scale > 0)


def start(config: DictConfig, policy: Path | None, store: Path) -> TrainingRun:
    """The objects of a run with the weights of `policy`, a checkpoint of the trainer; None: the base policy.

    store: takes the place of the run directory; its parent contains the cached base policies (`stages`).
    """
    run = TrainingRun(config, store, None, None)
    if policy is not None:
        if fault := checkpoint.fault_of(policy):
            raise ValueError(f"policy={policy} is damaged: {fault}. Pass another checkpoint of the run.")
        run.trainer.load(policy)
    return run


def effect(trainer: Trainer, batch: Batch) -> Effect:
    """Take one update and measure it. trainer: with updates = epochs = 1, clip_norm = 0; it cannot be used again."""
    weights = ResponseWeights(batch)
    trainer.objective = replace(trainer.objective, loss=weights.observing(trainer.objective.loss))
    gradients: list[Tensor] = []
    trainer.optimiser.register_step_pre_hook(lambda *_: gradients.append(_gradient(trainer)))
    metrics: dict[str, float] = {}
    try:
        metrics = trainer.learn(batch)
    except Diverged:
        size = sum(p.numel() for p in trainer.actor.model.parameters())
        gradients.append(torch.full((size,), torch.nan))
    advantage = batch.advantage.double()
    if advantage.dim() == 2:
        advantage = batch.token_advantage.double().sum(1) / batch.mask.sum(1).clamp(min=1)
    explored = torch.ones_like(batch.group, dtype=torch.bool) if batch.kind is None else batch.kind == EXPLORE
    weight = torch.from_numpy(weights.weight)[explored].numpy()
    reward = batch.reward.double()[explored].numpy()
    return Effect(metrics, gradients[0], weight, advantage[explored].numpy(), reward)


def norms(trainer: Trainer, batches: Sequence[Batch]) -> list[float]:
    """Norm of the unclipped gradient of all parameters of the policy, for each batch by itself; NaN if not finite.

    trainer: as for `effect`, without weight decay; its weights do not change, and `effect` can still use it. A batch
    without a token that counts has a gradient of 0.
    """
    measured: list[float] = []
    num_updates, num_learned = trainer.num_updates, trainer.num_learned

    def measure(*_: object) -> None:
        gradient = _gradient(trainer)
        measured.append(inner(gradient, gradient) ** 0.5)
        trainer.optimiser.zero_grad()  # so that the step changes no weight

    hook = trainer.optimiser.register_step_pre_hook(measure)
    try:
        for index, batch in enumerate(batches):
            if not bool(batch.mask.any()):
                measured.append(0.0)
            try:
                while len(measured) == index:  # no step was taken if the gradient overflowed in float16: then once more
                    # Noise and reference must be the same for each batch.
                    trainer.num_updates, trainer.num_learned = num_updates, num_learned
                    trainer.learn(batch)
            except Diverged:
                measured[index:] = [float("nan")]
    finally:
        hook.remove()
        trainer.num_updates, trainer.num_learned = num_updates, num_learned
    return measured


def _gradient(trainer: Trainer) -> Tensor:
    """[n] float32: gradient of the policy's parameters, without those of heads (value, log Z)."""
    parts: list[Tensor] = []
    for parameter in trainer.actor.model.parameters():
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        parts.append(distributed.full(gradient.detach()).flatten().to("cpu", torch.float32))
    return torch.cat(parts)


class ResponseWeights:
    """Sums −∂loss/∂logp over the tokens of each response while the trainer goes through its micro-batches.

    The trainer chooses the order of rows, so that they are identified by their content.
    """

    def __init__(self, batch: Batch) -> None:
        self.weight: NDArray[np.float64] = np.zeros(len(batch.tokens))
        self.rows: dict[bytes, list[int]] = defaultdict(list)
        for row, key in enumerate(_keys(batch)):
            self.rows[key].append(row)

    def observing(self, loss: Loss) -> Loss:
        """A loss that equals `loss`, with its knobs and its declared `@needs`, and records its gradient here."""
        bound = loss if isinstance(loss, functools.partial) else functools.partial(loss)

        @whole_groups  # since keys of rows contain their prompts
        @functools.wraps(bound.func)
        def observed(policy: Policy, batch: Batch, **knobs: Any) -> Terms:
            if policy.logp.requires_grad:
                rows = [self.rows[key].pop(0) for key in _keys(batch)]
                policy.logp.register_hook(lambda gradient: self._subtract(rows, gradient))
            return bound.func(policy, batch, **knobs)

        return functools.partial(observed, *bound.args, **bound.keywords)

    def _subtract(self, rows: list[int], gradient: Tensor) -> None:
        self.weight[rows] -= gradient.detach().double().sum(1).cpu().numpy()


def _keys(batch: Batch) -> list[bytes]:
    """Prompt, response and reward of each row, as bytes. Rows with equal keys are taken in the order of the batch."""
    prompt = batch.prompt[batch.group].cpu().numpy()
    tokens, reward, mask = batch.tokens.cpu().numpy(), batch.reward.cpu().numpy(), batch.mask.cpu().numpy()
    return [
        p.tobytes() + t.tobytes() + m.tobytes() + r.tobytes()
        for p, t, m, r in zip(prompt, tokens, mask, reward, strict=True)
    ]
