"""The policy as the trainer uses it: a language model, and heads beside it, applied to a `Layout`."""

import copy
from collections.abc import Collection
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rlvr.model.hugging_face import PreTrainedModel
from rlvr.model.structure import hidden_size, num_embeddings
from rlvr.objective.batch import Batch, Policy
from rlvr.trainer.heads import HEADS, prompt_mean
from rlvr.trainer.layout import Layout
from rlvr.trainer.logprob import candidates_logp, token_logp
from rlvr.trainer.rows import rows

# Largest allowed difference between the head's output and the model's own logits, as a fraction of the largest logit.
TOLERANCE = 1e-4


class ActorOutput(NamedTuple):
    """The outputs of a policy for a layout. A NamedTuple, so that FSDP finds the tensors in it."""

    logp: Tensor  # [n] nats, of the layout's response tokens
    entropy: Tensor | None  # [n] nats; None: not computed
    value: Tensor | None  # [n]; None: the policy has no value head
    log_z: Tensor | None  # [P]; None: the policy has no `LogZ` head
    candidates: Tensor | None = None  # [n, K] nats, of the most probable tokens; None: not computed


def hidden_states(decoder: nn.Module, layout: Layout) -> Tensor:
    """Hidden states of the last layer, [R, W, h]."""
    inputs: dict[str, Any] = {"input_ids": layout.input_ids, "use_cache": False}
    if layout.position_ids is not None:
        inputs["position_ids"] = layout.position_ids
    if layout.packed is not None:
        inputs["packed"] = layout.packed
    return decoder(**inputs).last_hidden_state


class Critic(nn.Module):
    """`Value` on a separate decoder that starts as a copy of the policy's: training it does not change the policy."""

    def __init__(self, decoder: nn.Module, value: nn.Module) -> None:
        """decoder: the policy's; it is copied, except for its configuration, which selects the attention of both.

        value: a `Value`.
        """
        super().__init__()
        config = getattr(decoder, "config", None)
        self.decoder = copy.deepcopy(decoder, {id(config): config})
        self.value = value

    def forward(self, layout: Layout) -> Tensor:
        """Values [n] of the layout's response tokens."""
        return self.value(rows(hidden_states(self.decoder, layout).flatten(0, 1), layout.predict))


class Actor(nn.Module):
    """A causal language model that returns log-probabilities under softmax(logits / temperature)."""

    def __init__(
        self, model: PreTrainedModel, temperature: float, heads: Collection[str] = (), *, own_critic: bool = False
    ) -> None:
        """heads: any of "value" and "log_z", trained beside the model. Their weights come from no file: they are
        initialised here, the same on every rank, even if the model's are not loaded yet (meta device).
        own_critic: the value head gets its own decoder (`Critic`), which has weights only if the model has.
        """
        super().__init__()
        self.model = model
        self.temperature = temperature
        self.compiled = False  # whether the passes over the head's logits are compiled
        self.num_candidates = 0  # whose log-probabilities are returned beside entropies
        self.heads = nn.ModuleDict()
        device = next(model.parameters()).device
        for name, head in HEADS.items():
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
        all_hidden = self.hidden(layout).flatten(0, 1)
        hidden = rows(all_hidden, layout.predict)  # all responses that share a prompt read its last token
        head = self.model.get_output_embeddings()
        assert head is not None  # `check_head`
        how = {"entropy_gradient": entropy_gradient, "with_entropy": with_entropy, "compiled": self.compiled}
        logp, entropy = token_logp(head, hidden, layout.target, self.temperature, **how)
        value = None
        if "value" in self.heads:
            value = self.heads["value"](hidden if self.critic is None else layout)
        log_z = None
        if "log_z" in self.heads:
            prompts = prompt_mean(all_hidden, layout.prompt_place, layout.prompt_owner, layout.num_prompts)
            log_z = self.heads["log_z"](prompts, keep)
        candidates = None
        if self.num_candidates and with_entropy:
            count, compiled = self.num_candidates, self.compiled
            candidates = candidates_logp(head, hidden, count, self.temperature, compiled=compiled)
        return ActorOutput(logp, entropy, value, log_z, candidates)

    def hidden(self, layout: Layout) -> Tensor:
        """Last hidden states, [R, W, h]."""
        return hidden_states(self.model.get_decoder(), layout)

    @property
    def critic(self) -> Critic | None:
        """The value head, if it has a decoder of its own; else None."""
        head = dict(self.heads.items()).get("value")
        return head if isinstance(head, Critic) else None


def scatter(values: Tensor, layout: Layout, part: Batch) -> Tensor:
    """Values [n, …] of response tokens, put at the tokens' places in [B, T, …]; 0 at padding."""
    rest = values.shape[1:]
    flat = values.new_zeros((part.tokens.numel(), *rest))
    return flat.index_put((layout.place,), values).view(*part.tokens.shape, *rest)


def to_policy(output: ActorOutput, layout: Layout, part: Batch) -> Policy:
    """The outputs for a layout as a `Policy` of its batch `part`: values per token are 0 at padding."""
    of_tokens = output._asdict()
    logp, log_z = scatter(of_tokens.pop("logp"), layout, part), of_tokens.pop("log_z")
    outputs = {name: None if x is None else scatter(x, layout, part) for name, x in of_tokens.items()}
    if log_z is not None:
        # No token was read: `part` may have rows, but the output has no values for them.
        outputs["log_z"] = log_z[part.group] if layout.num_prompts else logp.new_zeros(len(part.tokens))
    return Policy(logp, **outputs)


@torch.no_grad()
def check_head(actor: Actor) -> None:
    """Compare the head's output with the model's own logits on a few tokens, and hidden states with those without the
    tokens that follow. Raises ValueError if they differ.

    Models may scale, cap or shift their logits after the head, or read both directions. The hidden states are enlarged
    first, so that a cap is detected even on an untrained model, whose logits are small.
    """
    model = actor.model
    head = model.get_output_embeddings()
    name = type(model).__name__
    if head is None:
        raise ValueError(f"{name} has no output embeddings: the trainer needs a causal language model.")
    device = next(model.parameters()).device
    ids = torch.randint(num_embeddings(model), (1, 8), generator=torch.Generator().manual_seed(0)).to(device)

    whole, first = (
        model.get_decoder()(input_ids=part, use_cache=False).last_hidden_state[:, :4] for part in (ids, ids[:, :4])
    )
    if not float((whole - first).abs().max()) <= TOLERANCE * float(whole.abs().max()):
        raise ValueError(
            f"{name} is no causal model: what it computes at a token depends on those that follow. If it is an "
            "encoder, its config.json needs is_decoder=true, and weights trained that way."
        )

    def logits(factor: float) -> tuple[Tensor, Tensor]:
        """(output of the head, the model's logits) with hidden states multiplied by `factor`."""

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
    of_head, of_model = logits(100.0 / largest if largest > 0 else 1.0)
    difference = float((of_head - of_model).abs().max()) / max(float(of_model.abs().max()), 1.0)
    if not difference <= TOLERANCE:
        raise ValueError(
            f"{name} changes its logits after the output embeddings (they differ by {difference:.2g} of the largest): "
            "soft-capping or scaling is not supported, and training on other logits than those sampled from would be "
            "silently wrong. Choose a model without it (for instance Qwen or Llama)."
        )
