"""The policy as the trainer sees it: a language model, and heads beside it, that reads a layout."""

from __future__ import annotations

import copy
from collections.abc import Collection
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from rlvr.model.structure import hidden_size, num_embeddings
from rlvr.objective.batch import Batch, Policy
from rlvr.trainer.heads import LogZ, Value, prompt_mean
from rlvr.trainer.layout import Layout
from rlvr.trainer.logprob import token_logp

# How far the head may differ from the model's own logits, as a fraction of the largest logit.
TOLERANCE = 1e-4


class ActorOutput(NamedTuple):
    """What a policy says about a layout; FSDP sees the tensors in it. Heads that it lacks say None."""

    logp: Tensor  # [n] nats, of the layout's response tokens
    entropy: Tensor | None  # [n] nats; None: nobody reads it
    value: Tensor | None  # [n]
    log_z: Tensor | None  # [P]


def hidden_states(decoder: nn.Module, layout: Layout) -> Tensor:
    """The last ones, [R, W, h]."""
    reads: dict[str, Any] = {"input_ids": layout.input_ids, "use_cache": False}
    if layout.position_ids is not None:
        reads["position_ids"] = layout.position_ids
    if layout.packed is not None:
        reads["packed"] = layout.packed
    return decoder(**reads).last_hidden_state


class Critic(nn.Module):
    """`Value` on a decoder of its own, which starts as the policy's: what it learns leaves the policy as it is."""

    def __init__(self, decoder: nn.Module, value: nn.Module) -> None:
        """decoder: the policy's, copied but for its configuration, which says how both compute attention.

        value: a `Value`.
        """
        super().__init__()
        config = getattr(decoder, "config", None)
        self.decoder = copy.deepcopy(decoder, {id(config): config})
        self.value = value

    def forward(self, layout: Layout) -> Tensor:
        """[n], of the layout's response tokens."""
        return self.value(hidden_states(self.decoder, layout).flatten(0, 1).index_select(0, layout.predict))


class Actor(nn.Module):
    """A causal language model that answers with log-probabilities under softmax(logits / temperature)."""

    def __init__(
        self, model: PreTrainedModel, temperature: float, heads: Collection[str] = (), *, own_critic: bool = False
    ) -> None:
        """heads: of "value" and "log_z", trained beside the model. No file holds their weights: they are real, and the
        same on every rank, even where the model still has none (the meta device). own_critic: the value has a decoder
        of its own, which has weights where the model has.
        """
        super().__init__()
        self.model = model
        self.temperature = temperature
        self.heads = nn.ModuleDict()
        device = next(model.parameters()).device
        for name, head in (("value", Value), ("log_z", LogZ)):
            if name in heads:
                self.heads[name] = head(hidden_size(model)).to("cpu" if device.type == "meta" else device)
        if own_critic:
            self.heads["value"] = Critic(model.get_decoder(), self.heads["value"])

    def forward(
        self, layout: Layout, *, entropy_gradient: bool = False, with_entropy: bool = True, keep: Tensor | None = None
    ) -> ActorOutput:
        """float32. Entropy has a gradient only with `entropy_gradient`; it is None unless `with_entropy`.

        keep: [P, 2, h], see `LogZ`.
        """
        every = self.hidden(layout).flatten(0, 1)
        hidden = every.index_select(0, layout.predict)
        head = self.model.get_output_embeddings()
        assert head is not None  # `check_head`
        logp, entropy = token_logp(
            head, hidden, layout.target, self.temperature, entropy_gradient=entropy_gradient, with_entropy=with_entropy
        )
        value = None
        if "value" in self.heads:
            value = self.heads["value"](hidden if self.critic is None else layout)
        log_z = None
        if "log_z" in self.heads:
            prompts = prompt_mean(every, layout.prompt_place, layout.prompt_owner, layout.num_prompts)
            log_z = self.heads["log_z"](prompts, keep)
        return ActorOutput(logp, entropy, value, log_z)

    def hidden(self, layout: Layout) -> Tensor:
        """Last hidden states, [R, W, h]."""
        return hidden_states(self.model.get_decoder(), layout)

    @property
    def critic(self) -> Critic | None:
        """The value's decoder, where it has its own."""
        head = dict(self.heads.items()).get("value")
        return head if isinstance(head, Critic) else None


def scatter(values: Tensor, layout: Layout, part: Batch) -> Tensor:
    """Values [n] of response tokens in their places, [B, T], 0 at padding."""
    flat = values.new_zeros(part.tokens.numel())
    return flat.index_put((layout.place,), values).view(part.tokens.shape)


def to_policy(output: ActorOutput, layout: Layout, part: Batch) -> Policy:
    """What was said of a layout, in the places of its batch: per token 0 at padding."""
    logp = scatter(output.logp, layout, part)
    entropy, value = (None if each is None else scatter(each, layout, part) for each in (output.entropy, output.value))
    if output.log_z is None:
        return Policy(logp, entropy, value)
    if not layout.num_prompts:  # no token: `part` may have rows, of which the output says nothing
        return Policy(logp, entropy, value, logp.new_zeros(len(part.tokens)))
    return Policy(logp, entropy, value, output.log_z[part.group])


@torch.no_grad()
def check_head(actor: Actor) -> None:
    """Compare with the model's own logits on a few tokens. Raises ValueError where they differ.

    Models may scale, cap or shift their logits after the head. The hidden states are enlarged first, so that a cap
    shows even on an untrained model whose logits are small.
    """
    model = actor.model
    head = model.get_output_embeddings()
    name = type(model).__name__
    if head is None:
        raise ValueError(f"{name} has no output embeddings: the trainer needs a causal language model.")
    device = next(model.parameters()).device
    ids = torch.randint(num_embeddings(model), (1, 8), generator=torch.Generator().manual_seed(0)).to(device)

    def logits(factor: float) -> tuple[Tensor, Tensor]:
        def enlarge(_module: nn.Module, _args: object, output: Any) -> Any:
            output.last_hidden_state = output.last_hidden_state * factor
            return output

        hook = model.get_decoder().register_forward_hook(enlarge)
        try:
            hidden = model.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state
            return head(hidden).float(), model(input_ids=ids, use_cache=False).logits.float()
        finally:
            hook.remove()

    largest = float(logits(1.0)[0].abs().max())
    mine, theirs = logits(100.0 / largest if largest > 0 else 1.0)
    difference = float((mine - theirs).abs().max()) / max(float(theirs.abs().max()), 1.0)
    if not difference <= TOLERANCE:
        raise ValueError(
            f"{name} changes its logits after the output embeddings (they differ by {difference:.2g} of the largest): "
            "soft-capping or scaling is not supported, and training on other logits than those sampled from would be "
            "silently wrong. Choose a model without it (for instance Qwen or Llama)."
        )
