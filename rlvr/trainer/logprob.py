"""Log-probabilities of response tokens, without ever holding the logits of all tokens."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from rlvr.objective import penalty
from rlvr.objective.batch import Batch, Policy
from rlvr.trainer.heads import LogZ, Value, prompt_mean
from rlvr.trainer.pack import Layout

# Logits in one chunk (256 MB in float32). More than one chunk: the backward pass computes them anew.
CHUNK = 2**26
# How far the head may differ from the model's own logits, as a fraction of the largest logit.
TOLERANCE = 1e-4


class Seen(NamedTuple):
    """What a policy says about a layout; FSDP finds the tensors in it. Heads that it lacks say None."""

    logp: Tensor  # [n] nats, of the layout's response tokens
    entropy: Tensor  # [n] nats
    value: Tensor | None  # [n]
    log_z: Tensor | None  # [P]


class Actor(nn.Module):
    """A causal language model that answers with log-probabilities under softmax(logits / temperature)."""

    def __init__(self, model: PreTrainedModel, temperature: float, heads: Collection[str] = ()) -> None:
        """heads: of "value" and "log_z", trained beside the model. No file holds their weights: they are real, and the
        same on every rank, even where the model still has none (the meta device).
        """
        super().__init__()
        self.model = model
        self.temperature = temperature
        self.heads = nn.ModuleDict()
        device = next(model.parameters()).device
        for name, head in (("value", Value), ("log_z", LogZ)):
            if name in heads:
                self.heads[name] = head(width(self)).to("cpu" if device.type == "meta" else device)

    def forward(self, layout: Layout, *, entropy_gradient: bool = False, keep: Tensor | None = None) -> Seen:
        """float32. Entropy has a gradient only with `entropy_gradient`. keep: [P, 2, h], see `LogZ`."""
        every = self.hidden(layout).flatten(0, 1)
        hidden = every.index_select(0, layout.predict)
        head = self.model.get_output_embeddings()
        assert head is not None  # `check_head`
        logp, entropy = token_logp(head, hidden, layout.target, self.temperature, entropy_gradient=entropy_gradient)
        value = self.heads["value"](hidden) if "value" in self.heads else None
        log_z = None
        if "log_z" in self.heads:
            prompts = prompt_mean(every, layout.prompt_place, layout.prompt_owner, layout.num_prompts)
            log_z = self.heads["log_z"](prompts, keep)
        return Seen(logp, entropy, value, log_z)

    def hidden(self, layout: Layout) -> Tensor:
        """Last hidden states, [R, W, h]."""
        given: dict[str, Any] = {}
        if layout.position_ids is not None:
            given["position_ids"] = layout.position_ids
        if layout.packed is not None:
            given["packed"] = layout.packed
        return self.model.get_decoder()(input_ids=layout.input_ids, use_cache=False, **given).last_hidden_state


def token_logp(
    head: nn.Module, hidden: Tensor, target: Tensor, temperature: float, *, entropy_gradient: bool, chunk: int = CHUNK
) -> tuple[Tensor, Tensor]:
    """(logp [n], entropy [n]) of target [n] under softmax(head(hidden) / temperature), hidden [n, h].

    At most `chunk` logits exist at a time, in the forward and in the backward pass.
    """

    def some(hidden: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        logits = head(hidden).float() / temperature
        normaliser = logits.logsumexp(-1)
        logp = logits.gather(-1, target[:, None])[:, 0] - normaliser
        with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
            entropy = penalty.entropy(logits if entropy_gradient else logits.detach())
        return logp, entropy

    rows = max(1, chunk // vocabulary_size(head, hidden))
    if len(hidden) <= rows:
        return some(hidden, target)
    recompute = torch.is_grad_enabled()
    parts = [
        checkpoint(some, h, t, use_reentrant=False, preserve_rng_state=False) if recompute else some(h, t)
        for h, t in zip(hidden.split(rows), target.split(rows), strict=True)
    ]
    logp, entropy = zip(*parts, strict=True)
    return torch.cat(logp), torch.cat(entropy)


def scatter(values: Tensor, layout: Layout, part: Batch) -> Tensor:
    """Values [n] of response tokens in their places, [B, T], 0 at padding."""
    flat = values.new_zeros(part.tokens.numel())
    return flat.index_put((layout.place,), values).view(part.tokens.shape)


def policy_of(seen: Seen, layout: Layout, part: Batch) -> Policy:
    """What was seen of a layout, in the places of its batch: per token 0 at padding."""
    logp, entropy = scatter(seen.logp, layout, part), scatter(seen.entropy, layout, part)
    value = None if seen.value is None else scatter(seen.value, layout, part)
    if not layout.num_prompts:  # no token: `part` may have rows, and nothing was said about them
        return Policy(logp, entropy, value, None if seen.log_z is None else logp.new_zeros(len(part.tokens)))
    return Policy(logp, entropy, value, None if seen.log_z is None else seen.log_z[part.group])


def num_embeddings(model: PreTrainedModel) -> int:
    """Token ids that the model can read: 0 .. this − 1."""
    return int(cast(Tensor, model.get_input_embeddings().weight).shape[0])


@torch.no_grad()
def width(actor: Actor) -> int:
    """Size of the last hidden states; a table policy's are its logits."""
    size = getattr(actor.model.get_output_embeddings(), "in_features", None)
    if size is not None:
        return size
    ids = torch.zeros((1, 1), dtype=torch.int64, device=next(actor.model.parameters()).device)
    return actor.model.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state.shape[-1]


def vocabulary_size(head: nn.Module, hidden: Tensor) -> int:
    """Width of the logits; a table policy's head is the identity."""
    weight = getattr(head, "weight", None)
    return hidden.shape[-1] if weight is None else weight.shape[0]


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
