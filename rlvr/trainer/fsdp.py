"""The optimiser step: FSDP2 at every world size, 1 included, so that a laptop runs the code of a cluster."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, cast

import torch
from torch import Tensor
from transformers import PreTrainedModel

from rlvr.model.load import miniature
from rlvr.objective import reduce
from rlvr.objective.batch import Batch, Loss, Policy, first_pass_of
from rlvr.objective.micro_batch import Objective
from rlvr.trainer import checkpoint, distributed, lora, noise, packer
from rlvr.trainer.diverged import Diverged
from rlvr.trainer.heads import LogZ
from rlvr.trainer.logprob import Actor, Seen, check_head, policy_of, scatter
from rlvr.trainer.optimiser import adamw, clip, forget, learning_rate, set_steps
from rlvr.trainer.pack import Layout
from rlvr.trainer.reference import Frozen
from rlvr.trainer.shard import before_backward, release, shard
from rlvr.trainer.sharded_load import fill, is_empty


@dataclass(eq=False, repr=False, kw_only=True)
class Trainer:
    """A policy in training. Every method is called by all ranks, with the same arguments.

    `conf/trainer/fsdp.yaml` says what the knobs mean; `rlvr.job` passes the first five. steps · epochs · updates is
    the length of the schedule. Raises ValueError for a model or a loss that it cannot train exactly.
    """

    model: PreTrainedModel = field(kw_only=False)
    loss: Loss
    device: torch.device
    pad_token_id: int
    max_tokens: int
    seed: int
    temperature: float
    steps: int
    updates: int
    epochs: int
    lr: float
    head_lr: float | None
    schedule: Literal["constant", "cosine", "linear", "wsd"]
    warmup_steps: int
    clip_norm: float
    betas: Sequence[float]
    eps: float
    weight_decay: float
    aggregation: Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"]
    kl: float
    kl_estimator: Literal["k1", "k2", "k3"]
    base_kl: bool
    reference_every: int | None
    reference_resets_optimiser: bool
    entropy: float
    dtype: Literal["float32", "bfloat16"]
    token_budget: int
    packing: bool
    shared_prompt: Literal["auto", "always", "never"]
    activation_checkpointing: bool
    # Younger knobs: a config that was frozen before them says nothing of them.
    decay_steps: int | None = None
    final_lr: float = 0.0
    compile: bool = False
    reference_offload: bool = False
    lora_rank: int | None = None
    lora_alpha: float = 32.0

    def __post_init__(self) -> None:
        self.rank, self.world, _ = distributed.start()
        self.writer = checkpoint.Writer(self.rank, self.world)
        self.num_updates, self.num_learned, self.num_averaged = 0, 0, 0
        self.objective = Objective(
            self.loss, self.aggregation, self.kl, self.kl_estimator, self.entropy, self.max_tokens
        )
        self.first_pass = first_pass_of(self.loss)
        torch.manual_seed(self.seed)
        # No dropout: the policy that is trained is the one that sampled.
        model = self.model.requires_grad_(True).float().eval()
        self.actor = Actor(model, self.temperature, self.objective.needs)
        # Without weights as yet, the architecture is tried on a small model of its kind.
        trial = Actor(miniature(model.config), self.temperature) if is_empty(model) else self.actor
        self._check(trial)
        self.packer = packer.choose(
            self.actor, trial, packing=self.packing, shared_prompt=self.shared_prompt, pad_token_id=self.pad_token_id
        )
        mesh, precision = distributed.mesh(self.device), getattr(torch, self.dtype)
        if self.lora_rank is not None:
            lora.adapt(model, rank=self.lora_rank, alpha=self.lora_alpha, seed=self.seed, dtype=precision)
        self.frozen = Frozen(
            self.actor,
            mesh,
            precision,
            base=self.base_kl,
            reference=self.objective.needs_reference,
            every=self.reference_every,
            offload=self.reference_offload,
        )
        shard(self.actor, mesh, precision, checkpointing=self.activation_checkpointing, compiled=self.compile)
        if is_empty(self.actor):
            fill(self.actor, self.actor.model, self.device)
        groups = [(self.actor.model.parameters(), self.lr), (self.actor.heads.parameters(), self.head_lr or self.lr)]
        self.optimiser = adamw(groups, betas=self.betas, eps=self.eps, weight_decay=self.weight_decay)

    def _check(self, trial: Actor) -> None:
        check_head(trial)
        if self.head_lr is not None and not self.actor.heads:
            raise ValueError(
                f"trainer.head_lr={self.head_lr} has no effect: the loss trains no head. Drop trainer.head_lr."
            )
        if self.reference_offload and self.device.type != "cuda":
            raise ValueError(
                "trainer.reference_offload=true keeps frozen weights out of GPU memory, and this machine has no GPU. "
                "Drop it."
            )
        if self.reference_resets_optimiser and self.reference_every is None:
            raise ValueError("trainer.reference_resets_optimiser needs resets: pass trainer.reference_every=STEPS.")

    def rate(self, update: int) -> float:
        """Learning rate of an optimiser step; the first is 0."""
        return learning_rate(
            update,
            lr=self.lr,
            schedule=self.schedule,
            warmup_steps=self.warmup_steps,
            total_steps=self.steps * self.epochs * self.updates,
            decay_steps=self.decay_steps,
            final_lr=self.final_lr,
        )

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
        if self.frozen.due(self.num_learned):
            self._reset_reference()
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

    def _reset_reference(self) -> None:
        self.frozen.reset(self.actor)
        if self.reference_resets_optimiser:
            forget(self.optimiser)
            self.num_averaged = 0

    def _update(self, batch: Batch, *, first: bool) -> dict[str, float]:
        """One optimiser step. KL(·‖base) is measured on the first of a batch, whose samples are the policy's own."""
        counts = reduce.counts_of_streams(batch.mask, batch.kind)
        metrics: dict[str, Tensor] = {}
        num_tokens = 0
        batch = self._prepared(batch)
        for part, layout, last in self._split(batch):
            before_backward(self.actor, last=last, single=self.world == 1)
            loss, measured = self._micro_batch(part, layout, counts, measure_base=first and self.base_kl)
            loss.backward()
            num_tokens += layout.num_tokens
            for name, value in measured.items():
                metrics[name] = metrics[name] + value if name in metrics else value
        return self._finish(metrics, num_tokens, int(batch.mask.sum()))

    def _finish(self, metrics: dict[str, Tensor], num_tokens: int, num_used: int) -> dict[str, float]:
        values = torch.stack(list(metrics.values())).tolist() if metrics else []
        mine = {**dict(zip(metrics, values, strict=True)), "tokens/train": float(num_tokens)}
        result = distributed.total_of_names(mine)
        norm = clip(self.actor.parameters(), self.clip_norm)
        for name, value in (("loss", result["loss/total"]), ("gradient norm", norm)):
            if not math.isfinite(value):
                self.optimiser.zero_grad()
                at = f"step {self.num_learned + 1}, optimiser update {self.num_updates + 1}"
                raise Diverged(f"the {name} is {value} at {at}: the weights were left as they were. Try a lower lr.")
        rate = self.rate(self.num_updates)
        for group in self.optimiser.param_groups:
            group["lr"] = rate * (group["peak"] / self.optimiser.param_groups[0]["peak"])
        self.optimiser.step()
        self.optimiser.zero_grad()
        self.num_updates += 1
        self.num_averaged += 1
        return {**result, "optim/grad_norm": norm, "optim/lr": rate, "tokens/used": float(num_used)}

    def _micro_batch(
        self, part: Batch, layout: Layout, counts: Tensor, *, measure_base: bool
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """(part of the loss, parts of the metrics) of some groups of a mini-batch, possibly none."""
        seen = self._see(part, layout, dropout=True)
        wants_reference = self.objective.needs_reference and part.logp_ref is None
        of_base, of_reference = self.frozen.logp(layout, base=measure_base, reference=wants_reference)
        if not len(layout.predict):
            # 0, with a gradient of 0: no rank may skip a backward pass.
            return torch.stack([each.sum() for each in seen if each is not None]).sum(), {}
        if of_reference is not None:
            part = replace(part, logp_ref=scatter(of_reference, layout, part))
        logp_base = None if of_base is None else scatter(of_base, layout, part)
        return self.objective(policy_of(seen, layout, part), logp_base, part, counts)

    def _see(self, part: Batch, layout: Layout, *, dropout: bool = False) -> Seen:
        keep = None
        if dropout and "log_z" in self.actor.heads and layout.num_prompts:
            width = cast(LogZ, self.actor.heads["log_z"]).width
            keep = noise.units_kept(part, width, seed=self.seed, update=self.num_updates).to(self.device)
        return self.actor(layout, entropy_gradient=self.objective.needs_entropy_gradient, keep=keep)

    def _prepared(self, batch: Batch) -> Batch:
        """The mini-batch with its noise and what the loss's first pass says of it: the same on every rank."""
        if "noise" in self.objective.needs:
            batch = replace(batch, noise=noise.per_token(batch, seed=self.seed, update=self.num_updates))
        if self.first_pass is None:
            return batch
        policy, logp_ref = self._look(batch, reference=self.objective.needs_reference and batch.logp_ref is None)
        batch = batch if logp_ref is None else replace(batch, logp_ref=logp_ref.cpu())
        extra = self.first_pass(self.objective.visible(policy), batch.to(self.device))
        return replace(batch, extra=extra.detach().cpu())

    def _split(self, batch: Batch) -> Iterator[tuple[Batch, Layout, bool]]:
        """(groups, layout, last one) of each of this rank's micro-batches: as many as any other rank's."""
        budget, shared = packer.fitting(self.token_budget, self.device), self.packer.shares(batch)
        plan = self.packer.plan(batch, shared=shared, budget=budget, num_ranks=self.world)[self.rank]
        for index, groups in enumerate(plan):
            part = batch.select(groups)
            layout = self.packer.layout(part, shared=shared)
            yield part.to(self.device), layout.to(self.device), index == len(plan) - 1

    def look(self, batch: Batch) -> Policy:
        """What the policy now says about a batch of all ranks, without gradient: per token 0 at padding."""
        return self._look(batch.to(torch.device("cpu")), reference=False)[0]

    def logp(self, batch: Batch) -> Tensor:
        """[B, T] nats, 0 at padding: `look`'s log-probabilities."""
        return self.look(batch).logp

    @torch.no_grad()
    def _look(self, batch: Batch, *, reference: bool) -> tuple[Policy, Tensor | None]:
        """(what the policy says of all rows, what the reference does if asked for), on every rank."""
        numbered = replace(batch, kind=torch.arange(len(batch.tokens)))  # `kind` carries row numbers through the split
        whole: dict[str, Tensor] = {}
        for part, layout, _ in self._split(numbered):
            assert part.kind is not None
            found = vars(policy_of(self._see(part, layout), layout, part))
            _, of_reference = self.frozen.logp(layout, base=False, reference=reference)
            if of_reference is not None:
                found = {**found, "logp_ref": scatter(of_reference, layout, part)}
            for name, value in found.items():
                if value is not None:
                    zeros = value.new_zeros((len(batch.tokens), *value.shape[1:]))
                    whole.setdefault(name, zeros)[part.kind] = value
        release(self.actor)
        whole = {name: distributed.total(value) for name, value in whole.items()}
        logp_ref = whole.pop("logp_ref", None)
        return Policy(**whole), logp_ref

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """(Hugging Face name, full float32 tensor) of every parameter, tied ones once.

        Exhaust it on every rank. On a single rank the tensors may be the policy's own memory: copy what you keep.
        """
        release(self.actor)
        yield from lora.merged(self.actor.model)

    def save(self, path: Path, extra: dict[str, Any], **how: Any) -> None:
        """Write a checkpoint, visible only once complete. `extra`: JSON that `load` gives back. how: see `Writer`."""
        counted = {"updates": self.num_updates, "learned": self.num_learned, "averaged": self.num_averaged}
        adapters = None if self.lora_rank is None else {"rank": self.lora_rank, "alpha": self.lora_alpha}
        state = {**counted, "world": self.world, "lora": adapters, "extra": extra}
        self.writer.save(path, self._tensors(), state, **how)

    def load(self, path: Path) -> dict[str, Any]:
        """Continue from a checkpoint, of any number of ranks. Returns its `extra`."""
        tensors = self._tensors()
        state = checkpoint.load(path, tensors)
        checkpoint.set_random_state(tensors["random"], self.device)
        self.num_updates, self.num_learned = state["updates"], state["learned"]
        self.num_averaged = state["averaged"]
        set_steps(self.optimiser, self.num_averaged)
        return state["extra"]

    def _tensors(self) -> dict[str, Any]:
        release(self.actor)
        named = dict(self.actor.model.named_parameters())
        named |= {f"heads.{name}": p for name, p in self.actor.heads.named_parameters()}
        named = {name: p for name, p in named.items() if p.requires_grad}
        return {
            **checkpoint.training_state(named, self.optimiser),
            "reference": self.frozen.tensors(),
            "random": checkpoint.random_state(self.device),
        }
