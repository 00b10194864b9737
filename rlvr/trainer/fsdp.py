"""The optimiser step, the same code for a laptop and a cluster: FSDP2, except where it would only copy weights."""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from rlvr.model.hugging_face import PreTrainedModel
from rlvr.model.load import small_copy
from rlvr.model.structure import is_empty
from rlvr.objective import reduce
from rlvr.objective.batch import Batch, Loss, Policy, check_values, copy_to_device, first_pass_of, num_candidates
from rlvr.objective.micro_batch import Objective, weighed
from rlvr.trainer import batch_noise, checkpoint, distributed, lora, packer
from rlvr.trainer.actor import Actor, ActorOutput, check_head, scatter, to_policy
from rlvr.trainer.diverged import Diverged
from rlvr.trainer.heads import LogZ
from rlvr.trainer.knobs import Knobs, Place
from rlvr.trainer.layout import Layout
from rlvr.trainer.loss_scale import LossScale
from rlvr.trainer.optimiser import adamw, clip, forget, learning_rate, set_steps
from rlvr.trainer.reference import FrozenPolicies
from rlvr.trainer.shard import Sharding, before_backward, release, shard
from rlvr.trainer.sharded_load import fill


class MicroBatch(NamedTuple):
    """Some rows of a mini-batch, possibly none, and their layout for the model."""

    part: Batch
    layout: Layout
    last: bool  # the last micro-batch of this rank
    cut: bool  # some group has rows both in this and in another micro-batch
    keep: Tensor | None  # units that dropout keeps, see `LogZ`; None: all


