"""The optimiser step: FSDP2 at every world size, 1 included, so that a laptop runs the code of a cluster."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, cast

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from rlvr.batch import Batch, Loss
from rlvr.trainer import checkpoint, distributed, packer
from rlvr.trainer.logprob import Actor, check_head
from rlvr.trainer.objective import Objective, needs
from rlvr.trainer.optimiser import adamw, clip, learning_rate
from rlvr.trainer.pack import Layout
from rlvr.trainer.shard import before_backward, release, shard


class Diverged(ArithmeticError):
    """The loss or the gradient is not a finite number. The weights are those of before the update."""


class Trainer:
    """A policy in training. Every method is called by all ranks, with the same arguments."""

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        loss: Loss,
        device: torch.device,
        pad_token_id: int,
        max_tokens: int,
        seed: int,
        temperature: float,
        steps: int,
        updates: int,
        epochs: int,
        lr: float,
        schedule: Literal["constant", "cosine", "linear"],
        warmup_steps: int,
        clip_norm: float,
        betas: Sequence[float],
        eps: float,
        weight_decay: float,
        aggregation: Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"],
        kl: float,
        kl_estimator: Literal["k1", "k2", "k3"],
        base_kl: bool,
        entropy: float,
        dtype: Literal["float32", "bfloat16"],
        token_budget: int,
        packing: bool,
        shared_prompt: Literal["auto", "always", "never"],
        activation_checkpointing: bool,
    ) -> None:
        """`conf/trainer/fsdp.yaml` says what the knobs mean; rlvr/job.py passes the first five.

        steps · epochs · updates is the length of the schedule. Raises ValueError for a model or a loss that it cannot
        train exactly.
        """
        self.rank, self.world, _ = distributed.start()
        self.device, self.clip_norm = device, clip_norm
        self.updates, self.epochs = updates, epochs
        self.objective = Objective(loss, aggregation, kl, kl_estimator, entropy, max_tokens)
        self.base_kl = base_kl
        self.token_budget = None if "minibatch" in needs(loss) else token_budget
        if self.token_budget is None and self.world > 1:
            raise ValueError(
                f"the loss needs statistics of the whole mini-batch, which {self.world} ranks share: cluster.ranks=1."
            )
        self.rate = functools.partial(
            learning_rate, lr=lr, schedule=schedule, warmup_steps=warmup_steps, total_steps=steps * epochs * updates
        )
        self.num_updates, self.num_learned = 0, 0
        torch.manual_seed(seed)
        # No dropout: the policy that is trained is the one that sampled.
        self.actor = Actor(model.requires_grad_(True).float().eval(), temperature)
        check_head(self.actor)
        self.packer = packer.choose(self.actor, packing=packing, shared_prompt=shared_prompt, pad_token_id=pad_token_id)
        self.reference = self._place(getattr(torch, dtype), activation_checkpointing)
        self.optimiser = adamw(self.actor.parameters(), lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)

    def _place(self, dtype: torch.dtype, checkpointing: bool) -> Actor | None:
        """Shard the policy (float32 master weights) and, if anything asks for it, a frozen copy: the base policy."""
        mesh = distributed.mesh(self.device)
        reference = None
        if self.base_kl or self.objective.needs_reference:
            reference = Actor(copy.deepcopy(self.actor.model).requires_grad_(False), self.actor.temperature)
            for parameter in reference.parameters():  # in the precision that mixed precision computes with anyway
                parameter.data = parameter.data.to(dtype)
            shard(reference, mesh, dtype, checkpointing=False)
        shard(self.actor, mesh, dtype, checkpointing=checkpointing)
        return reference

    def learn(self, batch: Batch) -> dict[str, float]:
        """Train on a rollout batch: `epochs` passes of `updates` mini-batches each. Metrics are means over updates.

        `batch` is the whole batch of all ranks. Mini-batches are whole groups in the batch's order, as equal in number
        as they can be; one without response tokens is skipped. Raises Diverged before a step that is not finite.
        """
        batch = batch.to(torch.device("cpu"))
        parts = [batch.select(groups) for groups in torch.arange(batch.num_groups).tensor_split(self.updates)]
        parts = [part for part in parts if bool(part.mask.any())]
        if not parts:
            raise ValueError("the batch has no response tokens: there is nothing to learn from.")
        results = [
            self._update(part, first=epoch == index == 0)
            for epoch in range(self.epochs)
            for index, part in enumerate(parts)
        ]
        self.num_learned += 1
        sums = {name: [r[name] for r in results if name in r] for name in dict.fromkeys(k for r in results for k in r)}
        return {
            name: math.fsum(values) / (1 if name.startswith("tokens/") else len(values))
            for name, values in sums.items()
        }

    def _update(self, batch: Batch, *, first: bool) -> dict[str, float]:
        """One optimiser step. KL(·‖base) is measured on the first of a batch, whose samples are the policy's own."""
        counts = (int(batch.mask.sum()), int(batch.mask.any(1).sum()))
        metrics: dict[str, Tensor] = {}
        num_tokens = 0
        for part, layout, last in self._split(batch):
            before_backward(self.actor, last=last, single=self.world == 1)
            loss, measured = self._micro_batch(part, layout, counts, measure_base=first and self.base_kl)
            loss.backward()
            num_tokens += layout.num_tokens
            for name, value in measured.items():
                metrics[name] = metrics[name] + value if name in metrics else value
        return self._finish(metrics, num_tokens, counts)

    def _finish(self, metrics: dict[str, Tensor], num_tokens: int, counts: tuple[int, int]) -> dict[str, float]:
        values = torch.stack(list(metrics.values())).tolist() if metrics else []
        mine = {**dict(zip(metrics, values, strict=True)), "tokens/train": float(num_tokens)}
        result = distributed.total_of_names(mine)
        norm = clip(self.actor.parameters(), self.clip_norm)
        for name, value in (("loss", result["loss/total"]), ("gradient norm", norm)):
            if not math.isfinite(value):
                self.optimiser.zero_grad()
                raise Diverged(
                    f"the {name} is {value} at step {self.num_learned + 1}, optimiser update {self.num_updates + 1}: "
                    "the weights were left as they were. Try a lower lr."
                )
        rate = self.rate(self.num_updates)
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        self.optimiser.step()
        self.optimiser.zero_grad()
        self.num_updates += 1
        return {**result, "optim/grad_norm": norm, "optim/lr": rate, "tokens/used": float(counts[0])}

    def _micro_batch(
        self, part: Batch, layout: Layout, counts: tuple[int, int], *, measure_base: bool
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """(part of the loss, parts of the metrics) of some groups of a mini-batch, possibly none."""
        logp, entropy = self.actor(layout, entropy_gradient=self.objective.needs_entropy_gradient)
        logp_base = None
        if measure_base or (self.objective.needs_reference and part.logp_ref is None):
            assert self.reference is not None
            with torch.no_grad():
                logp_base, _ = self.reference(layout)
        if not len(layout.predict):
            return logp.sum() + entropy.sum(), {}  # 0, with a gradient of 0: no rank may skip a backward pass
        logp, entropy = _scatter(logp, layout, part), _scatter(entropy, layout, part)
        if logp_base is not None:
            logp_base = _scatter(logp_base, layout, part)
            part = replace(part, logp_ref=logp_base) if part.logp_ref is None else part
        return self.objective(logp, entropy, logp_base if measure_base else None, part, counts)

    def _split(self, batch: Batch) -> Iterator[tuple[Batch, Layout, bool]]:
        """(groups, layout, last one) of each of this rank's micro-batches: as many as any other rank's."""
        shared = self.packer.shares(batch)
        plan = self.packer.plan(batch, shared=shared, budget=self.token_budget, num_ranks=self.world)[self.rank]
        for index, groups in enumerate(plan):
            part = batch.select(groups)
            layout = self.packer.layout(part, shared=shared)
            yield part.to(self.device), layout.to(self.device), index == len(plan) - 1

    @torch.no_grad()
    def logp(self, batch: Batch) -> Tensor:
        """[B, T] nats, 0 at padding: what the policy now says about a batch of all ranks."""
        batch = batch.to(torch.device("cpu"))
        result = torch.zeros(batch.tokens.shape, device=self.device)
        numbered = replace(batch, kind=torch.arange(len(batch.tokens)))  # `kind` carries row numbers through the split
        for part, layout, _ in self._split(numbered):
            assert part.kind is not None
            result[part.kind] = _scatter(self.actor(layout)[0], layout, part)
        release(self.actor)
        return distributed.total(result)

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """(Hugging Face name, full float32 tensor) of every parameter, tied ones once.

        Exhaust it on every rank. On a single rank the tensors may be the policy's own memory: copy what you keep.
        """
        release(self.actor)
        for name, parameter in self.actor.model.named_parameters():
            yield name, cast(DTensor, parameter.detach()).full_tensor()

    def save(self, path: Path, extra: dict[str, Any]) -> None:
        """Write a checkpoint, visible only once complete. `extra`: JSON that `load` gives back."""
        state = {"updates": self.num_updates, "learned": self.num_learned, "world": self.world, "extra": extra}
        checkpoint.save(path, self._tensors(), state, rank=self.rank)

    def load(self, path: Path) -> dict[str, Any]:
        """Continue from a checkpoint, of any number of ranks. Returns its `extra`."""
        tensors = self._tensors()
        state = checkpoint.load(path, tensors)
        checkpoint.set_random_state(tensors["random"], self.device)
        self.num_updates, self.num_learned = state["updates"], state["learned"]
        for each in self.optimiser.state.values():
            each["step"].fill_(self.num_updates)
        return state["extra"]

    def _tensors(self) -> dict[str, Any]:
        release(self.actor)
        return {
            **checkpoint.training_state(self.actor.model, self.optimiser),
            "random": checkpoint.random_state(self.device),
        }

    def export(self, path: Path, tokenizer: Any) -> None:
        """Write the policy as a Hugging Face directory (float32), visible only once complete."""
        weights = {name: tensor.cpu() if self.rank == 0 else tensor[:0] for name, tensor in self.weights()}
        checkpoint.export(path, self.actor.model, weights, tokenizer, rank=self.rank)


def _scatter(values: Tensor, layout: Layout, part: Batch) -> Tensor:
    """Values [n] of response tokens in their places, [B, T], 0 at padding."""
    flat = values.new_zeros(part.tokens.numel())
    return flat.index_put((layout.place,), values).view(part.tokens.shape)