class Trainer:
    """A policy in training. Every method is called by all ranks, with the same arguments."""

    def __init__(self, model: PreTrainedModel, loss: Loss, place: Place, knobs: Knobs, *, base: str = "") -> None:
        """model: with its weights, or from `sharded_load`; the trainer changes it in place. base: the digest of its
        weights, which checkpoints of adapters name; "" for none. The process group must have been joined before. Raises
        ValueError for a model or a loss that cannot be trained exactly.
        """
        self.place, self.knobs, self.base = place, knobs, base
        self.writer = checkpoint.Writer()
        self.num_updates, self.num_learned, self.num_averaged = 0, 0, 0
        self.num_omitted = 0  # updates of the schedule that were not made, as they had nothing to learn from
        self.objective = Objective(
            loss, knobs.aggregation, knobs.kl, knobs.kl_estimator, knobs.entropy, place.max_tokens
        )
        self.first_pass = first_pass_of(loss)
        torch.manual_seed(knobs.seed)
        # eval: without dropout, so that the policy in training is the one that sampled.
        model = model.requires_grad_(True).float().eval()
        self.actor = Actor(model, knobs.temperature, self.objective.needs, own_critic=knobs.critic == "own")
        self.actor.num_candidates = num_candidates(loss)
        # If the model has no weights yet, a small model of the same architecture is checked.
        trial = Actor(small_copy(model.config), knobs.temperature) if is_empty(model) else self.actor
        check_head(trial)
        if knobs.reference_offload and place.device.type != "cuda":
            raise ValueError(
                "trainer.reference_offload=true keeps frozen weights out of GPU memory, and this machine has no GPU. "
                "Drop it."
            )
        self.packer = packer.choose(self.actor, trial, knobs, place.pad_token_id, place.device)
        if knobs.lora_rank is not None:
            lora.adapt(model, rank=knobs.lora_rank, alpha=knobs.lora_alpha, seed=knobs.seed, dtype=knobs.precision)
            lora.warn_of_unadapted(model)
        compiled = knobs.compiles(place.device, packed=self.packer.packing)
        mesh = distributed.mesh(place.device, place.shard_over)
        sharding = Sharding(mesh, knobs.precision, knobs.activation_checkpointing, compiled)
        self.frozen = FrozenPolicies(self.actor, sharding, knobs, needs_reference=self.objective.needs_reference)
        shard(self.actor, sharding)
        if is_empty(self.actor):
            fill(self.actor, self.actor.model, place.device)
            self._start_critic()
        self.loss_scale = LossScale.of(knobs.precision)
        self.optimiser = adamw(self.actor.model.parameters(), self.actor.heads.parameters(), knobs)

    @torch.no_grad()
    def _start_critic(self) -> None:
        """Copy weights and buffers of the policy's decoder into the critic's, created before they were loaded."""
        if self.actor.critic is None:
            return
        decoder = self.actor.model.get_decoder()
        of_policy = (p for n, p in decoder.named_parameters() if not lora.is_adapter(n))
        for of_critic, policy in zip(self.actor.critic.decoder.parameters(), of_policy, strict=True):
            distributed.local(of_critic).copy_(distributed.local(policy))
        for of_critic, policy in zip(self.actor.critic.decoder.buffers(), decoder.buffers(), strict=True):
            of_critic.copy_(policy)

    # --- learning ---

    def learn(self, batch: Batch) -> dict[str, float]:
        """Train on a rollout batch: `epochs` passes of `updates` mini-batches each. Metrics are means over updates.

        `batch` is the whole batch of all ranks. Mini-batches are runs of whole groups in the batch's order, whose
        numbers of groups differ by one at most. For a mini-batch without response tokens, as where there are fewer
        groups than `updates`, only the schedule advances. Raises Diverged before a step that is not finite, and
        ValueError for a batch that the loss cannot take.
        """
        batch = batch.to(torch.device("cpu"))
        check_values(self.objective.loss, batch)
        if not bool(batch.mask.any()):
            raise ValueError("the batch has no response tokens: there is nothing to learn from.")
        parts = [batch.select(groups) for groups in torch.arange(batch.num_groups).tensor_split(self.knobs.updates)]
        self._reset_reference_if_due()
        results = list[dict[str, float]]()
        for part in parts * self.knobs.epochs:
            if bool(part.mask.any()):
                results.append(self._update(part, first=not results))
            else:
                self.num_omitted += 1
        self.num_learned += 1
        self.frozen.release()
        return _mean_over_updates(results)

    def learn_nothing(self) -> dict[str, float]:
        """Called instead of `learn` for a step without a batch: schedules advance, and no weight changes."""
        self._reset_reference_if_due()
        self.num_learned += 1
        self.num_omitted += self.knobs.updates * self.knobs.epochs
        return {"tokens/train": 0.0, "tokens/used": 0.0}

    def _reset_reference_if_due(self) -> None:
        if not self.frozen.due(self.num_learned):
            return
        self.frozen.reset(self.actor)
        if self.knobs.reference_resets_optimiser:
            forget(self.optimiser)
            self.num_averaged = 0

    def _update(self, batch: Batch, *, first: bool) -> dict[str, float]:
        """One optimiser step. first: of a batch, sampled by this very policy; only then is KL(·‖base) measured."""
        counts = copy_to_device(self.place.device, reduce.counts_of_streams(batch.mask, batch.kind))
        metrics: dict[str, Tensor] = {}
        num_tokens = 0
        batch = self._prepared(batch)
        for micro in self._split(batch):
            before_backward(self.actor, last=micro.last, single=distributed.world() == 1)
            loss, measured = self._loss_of(micro, counts, measure_base=first and self.knobs.base_kl)
            (loss * self.loss_scale.value).backward()
            num_tokens += micro.layout.num_tokens
            for name, value in measured.items():
                metrics[name] = metrics[name] + value if name in metrics else value
        values = torch.stack(list(metrics.values())).tolist() if metrics else []
        of_rank = {**dict(zip(metrics, values, strict=True)), "tokens/train": float(num_tokens)}
        return self._step(distributed.total_of_names(of_rank)) | {"tokens/used": float(int(batch.mask.sum()))}

    def _step(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Take the optimiser step for the gradient of a mini-batch. metrics: of all ranks. Raises Diverged.

        A gradient that is not finite because float16 overflowed under the loss scale is not used: weights and
        averages stay as they are, the scale is halved, and the schedule goes on.
        """
        scale, limit = self.loss_scale, self.knobs.clip_norm
        norms = {name: clip(parameters, limit, scale=scale.value) for name, parameters in self._clipped().items()}
        finite = all(math.isfinite(norm) for norm in norms.values())
        self._check_finite(metrics["loss/total"], {} if scale.can_fall else norms)
        rate = learning_rate(self._num_scheduled, self.knobs)
        of_step = {**scale.metrics(finite=finite), "optim/lr": rate}
        if finite:
            self._descend()
            of_step |= norms
        self.optimiser.zero_grad()
        self.num_updates += 1
        scale.follow(finite=finite)
        return {**metrics, **of_step}

    def _check_finite(self, loss: float, norms: Mapping[str, float]) -> None:
        for name, value in [("loss", loss)] + [("gradient norm", norm) for norm in norms.values()]:
            if not math.isfinite(value):
                self.optimiser.zero_grad()
                at = f"step {self.num_learned + 1}, optimiser update {self.num_updates + 1}"
                why = f"the {name} is {value} at {at}: the weights were left as they were. Try a lower lr."
                if self.loss_scale.dynamic:
                    why += " The largest float16 number is 65504: or try trainer.dtype=bfloat16."
                raise Diverged(why)

    def _descend(self) -> None:
        """One step of AdamW. The learning rates of parameter groups follow one schedule and differ in their peak."""
        for group in self.optimiser.param_groups:
            group["lr"] = learning_rate(self._num_scheduled, replace(self.knobs, lr=group["peak"]))
        self.optimiser.step()
        self.num_averaged += 1

    @property
    def _num_scheduled(self) -> int:
        return self.num_updates + self.num_omitted

    def _clipped(self) -> dict[str, list[nn.Parameter]]:
        """Metric name to the parameters whose gradients are clipped together: the policy's, with heads on its decoder;
        a critic with a decoder of its own is clipped separately.
        """
        heads = list(self.actor.heads.parameters())
        if self.actor.critic is None:
            return {"optim/grad_norm": [*self.actor.model.parameters(), *heads]}
        return {"optim/grad_norm": list(self.actor.model.parameters()), "optim/critic_grad_norm": heads}

    def _loss_of(self, micro: MicroBatch, counts: Tensor, *, measure_base: bool) -> tuple[Tensor, dict[str, Tensor]]:
        """(part of the loss, parts of the metrics) of a micro-batch, which may have no rows."""
        part, layout = micro.part, micro.layout
        output = self._forward(layout, keep=micro.keep)
        wants_reference = self.objective.needs_reference and part.logp_ref is None
        of_base, of_reference = self.frozen.logp(layout, base=measure_base, reference=wants_reference)
        if not len(layout.predict):
            # 0, with a gradient of 0: no rank may skip a backward pass.
            return torch.stack([values.sum() for values in output if values is not None]).sum(), {}
        if of_reference is not None:
            part = replace(part, logp_ref=scatter(of_reference, layout, part))
        logp_base = None if of_base is None else scatter(of_base, layout, part)
        return self.objective(to_policy(output, layout, part), logp_base, part, counts, cut=micro.cut)

    def _forward(self, layout: Layout, *, keep: Tensor | None = None, with_entropy: bool = True) -> ActorOutput:
        entropy_gradient = with_entropy and self.objective.needs_entropy_gradient
        return self.actor(layout, entropy_gradient=entropy_gradient, with_entropy=with_entropy, keep=keep)

    def _prepared(self, batch: Batch) -> Batch:
        """The mini-batch with weights, noise and results of the loss's first pass, the same on every rank."""
        weight = reduce.weights(self.knobs.aggregation, batch.mask, batch.group, batch.kind)
        if weight is not None:
            batch = replace(batch, weight=weighed(weight, batch.weight))
        if "noise" in self.objective.needs:
            noise = batch_noise.per_token(batch, seed=self.knobs.seed, update=self.num_updates)
            batch = replace(batch, noise=noise)
        if self.first_pass is None:
            return batch
        wants_reference = self.objective.needs_reference and batch.logp_ref is None
        reads_entropy = "entropy" in self.objective.needs
        policy, logp_ref = self._policy_of(batch, reference=wants_reference, with_entropy=reads_entropy)
        batch = batch if logp_ref is None else replace(batch, logp_ref=logp_ref.cpu())
        extra = self.first_pass(self.objective.visible(policy), batch.to(self.place.device))
        return replace(batch, extra=extra.detach().cpu())

    def _split(self, batch: Batch, *, dropout: bool = True) -> Iterator[MicroBatch]:
        """This rank's micro-batches; every rank has the same number. dropout: in `LogZ`, only in training."""
        place = self.place
        budget, shared = packer.fitting(self.knobs.token_budget, place.device), self.packer.shares(batch)
        whole = self.objective.needs_whole_groups
        plans = self.packer.plan(batch, shared=shared, budget=budget, num_ranks=distributed.world(), whole=whole)
        plan = plans[distributed.rank()]
        size = torch.bincount(batch.group, minlength=batch.num_groups)
        for index, rows in enumerate(plan):
            part = batch.select_rows(rows)
            num_rows = torch.bincount(batch.group[rows], minlength=len(size))
            cut = bool(((num_rows > 0) & (num_rows < size)).any())
            layout = self.packer.layout(part, shared=shared)
            keep = self._units_kept(part, layout) if dropout else None
            yield MicroBatch(part.to(place.device), layout.to(place.device), index == len(plan) - 1, cut, keep)

    def _units_kept(self, part: Batch, layout: Layout) -> Tensor | None:
        """`MicroBatch.keep`. part: still on the CPU, since reading its prompts from a GPU would make the host wait."""
        if "log_z" not in self.actor.heads or not layout.num_prompts:
            return None
        width = cast(LogZ, self.actor.heads["log_z"]).width
        keep = batch_noise.units_kept(part, width, seed=self.knobs.seed, update=self.num_updates)
        return copy_to_device(self.place.device, keep)

    # --- the current policy ---

    def policy_of(self, batch: Batch, *, with_entropy: bool = True) -> Policy:
        """Outputs of the current policy for a batch of all ranks, without gradient: 0 at padding."""
        return self._policy_of(batch.to(torch.device("cpu")), reference=False, with_entropy=with_entropy)[0]

    def logp(self, batch: Batch) -> Tensor:
        """[B, T] nats, 0 at padding: the log-probabilities of `policy_of`."""
        return self.policy_of(batch, with_entropy=False).logp

    @torch.no_grad()
    def _policy_of(self, batch: Batch, *, reference: bool, with_entropy: bool) -> tuple[Policy, Tensor | None]:
        """(the policy's outputs for all rows, log-probabilities under the reference if `reference`), on every rank."""
        numbered = replace(batch, row=torch.arange(len(batch.tokens)))
        of_batch: dict[str, Tensor] = {}
        for part, layout, *_ in self._split(numbered, dropout=False):
            assert part.row is not None
            output = self._forward(layout, with_entropy=with_entropy)
            outputs: dict[str, Tensor | None] = dict(vars(to_policy(output, layout, part)))
            _, of_reference = self.frozen.logp(layout, base=False, reference=reference)
            if of_reference is not None:
                outputs["logp_ref"] = scatter(of_reference, layout, part)
            for name, value in outputs.items():
                if value is None:
                    continue
                if name not in of_batch:
                    of_batch[name] = value.new_zeros((len(batch.tokens), *value.shape[1:]))
                of_batch[name][part.row] = value
        release(self.actor)
        self.frozen.release()
        of_batch = {name: distributed.total(value) for name, value in of_batch.items()}
        logp_ref = of_batch.pop("logp_ref", None)
        if "log_z" in of_batch:
            of_batch["log_z"] = _share_in_groups(of_batch["log_z"], batch)
        return Policy(**of_batch), logp_ref

    def weights(self, dtype: torch.dtype = torch.float32) -> Iterator[tuple[str, Tensor]]:
        """(Hugging Face name, full tensor in `dtype`) of every parameter, tied ones once. Every rank must exhaust the
        iterator. On a single rank the tensors may share the policy's memory: copy those that you keep.
        """
        release(self.actor)
        yield from lora.merged(self.actor.model, dtype)

    # --- checkpoints ---

    def save(self, path: Path, extra: dict[str, Any], **how: Any) -> None:
        """Write a checkpoint. `extra`: JSON that `load` returns. how: further arguments of `Writer.save`."""
        counts = {"updates": self.num_updates, "learned": self.num_learned}
        counts |= {"averaged": self.num_averaged, "omitted": self.num_omitted}
        rank, alpha = self.knobs.lora_rank, self.knobs.lora_alpha
        adapters = None if rank is None else {"rank": rank, "alpha": alpha, "base": self.base}
        scale = self.loss_scale.state
        state = {**counts, "world": distributed.world(), "lora": adapters, "loss_scale": scale, "extra": extra}
        self.writer.save(path, self._tensors(), state, **how)

    def load(self, path: Path) -> dict[str, Any]:
        """Continue from a checkpoint, written by any number of ranks. Returns its `extra`."""
        tensors = self._tensors()
        state = checkpoint.load(path, tensors)
        checkpoint.check_base(path, state, self.base)
        torch.set_rng_state(tensors["random"]["cpu"])
        self.num_updates, self.num_learned = state["updates"], state["learned"]
        self.num_averaged, self.num_omitted = state["averaged"], state["omitted"]
        set_steps(self.optimiser, self.num_averaged)
        self.loss_scale.restore(state["loss_scale"])
        return state["extra"]

    def _tensors(self) -> dict[str, Any]:
        release(self.actor)
        named = dict(self.actor.model.named_parameters())
        named |= {f"heads.{name}": p for name, p in self.actor.heads.named_parameters()}
        named = {name: p for name, p in named.items() if p.requires_grad}
        averages = {
            kind: {name: self.optimiser.state[p][kind] for name, p in named.items()}
            for kind in ("exp_avg", "exp_avg_sq")
        }
        return {
            "parameter": {name: p.detach() for name, p in named.items()},
            **averages,
            "reference": self.frozen.tensors(),
            "random": {"cpu": torch.get_rng_state()},  # nothing depends on a GPU's: all noise is computed from keys
        }


def _share_in_groups(values: Tensor, batch: Batch) -> Tensor:
    """Values [B], equal within a group, with the group's value in every row: a row without tokens may have got 0."""
    has_tokens, group = batch.mask.any(dim=1).to(values.device), batch.group.to(values.device)
    of_group = values.new_zeros(batch.num_groups)
    of_group[group[has_tokens]] = values[has_tokens]
    return of_group[group]


def _mean_over_updates(results: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Mean of each metric over the updates that measured it; numbers of tokens are summed."""
    values_of = defaultdict[str, list[float]](list)
    for metrics in results:
        for name, value in metrics.items():
            values_of[name].append(value)
    means: dict[str, float] = {}
    for name, values in values_of.items():
        means[name] = math.fsum(values) / (1 if name.startswith("tokens/") else len(values))
    return means
